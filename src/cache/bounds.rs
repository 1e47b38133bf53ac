//! Weight of a cache, and changes of its bound at run time: how long a lower bound is waited for.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
};

use tokio::task::consume_budget;

use super::{Cache, SyncCache};
use crate::engine::{coop::yield_now, store::Weigher};

/// Maximum of entries or of weight, as configured in the builder.
pub(super) enum ConfiguredBound<K, V> {
    None,
    Entries(usize),
    Weight(u64, Weigher<K, V>),
}

impl<K, V> fmt::Debug for ConfiguredBound<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfiguredBound::None => f.write_str("None"),
            ConfiguredBound::Entries(entries) => write!(f, "Entries({entries})"),
            ConfiguredBound::Weight(weight, _) => write!(f, "Weight({weight})"),
        }
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the total weight of the resident entries, in the unit of the weigher of
    /// [`max_weight`](super::Builder::max_weight).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Pages weigh their length in bytes.
    /// let weigher = |_: &&str, page: &String| page.len() as u32;
    /// let pages = Cache::builder().max_weight(1_000_000, weigher).build();
    /// pages.set("/", "Welcome".to_owned()).await;
    /// assert_eq!(pages.weight(), 7);
    /// # }
    /// ```
    ///
    /// Without a weigher each entry weighs 1. Costs O(1) in a bounded cache, else O(shards).
    #[doc(alias = "weighted_size")]
    pub fn weight(&self) -> u64 {
        self.inner.weight()
    }

    /// Changes the maximum number of entries of a running cache.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::builder().max_entries(1_000).build();
    /// cache.set_many((0..1_000).map(|n| (n, n)), None).await;
    /// cache.set_max_entries(100).await;
    /// assert_eq!(cache.len(), 100);
    /// # }
    /// ```
    ///
    /// If the cache holds more, the surplus entries are evicted before this method returns. They are evicted a few at a
    /// time, so that no lock is held for long.
    ///
    /// # Panics
    ///
    /// Panics if `entries` is 0, or if the cache was built without [`max_entries`](super::Builder::max_entries).
    ///
    /// # Cancel safety
    ///
    /// The new bound applies to all writes from the first poll on. If the call is cancelled, the cache may stay above
    /// the bound until this method is called again.
    pub async fn set_max_entries(&self, entries: usize) {
        assert!(entries > 0, "max_entries must be at least 1, got {entries}");
        assert!(
            self.inner.shared.store.has_weigher() == Some(false),
            "set_max_entries({entries}): {:?} was built without max_entries",
            self.inner.name()
        );
        self.inner.set_limit(entries as u64).await;
    }

    /// Changes the maximum weight of a running cache; otherwise the same as
    /// [`set_max_entries`](Cache::set_max_entries).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let weigher = |_: &u32, page: &String| page.len() as u32;
    /// let pages = Cache::builder().max_weight(1_000, weigher).build();
    /// pages.set_many((0..100).map(|page| (page, "12345".to_owned())), None).await;
    ///
    /// // Memory is short: keep less.
    /// pages.set_max_weight(100).await;
    /// assert!(pages.weight() <= 100);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `weight` is 0, or if the cache was built without [`max_weight`](super::Builder::max_weight).
    ///
    /// # Cancel safety
    ///
    /// As for [`set_max_entries`](Cache::set_max_entries).
    pub async fn set_max_weight(&self, weight: u64) {
        assert!(weight > 0, "max_weight must be at least 1, got {weight}");
        assert!(
            self.inner.shared.store.has_weigher() == Some(true),
            "set_max_weight({weight}): {:?} was built without max_weight",
            self.inner.name()
        );
        self.inner.set_limit(weight).await;
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the total weight of the resident entries, as [`Cache::weight`] does.
    pub fn weight(&self) -> u64 {
        self.shared.store.weight()
    }

    /// Returns whether a write left evictions to be done in parts. If so, every async method that writes
    /// returns by [`finish`](SyncCache::finish), and every other one by [`evict_deferred`](SyncCache::evict_deferred).
    #[inline]
    pub(super) fn has_deferred_evictions(&self) -> bool {
        self.shared.store.has_deferred_evictions()
    }

    /// Returns the result of a write, after the deferred evictions.
    #[inline]
    pub(super) async fn finish<R>(&self, result: R) -> R {
        if self.has_deferred_evictions() {
            return self.finish_evictions(result).await;
        }
        result
    }

    /// Evicts the deferred weight, and yields the worker between two parts. Then returns the result of a write.
    ///
    /// Cancel safe: the remaining weight is evicted by the next write or by the sweeper.
    #[cold]
    pub(super) async fn finish_evictions<R>(&self, result: R) -> R {
        loop {
            // First, because the write has evicted a part.
            yield_now().await;
            if !self.evict_part() {
                break;
            }
        }
        result
    }

    /// Evicts the deferred weight after a write that is not async, and returns the result of that write.
    #[inline]
    pub(super) fn evict_deferred<R>(&self, result: R) -> R {
        if self.has_deferred_evictions() {
            while self.evict_part() {}
        }
        result
    }

    /// Evicts a part of the deferred weight, and returns whether there is more.
    #[cold]
    fn evict_part(&self) -> bool {
        let has_more = self.shared.store.evict_deferred(&self.shared.clock);
        self.shared.publisher.flush();
        has_more
    }

    async fn set_limit(&self, limit: u64) {
        let store = &self.shared.store;
        store.set_limit(limit);
        // The excess may stay above zero for a moment although nothing can be evicted: a concurrent writer counts its
        // entry first and evicts for it itself. So give up only after two rounds of all shards without progress.
        let mut steps_without_progress = 0;
        let mut previous_excess = u64::MAX;
        while steps_without_progress < 2 * store.shard_count() {
            let excess = store.evict_some(&self.shared.clock);
            self.shared.publisher.flush();
            if excess == 0 {
                break;
            }
            steps_without_progress =
                if excess < previous_excess { 0 } else { steps_without_progress + 1 };
            previous_excess = excess;
            consume_budget().await;
        }
    }
}
