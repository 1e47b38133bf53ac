//! What the handles of a cache in this process have seen: hits and misses, and the events that came.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the handles of a cache in this process have seen. Made by [`Cache::stats`](super::Cache::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Calls of `get`, `get_ex` and of verbs that load that found a live value; of `get_many` each key counts.
    pub hits: u64,
    /// Those that found none.
    pub misses: u64,
    /// Loaders that ran in this process.
    pub loads: u64,
    /// Those that returned an error, or whose value could not be put.
    pub failed_loads: u64,
    /// Expirations that came to this process, whether to [`Events`](super::Events), once for all of them, or
    /// to [`LosslessEvents`](super::LosslessEvents).
    pub events: u64,
    /// Expirations that [`Events`](super::Events) missed on the server.
    pub missed: u64,
}

/// Counted one by one, without an order between them: a snapshot may have an event whose hit it misses.
#[derive(Default)]
pub(super) struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    loads: AtomicU64,
    failed_loads: AtomicU64,
    events: AtomicU64,
    missed: AtomicU64,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl Counters {
    /// Counts a read as a hit or a miss.
    pub(super) fn read<T>(&self, value: &Option<T>) {
        let counter = if value.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn load(&self) {
        self.loads.fetch_add(1, Relaxed);
    }

    pub(super) fn failed_load(&self) {
        self.failed_loads.fetch_add(1, Relaxed);
    }

    pub(super) fn event(&self) {
        self.events.fetch_add(1, Relaxed);
    }

    pub(super) fn missed(&self, events: u64) {
        self.missed.fetch_add(events, Relaxed);
    }

    pub(super) fn snapshot(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            loads: self.loads.load(Relaxed),
            failed_loads: self.failed_loads.load(Relaxed),
            events: self.events.load(Relaxed),
            missed: self.missed.load(Relaxed),
        }
    }
}
