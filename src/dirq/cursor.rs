//! The position of an iteration that locks elements: the names to be tried.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Error, Lock, Name,
    protocol::Protocol,
    record::now_micros,
    records::Records,
    root::Root,
    snapshot::{Directory, Snapshot},
};

/// The names of a queue that are to be tried.
#[derive(Default)]
pub(super) struct Cursor {
    names: VecDeque<Name>,
    /// Directories that are not listed yet; `None` before they are known.
    directories: Option<VecDeque<u32>>,
    /// Records of the queue's elements that were delivered before; `None` if there are none.
    records: Option<Arc<Snapshot>>,
    /// The [generation](super::root::Opener::generation) of the queue before its records were read.
    generation: Option<u64>,
    /// The element after which the iteration begins.
    after: Option<Name>,
}

impl Cursor {
    /// Returns a cursor that begins after an element, or at the first.
    pub(super) fn after(after: Option<Name>) -> Self {
        Self { after, ..Self::default() }
    }

    /// Returns a cursor at the end, which yields only requeued elements.
    pub(super) fn at_end() -> Self {
        Self { directories: Some(VecDeque::new()), ..Self::default() }
    }

    /// Returns the number of names that come before something has to be listed.
    pub(super) fn listed(&self) -> usize {
        self.names.len()
    }

    /// Returns the next name if it is listed.
    pub(super) fn front(&self) -> Option<&Name> {
        self.names.front()
    }

    /// Returns true if the queue may have records of elements: another worker may have written the first one since the
    /// iteration began.
    pub(super) fn may_have_records(&self, root: &Root) -> bool {
        let has_none = self.records.is_none()
            && self.generation.is_some()
            && self.generation == root.opener().generation();
        !has_none
    }

    /// Returns the next element to be locked. The queue is read directory by directory.
    pub(super) fn next<P: Protocol + ?Sized>(
        &mut self,
        queue: &Arc<P>,
    ) -> Option<Result<Name, Error>> {
        if let Err(error) = self.list(queue) {
            return Some(Err(error));
        }
        self.names.pop_front().map(Ok)
    }

    /// Makes the element the next one.
    pub(super) fn put_back(&mut self, name: Name) {
        self.names.push_front(name);
    }

    /// Ends the iteration.
    pub(super) fn end(&mut self) {
        *self = Self::at_end();
    }

    /// Requeues elements that were unlocked, and the stale ones, which this unlocks. Returns the errors among the stale
    /// ones.
    pub(super) fn requeue<T: Send + 'static>(
        &mut self,
        released: Vec<Name>,
        stale: VecDeque<Result<Lock<T>, Error>>,
    ) -> VecDeque<Result<Lock<T>, Error>> {
        let (locks, errors): (VecDeque<_>, _) = stale.into_iter().partition(Result::is_ok);
        let stale = locks.iter().flatten().map(|lock| *lock.name());
        let requeued: Vec<_> = released.into_iter().chain(stale).collect();
        // In reverse, so that the first is the next one again.
        requeued.into_iter().rev().for_each(|name| self.names.push_front(name));
        errors
    }

    /// Lists directories until a name is known or the queue is exhausted. Elements that wait for their backoff are
    /// omitted, even if they become due during the iteration.
    fn list<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) -> Result<(), Error> {
        if self.directories.is_none() {
            // Set first: if the listing fails, the iteration ends.
            self.directories = Some(VecDeque::new());
            let mut directories = queue.root().directories()?;
            directories
                .retain(|&directory| self.after.is_none_or(|after| after.directory <= directory));
            self.generation = queue.root().opener().generation();
            let records = Records::snapshot(queue.root());
            // Without its records, the queue would deliver dead letters. A foreign file is not records.
            if let Ok(_) | Err(Error::Foreign { .. }) = records {
                self.directories = Some(directories.into());
            }
            self.records = records?;
        }
        while self.names.is_empty() {
            let next = self.directories.as_mut().and_then(VecDeque::pop_front);
            let Some(directory) = next else { break };
            let root = queue.root();
            let looked = match &self.records {
                Some(records) if root.is_local() => records.dead.look(root.path(), directory),
                _ => Directory::Unknown(None),
            };
            let Directory::Unknown(version) = looked else { continue };
            let (mut names, now) = (queue.unlocked(directory)?, now_micros());
            if let Some(records) = &self.records {
                if let Some(version) = version {
                    records.dead.note(directory, version, &names);
                }
                names.retain(|name| records.is_due(name, now));
            }
            names.retain(|name| self.after.is_none_or(|after| after < *name));
            names.sort_unstable();
            self.names = names.into();
        }
        Ok(())
    }
}
