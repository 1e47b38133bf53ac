//! Iterators over the live entries of a cache.

use std::{
    hash::{BuildHasher, Hash},
    vec::IntoIter,
};

use super::{Cache, SyncCache};
use crate::engine::clock::{Deadline, Now};

/// Iterator over clones of the live entries of a cache. You get it from [`Cache::iter`], where there is an example.
pub struct Iter<K, V, S> {
    cache: SyncCache<K, V, S>,
    next_shard: usize,
    /// Clones of the live entries of one shard, made under one lock that has been released since.
    shard: IntoIter<(K, V, Deadline)>,
}

/// Iterator over clones of the keys of the live entries of a cache. You get it from [`Cache::keys`], where there is an
/// example.
pub struct Keys<K, V, S>(Iter<K, V, S>);

/// Iterator over clones of the values of the live entries of a cache. You get it from [`Cache::values`], where there is
/// an example.
pub struct Values<K, V, S>(Iter<K, V, S>);

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns an iterator over clones of the live entries, in arbitrary order (Redis: `SCAN`).
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::new();
    /// cache.set_many((0..100).map(|n| (n, n * n)), None).await;
    /// assert_eq!(cache.iter().filter(|(key, _)| key % 2 == 0).count(), 50);
    /// # }
    /// ```
    ///
    /// It is weakly consistent: an entry that is present during the whole iteration is returned exactly once, and one
    /// that is inserted or removed in the meantime may or may not be returned. An entry that expires during the
    /// iteration is not returned after its deadline. (If that deadline was shortened during the iteration, the entry
    /// may be returned until its former one.)
    ///
    /// The entries of one shard are cloned at a time, under its read lock. No lock is held between two items, so your
    /// loop may call the cache. The iterator owns a handle and keeps the cache alive.
    #[doc(alias = "SCAN")]
    pub fn iter(&self) -> Iter<K, V, S> {
        self.inner.iter()
    }

    /// Returns an iterator over clones of the live keys (Redis: `KEYS`); otherwise the same as [`iter`](Cache::iter).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set("token 7", "ada").await;
    /// sessions.set("token 8", "bob").await;
    /// let mut tokens: Vec<_> = sessions.keys().collect();
    /// tokens.sort();
    /// assert_eq!(tokens, ["token 7", "token 8"]);
    /// # }
    /// ```
    #[doc(alias = "KEYS")]
    pub fn keys(&self) -> Keys<K, V, S> {
        self.inner.keys()
    }

    /// Returns an iterator over clones of the live values; otherwise the same as [`iter`](Cache::iter).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let carts = Cache::new();
    /// carts.set("ada", 30).await;
    /// carts.set("bob", 12).await;
    /// assert_eq!(carts.values().sum::<u32>(), 42, "the goods in all carts");
    /// # }
    /// ```
    pub fn values(&self) -> Values<K, V, S> {
        self.inner.values()
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns an iterator over clones of the live entries, as [`Cache::iter`] does.
    pub fn iter(&self) -> Iter<K, V, S> {
        Iter { cache: self.clone(), next_shard: 0, shard: Vec::new().into_iter() }
    }

    /// Returns an iterator over clones of the live keys, as [`Cache::keys`] does.
    pub fn keys(&self) -> Keys<K, V, S> {
        Keys(self.iter())
    }

    /// Returns an iterator over clones of the live values, as [`Cache::values`] does.
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
    /// Returns the next live entry with its deadline.
    pub(super) fn next_entry(&mut self) -> Option<(K, V, Deadline)> {
        let shared = &self.cache.shared;
        loop {
            for (key, value, deadline) in self.shard.by_ref() {
                // Checked again, because an entry may have expired since its shard was cloned.
                if !shared.clock.is_expired(deadline) {
                    return Some((key, value, deadline));
                }
                // Its deadline may have been moved since, or its value replaced. The entry in the store decides.
                let live = shared.store.peek_with_deadline(&key, &shared.clock);
                shared.publisher.flush();
                if let Some((value, deadline)) = live {
                    return Some((key, value, deadline));
                }
            }
            if self.next_shard == shared.store.shard_count() {
                return None;
            }
            // Also if a clone panics: the snapshot may have removed entries by tag before.
            let _flush = shared.publisher.flush_on_panic();
            self.shard = shared.store.snapshot(self.next_shard, &shared.clock).into_iter();
            shared.publisher.flush();
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
