//! Loader methods for one key: the loop of a caller, and whether it gets the error or the stale value of a failed load.

use std::{
    convert::Infallible,
    fmt::Debug,
    hash::{BuildHasher, Hash},
    pin::pin,
    sync::Arc,
};

use super::{
    join::{LoadCall, LoadGuard},
    look_up::{Freshness, Hit},
    ttl::TimeToLive,
};
use crate::{
    cache::{Cache, SyncCache, reentrancy::ReentrancyScope},
    engine::{coop, store::Lookup, to_key::ToKey},
};

impl<K, V, S> Cache<K, V, S>
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
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let users: Cache<u64, String> = Cache::new();
    /// let minute = Duration::from_secs(60);
    /// let name = users.get_or_set_with(&7, minute, async || "Ada".to_owned()).await;
    /// assert_eq!(name, "Ada");
    /// let name = users.get_or_set_with(&7, minute, async || unreachable!("the value is cached")).await;
    /// assert_eq!(name, "Ada");
    /// # }
    /// ```
    ///
    /// One loader runs per key, no matter how many callers wait, and all of them get its result. If the call that runs
    /// the loader is dropped or panics, one of the waiters starts its own loader. A hit costs about as much as
    /// [`get`](Cache::get).
    ///
    /// In a cache with [`stale_while_revalidate`](crate::Builder::stale_while_revalidate), an expired value within its
    /// window is returned immediately and refreshed in the background: on the runtime of the cache, or on that of the
    /// caller if the cache was built on a `current_thread` runtime, because such a runtime runs tasks only inside
    /// `block_on`.
    ///
    /// `ttl` is a [`Duration`](std::time::Duration), an `Option<Duration>` (`None` means the default TTL, as for
    /// [`set`](Cache::set)), or a closure that computes it from the value (see [`TimeToLive`]). It starts when the load
    /// ends. [`Tagged`](crate::Tagged) also gives the value tags.
    ///
    /// Your `loader` is usually an `async move` closure that owns the data it uses. It must be `'static`, because
    /// [`refresh_ahead`](crate::Builder::refresh_ahead) and
    /// [`stale_while_revalidate`](crate::Builder::stale_while_revalidate) may run it in the background after the call
    /// has returned.
    ///
    /// # Concurrent writes
    ///
    /// A write to the key during a load (`set`, `update`, `remove`, `clear` and the like) takes precedence: callers
    /// that were already waiting get the loaded value, but it is not stored. A call that begins after the write never
    /// returns an older value. It returns the written value or, if the key was removed, waits until that load has ended
    /// and then loads again. It waits for two loads at most, since it accepts each that began after the call itself.
    /// [`expire`](Cache::expire) and the like take precedence over `ttl` during a refresh, and over the loaded value if
    /// they let it expire. [`remove_if`](Cache::remove_if) and [`retain`](Cache::retain) do not affect the load of a
    /// missing key, because they examine entries. A [table](crate::guide::crossings) shows the outcome for each method.
    ///
    /// # Recursion
    ///
    /// Your loader may call the cache. If it requests its own key in the same task, the inner call runs its own loader
    /// and does not store the result. A loader deadlocks if it waits for another task that requests the same key. Two
    /// loaders that request each other's keys deadlock too.
    ///
    /// # Panics
    ///
    /// Panics if this call runs the loader and the loader panics. The panic does not reach other callers.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. If you drop the call that runs the loader, its loader is dropped, and a waiter
    /// starts its own. If no waiter is left, nothing is stored.
    #[doc(alias = "get_with")]
    #[doc(alias = "singleflight")]
    #[doc(alias = "coalesce")]
    #[doc(alias = "memoize")]
    // An `async fn` would store its arguments twice, as arguments and as locals, and copy them in each call.
    #[allow(clippy::manual_async_fn)]
    pub fn get_or_set_with<Q, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = V>
    where
        Q: ToKey<K> + ?Sized,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = V> + Send + 'static,
    {
        async move {
            coop::proceed().await;
            let hit = match self.inner.look_up(key) {
                Some(Hit { value, refresh: None }) => return value,
                hit => hit,
            };
            let loader = async move || Ok::<_, Infallible>(loader().await);
            match Box::pin(self.inner.refresh_or_load(hit, key, ttl, loader)).await {
                Ok((value, _)) => value,
                Err(never) => match *never {},
            }
        }
    }

    /// Returns the live value of `key`; if there is none, runs a fallible `loader`, stores its value and returns it.
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let files: Cache<String, String> = Cache::new();
    /// let minute = Duration::from_secs(60);
    /// let read = async || Err(io::Error::from(io::ErrorKind::NotFound));
    /// let error = files.get_or_try_set_with("motd", minute, read).await.unwrap_err();
    /// assert_eq!(error.kind(), io::ErrorKind::NotFound);
    /// # }
    /// ```
    ///
    /// Otherwise the same as [`get_or_set_with`](Cache::get_or_set_with). If the load fails, all waiters get its error.
    /// The error is not kept for later calls, unless the cache has a [`negative_ttl`](crate::Builder::negative_ttl). A
    /// waiter continues with its own loader if its error type differs from that of the running one, or if a background
    /// refresh that it waits for fails.
    ///
    /// # Errors
    ///
    /// Returns the error of the loader, or the error kept for `key`. Within the
    /// [`stale_if_error`](crate::Builder::stale_if_error) window, the expired value is returned instead of an error.
    ///
    /// # Cancel safety
    ///
    /// As for [`get_or_set_with`](Cache::get_or_set_with).
    #[doc(alias = "try_get_with")]
    // An `async fn` would store its arguments twice, as arguments and as locals, and copy them in each call.
    #[allow(clippy::manual_async_fn)]
    pub fn get_or_try_set_with<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<V, Arc<E>>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        async move {
            coop::proceed().await;
            match self.inner.look_up(key) {
                Some(Hit { value, refresh: None }) => Ok(value),
                hit => {
                    let loaded = Box::pin(self.inner.refresh_or_load(hit, key, ttl, loader)).await;
                    loaded.map(|(value, _)| value)
                }
            }
        }
    }

    /// Like [`get_or_try_set_with`](Cache::get_or_try_set_with), and also returns how fresh the value is.
    ///
    /// ```
    /// use std::{convert::Infallible, time::Duration};
    /// use fleeting::{Cache, Freshness};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let users: Cache<u64, String> = Cache::new();
    /// let minute = Duration::from_secs(60);
    /// let load = async || Ok::<_, Infallible>("Ada".to_owned());
    /// let (_, freshness) = users.get_or_try_set_with_freshness(&7, minute, load).await.unwrap();
    /// assert_eq!(freshness, Freshness::Loaded);
    /// let (_, freshness) = users.get_or_try_set_with_freshness(&7, minute, load).await.unwrap();
    /// assert_eq!(freshness, Freshness::Fresh);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`get_or_try_set_with`](Cache::get_or_try_set_with).
    ///
    /// # Cancel safety
    ///
    /// As for [`get_or_set_with`](Cache::get_or_set_with).
    #[doc(alias = "is_fresh")]
    #[allow(clippy::manual_async_fn)] // As for `get_or_set_with`.
    pub fn get_or_try_set_with_freshness<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<(V, Freshness), Arc<E>>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        async move {
            coop::proceed().await;
            match self.inner.look_up(key) {
                Some(Hit { value, refresh: None }) => Ok((value, Freshness::Fresh)),
                hit => Box::pin(self.inner.refresh_or_load(hit, key, ttl, loader)).await,
            }
        }
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Refreshes the value that a look-up found, in the background, or loads it if there is none. Callers box its
    /// future, so that a hit does not pay for the size of a load.
    async fn refresh_or_load<Q, E, F, Fut>(
        &self,
        hit: Option<Hit<V>>,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let Some(hit) = hit else { return self.load(key, ttl, loader).await };
        if let Some(seen) = hit.refresh {
            self.spawn_refresh(key, ttl, loader, seen);
        }
        let freshness = hit.freshness();
        Ok((hit.value, freshness))
    }

    /// Loads `key` as the leader of its flight, or waits for the flight of another caller.
    pub(super) async fn load<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        let mut call = LoadCall::new(self.shared.store.locate(key));
        loop {
            let failed_loads = self.shared.failed_loads.as_ref();
            let hash = call.location.hash();
            if let Some(error) = failed_loads.and_then(|failed| failed.error::<K, _, _>(hash, key))
            {
                return self.stale_or_error(key, error);
            }
            match self.join_flight(&mut call, key).await {
                Lookup::Live(value) => return Ok((value, Freshness::Fresh)),
                Lookup::Leader(guard) => return self.run_loader(guard, key, ttl, loader).await,
                Lookup::Nested => {
                    return match loader().await {
                        Ok(value) => Ok((value, Freshness::Loaded)),
                        Err(error) => self.stale_or_error(key, Arc::new(error)),
                    };
                }
                Lookup::Loaded(value) => return Ok((value, Freshness::Loaded)),
                Lookup::Failed(error) => {
                    // Another loader's type of error cannot be returned.
                    if let Ok(error) = error.downcast() {
                        return self.stale_or_error(key, error);
                    }
                }
                Lookup::Again => {}
            }
        }
    }

    /// Runs the loader as the leader of the flight, stores its value and ends the flight.
    pub(super) async fn run_loader<Q, E, F, Fut>(
        &self,
        mut load_guard: LoadGuard<K, V, S>,
        key: &Q,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        load_guard.begin_load(&ttl);
        let start = self.shared.clock.now();
        let loaded = {
            let load = pin!(async move { loader().await });
            ReentrancyScope::run(&load_guard.flight, load).await
        };
        self.freshness_policy.loads.record(self.shared.clock.now().since(start), loaded.is_err());
        match loaded {
            Ok(value) => {
                let ttl = ttl.with_tags(&value);
                self.store_loaded(&load_guard, key.to_key(), &value, ttl);
                load_guard.finish(Lookup::Loaded(value.clone()));
                self.finish(()).await;
                Ok((value, Freshness::Loaded))
            }
            Err(error) => {
                let error = Arc::new(error);
                self.record_failure(&load_guard.flight, key.to_key(), Some(error.clone()));
                load_guard.finish(Lookup::Failed(error.clone()));
                self.stale_or_error(key, error)
            }
        }
    }

    /// Returns the result of a call whose load failed: the stale value if `stale_if_error` allows it, else the error.
    fn stale_or_error<Q, E>(&self, key: &Q, error: Arc<E>) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
    {
        match self.get_stale(key, self.freshness_policy.settings.stale_if_error) {
            Some(value) => Ok((value, Freshness::Stale)),
            None => Err(error),
        }
    }
}
