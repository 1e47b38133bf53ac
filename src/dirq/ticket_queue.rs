//! A queue of waiting items, each of which can be withdrawn, and the state that the lock of the queue guards.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Mutex, MutexGuard},
};

use super::mutex::lock;

/// Waiting items in order of arrival, and the state `S` that decides how long they wait.
pub(super) struct TicketQueue<T, S>(Mutex<LockedTickets<T, S>>);

/// The content of a queue, whose lock is held.
pub(super) struct LockedTickets<T, S> {
    /// In order of arrival, and so sorted by ticket.
    waiting: VecDeque<(u64, T)>,
    tickets: u64,
    pub(super) state: S,
}

impl<T, S> TicketQueue<T, S> {
    pub(super) fn lock(&self) -> MutexGuard<'_, LockedTickets<T, S>> {
        lock(&self.0)
    }

    /// Returns the guard of the item with this ticket.
    pub(super) fn guard(&self, ticket: u64) -> TicketGuard<'_, T, S> {
        TicketGuard { queue: self, ticket }
    }
}

impl<T, S> LockedTickets<T, S> {
    /// Adds an item, and returns its ticket.
    pub(super) fn push(&mut self, item: T) -> u64 {
        self.tickets += 1;
        self.waiting.push_back((self.tickets, item));
        self.tickets
    }

    /// Removes up to `count` items, in order of arrival.
    pub(super) fn take(&mut self, count: usize) -> Vec<T> {
        let count = count.min(self.waiting.len());
        self.waiting.drain(..count).map(|(_, item)| item).collect()
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, item)| item)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// The guard of an item in its queue. Dropping it withdraws the item, unless that has been taken.
pub(super) struct TicketGuard<'a, T, S> {
    queue: &'a TicketQueue<T, S>,
    ticket: u64,
}

impl<T, S> Drop for TicketGuard<'_, T, S> {
    fn drop(&mut self) {
        let mut locked = self.queue.lock();
        let found = locked.waiting.binary_search_by_key(&self.ticket, |(ticket, _)| *ticket);
        let withdrawn = found.ok().and_then(|index| locked.waiting.remove(index));
        drop(locked);
        // After the lock is released: this drops work, or a permit, which may use the queue again.
        drop(withdrawn);
    }
}

impl<T, S: Default> Default for TicketQueue<T, S> {
    fn default() -> Self {
        let (waiting, tickets, state) = (VecDeque::new(), 0, S::default());
        Self(Mutex::new(LockedTickets { waiting, tickets, state }))
    }
}

impl<T, S> fmt::Debug for TicketQueue<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketQueue").finish_non_exhaustive()
    }
}
