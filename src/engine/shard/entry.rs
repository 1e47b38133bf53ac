//! An entry: a value and its deadline.

use std::mem;

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

    /// Replaces the value and the deadline, and returns the previous ones. Written field by field: if an entry is
    /// assembled in parts and then read as a whole, the read waits for all stores of the parts.
    #[inline]
    pub(crate) fn replace(&mut self, value: V, deadline: Deadline) -> Self {
        let value = mem::replace(&mut self.value, value);
        let before = Self::new(value, self.deadline());
        self.deadline.set(deadline);
        before
    }

    /// Converts the entry to its departure. Waiters are attached by the shard.
    pub(crate) fn depart<K>(self, key: K, cause: Cause, at: Tick) -> Departure<K, V> {
        let deadline = self.deadline();
        Departure { key, value: self.value, cause, deadline, at, waiters: None }
    }
}
