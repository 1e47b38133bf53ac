//! How much a cache may hold, and how much it holds.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
};

use tokio::task::consume_budget;

use super::Cache;
use crate::engine::store::Weigher;

/// What a cache may hold at most.
pub(super) enum Bound<K, V> {
    None,
    Entries(usize),
    Weight(u64, Weigher<K, V>),
}

impl<K, V> fmt::Debug for Bound<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::None => f.write_str("None"),
            Bound::Entries(entries) => write!(f, "Entries({entries})"),
            Bound::Weight(weight, _) => write!(f, "Weight({weight})"),
        }
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// What the resident entries weigh together: by the weigher of
    /// [`max_weight`](super::Builder::max_weight), else 1 each. O(1) in a bounded cache, else O(shards).
    pub fn weight(&self) -> u64 {
        self.shared.store.weight()
    }

    /// Another bound on the entries, from now on. Where there are more, some are evicted, a few at a time, and no
    /// lock is held for long; when this returns there are at most `entries`.
    ///
    /// # Panics
    ///
    /// Where `entries` is 0, and where the cache was built without
    /// [`max_entries`](super::Builder::max_entries).
    ///
    /// # Cancel safety
    ///
    /// The bound holds for all that is written from the first poll on. A call that is dropped before it is done
    /// leaves some of what is too much, until the next call.
    pub async fn set_max_entries(&self, entries: usize) {
        assert!(entries > 0, "max_entries must be at least 1, got {entries}");
        assert!(
            self.shared.store.has_weigher() == Some(false),
            "set_max_entries({entries}): {:?} was built without max_entries",
            self.shared.name()
        );
        self.set_limit(entries as u64).await;
    }

    /// Another bound on the weight, from now on; else as [`set_max_entries`](Cache::set_max_entries).
    ///
    /// # Panics
    ///
    /// Where `weight` is 0, and where the cache was built without [`max_weight`](super::Builder::max_weight).
    pub async fn set_max_weight(&self, weight: u64) {
        assert!(weight > 0, "max_weight must be at least 1, got {weight}");
        assert!(
            self.shared.store.has_weigher() == Some(true),
            "set_max_weight({weight}): {:?} was built without max_weight",
            self.shared.name()
        );
        self.set_limit(weight).await;
    }

    async fn set_limit(&self, limit: u64) {
        let store = &self.shared.store;
        store.set_limit(limit);
        // What a writer just brought may be too much for a moment: it lets others leave for it itself.
        let mut in_vain = 0;
        let mut before = u64::MAX;
        while in_vain < 2 * store.shard_count() {
            let excess = store.evict_some(&self.shared.clock);
            self.shared.publisher.flush();
            if excess == 0 {
                break;
            }
            in_vain = if excess < before { 0 } else { in_vain + 1 };
            before = excess;
            consume_budget().await;
        }
    }
}
