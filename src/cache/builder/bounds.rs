//! Builder methods that bound the cache by entries or by weight.

use std::sync::Arc;

use super::Builder;
use crate::cache::bounds::ConfiguredBound;
#[cfg(doc)]
use crate::{
    cache::Cache,
    engine::{event::Cause, sweeper::Sweep},
};

impl<K, V, S> Builder<K, V, S> {
    /// Sets the maximum number of entries. If a write exceeds it, the cache evicts an entry that is unlikely to be read
    /// again soon.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::builder().max_entries(100).build();
    /// for n in 0..1_000 {
    ///     cache.set(n, "value").await;
    ///     assert!(cache.contains_key(&n).await);
    /// }
    /// assert_eq!(cache.len(), 100);
    /// assert_eq!(cache.stats().evicted, 900);
    /// # }
    /// ```
    ///
    /// When a write returns, it has evicted the excess that it caused. While writes are in progress, the cache may
    /// exceed the bound by at most one entry per writing task. The bound applies to the cache as a whole and not to
    /// each shard: nothing is evicted while the cache is below it.
    ///
    /// There is no admission filter: a new entry is never rejected in favor of an old one, and is available to the next
    /// `get`. Expired entries are removed first, with cause [`Cause::Expired`]; live ones are then removed with cause
    /// [`Cause::Evicted`]. Setting a value that has already expired (a TTL of zero) evicts nothing.
    ///
    /// A write at the bound takes constant time. The work is done by the write itself: no maintenance task runs later.
    /// With a seeded [`hasher`](Builder::hasher) and [`Sweep::seed`], the same calls lead to the same evictions.
    ///
    /// Defaults to no bound.
    ///
    /// # Panics
    ///
    /// Panics if `entries` is 0, or if [`max_weight`](Builder::max_weight) has been set: a cache has at most one bound.
    #[doc(alias = "capacity")]
    #[doc(alias = "evict")]
    #[doc(alias = "max_capacity")]
    pub fn max_entries(mut self, entries: usize) -> Self {
        assert!(entries > 0, "max_entries must be at least 1, got {entries}");
        if let ConfiguredBound::Weight(weight, _) = self.bound {
            panic!(
                "max_entries({entries}): this cache has max_weight({weight}), and can't have both"
            );
        }
        self.bound = ConfiguredBound::Entries(entries);
        self
    }

    /// Sets the maximum number of entries, as [`max_entries`](Builder::max_entries). It has the name that other caches
    /// use, so that their users get a warning with the right name instead of a cache without a bound.
    #[deprecated(note = "use `max_entries`, or `max_weight` with a weigher")]
    #[doc(hidden)]
    pub fn max_capacity(self, entries: u64) -> Self {
        self.max_entries(usize::try_from(entries).unwrap_or(usize::MAX))
    }

    /// Sets the maximum total weight of the entries; otherwise the same as [`max_entries`](Builder::max_entries).
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let weigher = |key: &String, page: &String| (key.len() + page.len()) as u32;
    /// let pages = Cache::builder().max_weight(1_000, weigher).build();
    /// for n in 0..100 {
    ///     pages.set(format!("/page/{n:03}"), "x".repeat(91)).await;
    ///     assert!(pages.weight() <= 1_000);
    /// }
    /// assert_eq!(pages.len(), 10);
    /// # }
    /// ```
    ///
    /// `weigher` returns the weight of an entry in a unit of your choice, such as bytes. It is called once per written
    /// value, before the shard is locked. It is also called for a value that [`Cache::set_nx`] then does not write,
    /// because another call has written the key in between. For [`Cache::update`] and [`Cache::compute`], it is called
    /// while the shard is locked, so it must not call the cache.
    ///
    /// A write evicts as many entries as the new weight requires, so the time that it takes is not constant. An entry
    /// of weight 0 is never evicted. An entry heavier than `weight` is the only one that is not admitted: it is removed
    /// immediately with cause [`Cause::Evicted`], after it has replaced the previous entry of its key, if any
    /// ([`Cause::Replaced`]).
    ///
    /// Defaults to no bound.
    ///
    /// # Panics
    ///
    /// Panics if `weight` is 0, or if [`max_entries`](Builder::max_entries) has been set: a cache has at most one
    /// bound.
    #[doc(alias = "weigher")]
    pub fn max_weight(
        mut self,
        weight: u64,
        weigher: impl Fn(&K, &V) -> u32 + Send + Sync + 'static,
    ) -> Self {
        assert!(weight > 0, "max_weight must be at least 1, got {weight}");
        if let ConfiguredBound::Entries(entries) = self.bound {
            panic!(
                "max_weight({weight}): this cache has max_entries({entries}), and can't have both"
            );
        }
        self.bound = ConfiguredBound::Weight(weight, Arc::new(weigher));
        self
    }
}
