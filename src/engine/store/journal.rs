//! Departures between the lock of a shard, under which they happen, and the streams that tell of them.

use super::entry::{Cause, Departure};
use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, Ordering::*},
};

/// The departures nobody has been told of yet, in the order in which they happened.
///
/// A departure is moved in here while its shard is locked, so the order of two departures of one key is
/// the order in which they happened; telling anybody waits until the shard is unlocked.
pub(crate) struct Journal<K, V> {
    /// The causes somebody wants to hear of, as bits; none without a subscriber.
    wanted: AtomicU8,
    /// Saves the lock where nothing happened.
    dirty: AtomicBool,
    staged: Mutex<Vec<Departure<K, V>>>,
}

impl<K, V> Journal<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            wanted: AtomicU8::new(0),
            dirty: AtomicBool::new(false),
            staged: Mutex::new(Vec::new()),
        }
    }

    /// Relaxed is enough: who subscribed before a departure in program order is seen by it.
    #[inline]
    pub(crate) fn wants(&self, cause: Cause) -> bool {
        self.wanted.load(Relaxed) & cause.bit() != 0
    }

    pub(crate) fn want(&self, causes: u8) {
        self.wanted.store(causes, Relaxed);
    }

    /// Keeps a departure, or gives it back where nobody wants to hear of it.
    #[must_use = "what is given back must be dropped after the shard is unlocked"]
    pub(crate) fn record(&self, departure: Departure<K, V>) -> Option<Departure<K, V>> {
        if !self.wants(departure.cause) {
            return Some(departure);
        }
        // In this order: who sees the flag finds the departure.
        let mut staged = self.lock();
        staged.push(departure);
        self.dirty.store(true, Release);
        None
    }

    /// Keeps all of `departures`, or leaves them where nobody wants to hear of `cause`.
    pub(crate) fn record_all(&self, cause: Cause, departures: &mut Vec<Departure<K, V>>) {
        if self.wants(cause) && !departures.is_empty() {
            self.lock().append(departures);
            self.dirty.store(true, Release);
        }
    }

    /// Keeps those of `departures` whose causes somebody wants to hear of, and leaves the others.
    pub(crate) fn record_wanted(&self, departures: &mut Vec<Departure<K, V>>) {
        let wanted = departures.extract_if(.., |departure| self.wants(departure.cause));
        let mut staged = self.lock();
        staged.extend(wanted);
        self.dirty.store(!staged.is_empty(), Release);
    }

    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Acquire)
    }

    /// Exchanges what is kept for `empty`, of which the memory is used for what comes next.
    pub(crate) fn take(&self, empty: &mut Vec<Departure<K, V>>) {
        debug_assert!(empty.is_empty(), "what was taken before must have been told");
        let mut staged = self.lock();
        // Under the lock, so that no departure is left behind by a flag that was just set.
        self.dirty.store(false, Relaxed);
        std::mem::swap(&mut *staged, empty);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Departure<K, V>>> {
        self.staged.lock().expect("nothing panics while it moves a departure")
    }
}
