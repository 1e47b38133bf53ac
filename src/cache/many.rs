//! Many keys in one call, and all that a closure names.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use equivalent::Equivalent;
use tokio::task::consume_budget;

use super::Cache;
use crate::engine::{
    coop,
    event::Cause,
    store::{Pass, Places},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Clones of the live values of `keys`, in their order (Redis: `MGET`).
    ///
    /// The memory of all keys is fetched at once, and a shard is locked once for up to 32 of them: with a million entries
    /// that is faster than as many calls of [`get`](Cache::get). It is not atomic: each value is as of when its shard is
    /// looked at.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: Cache<String, u32> = Cache::new();
    /// cache.set_many([("a".to_owned(), 1), ("b".to_owned(), 2)], None).await;
    /// assert_eq!(cache.get_many(["b", "c", "a"]).await, [Some(2), None, Some(1)]);
    /// assert_eq!(cache.remove_many(["a", "c"]).await, 1);
    /// # }
    /// ```
    #[doc(alias = "MGET")]
    pub fn get_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = Vec<Option<V>>>
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
    {
        // Before the first await, so that the future keeps none of the caller's iterator.
        let keys: Vec<&Q> = keys.into_iter().collect();
        async move {
            coop::proceed().await;
            let store = &self.shared.store;
            let mut places = Places::new(keys.iter().map(|key| store.place(*key)));
            let mut values = Vec::new();
            values.resize_with(keys.len(), || None);
            store.prefetch(&places);
            loop {
                let call = self.call();
                if !store.get_next(&mut places, &keys, &mut values, &call) {
                    break;
                }
                self.shared.publisher.flush();
                coop::charge(&call);
                coop::proceed().await;
            }
            values
        }
    }

    /// Puts each value at its key, to live for `ttl`, or for the default TTL where that is `None` (Redis: `MSET`).
    ///
    /// Of a key that comes twice, the last value stays. It is not atomic: each value is put by itself.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has put some of them.
    #[doc(alias = "MSET")]
    pub fn set_many(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
        ttl: Option<Duration>,
    ) -> impl Future<Output = ()> {
        let entries: Vec<(K, V)> = entries.into_iter().collect();
        async move {
            for (key, value) in entries {
                coop::proceed().await;
                let call = self.call();
                let until = self.until(ttl, &call);
                self.put(key, value, &call, |_| until);
            }
        }
    }

    /// Takes the live values of `keys` out; tells how many there were (Redis: `DEL`).
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has taken out some of them.
    pub fn remove_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = usize>
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
    {
        let keys: Vec<&Q> = keys.into_iter().collect();
        async move {
            let mut removed = 0;
            for key in keys {
                coop::proceed().await;
                removed += usize::from(self.take(key, Cause::Removed).is_some());
            }
            removed
        }
    }

    /// Takes out the live values that `leaves` names; tells how many. They leave as [`Cause::Removed`].
    ///
    /// `leaves` runs while a part of a shard is locked, some 200 entries at a time: let it be short, and don't call the
    /// cache in it. Between two parts others go on, and the runtime does. What is written meanwhile may or may not be
    /// asked for; where entries change places, `leaves` may be asked twice of one. Where it panics, what it has named so
    /// far of that part stays.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has taken out a part.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::new();
    /// cache.set_many((0..1_000).map(|n| (n, n)), None).await;
    /// assert_eq!(cache.remove_if(|key, _| key % 2 == 0).await, 500);
    /// assert_eq!(cache.len(), 500);
    /// # }
    /// ```
    pub async fn remove_if(&self, mut leaves: impl FnMut(&K, &V) -> bool) -> usize {
        let mut removed = 0;
        let mut pass = Pass::default();
        loop {
            consume_budget().await;
            let (count, goes_on) =
                self.shared.store.remove_if(&mut pass, &mut leaves, &self.shared.clock);
            self.shared.publisher.flush();
            removed += count;
            if !goes_on {
                return removed;
            }
        }
    }

    /// Takes out the live values that `stays` does not name; else as [`remove_if`](Cache::remove_if).
    pub async fn retain(&self, mut stays: impl FnMut(&K, &V) -> bool) -> usize {
        self.remove_if(|key, value| !stays(key, value)).await
    }
}
