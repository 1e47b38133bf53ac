//! Loader methods of [`SyncCache`], which share the flights of the async ones: a caller of either kind waits for the
//! load of the other.

use std::{
    convert::Infallible,
    fmt::Debug,
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use super::ttl::TimeToLive;
use crate::{
    cache::SyncCache,
    engine::{block_on::block_on, coop, to_key::ToKey},
};

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the live value of `key`; if there is none, runs `loader`, stores its result and returns it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// let squares = Cache::builder().background_thread().build();
    /// let square = |n: u64| squares.sync().get_or_set_with(&n, Duration::from_secs(60), || n * n);
    /// assert_eq!(square(12), 144);
    /// assert_eq!(squares.sync().get(&12), Some(144));
    /// ```
    ///
    /// One loader runs per key, no matter how many threads and tasks ask for it: single flight is shared with the
    /// loader methods of [`Cache`](crate::Cache), in both directions. `loader` runs on your thread, never in the
    /// background, so it may borrow and need not be `Send`. An expired value within its [stale
    /// window](crate::Builder::stale_while_revalidate) is therefore loaded by this call. Writes during the load, `ttl`
    /// and recursion are those of [`Cache::get_or_set_with`](crate::Cache::get_or_set_with).
    ///
    /// # Blocking
    ///
    /// The call blocks its thread while the loader runs, and while another caller loads the same key. Do not call it on
    /// a thread that drives a Tokio runtime: if that runtime runs the other caller's load, neither ends. Await the
    /// method of `Cache` there, or use `spawn_blocking`.
    ///
    /// # Panics
    ///
    /// Panics if this call runs the loader and the loader panics; a waiter then runs its own. With debug assertions, it
    /// panics if it would wait on a thread that drives a Tokio runtime.
    pub fn get_or_set_with<Q>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V>,
        loader: impl FnOnce() -> V,
    ) -> V
    where
        Q: ToKey<K> + ?Sized,
    {
        match self.get_or_try_set_with(key, ttl, || Ok::<_, Infallible>(loader())) {
            Ok(value) => value,
            Err(never) => match *never {},
        }
    }

    /// Returns the live value of `key`; if there is none, runs a fallible `loader`, stores its value and returns it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// let numbers = Cache::builder().background_thread().build();
    /// let parse = |text: &str| {
    ///     numbers.sync().get_or_try_set_with(text, Duration::from_secs(60), || text.parse::<u32>())
    /// };
    /// assert_eq!(parse("42"), Ok(42));
    /// assert!(parse("x").is_err());
    /// # let _: &Cache<String, u32> = &numbers;
    /// ```
    ///
    /// Otherwise the same as [`get_or_set_with`](SyncCache::get_or_set_with). Errors are shared between waiters and
    /// kept by [`negative_ttl`](crate::Builder::negative_ttl), as in
    /// [`Cache::get_or_try_set_with`](crate::Cache::get_or_try_set_with).
    ///
    /// # Errors
    ///
    /// Returns the error of the load, or the error kept for `key`. No error is returned while
    /// [`stale_if_error`](crate::Builder::stale_if_error) allows the expired value to be returned instead.
    ///
    /// # Panics
    ///
    /// As for [`get_or_set_with`](SyncCache::get_or_set_with).
    pub fn get_or_try_set_with<Q, E>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V>,
        loader: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
    {
        coop::count();
        if let Some(value) = self.look_up_live(key) {
            return Ok(value);
        }
        let loader = || async { coop::with_yields(loader) };
        block_on(self.load(key, ttl, loader)).map(|(value, _)| value)
    }
}
