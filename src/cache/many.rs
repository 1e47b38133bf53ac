//! Methods that read, write or remove many entries in one call.

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use equivalent::Equivalent;
use tokio::task::consume_budget;

use super::{Cache, SyncCache};
use crate::engine::{
    block_on::block_on,
    clock::CallTime,
    coop,
    store::{PART, TableCursor},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns clones of the live values of `keys`, in the order of the keys (Redis: `MGET`).
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
    ///
    /// This is not atomic: each value is read when its shard is locked. Each key counts as a read, as in
    /// [`get`](Cache::get).
    ///
    /// In a large cache, the entries of up to 1,024 keys are prefetched at a time. Up to 32 keys of a shard are read
    /// under one lock, or one key per lock in a cache with a bound or [`time_to_idle`](super::Builder::time_to_idle).
    /// With a million entries this takes about half the time of as many calls of [`get`](Cache::get)
    /// ([measured](crate::guide::measured::loaders)).
    #[doc(alias = "MGET")]
    pub fn get_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = Vec<Option<V>>>
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
    {
        // Collected before the first await, so that the future does not hold the caller's iterator.
        let keys: Vec<&Q> = keys.into_iter().collect();
        self.inner.get_many_in_steps(keys)
    }

    /// Sets each value with the same TTL; `None` means the default TTL (Redis: `MSET`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let rows = [(1, "Ada"), (2, "Bob"), (3, "Eve")]; // one query for all
    /// let users = Cache::new();
    /// users.set_many(rows, Some(Duration::from_secs(60))).await;
    /// assert_eq!(users.get(&2).await, Some("Bob"));
    /// # }
    /// ```
    ///
    /// This is not atomic: each value is written individually. If a key occurs twice, the last value wins.
    ///
    /// In a large cache, the memory for up to 1,024 entries is prefetched at a time. Entries are written shard by
    /// shard. Up to 32 are written under one lock, which is held for a few microseconds. With a million entries this
    /// takes about half the time of as many calls of [`set_ex`](Cache::set_ex)
    /// ([measured](crate::guide::measured::loaders)). In a bounded cache the entries are written in their order, each
    /// under a lock of its own, and each write evicts before the next one starts.
    ///
    /// # Panics
    ///
    /// Panics if `Hash` or `Eq` of a key panics. Entries that were written before the panic stay in the cache; the
    /// others are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, some of the entries may have been written.
    #[doc(alias = "MSET")]
    pub fn set_many(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
        ttl: Option<Duration>,
    ) -> impl Future<Output = ()> {
        let entries = entries.into_iter().map(Some).collect();
        self.inner.set_many_in_steps(entries, ttl)
    }

    /// Removes `keys` and returns how many of them had a live value (Redis: `DEL` with several keys).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set_many([("phone", 1), ("laptop", 2), ("tablet", 3)], None).await;
    ///
    /// // Ada logs out on two devices, and on one that has no session.
    /// assert_eq!(sessions.remove_many(["phone", "laptop", "tv"]).await, 2);
    /// # }
    /// ```
    ///
    /// This is not atomic: each key is removed individually, with cause [`Cause::Removed`](crate::Cause::Removed). As
    /// in [`set_many`](Cache::set_many), memory is prefetched and up to 32 keys of a shard are removed under one lock;
    /// here this also applies to a bounded cache.
    ///
    /// # Panics
    ///
    /// Panics if `Hash` or `Eq` of a key panics. Entries that were removed before the panic stay removed, and their
    /// events are published.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, some of the entries may have been removed.
    pub fn remove_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = usize>
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
    {
        let keys = keys.into_iter().collect();
        self.inner.remove_many_in_steps(keys)
    }

    /// Removes the live entries for which `predicate` returns true, and returns how many there were.
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
    ///
    /// Their cause is [`Cause::Removed`](crate::Cause::Removed). This is not atomic: an entry that is written
    /// concurrently may or may not be examined, and an entry that is moved by a growing or shrinking table may be
    /// examined twice.
    ///
    /// `predicate` runs while a shard is locked, for about 200 entries at a time. It must be short and must not call
    /// the cache, because the call may deadlock. The lock is released between two batches, and other tasks get to run.
    /// If `predicate` panics, no entry of the current batch is removed.
    ///
    /// Costs O(n): every resident entry is examined. Expired values within their [stale
    /// window](super::Builder::stale_while_revalidate) are not live: `remove_if(|_, _| true)` leaves them to loader
    /// methods, but [`clear`](Cache::clear) does not.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, some of the entries may have been removed.
    #[doc(alias = "invalidate_entries_if")]
    pub async fn remove_if(&self, predicate: impl FnMut(&K, &V) -> bool) -> usize {
        self.inner.remove_if_in_steps(predicate).await
    }

    /// Removes the live entries for which `keep` returns false, and returns how many there were; otherwise the same as
    /// [`remove_if`](Cache::remove_if).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set_many([("token 7", "ada"), ("token 8", "mallory")], None).await;
    /// assert_eq!(sessions.retain(|_, user| *user != "mallory").await, 1);
    /// assert_eq!(sessions.get("token 8").await, None);
    /// # }
    /// ```
    pub async fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> usize {
        self.remove_if(|key, value| !keep(key, value)).await
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns clones of the live values of `keys`, in the order of the keys, as [`Cache::get_many`] does.
    pub fn get_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>) -> Vec<Option<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
    {
        block_on(self.get_many_in_steps(keys.into_iter().collect()))
    }

    /// Sets each value with the same TTL, as [`Cache::set_many`] does.
    pub fn set_many(&self, entries: impl IntoIterator<Item = (K, V)>, ttl: Option<Duration>) {
        block_on(self.set_many_in_steps(entries.into_iter().map(Some).collect(), ttl));
    }

    /// Removes `keys` and returns how many of them had a live value, as [`Cache::remove_many`] does.
    pub fn remove_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>) -> usize
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
    {
        block_on(self.remove_many_in_steps(keys.into_iter().collect()))
    }

    /// Removes the live entries for which `predicate` returns true, as [`Cache::remove_if`] does.
    pub fn remove_if(&self, predicate: impl FnMut(&K, &V) -> bool) -> usize {
        block_on(self.remove_if_in_steps(predicate))
    }

    async fn get_many_in_steps<Q>(&self, keys: Vec<&Q>) -> Vec<Option<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut values = Vec::new();
        values.resize_with(keys.len(), || None);
        for (keys, values) in keys.chunks(PART).zip(values.chunks_mut(PART)) {
            // A part counts as so many calls in the cooperative budget.
            coop::proceed_as(keys.len()).await;
            let store = &self.shared.store;
            let mut places = store.locate_all(keys.iter().copied());
            loop {
                let call = self.call();
                let is_done = store.get_many(&mut places, keys, values, &call);
                self.finish_call(&call);
                if is_done {
                    break;
                }
                coop::proceed().await;
            }
        }
        values
    }

    async fn set_many_in_steps(&self, mut entries: Vec<Option<(K, V)>>, ttl: Option<Duration>) {
        for part in entries.chunks_mut(PART) {
            coop::proceed_as(part.len()).await;
            let keys = || part.iter().flatten().map(|(key, _)| key);
            let failures = self.failure_hashes(keys());
            let mut places = self.shared.store.locate_all_to_put(keys());
            let mut run_next = |call: &CallTime<'_>| {
                let deadline = || self.deadline_for(ttl, call);
                self.shared.store.set_many(&mut places, part, call, deadline)
            };
            loop {
                let is_done = self.run_part(&mut run_next, &failures);
                self.finish(()).await;
                if is_done {
                    break;
                }
                coop::proceed().await;
            }
        }
    }

    async fn remove_many_in_steps<Q>(&self, keys: Vec<&Q>) -> usize
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut removed = 0;
        for keys in keys.chunks(PART) {
            coop::proceed_as(keys.len()).await;
            let failures = self.failure_hashes(keys.iter().copied());
            let mut places = self.shared.store.locate_all(keys.iter().copied());
            let mut run_next = |call: &CallTime<'_>| {
                self.shared.store.remove_many(&mut places, keys, call, &mut removed)
            };
            while !self.run_part(&mut run_next, &failures) {
                coop::proceed().await;
            }
        }
        removed
    }

    async fn remove_if_in_steps(&self, mut predicate: impl FnMut(&K, &V) -> bool) -> usize {
        let mut removed = 0;
        let mut cursor = TableCursor::default();
        // Errors of refreshes of the removed values.
        let mut failures = Vec::new();
        loop {
            consume_budget().await;
            let mut is_removed = |key: &K, value: &V| {
                let is_removed = predicate(key, value);
                if is_removed {
                    failures.extend(self.failure_hash(key));
                }
                is_removed
            };
            let (count, has_more) =
                self.shared.store.remove_if(&mut cursor, &mut is_removed, &self.shared.clock);
            failures.drain(..).for_each(|hash| self.discard_failure(Some(hash)));
            self.shared.publisher.flush();
            removed += count;
            if !has_more {
                return removed;
            }
        }
    }

    /// Runs one part of a batch, then discards the failures of the written keys and publishes events, even if user code
    /// panics in the middle of the part. Returns the result of `part`: whether the batch is finished.
    fn run_part(&self, part: impl FnOnce(&CallTime<'_>) -> bool, failures: &[u64]) -> bool {
        let call = self.call();
        let result = catch_unwind(AssertUnwindSafe(|| part(&call)));
        failures.iter().for_each(|hash| self.discard_failure(Some(*hash)));
        self.finish_call(&call);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Returns the [`failure_hash`](SyncCache::failure_hash) of each key.
    fn failure_hashes<'a, Q>(&self, keys: impl Iterator<Item = &'a Q>) -> Vec<u64>
    where
        Q: Hash + ?Sized + 'a,
    {
        keys.filter_map(|key| self.failure_hash(key)).collect()
    }
}
