//! Loader methods: which caller loads, what the others get (a stale value at once, or a wait), and what a caller gets
//! if the server fails before the load. One load runs per key: within a process by [`flights`](super::flights), between
//! processes by a [`lease`](super::lease).

use std::{borrow::Borrow, convert::Infallible, fmt::Debug, mem, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::{
    super::{Error, codec::encode_key, error::is_out_of_memory},
    Cache,
    failures::BegunLoad,
    flights::{FlightMembership, FlightOutcome},
    lease::{Lease, LeaseLookup, peek, poll_pause},
    load::Load,
};
use crate::{cache::TimeToLive, engine::tasks::spawn};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Returns the live value of `key`, or else loads it with `loader` and writes the result with the TTL `ttl`, which
    /// starts when the load ends.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::{Cache, Client};
    ///
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// let client = Client::connect("redis://127.0.0.1:6379").await?;
    /// let users: Cache<u64, String> = Cache::new(&client, "users")?;
    /// let minute = Duration::from_secs(60);
    /// let name = users.get_or_set_with(&7, minute, async || "Ada".to_owned()).await?;
    /// assert_eq!(name, "Ada");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One loader runs per key across all processes that share the cache, no matter how many callers wait. The loading
    /// process holds a lease on the key and renews it. If the call is dropped or panics, the lease is released. If the
    /// process crashes, the runtime of the call shuts down, or the server cannot be reached, the lease expires after
    /// [`lease`](super::CacheBuilder::lease). Then one of the waiters starts its own loader.
    ///
    /// A hit costs as much as [`get`](Cache::get), a miss two more round trips. While another process loads, one
    /// waiter in each process polls the server: first after 2 ms, then after a quarter of the time waited so far, with
    /// pauses of at most 100 ms.
    ///
    /// The `loader` is an `async move` closure that owns its data: with
    /// [`stale_while_revalidate`](super::CacheBuilder::stale_while_revalidate), it may continue on the runtime of the
    /// call after the call has returned. `ttl` is a [`Duration`](std::time::Duration), an `Option<Duration>` (`None`
    /// means the default TTL, as for [`set`](Cache::set)), a closure that takes the value ([`TimeToLive`]), or any of
    /// these with tags ([`Tagged`](crate::Tagged)). Otherwise, the value keeps the tags of the one that it replaces.
    ///
    /// Writes to the key during the load (`set`, `remove`, `clear` and so on) take precedence over the loaded value.
    /// The caller whose loader ran, and those that were waiting before the load began, still get the loaded value, but
    /// it is not cached, and later callers ask the server again. So no caller of this process waits for more than two
    /// loads. A deadline that is set during a refresh (`expire`, `persist` and so on) becomes that of the loaded value,
    /// which is not cached if it has passed. There is one exception: a write is not noticed if its TTL was a minute or
    /// more and its value has expired before the load ends. A lost lease has the same effect as a write, for example if
    /// the server restarts without its data. A [table](crate::guide::crossings) shows the outcome for each method.
    ///
    /// A loader may call the cache for other keys. If it requests its own key in the same task, that call runs its own
    /// loader and caches nothing. A loader that requests its own key through another task, or through a cache of the
    /// same name that is not a clone of this one, deadlocks. Two loaders that request each other's keys deadlock too.
    ///
    /// # Panics
    ///
    /// Panics if called outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors). If such an error occurs before the load, no loader runs, and all
    /// waiters in this process get the same error. If the server becomes unreachable while the loader runs, the caller
    /// gets the loaded value. The value is not cached; the error is logged, and the load counts as
    /// [failed](super::CacheStats::failed_loads). The waiters ask the server again and get the error.
    ///
    /// A server whose memory is full (`OOM`) grants no lease. Then one loader runs per key and process, for all callers
    /// that waited when it began. They get its value, or the stale value if there is one and the load fails. The value
    /// is not cached, and the error is logged and counted in the same way.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. If the call that runs the loader is dropped, its loader is dropped, and a waiter starts its own. If
    /// no waiter is left, nothing is written.
    pub fn get_or_set_with<Q, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<V, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = V> + Send + 'static,
    {
        // Here and not in the future, which then does not borrow the key.
        let key = encode_key(key);
        async move {
            let loader = async move || Ok::<_, Infallible>(loader().await);
            match self.get_or_load(key?, ttl, loader).await? {
                Ok(value) => Ok(value),
                Err(never) => match *never {},
            }
        }
    }

    /// Returns the live value of a key, or loads it by a loader that may fail, like
    /// [`get_or_set_with`](Cache::get_or_set_with). The outer `Result` contains the errors of the server, and the inner
    /// one those of the loader.
    ///
    /// ```no_run
    /// use std::{io, time::Duration};
    /// use fleeting::redis::Cache;
    ///
    /// # async fn f(files: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// let minute = Duration::from_secs(60);
    /// let read = async || Err(io::Error::from(io::ErrorKind::NotFound));
    /// let error = files.get_or_try_set_with("motd", minute, read).await?.unwrap_err();
    /// assert_eq!(error.kind(), io::ErrorKind::NotFound);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the load fails, all waiters in this process get the loader's error. Waiters in other processes, and waiters
    /// that expect another error type, run their own loaders. With
    /// [`negative_ttl`](super::CacheBuilder::negative_ttl), this process keeps the error; otherwise the next call loads
    /// again.
    ///
    /// # Panics
    ///
    /// Panics if called outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// The outer errors are those of [`get_or_set_with`](Cache::get_or_set_with); the inner error is the loader's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn get_or_try_set_with<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<Result<V, Arc<E>>, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let key = encode_key(key);
        async move { self.get_or_load(key?, ttl, loader).await }
    }

    async fn get_or_load<E, F, Fut>(
        &self,
        key: Vec<u8>,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let found = self.look_up(&key).await?;
        match found {
            Some((value, false)) => Ok(Ok(value)),
            Some((value, true)) => {
                self.spawn_refresh_ahead(key, ttl, loader);
                Ok(Ok(value))
            }
            // Boxed: the future of a load is large, and a hit would pay for moving it.
            None => Box::pin(self.load(&key, ttl, loader)).await,
        }
    }

    async fn load<E, F, Fut>(
        &self,
        key: &[u8],
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let mut has_joined = false;
        loop {
            if let Some(error) = self.kept_error(key) {
                return match self.peek_stale(key).await? {
                    Some(stale) => Ok(Ok(stale)),
                    None => Ok(Err(error)),
                };
            }
            let mut guard = self.state.flights.join(key);
            if mem::replace(&mut has_joined, true) {
                guard.accept_all();
            }
            if guard.is_leader() {
                return self.lead(guard, key, ttl, loader).await;
            }
            if guard.is_reentrant() {
                // The loader of this key requests it in its own task: to wait for itself would deadlock.
                drop(guard);
                return Ok(loader().await.map_err(Arc::new));
            }
            if let Some(stale) = self.peek_stale(key).await? {
                return Ok(Ok(stale));
            }
            match guard.wait().await {
                FlightOutcome::Leader => return self.lead(guard, key, ttl, loader).await,
                FlightOutcome::Loaded(value) => return Ok(Ok(self.state.decode(key, &value)?)),
                FlightOutcome::Error(error) => return Err(error),
                FlightOutcome::LoaderFailed(error) => {
                    // Another error type is that of another loader: the loop tries again with this caller's.
                    if let Ok(error) = error.downcast() {
                        return Ok(Err(error));
                    }
                }
                FlightOutcome::Retry => {}
            }
        }
    }

    /// Polls the server until there is a value or this call holds the lease, and then loads.
    async fn lead<E, F, Fut>(
        &self,
        mut guard: FlightMembership,
        key: &[u8],
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let commands = self.state.commands.clone();
        let mut lease = Lease::new(commands, key.to_vec(), self.state.lease, ttl.has_tags());
        let begun = self.begin_load(key);
        let started = Instant::now();
        let (stale, lease) = loop {
            guard.begin_load();
            match lease.lookup(false).await {
                Err(error) if is_out_of_memory(&error) => {
                    let stale = self.peek_stale(key).await?;
                    let load = self.new_load(key, guard, Err(error), begun, false);
                    // Not in the background: as its value is not cached, callers would never get it.
                    let loaded = load.run(ttl, loader).await?;
                    return Ok(loaded.or_else(|error| stale.ok_or(error)));
                }
                Err(error) => {
                    guard.finish_with_error(&error);
                    return Err(error);
                }
                Ok(LeaseLookup::Live(value)) => {
                    let decoded = self.state.decode(key, &value);
                    guard.finish(Ok(value));
                    return Ok(Ok(decoded?));
                }
                Ok(LeaseLookup::Acquired(stale)) => break (stale, lease),
                Ok(LeaseLookup::HeldElsewhere(Some(stale), _)) => {
                    // This drops the guard: a follower becomes the leader, and finds the same.
                    return Ok(Ok(self.state.decode(key, &stale)?));
                }
                Ok(LeaseLookup::HeldElsewhere(None, remaining)) => {
                    sleep(poll_pause(started.elapsed(), remaining)).await;
                }
            }
        };
        let load = self.new_load(key, guard, Ok(lease), begun, stale.is_some());
        match stale {
            Some(value) => {
                let value = self.state.decode(key, &value);
                // In a task of its own, so that the caller gets the stale value at once.
                let refresh = Box::pin(load.run_refresh(ttl, loader));
                spawn(&Handle::current(), "refresh", &self.state.name, refresh);
                Ok(Ok(value?))
            }
            None => load.run(ttl, loader).await,
        }
    }

    fn new_load(
        &self,
        key: &[u8],
        guard: FlightMembership,
        lease: Result<Lease, Error>,
        begun: Option<BegunLoad>,
        is_refresh: bool,
    ) -> Load {
        Load {
            name: self.state.name.clone(),
            key: key.to_vec(),
            guard,
            lease,
            format: self.state.format,
            counters: self.state.counters.clone(),
            freshness: self.state.freshness.clone(),
            begun,
            is_refresh,
        }
    }

    /// Returns the live value, or the stale value of a key that is being loaded; `None` without a stale window.
    async fn peek_stale(&self, key: &[u8]) -> Result<Option<V>, Error> {
        if !self.commands().keeps_stale() {
            return Ok(None);
        }
        let found = peek(self.commands(), key).await?;
        found.map(|value| self.state.decode(key, &value)).transpose()
    }
}
