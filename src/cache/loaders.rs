//! Loader methods: return the live value of a key, or load it once for all concurrent callers.

use std::{
    convert::Infallible,
    fmt::Debug,
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;

use super::{
    Cache,
    freshness::{Freshness, TimeToLive},
};
use crate::engine::{
    clock::{Deadline, Now},
    coop,
    to_key::ToKey,
};

/// Result of the lookup that precedes a load.
enum LookupOutcome<V> {
    Fresh(V),
    /// The value is live and should be refreshed in the background before this deadline.
    Due(V, Deadline),
    /// The value expired at this deadline and is within its stale window.
    Stale(V, Deadline),
    Missing,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the live value of `key`; if there is none, runs `loader`, stores its result and returns it.
    ///
    /// One loader runs per key, no matter how many callers wait, and all of them get its result. If the call that runs
    /// the loader is dropped or panics, one of the waiters starts its own loader. A hit costs about as much as
    /// [`get`](Cache::get).
    ///
    /// In a cache with [`stale_while_revalidate`](super::Builder::stale_while_revalidate), an expired value within its
    /// window is returned immediately and refreshed in the background: on the runtime of the cache, or on that of the
    /// caller if the cache was built on a `current_thread` runtime, because such a runtime runs tasks only inside
    /// `block_on`.
    ///
    /// `ttl` is a [`Duration`](std::time::Duration), an `Option<Duration>` (`None` means the default TTL, as for
    /// [`set`](Cache::set)), or a closure that computes it from the value (see [`TimeToLive`]). It starts when the load
    /// ends.
    ///
    /// `loader` is usually an `async move` closure that owns the data it uses. It must be `'static`, because
    /// [`refresh_ahead`](super::Builder::refresh_ahead) and
    /// [`stale_while_revalidate`](super::Builder::stale_while_revalidate) may run it in the background after the call
    /// has returned.
    ///
    /// # Concurrent writes
    ///
    /// A write to the key during a load (`set`, `update`, `remove`, `clear` and the like) takes precedence: callers
    /// that were already waiting get the loaded value, but it is not stored. A call that begins after the write never
    /// returns an older value. It returns the written value or, if the key was removed, waits until that load has ended
    /// and then loads again. [`remove_if`](Cache::remove_if) and [`retain`](Cache::retain) do not affect the load of a
    /// missing key, because they examine entries.
    ///
    /// # Recursion
    ///
    /// A loader may call the cache. If it requests its own key in the same task, the inner call runs its own loader and
    /// does not store the result. A loader deadlocks if it waits for another task that requests the same key. Two
    /// loaders that request each other's keys deadlock too.
    ///
    /// # Panics
    ///
    /// Panics if this call runs the loader and the loader panics. The panic does not reach other callers.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. If the call that runs the loader is dropped, its loader is dropped, and a waiter
    /// starts its own. If no waiter is left, nothing is stored.
    ///
    /// # Examples
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
            let outcome = match self.look_up(key) {
                LookupOutcome::Fresh(value) => return value,
                outcome => outcome,
            };
            let loader = async move || Ok::<_, Infallible>(loader().await);
            match Box::pin(self.load_or_wait(outcome, key, ttl, loader)).await {
                Ok((value, _)) => value,
                Err(never) => match *never {},
            }
        }
    }

    /// Returns the live value of `key`; if there is none, runs a fallible `loader`, stores its value and returns it.
    ///
    /// Otherwise the same as [`get_or_set_with`](Cache::get_or_set_with). If the load fails, all waiters get its error.
    /// The error is not kept for later calls, unless the cache has a [`negative_ttl`](super::Builder::negative_ttl). A
    /// waiter continues with its own loader if its error type differs from that of the running one, or if a background
    /// refresh that it waits for fails.
    ///
    /// # Errors
    ///
    /// Returns the error of the loader, or the error kept for `key`. Within the
    /// [`stale_if_error`](super::Builder::stale_if_error) window, the expired value is returned instead of an error.
    ///
    /// # Cancel safety
    ///
    /// As for [`get_or_set_with`](Cache::get_or_set_with).
    ///
    /// # Examples
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
            match self.look_up(key) {
                LookupOutcome::Fresh(value) => Ok(value),
                outcome => Box::pin(self.load_or_wait(outcome, key, ttl, loader))
                    .await
                    .map(|(value, _)| value),
            }
        }
    }

    /// Like [`get_or_try_set_with`](Cache::get_or_try_set_with), and also returns how fresh the value is.
    ///
    /// # Errors
    ///
    /// As for [`get_or_try_set_with`](Cache::get_or_try_set_with).
    ///
    /// # Cancel safety
    ///
    /// As for [`get_or_set_with`](Cache::get_or_set_with).
    ///
    /// # Examples
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
            match self.look_up(key) {
                LookupOutcome::Fresh(value) => Ok((value, Freshness::Fresh)),
                outcome => Box::pin(self.load_or_wait(outcome, key, ttl, loader)).await,
            }
        }
    }

    /// Handles a lookup that found no fresh value. Callers box its future, so that a hit does not pay for the size of a
    /// load.
    async fn load_or_wait<Q, E, F, Fut>(
        &self,
        outcome: LookupOutcome<V>,
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
        match outcome {
            LookupOutcome::Fresh(value) => Ok((value, Freshness::Fresh)),
            LookupOutcome::Due(value, deadline) => {
                self.spawn_refresh(key, ttl, loader, deadline);
                Ok((value, Freshness::Fresh))
            }
            LookupOutcome::Stale(value, expired_at) => {
                self.spawn_refresh(key, ttl, loader, expired_at);
                Ok((value, Freshness::Stale))
            }
            LookupOutcome::Missing => self.load(key, ttl, loader).await,
        }
    }

    /// Reads `key` and decides whether it has to be loaded or refreshed.
    #[inline]
    fn look_up<Q>(&self, key: &Q) -> LookupOutcome<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let call = self.call();
        let settings = &self.freshness_policy.settings;
        let found = if settings.needs_deadline() {
            let found = self.shared.store.get_with_deadline(key, &call);
            found.map(|(value, deadline)| match deadline.remaining(call.tick()) {
                Some(remaining) if self.freshness_policy.should_refresh(remaining) => {
                    LookupOutcome::Due(value, deadline)
                }
                _ => LookupOutcome::Fresh(value),
            })
        } else {
            // Without refresh-ahead the deadline is not needed, and the lookup reads no precise clock for it.
            self.shared.store.get(key, &call).map(LookupOutcome::Fresh)
        };
        if let Some(found) = found {
            coop::charge(&call);
            return found;
        }
        // The lookup may have expired the entry and written to the journal.
        self.shared.publisher.flush();
        coop::charge(&call);
        match self.get_stale(key, settings.stale_while_revalidate) {
            Some((value, expired_at)) => LookupOutcome::Stale(value, expired_at),
            None => LookupOutcome::Missing,
        }
    }
}
