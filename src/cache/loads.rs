//! Loads of single keys: one at a time per key, by the caller that leads the flight of the key.

use std::{
    fmt::Debug,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

use super::{
    Cache,
    any_key::AnyKey,
    freshness::{Freshness, TimeToLive},
    load_guard::LoadGuard,
    reentrancy::ReentrancyScope,
    refresh::{REFRESH_TIMEOUT, within_timeout},
};
use crate::engine::{
    clock::{Deadline, Now},
    store::{Failure, Flight, LoadLookup, Location, WaitOutcome},
    to_key::ToKey,
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
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
        let store = &self.shared.store;
        let location = store.locate(key);
        loop {
            let failures = self.freshness_policy.failures.as_ref();
            if let Some(error) =
                failures.and_then(|failures| failures.error::<K, _, _>(location.hash(), key))
            {
                return self.stale_or_error(key, error);
            }
            let lookup = self.lookup_or_join(location, key, &self.shared.clock);
            let (mut load_guard, joined_at_version) = match lookup {
                LoadLookup::Live(value) => return Ok((value, Freshness::Fresh)),
                LoadLookup::Leader(flight) => (self.load_guard(location, flight, true), 0),
                LoadLookup::Follower(flight, joined_at_version) => {
                    (self.load_guard(location, flight, false), joined_at_version)
                }
            };
            if load_guard.is_leader {
                return self.run_loader(load_guard, 0, key, ttl, loader).await;
            }
            if ReentrancyScope::is(&load_guard.flight) {
                // This call runs inside the loader of the flight, and would wait for itself.
                drop(load_guard);
                return match loader().await {
                    Ok(value) => Ok((value, Freshness::Loaded)),
                    Err(error) => self.stale_or_error(key, Arc::new(error)),
                };
            }
            match self.wait_for_load(&load_guard).await {
                WaitOutcome::Leader => {
                    load_guard.is_leader = true;
                    // The version is read before the value: a write in between is noticed when the load is stored.
                    let started_at_version = load_guard.flight.write_version();
                    if let Some(value) = self.peek(key) {
                        load_guard.finish_without_load(started_at_version, value.clone());
                        return Ok((value, Freshness::Fresh));
                    }
                    return self.run_loader(load_guard, started_at_version, key, ttl, loader).await;
                }
                WaitOutcome::Finished(result) if result.started_at_version >= joined_at_version => {
                    match &result.outcome {
                        Ok(value) => return Ok((value.clone(), Freshness::Loaded)),
                        Err(error) => {
                            if let Ok(error) = error.clone().downcast() {
                                return self.stale_or_error(key, error);
                            }
                        }
                    }
                }
                // A write preceded this call and superseded the load, or a refresh made no progress: look up again.
                WaitOutcome::Finished(_) | WaitOutcome::Stalled => {}
            }
        }
    }

    /// Returns the live value, or joins the flight that loads it; and publishes the event of an entry that the lookup
    /// removed.
    pub(super) fn lookup_or_join<Q>(
        &self,
        location: Location,
        key: &Q,
        now: &impl Now,
    ) -> LoadLookup<V>
    where
        Q: ToKey<K> + ?Sized,
    {
        let _flush = self.shared.publisher.flush_on_panic();
        let lookup = self.shared.store.lookup_or_join(location, key, || key.to_key(), now);
        self.shared.publisher.flush();
        lookup
    }

    /// Waits as a follower. Waits for a background refresh no longer than its time limit: its runtime may not be
    /// driven, and then its own timer is not either. A load that a caller runs has no limit.
    pub(super) async fn wait_for_load(&self, load_guard: &LoadGuard<K, V, S>) -> WaitOutcome<V> {
        let LoadGuard { flight, location, .. } = load_guard;
        if flight.is_refreshing() {
            if let Some(outcome) = Box::pin(within_timeout(flight.wait())).await {
                return outcome;
            }
            if self.shared.store.end_stalled_refresh(*location, flight) {
                tracing::warn!(
                    cache = self.shared.name(),
                    timeout = ?REFRESH_TIMEOUT,
                    "background refresh makes no progress, a waiter loads the value"
                );
            }
        }
        flight.wait().await
    }

    /// Runs the loader as the leader of the flight, stores its value and ends the flight.
    pub(super) async fn run_loader<Q, E, F, Fut>(
        &self,
        load_guard: LoadGuard<K, V, S>,
        started_at_version: u32,
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
        let start = self.shared.clock.now();
        let loaded = ReentrancyScope::run(&load_guard.flight, async move { loader().await }).await;
        self.freshness_policy.loads.record(self.shared.clock.now().since(start), loaded.is_err());
        match loaded {
            Ok(value) => {
                let ttl = ttl.of(&value);
                self.store_loaded(
                    &load_guard.flight,
                    started_at_version,
                    key.to_key(),
                    value.clone(),
                    ttl,
                );
                load_guard.finish(started_at_version, Ok(value.clone()));
                if self.has_deferred_evictions() {
                    self.finish_evictions(()).await;
                }
                Ok((value, Freshness::Loaded))
            }
            Err(error) => {
                let error = Arc::new(error);
                self.record_failure(
                    &load_guard.flight,
                    started_at_version,
                    key.to_key(),
                    Some(error.clone()),
                );
                load_guard.finish(started_at_version, Err(error.clone()));
                self.stale_or_error(key, error)
            }
        }
    }

    /// Stores a loaded value, unless the key was written after the load had started.
    pub(super) fn store_loaded(
        &self,
        flight: &Flight<V>,
        started_at_version: u32,
        key: K,
        value: V,
        ttl: Option<Duration>,
    ) {
        let _flush = self.shared.publisher.flush_on_panic();
        let failure = self.failure_location(&key);
        let call = self.call();
        let deadline = self.deadline_for(ttl, &call);
        let decide = |_| (flight.write_version() == started_at_version).then_some(deadline);
        self.shared.store.put(key, value, None, &call, decide);
        self.discard_failure(failure);
        self.finish_call(&call);
    }

    /// Records a failed load, unless the key was written after the load had started.
    pub(super) fn record_failure(
        &self,
        flight: &Flight<V>,
        started_at_version: u32,
        key: K,
        error: Option<Failure>,
    ) {
        let Some(failures) = &self.freshness_policy.failures else { return };
        let key = AnyKey::new(self.shared.store.locate(&key).hash(), key);
        failures.record(key, error, &|| flight.write_version() != started_at_version);
    }

    /// Returns the result of a call whose load failed: the stale value if `stale_if_error` allows it, else the error.
    fn stale_or_error<Q, E>(&self, key: &Q, error: Arc<E>) -> Result<(V, Freshness), Arc<E>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        match self.get_stale(key, self.freshness_policy.settings.stale_if_error) {
            Some((value, _)) => Ok((value, Freshness::Stale)),
            None => Err(error),
        }
    }

    /// Returns an expired value and the time at which it expired, if that is at most `window` ago.
    pub(super) fn get_stale<Q>(&self, key: &Q, window: Duration) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        if window == Duration::ZERO {
            return None;
        }
        let clock = &self.shared.clock;
        let (value, expired_at) = self.shared.store.get_stale(key, clock)?;
        (!clock.is_expired(expired_at.extended(window))).then_some((value, expired_at))
    }

    /// Returns the guard of a caller that has joined `flight`.
    pub(super) fn load_guard(
        &self,
        location: Location,
        flight: Arc<Flight<V>>,
        is_leader: bool,
    ) -> LoadGuard<K, V, S> {
        LoadGuard { shared: Arc::downgrade(&self.shared), location, flight, is_leader }
    }
}
