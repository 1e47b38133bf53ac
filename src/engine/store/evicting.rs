//! Set-up of a store that evicts, and the weight of its entries. `bound::make_room` frees space for writes.

use std::hash::{BuildHasher, Hash};

use super::Store;
use crate::engine::{
    bound::limit::{Bound, Weigher},
    victims::policy::Policy,
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Evicts entries from now on so that the total weight stays within `limit`. The same seeds and the same calls lead
    /// to the same evictions.
    pub(crate) fn evicting(
        mut self,
        limit: u64,
        weigher: Option<Weigher<K, V>>,
        mut seed: impl FnMut() -> u64,
    ) -> Self {
        let first = Policy::new(seed());
        for index in 0..self.shard_count() {
            let policy = first.for_another_shard(seed());
            self.lock_shard(index).track_evictions(policy, weigher.is_some());
        }
        self.context.bound = Some(Box::new(Bound::new(limit, weigher, true)));
        self
    }

    /// Returns the total weight of all entries; without a weigher, their number.
    pub(crate) fn weight(&self) -> u64 {
        match &self.context.bound {
            Some(bound) => bound.used(),
            None => self.len() as u64,
        }
    }

    /// Returns the bound on the total weight, if there is one.
    #[cfg(feature = "metrics")]
    pub(crate) fn limit(&self) -> Option<u64> {
        self.context.bound.as_ref().map(|bound| bound.limit())
    }

    /// Returns the weight of a new entry, if this store evicts.
    #[inline]
    pub(crate) fn weigh(&self, key: &K, value: &V) -> Option<u32> {
        self.context.evicting_bound().map(|bound| bound.weigh(key, value))
    }

    /// Returns whether entries are weighed by a weigher; `None` if this store does not evict.
    pub(crate) fn has_weigher(&self) -> Option<bool> {
        self.context.evicting_bound().map(Bound::has_weigher)
    }
}
