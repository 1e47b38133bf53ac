//! Walking through all that lives, a shard at a time.

use std::{
    hash::{BuildHasher, Hash},
    vec::IntoIter,
};

use super::Cache;
use crate::engine::clock::{Deadline, Now};

/// The live entries of a cache. Made by [`Cache::iter`].
pub struct Iter<K, V, S> {
    cache: Cache<K, V, S>,
    next_shard: usize,
    /// Copies of one shard's entries, taken under one lock that is not held any more.
    shard: IntoIter<(K, V, Deadline)>,
}

/// The keys of the live entries of a cache. Made by [`Cache::keys`].
pub struct Keys<K, V, S>(Iter<K, V, S>);

/// The values of the live entries of a cache. Made by [`Cache::values`].
pub struct Values<K, V, S>(Iter<K, V, S>);

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// The live entries, cloned, in no order.
    ///
    /// Weakly consistent: an entry that is there all the time comes exactly once, one that comes or goes
    /// meanwhile may or may not. A shard is copied at a time, under its lock for reading; between items
    /// no lock is held, so the loop may call the cache.
    pub fn iter(&self) -> Iter<K, V, S> {
        Iter { cache: self.clone(), next_shard: 0, shard: Vec::new().into_iter() }
    }

    /// The keys of [`iter`](Cache::iter).
    pub fn keys(&self) -> Keys<K, V, S> {
        Keys(self.iter())
    }

    /// The values of [`iter`](Cache::iter).
    pub fn values(&self) -> Values<K, V, S> {
        Values(self.iter())
    }
}

impl<K, V, S> Iter<K, V, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher + Clone,
{
    pub(super) fn next_entry(&mut self) -> Option<(K, V, Deadline)> {
        let shared = &self.cache.shared;
        loop {
            // Asked again: it may have died since its shard was copied.
            let mut live =
                self.shard.by_ref().filter(|(_, _, deadline)| !shared.clock.is_dead(*deadline));
            if let Some(entry) = live.next() {
                return Some(entry);
            }
            if self.next_shard == shared.store.shard_count() {
                return None;
            }
            self.shard = shared.store.snapshot(self.next_shard, &shared.clock).into_iter();
            self.next_shard += 1;
        }
    }
}

impl<K, V, S> Iterator for Iter<K, V, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher + Clone,
{
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        self.next_entry().map(|(key, value, _)| (key, value))
    }
}

impl<K, V, S> Iterator for Keys<K, V, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher + Clone,
{
    type Item = K;

    fn next(&mut self) -> Option<K> {
        self.0.next().map(|(key, _)| key)
    }
}

impl<K, V, S> Iterator for Values<K, V, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher + Clone,
{
    type Item = V;

    fn next(&mut self) -> Option<V> {
        self.0.next().map(|(_, value)| value)
    }
}
