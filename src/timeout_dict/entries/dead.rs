//! Entries that failed too often: they wait for somebody who asks for them, and for nothing else.

use equivalent::Equivalent;

use super::{Entries, Location, QueuedIn, Timer};
use crate::engine::clock::Deadline;

impl<K, V> Entries<K, V> {
    /// Takes out the entry that has been dead for longest.
    pub(in crate::timeout_dict) fn take_dead(&mut self) -> Option<(K, V)> {
        let first = self.dead.first(|_| ())?;
        self.dequeue(first.location);
        Some(self.remove_at(first.location))
    }

    pub(in crate::timeout_dict) fn dead_len(&self) -> usize {
        self.dead_len
    }

    /// Lets a dead entry begin anew; false where there is none.
    pub(in crate::timeout_dict) fn revive<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        deadline: Deadline,
    ) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        let found = self.find(Location::fold(hash), key);
        let Some(location) = found.filter(|location| self.is_dead(*location)) else { return false };
        self.reschedule(location, deadline);
        self.entry_mut(location).attempts = 0;
        true
    }

    pub(super) fn is_dead(&self, location: Location) -> bool {
        matches!(self.entry(location).queued_in, QueuedIn::Dead)
    }

    /// From no queue into `dead`. A claim on it is not void yet: who is late may still ack.
    pub(super) fn bury(&mut self, location: Location) {
        let sequence = self.next_sequence();
        let entry = self.entry_mut(location);
        // It keeps its deadline, since who is late may extend, too: then it lives, and is due.
        entry.sequence = sequence;
        entry.queued_in = QueuedIn::Dead;
        self.dead.insert(Timer { deadline: Deadline::PERSISTENT, sequence, location });
        self.dead_len += 1;
    }
}
