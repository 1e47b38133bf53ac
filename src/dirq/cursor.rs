//! The position of an iteration that locks elements: the names to be tried, of one queue or several.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{
    Error, Lock, Name,
    protocol::Protocol,
    records::{Record, Records, now_micros},
    root::DirId,
};

/// The names to be tried, by queue.
pub(super) struct Cursor(Vec<QueueCursor>);

/// The names of one queue that are to be tried.
struct QueueCursor {
    id: DirId,
    names: VecDeque<Name>,
    /// Directories that are not listed yet; `None` before they are known.
    directories: Option<VecDeque<u32>>,
    /// Records of the queue's elements that were delivered before.
    records: HashMap<Name, Record>,
    has_records: bool,
}

/// An element to be locked.
pub(super) struct Candidate {
    /// The index of its queue.
    pub(super) queue: usize,
    pub(super) name: Name,
    /// True if its queue may have a record of it.
    pub(super) has_records: bool,
}

impl Cursor {
    pub(super) fn at_start<T: Send + 'static>(queues: &[Arc<dyn Protocol<Payload = T>>]) -> Self {
        Self(queues.iter().map(|queue| QueueCursor::new(queue.root().id(), None)).collect())
    }

    /// Returns a cursor at the end, which yields only requeued elements.
    pub(super) fn at_end<T: Send + 'static>(queues: &[Arc<dyn Protocol<Payload = T>>]) -> Self {
        let end = || Some(VecDeque::new());
        Self(queues.iter().map(|queue| QueueCursor::new(queue.root().id(), end())).collect())
    }

    /// Returns the minimum number of names that come before something has to be listed.
    pub(super) fn listed(&self) -> usize {
        let left = self.0.iter().filter(|source| !source.is_exhausted());
        left.map(|source| source.names.len()).min().unwrap_or(0)
    }

    /// Returns the next element. Each queue is read directory by directory; of the next elements of all queues, the
    /// oldest is returned.
    pub(super) fn next<T: Send + 'static>(
        &mut self,
        queues: &[Arc<dyn Protocol<Payload = T>>],
    ) -> Option<Result<Candidate, Error>> {
        for (source, queue) in self.0.iter_mut().zip(queues) {
            if let Err(error) = source.list(queue) {
                return Some(Err(error));
            }
        }
        let heads = self.0.iter().enumerate();
        let heads =
            heads.filter_map(|(queue, source)| Some((source.names.front()?.element, queue)));
        // By the numbers of the elements, which begin with their times.
        let (_, queue) = heads.min()?;
        let source = &mut self.0[queue];
        let name = source.names.pop_front()?;
        Some(Ok(Candidate { queue, name, has_records: source.has_records }))
    }

    /// Makes the element the next of its queue.
    pub(super) fn put_back(&mut self, candidate: Candidate) {
        self.0[candidate.queue].names.push_front(candidate.name);
    }

    /// Requeues elements that were unlocked, and the stale ones, which this unlocks. Returns the errors among the stale
    /// ones.
    pub(super) fn requeue<T: Send + 'static>(
        &mut self,
        released: Vec<(DirId, Name)>,
        stale: VecDeque<Result<Lock<T>, Error>>,
    ) -> VecDeque<Result<Lock<T>, Error>> {
        let (locks, errors): (VecDeque<_>, _) = stale.into_iter().partition(Result::is_ok);
        let stale = locks.iter().flatten().map(Lock::queue_and_name);
        let requeued: Vec<_> = released.into_iter().chain(stale).collect();
        // In reverse, so that the first is the next one again.
        for (id, name) in requeued.into_iter().rev() {
            if let Some(source) = self.0.iter_mut().find(|source| source.id == id) {
                source.names.push_front(name);
            }
        }
        errors
    }
}

impl QueueCursor {
    fn new(id: DirId, directories: Option<VecDeque<u32>>) -> Self {
        let (names, records) = (VecDeque::new(), HashMap::new());
        Self { id, names, directories, records, has_records: false }
    }

    fn is_exhausted(&self) -> bool {
        self.names.is_empty() && self.directories.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Lists directories until a name is known or the queue is exhausted. Elements that wait for their backoff are
    /// omitted, even if they become due during the iteration.
    fn list<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) -> Result<(), Error> {
        if self.directories.is_none() {
            // Set first: if the listing fails, the iteration of this queue ends.
            self.directories = Some(VecDeque::new());
            self.directories = Some(queue.root().directories()?.into());
            if let Some(records) = Records::open(queue.root())? {
                self.has_records = true;
                self.records = records.list()?.into_iter().collect();
            }
        }
        while self.names.is_empty() {
            let next = self.directories.as_mut().and_then(VecDeque::pop_front);
            let Some(directory) = next else { break };
            let (mut names, now) = (queue.unlocked(directory)?, now_micros());
            names.retain(|name| self.records.get(name).is_none_or(|record| record.is_due(now)));
            names.sort_unstable();
            self.names = names.into();
        }
        Ok(())
    }
}
