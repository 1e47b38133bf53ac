//! Where hits, misses and departures are counted, so that no two threads share a counter unless they share a lock.

use std::thread::available_parallelism;

use crate::engine::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    threads,
};

/// Hits and misses: a slot a thread, which it alone writes. A reader then needs no locked instruction for it.
pub(super) struct ReadCounters {
    slots: Box<[ReadSlot]>,
    /// For threads that have no slot of their own, as there are so many.
    shared: ReadSlot,
}

#[derive(Default)]
#[repr(align(64))]
struct ReadSlot {
    hits: AtomicU64,
    misses: AtomicU64,
    /// Of the misses, those of keys that were evicted lately.
    misses_of_evicted: AtomicU64,
}

/// What left one shard; written under its lock.
#[derive(Default)]
pub(super) struct DepartureCounters {
    pub(super) expired: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) replaced: AtomicU64,
}

/// How many reads and departures there have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) misses_of_evicted: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) removed: u64,
    pub(crate) replaced: u64,
}

impl ReadCounters {
    pub(super) fn new() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        let slots = (0..(2 * cores).max(16)).map(|_| ReadSlot::default()).collect();
        Self { slots, shared: ReadSlot::default() }
    }

    #[inline]
    pub(super) fn count(&self, hit: bool) {
        // `benches/counters.rs` measures what it costs.
        if cfg!(not(uncounted)) {
            self.count_in(|slot| if hit { &slot.hits } else { &slot.misses });
        }
    }

    /// Beside [`count`](Self::count): it was a miss of a key that was evicted lately.
    pub(super) fn count_evicted(&self) {
        self.count_in(|slot| &slot.misses_of_evicted);
    }

    #[inline]
    fn count_in(&self, counter: impl Fn(&ReadSlot) -> &AtomicU64) {
        match self.slots.get(threads::number()) {
            Some(slot) => bump(counter(slot), 1),
            None => _ = counter(&self.shared).fetch_add(1, Relaxed),
        }
    }

    pub(super) fn add_to(&self, counts: &mut Counts) {
        for slot in self.slots.iter().chain([&self.shared]) {
            counts.hits += slot.hits.load(Relaxed);
            counts.misses += slot.misses.load(Relaxed);
            counts.misses_of_evicted += slot.misses_of_evicted.load(Relaxed);
        }
    }
}

impl Counts {
    /// How many have left the store.
    pub(crate) fn departures(&self) -> u64 {
        self.expired + self.evicted + self.removed
    }
}

impl DepartureCounters {
    pub(super) fn add_to(&self, counts: &mut Counts) {
        counts.expired += self.expired.load(Relaxed);
        counts.evicted += self.evicted.load(Relaxed);
        counts.removed += self.removed.load(Relaxed);
        counts.replaced += self.replaced.load(Relaxed);
    }
}

/// Counts where nobody else does, so that a load and a store are enough.
#[inline]
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Relaxed) + by, Relaxed);
}
