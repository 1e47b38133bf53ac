//! Values that are loaded where they are missing, by one who asks for all who do.

use std::{
    convert::Infallible,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

use super::{
    Cache,
    freshness::{Freshness, TimeToLive},
    load_guard::LoadGuard,
    reentrancy::ReentrancyScope,
};
use crate::engine::{
    clock::{Deadline, Now},
    coop,
    store::{Failure, Flight, LoadLookup, Location, WaitOutcome},
    to_key::ToKey,
};

/// A look-up of what may have to be loaded.
enum LookupOutcome<V> {
    Fresh(V),
    /// Alive, but it is time to load it anew: it dies then.
    Due(V, Deadline),
    /// It has died then.
    Stale(V, Deadline),
    Missing,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// The live value of `key`; where there is none, what `loader` returns, which is put there to live for `ttl` from
    /// then on.
    ///
    /// One loader runs for a key, however many wait for it, and all get what it returns. Where the call whose loader
    /// runs is dropped, or panics, one of the others goes on with its own. A hit costs what [`get`](Cache::get) does.
    ///
    /// The `loader` is an `async move` closure that owns what it needs: where a cache loads
    /// [ahead](super::Builder::refresh_ahead) or [behind](super::Builder::stale_while_revalidate), it may go on after
    /// the call has returned. `ttl` is a [`Duration`], or a closure that takes the value: see [`TimeToLive`].
    ///
    /// What is written to the key while it is being loaded (`set`, `update`, `remove`, `clear` and their like) wins over
    /// what is loaded: those who wait get that, and it is not put into the cache. Who asks after such a write waits until the
    /// load is over, and never gets what is older than the write.
    ///
    /// A loader may call the cache, for other keys too. One that asks for its own key, in the same task, loads by
    /// itself, and nothing is put there; through another task, which it waits for, it would wait for itself for ever.
    /// So do two loaders that wait for each other.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. A load that nobody waits for any more ends where it is.
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
    /// let name = users.get_or_set_with(&7, minute, async || unreachable!("it is there")).await;
    /// assert_eq!(name, "Ada");
    /// # }
    /// ```
    // An `async fn` would keep its arguments twice, and copy them at each call.
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
            let look = match self.look_up(key) {
                LookupOutcome::Fresh(value) => return value,
                look => look,
            };
            let loader = async move || Ok::<_, Infallible>(loader().await);
            match Box::pin(self.load_or_wait(look, key, ttl, loader)).await {
                Ok((value, _)) => value,
                Err(never) => match *never {},
            }
        }
    }

    /// As [`get_or_set_with`](Cache::get_or_set_with), with a loader that may fail. All who wait get the error.
    ///
    /// It is kept for nobody else, unless the cache has a [`negative_ttl`](super::Builder::negative_ttl). Who waits for
    /// a loader whose error is of another type goes on with its own.
    ///
    /// # Errors
    ///
    /// What the loader returned.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
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
    // An `async fn` would keep its arguments twice, and copy them at each call.
    #[allow(clippy::manual_async_fn)]
    pub fn get_or_try_set_with<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<V, Arc<E>>>
    where
        Q: ToKey<K> + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        async move {
            coop::proceed().await;
            match self.look_up(key) {
                LookupOutcome::Fresh(value) => Ok(value),
                look => Box::pin(self.load_or_wait(look, key, ttl, loader))
                    .await
                    .map(|(value, _)| value),
            }
        }
    }

    /// As [`get_or_try_set_with`](Cache::get_or_try_set_with), and tells how fresh the value is.
    ///
    /// # Errors
    ///
    /// What the loader returned.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[allow(clippy::manual_async_fn)] // As above.
    pub fn get_or_try_set_with_freshness<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<(V, Freshness), Arc<E>>>
    where
        Q: ToKey<K> + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        async move {
            coop::proceed().await;
            match self.look_up(key) {
                LookupOutcome::Fresh(value) => Ok((value, Freshness::Fresh)),
                look => Box::pin(self.load_or_wait(look, key, ttl, loader)).await,
            }
        }
    }

    /// What is to be done where there is no fresh value. Boxed by its callers, so that a hit does not pay for it.
    async fn load_or_wait<Q, E, F, Fut>(
        &self,
        look: LookupOutcome<V>,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        match look {
            LookupOutcome::Fresh(value) => Ok((value, Freshness::Fresh)),
            LookupOutcome::Due(value, dies) => {
                self.refresh(key, ttl, loader, dies);
                Ok((value, Freshness::Fresh))
            }
            LookupOutcome::Stale(value, died) => {
                self.refresh(key, ttl, loader, died);
                Ok((value, Freshness::Stale))
            }
            LookupOutcome::Missing => self.load(key, ttl, loader).await,
        }
    }

    #[inline]
    fn look_up<Q>(&self, key: &Q) -> LookupOutcome<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let call = self.call();
        let settings = &self.freshness_policy.settings;
        let found = if settings.needs_deadline() {
            let found = self.shared.store.get_with_deadline(key, &call);
            found.map(|(value, deadline)| match deadline.remaining(call.at_least()) {
                Some(left) if self.freshness_policy.is_to_be_refreshed(left) => {
                    LookupOutcome::Due(value, deadline)
                }
                _ => LookupOutcome::Fresh(value),
            })
        } else {
            // No clock is read but what the look-up reads.
            self.shared.store.get(key, &call).map(LookupOutcome::Fresh)
        };
        if let Some(found) = found {
            coop::charge(&call);
            return found;
        }
        // It may have been dead.
        self.shared.publisher.flush();
        coop::charge(&call);
        match self.stale(key, settings.stale_while_revalidate) {
            Some((value, died)) => LookupOutcome::Stale(value, died),
            None => LookupOutcome::Missing,
        }
    }

    /// A value that is dead, and for no longer than `window`, and when it died.
    fn stale<Q>(&self, key: &Q, window: Duration) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        if window == Duration::ZERO {
            return None;
        }
        let clock = &self.shared.clock;
        let (value, died) = self.shared.store.get_stale(key, clock)?;
        (!clock.is_dead(died.extended(window))).then_some((value, died))
    }

    async fn load<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        let store = &self.shared.store;
        let place = store.place(key);
        loop {
            if let Some(error) =
                self.freshness_policy.failures.as_ref().and_then(|kept| kept.error(key))
            {
                return self.failed(key, error);
            }
            let sought = store.lookup_or_join(place, key, || key.to_key(), &self.shared.clock);
            self.shared.publisher.flush();
            let (mut guard, joined) = match sought {
                LoadLookup::Live(value) => return Ok((value, Freshness::Fresh)),
                LoadLookup::Leader(flight) => (self.guard(place, flight, true), 0),
                LoadLookup::Follower(flight, joined) => (self.guard(place, flight, false), joined),
            };
            if guard.is_leader {
                return self.lead(guard, 0, key, ttl, loader).await;
            }
            if ReentrancyScope::is(&guard.flight) {
                // It would wait for itself.
                drop(guard);
                return match loader().await {
                    Ok(value) => Ok((value, Freshness::Loaded)),
                    Err(error) => self.failed(key, Arc::new(error)),
                };
            }
            match guard.flight.wait().await {
                WaitOutcome::Leader => {
                    guard.is_leader = true;
                    // In this order: what is written later is noticed.
                    let started_at_version = guard.flight.write_version();
                    if let Some(value) = store.peek(key, &self.shared.clock) {
                        guard.finish(started_at_version, Ok(value.clone()));
                        return Ok((value, Freshness::Fresh));
                    }
                    return self.lead(guard, started_at_version, key, ttl, loader).await;
                }
                WaitOutcome::Finished(result) if result.started_at_version >= joined => {
                    match &result.outcome {
                        Ok(value) => return Ok((value.clone(), Freshness::Loaded)),
                        Err(error) => {
                            if let Ok(error) = error.clone().downcast() {
                                return self.failed(key, error);
                            }
                        }
                    }
                }
                // It was overtaken before this call came.
                WaitOutcome::Finished(_) => {}
            }
        }
    }

    async fn lead<Q, E, F, Fut>(
        &self,
        guard: LoadGuard<K, V, S>,
        started_at_version: u32,
        key: &Q,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Result<(V, Freshness), Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        let start = self.shared.clock.now();
        let loaded = ReentrancyScope::run(&guard.flight, async move { loader().await }).await;
        self.freshness_policy.loads.count(self.shared.clock.now().since(start), loaded.is_err());
        match loaded {
            Ok(value) => {
                let ttl = ttl.of(&value);
                self.publish(&guard.flight, started_at_version, key.to_key(), value.clone(), ttl);
                guard.finish(started_at_version, Ok(value.clone()));
                Ok((value, Freshness::Loaded))
            }
            Err(error) => {
                let error = Arc::new(error);
                self.note_failure(
                    &guard.flight,
                    started_at_version,
                    key.to_key(),
                    Some(error.clone()),
                );
                guard.finish(started_at_version, Err(error.clone()));
                self.failed(key, error)
            }
        }
    }

    /// Puts what was loaded into the cache, unless a write came after the load had begun.
    pub(super) fn publish(
        &self,
        flight: &Flight<V>,
        started_at_version: u32,
        key: K,
        value: V,
        ttl: Duration,
    ) {
        let failure = self.failure_at(&key);
        let call = self.call();
        let until = call.begin().after(self.freshness_policy.shortened(ttl));
        let decide = |_| (flight.write_version() == started_at_version).then_some(until);
        self.shared.store.put(key, value, None, &call, decide);
        self.forget_failure(failure);
        self.end(&call);
    }

    pub(super) fn note_failure(
        &self,
        flight: &Flight<V>,
        started_at_version: u32,
        key: K,
        error: Option<Failure>,
    ) {
        let Some(failures) = &self.freshness_policy.failures else { return };
        failures.note(key, error, || flight.write_version() != started_at_version);
    }

    /// What a caller gets whose load has failed: a stale value, where that may be, or the error.
    fn failed<Q, E>(&self, key: &Q, error: Arc<E>) -> Result<(V, Freshness), Arc<E>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        match self.stale(key, self.freshness_policy.settings.stale_if_error) {
            Some((value, _)) => Ok((value, Freshness::Stale)),
            None => Err(error),
        }
    }

    pub(super) fn guard(
        &self,
        place: Location,
        flight: Arc<Flight<V>>,
        is_leader: bool,
    ) -> LoadGuard<K, V, S> {
        LoadGuard { shared: Arc::downgrade(&self.shared), place, flight, is_leader }
    }
}
