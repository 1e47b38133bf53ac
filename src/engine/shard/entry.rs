//! An entry: a value and its deadline.

use std::mem::{self, offset_of};

use crate::engine::{
    clock::{AtomicDeadline, Deadline, Tick},
    event::departure::{Cause, Departure},
};

/// A value and its deadline, which takes one word. Atomic, so that a read may extend an idle deadline under the read
/// lock.
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    deadline: AtomicDeadline,
}

impl<V> Entry<V> {
    /// Position of the deadline, for prefetches.
    pub(crate) const DEADLINE_OFFSET: usize = offset_of!(Self, deadline);

    pub(crate) fn new(value: V, deadline: Deadline) -> Self {
        Self { value, deadline: AtomicDeadline::new(deadline) }
    }

    #[inline(always)]
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline.get()
    }

    #[inline]
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline.set(deadline);
    }

    /// Moves the deadline to `to` if that is later. Needs only the read lock: concurrent calls leave the latest of
    /// their deadlines.
    #[inline]
    pub(crate) fn put_off(&self, to: Deadline) {
        self.deadline.put_off(to);
    }

    /// Exchanges the value in place, and sets the deadline. Returns the previous one.
    #[inline]
    pub(crate) fn swap(&mut self, value: &mut V, deadline: Deadline) -> Deadline {
        mem::swap(&mut self.value, value);
        let before = self.deadline();
        self.deadline.set(deadline);
        before
    }

    /// Converts the entry to its departure. Waiters are attached by the shard.
    pub(crate) fn depart<K>(self, key: K, cause: Cause, at: Tick) -> Departure<K, V> {
        let deadline = self.deadline();
        Departure { key, value: self.value, cause, deadline, at, waiters: None }
    }
}
