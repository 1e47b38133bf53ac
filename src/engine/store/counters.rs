//! Where hits, misses and departures are counted: in each shard, so that no two threads share a counter unless
//! they share a lock.

use crate::engine::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// What happened in one shard.
#[derive(Default)]
pub(super) struct Counters {
    /// Hits and misses.
    reads: AtomicU64,
    misses: AtomicU64,
    /// These three are written under the shard's lock.
    pub(super) expired: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) replaced: AtomicU64,
}

/// How many reads and departures there have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) expired: u64,
    pub(crate) removed: u64,
    pub(crate) replaced: u64,
}

impl Counters {
    /// Counts a read that is about to be; returns how many there were.
    #[inline]
    pub(super) fn count_read(&self) -> u64 {
        self.reads.fetch_add(1, Relaxed)
    }

    /// The read was counted too early.
    pub(super) fn uncount_read(&self) {
        self.reads.fetch_sub(1, Relaxed);
    }

    /// A read that was counted has found nothing. Hits are what is left: they need no second counter.
    #[inline]
    pub(super) fn count_miss(&self) {
        self.misses.fetch_add(1, Relaxed);
    }
}

impl Counts {
    pub(super) fn add(&mut self, counters: &Counters) {
        // In this order, as a miss is counted after its read: else a miss might be taken off a read that is not
        // there yet.
        let misses = counters.misses.load(Acquire);
        self.hits += counters.reads.load(Relaxed).saturating_sub(misses);
        self.misses += misses;
        self.expired += counters.expired.load(Relaxed);
        self.removed += counters.removed.load(Relaxed);
        self.replaced += counters.replaced.load(Relaxed);
    }
}

/// Counts under the shard's lock, where a load and a store are enough.
#[inline]
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Relaxed) + by, Relaxed);
}
