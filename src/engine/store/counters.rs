//! Where hits, misses and departures are counted: in each shard, so that no two threads share a counter unless
//! they share a lock.

use std::hash::{BuildHasher, Hash};

use super::{Location, Store};
use crate::engine::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// What happened in one shard.
#[derive(Default)]
pub(super) struct Counters {
    /// Hits and misses.
    pub(super) reads: AtomicU64,
    pub(super) misses: AtomicU64,
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

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for shard in &self.shards {
            let counters = &shard.counters;
            // In this order, as a miss is counted after its read.
            let misses = counters.misses.load(Acquire);
            sum.hits += counters.reads.load(Relaxed).saturating_sub(misses);
            sum.misses += misses;
            sum.expired += counters.expired.load(Relaxed);
            sum.removed += counters.removed.load(Relaxed);
            sum.replaced += counters.replaced.load(Relaxed);
        }
        sum
    }

    /// Counts a read that is about to be; returns how many there were in that shard.
    #[inline]
    pub(crate) fn count_read(&self, place: Location) -> u64 {
        self.shards[place.index].counters.reads.fetch_add(1, Relaxed)
    }

    /// The read was counted too early.
    #[cold]
    pub(crate) fn uncount_read(&self, place: Location) {
        self.shards[place.index].counters.reads.fetch_sub(1, Relaxed);
    }

    #[inline]
    pub(super) fn count_outcome(&self, place: Location, hit: bool) {
        if !hit {
            self.shards[place.index].counters.misses.fetch_add(1, Relaxed);
        }
    }
}

/// Counts under the shard's lock, where a load and a store are enough.
#[inline]
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Relaxed) + by, Relaxed);
}
