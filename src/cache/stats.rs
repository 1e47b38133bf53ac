//! What a cache tells of itself in numbers.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::Cache;
#[cfg(feature = "serde")]
use crate::engine::seconds;
use crate::engine::sweeper::SweepReport;

/// What a cache has done and holds. Made by [`Cache::stats`](crate::Cache::stats).
///
/// Each count is exact; all of them together are not taken at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Entries in memory: live, or dead and not yet swept.
    pub resident: usize,
    /// What they weigh together: by the weigher of [`max_weight`](crate::Builder::max_weight), else 1 each.
    pub weight: u64,
    /// Calls of `get` and `get_ex` that found a live value.
    pub hits: u64,
    /// Calls of `get` and `get_ex` that found none.
    pub misses: u64,
    /// Of the misses, those of keys that were evicted lately: what a cache about twice as large would have had. Where
    /// that is a large share of the misses, the bound is too small.
    pub misses_of_evicted: u64,
    /// Loaders that ran to their end, in the background too.
    pub loads: u64,
    /// Of those, the ones that failed.
    pub failed_loads: u64,
    /// How long all of them took together.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::duration"))]
    pub load_time: Duration,
    /// Values whose TTL ran out and that have left.
    pub expired: u64,
    /// Values that left to make room for others.
    pub evicted: u64,
    /// Values that were removed.
    pub removed: u64,
    /// Values that were replaced.
    pub replaced: u64,
    /// Sweeps that were finished.
    pub sweeps: u64,
    /// The last finished sweep.
    pub last_sweep: Option<SweepReport>,
    /// All finished sweeps added up.
    pub swept: SweepReport,
    /// Streams of events that somebody holds.
    pub subscribers: usize,
    /// Events beyond the capacity of the fullest lossless stream, waiting for its reader.
    pub overflow: usize,
}

impl Stats {
    /// The share of reads that found a live value; 0 where nothing was read.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.misses {
            0 => 0.0,
            reads => self.hits as f64 / reads as f64,
        }
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// What the cache has done and holds. O(shards).
    pub fn stats(&self) -> Stats {
        let counts = self.shared.store.counts();
        let sweeps = self.shared.sweeps();
        let loads = self.freshness_policy.loads.all();
        Stats {
            resident: self.len(),
            weight: self.weight(),
            hits: counts.hits,
            misses: counts.misses,
            misses_of_evicted: counts.misses_of_evicted,
            loads: loads.loads,
            failed_loads: loads.failed,
            load_time: loads.time,
            expired: counts.expired,
            evicted: counts.evicted,
            removed: counts.removed,
            replaced: counts.replaced,
            sweeps: sweeps.count,
            last_sweep: sweeps.last,
            swept: sweeps.total,
            subscribers: self.shared.publisher.subscribers(),
            overflow: self.shared.publisher.overflow(),
        }
    }
}
