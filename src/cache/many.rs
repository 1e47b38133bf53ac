//! Many keys in one call, and all that a closure names.

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use equivalent::Equivalent;
use tokio::task::consume_budget;

use super::Cache;
use crate::engine::{
    clock::CallTime,
    coop,
    store::{Location, PART, TableCursor},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Clones of the live values of `keys`, in their order (Redis: `MGET`).
    ///
    /// The memory of all keys is fetched at once, up to 1,024 at a time, and a shard is locked once for up to 32 of them:
    /// with a million entries that is faster than as many calls of [`get`](Cache::get). It is not atomic: each value is
    /// as of when its shard is looked at.
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
            let mut values = Vec::new();
            values.resize_with(keys.len(), || None);
            for (keys, values) in keys.chunks(PART).zip(values.chunks_mut(PART)) {
                coop::proceed_as(keys.len()).await;
                let store = &self.shared.store;
                let mut places = store.places(keys.iter().copied());
                loop {
                    let call = self.call();
                    let is_done = store.get_many(&mut places, keys, values, &call);
                    self.end(&call);
                    if is_done {
                        break;
                    }
                    coop::proceed().await;
                }
            }
            values
        }
    }

    /// Puts each value at its key, to live for `ttl`, or for the default TTL where that is `None` (Redis: `MSET`).
    ///
    /// Of a key that comes twice, the last value stays. It is not atomic: each value is put by itself, and those of a key
    /// in their order.
    ///
    /// The memory of all keys is fetched at once, up to 1,024 at a time, and they are put shard by shard: one is locked
    /// once for up to 32 of them, which takes some microseconds. With a million entries that is faster than as many calls
    /// of [`set_ex`](Cache::set_ex). In a bounded cache they are put in their order, each under a lock of its own, and
    /// whoever has to leave for one does so before the next is put.
    ///
    /// # Panics
    ///
    /// Where `Hash` or `Eq` of a key does. What was put before that stays, and is told of; the rest is dropped.
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
        let mut entries: Vec<_> = entries.into_iter().map(Some).collect();
        async move {
            for part in entries.chunks_mut(PART) {
                coop::proceed_as(part.len()).await;
                let keys = || part.iter().flatten().map(|(key, _)| key);
                let failures = self.failures_at(keys());
                let mut places = self.shared.store.places_to_put(keys());
                let mut next = |call: &CallTime<'_>| {
                    let until = || self.until(ttl, call);
                    self.shared.store.set_many(&mut places, part, call, until)
                };
                while !self.done(&mut next, &failures) {
                    coop::proceed().await;
                }
            }
        }
    }

    /// Takes the live values of `keys` out; tells how many there were (Redis: `DEL`). Their memory is fetched and their
    /// shards are locked as by [`set_many`](Cache::set_many), in a bounded cache too.
    ///
    /// # Panics
    ///
    /// Where `Hash` or `Eq` of a key does. What was taken out before that is gone, and is told of.
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
            for keys in keys.chunks(PART) {
                coop::proceed_as(keys.len()).await;
                let failures = self.failures_at(keys.iter().copied());
                let mut places = self.shared.store.places(keys.iter().copied());
                let mut next = |call: &CallTime<'_>| {
                    self.shared.store.remove_many(&mut places, keys, call, &mut removed)
                };
                while !self.done(&mut next, &failures) {
                    coop::proceed().await;
                }
            }
            removed
        }
    }

    /// Takes out the live values that `leaves` names; tells how many. They leave as
    /// [`Cause::Removed`](crate::Cause::Removed).
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
        let mut pass = TableCursor::default();
        loop {
            consume_budget().await;
            let (count, has_more) =
                self.shared.store.remove_if(&mut pass, &mut leaves, &self.shared.clock);
            self.shared.publisher.flush();
            removed += count;
            if !has_more {
                return removed;
            }
        }
    }

    /// Takes out the live values that `keep` does not name; else as [`remove_if`](Cache::remove_if).
    pub async fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> usize {
        self.remove_if(|key, value| !keep(key, value)).await
    }

    /// Has a part written, and does what follows it: also where user code panics in the middle of it. Tells what `part`
    /// does.
    fn done(&self, part: impl FnOnce(&CallTime<'_>) -> bool, failures: &[Location]) -> bool {
        let call = self.call();
        let done = catch_unwind(AssertUnwindSafe(|| part(&call)));
        failures.iter().for_each(|at| self.forget_failure(Some(*at)));
        self.end(&call);
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// As [`failure_at`](Cache::failure_at), of several keys.
    fn failures_at<'a, Q>(&self, keys: impl Iterator<Item = &'a Q>) -> Vec<Location>
    where
        Q: Hash + ?Sized + 'a,
    {
        keys.filter_map(|key| self.failure_at(key)).collect()
    }
}
