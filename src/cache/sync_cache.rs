//! The handle for code that is not async: [`SyncCache`], and its methods that read and write single values. Its other
//! methods are in the files of the async ones. Both run the same code: the async ones also yield to other tasks.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

use super::{Cache, FreshnessPolicy};
use crate::engine::{coop, event::Cause, hasher::DefaultHasher, shared_state::SharedState};

/// Handle to a [`Cache`] for code that is not async: the same entries, through methods without `.await`.
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Cache, SyncCache};
///
/// /// A resolver whose constructor and methods are not async.
/// struct Resolver {
///     answers: SyncCache<String, [u8; 4]>,
/// }
///
/// impl Resolver {
///     fn new() -> Self {
///         let answers = Cache::builder().max_entries(10_000).background_thread().build();
///         Self { answers: answers.sync().clone() }
///     }
///
///     fn resolve(&self, name: &str) -> [u8; 4] {
///         self.answers.get_or_set_with(name, Duration::from_secs(60), || look_up(name))
///     }
/// }
/// # fn look_up(_: &str) -> [u8; 4] { [127, 0, 0, 1] }
///
/// let resolver = Resolver::new();
/// assert_eq!(resolver.resolve("localhost"), [127, 0, 0, 1]);
/// ```
///
/// You get it by [`Cache::sync`], and the async handle back by [`async_cache`](SyncCache::async_cache). Use both at
/// once: a value that you set through one is read through the other. Each method does what the method of the same name
/// of `Cache` does, by the same code.
///
/// # Threads
///
/// On any thread, with or without a runtime, also in async code: the methods do not wait. There are two exceptions.
///
/// - [`get_or_set_with`](SyncCache::get_or_set_with) and [`get_or_try_set_with`](SyncCache::get_or_try_set_with) run
///   their loader on your thread, and block it while another caller loads the same key. On a thread that drives a
///   runtime, await the method of `Cache`, or use `spawn_blocking`.
/// - A method that evicts or examines many entries takes as long as that takes. It does not yield to other tasks, and
///   takes no part in Tokio's cooperative budget.
///
/// # Lifetime
///
/// A `SyncCache` is a handle like any other: the cache ends when the last handle is dropped.
pub struct SyncCache<K, V, S = DefaultHasher> {
    /// Its strong count is the number of handles. That of `shared` is not, because the sweeper holds it while it works.
    pub(super) freshness_policy: Arc<FreshnessPolicy<K>>,
    pub(super) shared: Arc<SharedState<K, V, S>>,
}

impl<K, V, S> Cache<K, V, S> {
    /// Returns the same cache for code that is not async.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// let cache = Cache::builder().background_thread().build();
    /// cache.sync().set("ada", 42);
    /// assert_eq!(cache.sync().get("ada"), Some(42));
    /// ```
    ///
    /// This costs nothing: it is another view of the same handle.
    #[doc(alias = "block_on")]
    #[doc(alias = "blocking")]
    pub fn sync(&self) -> &SyncCache<K, V, S> {
        &self.inner
    }
}

impl<K, V, S> SyncCache<K, V, S> {
    /// Returns a handle with the async methods of the same cache.
    ///
    /// ```
    /// use fleeting::{Cache, SyncCache};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: SyncCache<&str, u64> = Cache::new().sync().clone();
    /// cache.set("ada", 42);
    /// assert_eq!(cache.async_cache().get("ada").await, Some(42));
    /// # }
    /// ```
    pub fn async_cache(&self) -> Cache<K, V, S> {
        Cache { inner: self.clone() }
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns a clone of the live value of `key`, as [`Cache::get`] does.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.get_now(key)
    }

    /// Sets the value of `key` with the default TTL, as [`Cache::set`] does.
    pub fn set(&self, key: K, value: V) -> Option<V> {
        coop::count();
        self.evict_deferred(self.set_now(key, value, None))
    }

    /// Sets the value of `key` with the given TTL, as [`Cache::set_ex`] does.
    pub fn set_ex(&self, key: K, value: V, ttl: Duration) -> Option<V> {
        coop::count();
        self.evict_deferred(self.set_now(key, value, Some(ttl)))
    }

    /// Sets the value of `key` only if it has no live value, as [`Cache::set_nx`] does.
    pub fn set_nx(&self, key: K, value: V, ttl: Option<Duration>) -> bool {
        coop::count();
        self.evict_deferred(self.set_nx_now(key, value, ttl))
    }

    /// Sets the value of `key` without changing its TTL, as [`Cache::set_keep_ttl`] does.
    pub fn set_keep_ttl(&self, key: K, value: V) -> Option<V> {
        coop::count();
        self.evict_deferred(self.set_keep_ttl_now(key, value))
    }

    /// Removes `key` and returns its live value, as [`Cache::remove`] does.
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.remove_as(key, Cause::Removed)
    }

    /// Returns whether `key` has a live value, as [`Cache::contains_key`] does.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        let deadline = self.shared.store.deadline(key, &self.shared.clock);
        self.shared.publisher.flush();
        deadline.is_some()
    }

    #[inline(always)]
    pub(super) fn get_now<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        // Without a slow clone, no duration is tracked, so the clock itself suffices.
        let value = if !Self::MAY_CLONE_LONG {
            store.get(key, clock)
        } else {
            let call = self.call();
            let value = store.get(key, &call);
            coop::charge(&call);
            value
        };
        // Only a miss may have expired its entry and written to the journal. A hit skips the flush and its read of
        // shared memory.
        if value.is_none() {
            self.shared.publisher.flush();
        }
        value
    }

    /// Sets a value with the given TTL or the default one. This and the methods below leave deferred evictions to the
    /// caller.
    #[inline(always)]
    pub(super) fn set_now(&self, key: K, value: V, ttl: Option<Duration>) -> Option<V> {
        let call = self.call();
        let deadline = self.deadline_for(ttl, &call);
        self.put(key, value, &call, |_| deadline)
    }

    pub(super) fn set_nx_now(&self, key: K, value: V, ttl: Option<Duration>) -> bool {
        let call = self.call();
        let deadline = self.deadline_for(ttl, &call);
        let _flush = self.shared.publisher.flush_on_panic();
        let failure = self.failure_hash(&key);
        let set = self.shared.store.set_nx(key, value, &call, deadline);
        // If the key had a value, nothing was written, and the failure of the last load still counts.
        self.discard_failure(failure.filter(|_| set));
        self.finish_call(&call);
        set
    }

    pub(super) fn set_keep_ttl_now(&self, key: K, value: V) -> Option<V> {
        let call = self.call();
        let default_deadline = self.deadline_for(None, &call);
        self.put(key, value, &call, |current| current.unwrap_or(default_deadline))
    }
}

impl<K, V, S> Clone for SyncCache<K, V, S> {
    fn clone(&self) -> Self {
        Self { freshness_policy: self.freshness_policy.clone(), shared: self.shared.clone() }
    }
}
