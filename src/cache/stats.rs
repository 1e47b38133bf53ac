//! Statistics of a cache.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{Cache, SyncCache};
#[cfg(feature = "serde")]
use crate::engine::seconds;
use crate::engine::sweeper::SweepReport;

/// Counters and sizes of a cache, by which you choose its bound. Returned by [`Cache::stats`](crate::Cache::stats).
///
/// ```
/// # use fleeting::Cache;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let users: Cache<u64, String> = Cache::builder().max_entries(10_000).build();
/// let stats = users.stats();
/// println!("{:.0} % hits, {} entries", 100.0 * stats.hit_ratio(), stats.resident);
/// if stats.misses_of_evicted > stats.misses / 2 {
///     println!("a larger cache would have more hits");
/// }
/// # }
/// ```
///
/// Each value is exact, but they are not read at the same instant. Counters cover the time since the cache was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Number of entries in memory: live, or expired and not yet swept.
    pub resident: usize,
    /// Total weight of the resident entries, in the unit of the weigher of [`max_weight`](crate::Builder::max_weight);
    /// without one, each entry weighs 1.
    pub weight: u64,
    /// Reads that found a live value, by `get`, `get_many`, `get_with_ttl`, `get_ex`, `get_ex_with` or a loader
    /// method.
    pub hits: u64,
    /// Reads by these methods that found no live value. A loader method that returns a stale value counts as a miss.
    pub misses: u64,
    /// Misses of keys that were recently evicted: hits that a cache about twice as large would have had.
    ///
    /// If this is a large share of the misses, the bound is too small. Zero in an unbounded cache.
    pub misses_of_evicted: u64,
    /// Loader runs that ended, including background refreshes. A loader that was cancelled or panicked while a caller
    /// waited for it is not counted.
    pub loads: u64,
    /// Loader runs that returned an error, and background refreshes that panicked or timed out.
    pub failed_loads: u64,
    /// Total duration of all loader runs.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::duration"))]
    pub load_time: Duration,
    /// Values removed from memory because their TTL or idle time had elapsed, or by
    /// [`Cache::expire_now`](crate::Cache::expire_now).
    pub expired: u64,
    /// Values removed to keep the cache within its bound.
    pub evicted: u64,
    /// Values removed at the caller's request.
    pub removed: u64,
    /// Values replaced by a new value of the same key.
    pub replaced: u64,
    /// Number of finished sweeps.
    pub sweeps: u64,
    /// Report of the last finished sweep; `None` before the first.
    pub last_sweep: Option<SweepReport>,
    /// Sums over all finished sweeps.
    pub swept: SweepReport,
    /// Number of event streams in use, including those of `on_expired` callbacks.
    pub subscribers: usize,
    /// Number of unread events by which the fullest lossless stream exceeds its capacity.
    pub overflow: usize,
}

impl Stats {
    /// Returns the share of reads that found a live value; 0 if there were no reads.
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let users = Cache::new();
    /// users.set(7, "Ada").await;
    /// for user in [7, 7, 7, 8] {
    ///     users.get(&user).await;
    /// }
    /// assert_eq!(users.stats().hit_ratio(), 0.75);
    /// # }
    /// ```
    #[doc(alias = "hit rate")]
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
    /// Returns the counters and sizes of the cache (Redis: `INFO`). Costs O(shards).
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::builder().max_entries(100).build();
    /// cache.set("ada", 42).await;
    /// cache.get("ada").await;
    /// cache.get("bob").await;
    /// let stats = cache.stats();
    /// assert_eq!((stats.hits, stats.misses), (1, 1));
    /// assert_eq!(stats.hit_ratio(), 0.5);
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the current statistics, as [`Cache::stats`] does.
    pub fn stats(&self) -> Stats {
        let counts = self.shared.store.counts();
        let sweeps = self.shared.sweeps();
        let loads = self.freshness_policy.loads.totals();
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
