//! What the handles of a cache in this process have seen: hits and misses, and the events that came.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// What the handles of a cache in this process have seen. Made by [`Cache::stats`](super::Cache::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Calls of `get`, `get_ex` and of verbs that load that found a live value; of `get_many` each key counts. Of
    /// `contains_key` those that are answered [near](super::CacheBuilder::near).
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
    /// Of hits and misses, those that were answered [near](super::CacheBuilder::near), without the server.
    pub near_hits: u64,
    /// Changes of keys that servers told of, the own ones too.
    pub invalidations: u64,
    /// Answers of servers that could not be kept near: the key was changed meanwhile, or the server did not promise to tell
    /// of changes.
    pub bypassed: u64,
}

/// What counts by itself what is answered near.
pub(super) trait Counts: Send + Sync {
    fn stats(&self) -> NearStats;
}

#[derive(Clone, Copy, Default)]
pub(super) struct NearStats {
    /// Answers that were given here.
    pub(super) values: u64,
    pub(super) misses: u64,
    pub(super) told_of: u64,
    pub(super) not_kept: u64,
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
    near: Option<Arc<dyn Counts>>,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl Counters {
    pub(super) fn new(near: Option<Arc<dyn Counts>>) -> Self {
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
            invalidations: near.told_of,
            bypassed: near.not_kept,
        }
    }
}
