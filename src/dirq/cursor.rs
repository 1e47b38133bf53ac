//! Where a walk through queues that locks elements is: the names that are still to come, the first of all next.

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

/// The names that are still to come, of each queue.
pub(super) struct Cursor(Vec<QueueCursor>);

/// Those of one queue.
struct QueueCursor {
    id: DirId,
    names: VecDeque<Name>,
    /// None before they are listed.
    directories: Option<VecDeque<u32>>,
    /// What is known of those that were given out before.
    records: HashMap<Name, Record>,
    has_records: bool,
}

/// An element of one of the queues.
pub(super) struct Candidate {
    /// Which of the queues it is.
    pub(super) queue: usize,
    pub(super) name: Name,
    /// Whether there may be a record of it.
    pub(super) has_records: bool,
}

impl Cursor {
    pub(super) fn at_start<T: Send + 'static>(queues: &[Arc<dyn Protocol<Payload = T>>]) -> Self {
        Self(queues.iter().map(|queue| QueueCursor::new(queue.root().id(), None)).collect())
    }

    /// One from which only what is given back still comes.
    pub(super) fn at_end<T: Send + 'static>(queues: &[Arc<dyn Protocol<Payload = T>>]) -> Self {
        let end = || Some(VecDeque::new());
        Self(queues.iter().map(|queue| QueueCursor::new(queue.root().id(), end())).collect())
    }

    /// How many names come at least before something has to be listed.
    pub(super) fn listed(&self) -> usize {
        let left = self.0.iter().filter(|source| !source.is_exhausted());
        left.map(|source| source.names.len()).min().unwrap_or(0)
    }

    /// The first of all: each queue goes from one of its directories to the next, and of the elements that they are
    /// at, the oldest comes first.
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
        let (_, queue) = heads.min()?;
        let source = &mut self.0[queue];
        let name = source.names.pop_front()?;
        Some(Ok(Candidate { queue, name, has_records: source.has_records }))
    }

    /// Lets an element come anew.
    pub(super) fn put_back(&mut self, candidate: Candidate) {
        self.0[candidate.queue].names.push_front(candidate.name);
    }

    /// Lets elements come anew that were given back, and those that are by this; returns the errors between them.
    pub(super) fn requeue<T: Send + 'static>(
        &mut self,
        released: Vec<(DirId, Name)>,
        stale: VecDeque<Result<Lock<T>, Error>>,
    ) -> VecDeque<Result<Lock<T>, Error>> {
        let (locks, errors): (VecDeque<_>, _) = stale.into_iter().partition(Result::is_ok);
        let stale = locks.iter().flatten().map(Lock::queue_and_name);
        let requeued: Vec<_> = released.into_iter().chain(stale).collect();
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

    /// Lists until a name is known, or all are over. Those that rest are left out, whether or not they are due before
    /// the walk is there.
    fn list<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) -> Result<(), Error> {
        if self.directories.is_none() {
            // First: where it can't be listed, the walk ends.
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
