//! Counters of hits, misses and departures, without contention: each is written by one thread, or under one lock.

use std::thread::available_parallelism;

use crate::engine::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    threads,
};

/// Counters of hits and misses: one slot per thread, which only that thread writes. So counting needs no locked
/// instruction.
pub(crate) struct ReadCounters {
    slots: Box<[ReadSlot]>,
    /// Shared by the threads whose number is beyond the slots.
    shared: ReadSlot,
}

#[derive(Default)]
#[repr(align(64))]
struct ReadSlot {
    hits: AtomicU64,
    misses: AtomicU64,
    /// The misses of keys that were evicted recently, which are also counted in `misses`.
    misses_of_evicted: AtomicU64,
}

/// Counters of the departures from one shard, written under its lock.
#[derive(Default)]
pub(crate) struct DepartureCounters {
    pub(crate) expired: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) removed: AtomicU64,
    pub(crate) replaced: AtomicU64,
}

/// Sums of all counters of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterSums {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) misses_of_evicted: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) removed: u64,
    pub(crate) replaced: u64,
}

impl ReadCounters {
    pub(crate) fn new() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        let slots = (0..(2 * cores).max(16)).map(|_| ReadSlot::default()).collect();
        Self { slots, shared: ReadSlot::default() }
    }

    #[inline]
    pub(crate) fn count(&self, hit: bool) {
        // `benches/counters.rs` measures the cost of counting by building without it.
        if cfg!(not(uncounted)) {
            self.count_in(|slot| if hit { &slot.hits } else { &slot.misses });
        }
    }

    /// Counts a miss of a recently evicted key, in addition to [`count`](Self::count).
    pub(crate) fn count_evicted(&self) {
        self.count_in(|slot| &slot.misses_of_evicted);
    }

    #[inline]
    fn count_in(&self, counter: impl Fn(&ReadSlot) -> &AtomicU64) {
        match self.slots.get(threads::number()) {
            Some(slot) => bump(counter(slot), 1),
            None => _ = counter(&self.shared).fetch_add(1, Relaxed),
        }
    }

    pub(crate) fn add_to(&self, counts: &mut CounterSums) {
        for slot in self.slots.iter().chain([&self.shared]) {
            counts.hits += slot.hits.load(Relaxed);
            counts.misses += slot.misses.load(Relaxed);
            counts.misses_of_evicted += slot.misses_of_evicted.load(Relaxed);
        }
    }
}

impl CounterSums {
    /// Returns the number of entries that were removed without being replaced.
    pub(crate) fn departures(&self) -> u64 {
        self.expired + self.evicted + self.removed
    }
}

impl DepartureCounters {
    pub(crate) fn add_to(&self, counts: &mut CounterSums) {
        counts.expired += self.expired.load(Relaxed);
        counts.evicted += self.evicted.load(Relaxed);
        counts.removed += self.removed.load(Relaxed);
        counts.replaced += self.replaced.load(Relaxed);
    }
}

/// Increments a counter that has no other writer at the time, so that a load and a store suffice.
#[inline]
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Relaxed) + by, Relaxed);
}
