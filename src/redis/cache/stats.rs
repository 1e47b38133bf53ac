//! Counters of a cache in this process: hits and misses, loads, and events.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counters of all handles of a cache in this process. Returned by [`Cache::stats`](super::Cache::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Reads that found a live value: by `get`, `get_ex`, the loader methods, and for each key of `get_many`. A
    /// `contains_key` counts if the [near cache](super::CacheBuilder::near) answers it.
    pub hits: u64,
    /// Reads by these methods that found no live value.
    pub misses: u64,
    /// Loaders that were called in this process.
    pub loads: u64,
    /// Loads that returned an error, or whose value could not be written.
    pub failed_loads: u64,
    /// Expirations received by this process: each is counted once for all [`Events`](super::Events) together, and once
    /// for each [`LosslessEvents`](super::LosslessEvents).
    pub events: u64,
    /// Expirations that subscribers missed: the server no longer had them, or an [`Events`](super::Events) could not
    /// decode them. Counted like `events`.
    pub missed: u64,
    /// Hits and misses that the [near cache](super::CacheBuilder::near) answered, without the server.
    pub near_hits: u64,
    /// Changed keys that servers have reported, including changes by this process.
    pub invalidations: u64,
    /// Answers that the near cache could not keep, because the key changed during the read or the server did not
    /// guarantee to report changes.
    pub bypassed: u64,
}

/// Counters that a near cache keeps itself.
pub(super) trait NearCounters: Send + Sync {
    fn stats(&self) -> NearStats;
}

#[derive(Clone, Copy, Default)]
pub(super) struct NearStats {
    /// Live values that were answered locally.
    pub(super) values: u64,
    pub(super) misses: u64,
    pub(super) invalidations: u64,
    pub(super) bypassed: u64,
}

/// Incremented independently with `Relaxed`: a snapshot is not consistent across counters.
#[derive(Default)]
pub(super) struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    loads: AtomicU64,
    failed_loads: AtomicU64,
    events: AtomicU64,
    missed: AtomicU64,
    near: Option<Arc<dyn NearCounters>>,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::RegistrationCell,
}

impl Counters {
    pub(super) fn new(near: Option<Arc<dyn NearCounters>>) -> Self {
        Self { near, ..Self::default() }
    }

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
        let near = self.near.as_ref().map(|near| near.stats()).unwrap_or_default();
        CacheStats {
            hits: self.hits.load(Relaxed) + near.values,
            misses: self.misses.load(Relaxed) + near.misses,
            loads: self.loads.load(Relaxed),
            failed_loads: self.failed_loads.load(Relaxed),
            events: self.events.load(Relaxed),
            missed: self.missed.load(Relaxed),
            near_hits: near.values + near.misses,
            invalidations: near.invalidations,
            bypassed: near.bypassed,
        }
    }
}
