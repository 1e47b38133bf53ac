//! Flights of loader methods: a caller joins the flight of its key, and leads it or waits until it has ended.

use std::{
    hash::{BuildHasher, Hash},
    mem,
    ops::ControlFlow,
    sync::{Arc, Weak},
};

use super::{
    timeout::{REFRESH_TIMEOUT, within_timeout},
    ttl::TimeToLive,
};
use crate::{
    cache::{SyncCache, reentrancy::ReentrancyScope},
    engine::{
        shared_state::SharedState,
        store::{Flight, FlightMember, Location, Lookup, Preceding},
        to_key::ToKey,
    },
};

/// One call of a loader method for one key.
pub(super) struct LoadCall {
    pub(super) location: Location,
    /// True if the key is loaded although it has a live value.
    loads_live: bool,
    /// True once the call has joined a flight. Those that it joins later are newer than itself.
    has_joined: bool,
}

/// Membership of a flight; dropping it leaves the flight, and gives up its lead. It holds the state weakly, so that a
/// background refresh does not keep the cache alive.
pub(super) struct LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    shared: Weak<SharedState<K, V, S>>,
    location: Location,
    pub(super) flight: Arc<Flight<V>>,
    is_leader: bool,
    loads_live: bool,
    pub(super) preceding: Preceding,
    /// Number of tag removals before the load of a tagged value began.
    pub(super) tagged_since: Option<u64>,
}

/// Result of joining a flight, or the guard of a caller that has to wait for it.
pub(super) type Joined<K, V, S> = ControlFlow<Lookup<V, LoadGuard<K, V, S>>, LoadGuard<K, V, S>>;

impl LoadCall {
    /// Returns a call that loads the key at `location` if it has no live value.
    pub(super) fn new(location: Location) -> Self {
        Self { location, loads_live: false, has_joined: false }
    }

    /// Returns a call that loads the key at `location` in any case.
    pub(super) fn refresh(location: Location) -> Self {
        Self { location, loads_live: true, has_joined: false }
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Looks up `key` and joins its flight, and waits for another caller's load. All loader methods load by this, or by
    /// [`join`](Self::join) and [`wait`](Self::wait) if they have many keys.
    pub(super) async fn join_flight<Q>(
        &self,
        call: &mut LoadCall,
        key: &Q,
    ) -> Lookup<V, LoadGuard<K, V, S>>
    where
        Q: ToKey<K> + ?Sized,
    {
        match self.join(call, key) {
            ControlFlow::Break(lookup) => lookup,
            ControlFlow::Continue(load_guard) => self.wait(load_guard, key).await,
        }
    }

    /// Looks up `key` and joins its flight. Publishes the event of an entry that the look-up removed.
    pub(super) fn join<Q>(&self, call: &mut LoadCall, key: &Q) -> Joined<K, V, S>
    where
        Q: ToKey<K> + ?Sized,
    {
        let LoadCall { location, loads_live, .. } = *call;
        let joined = self.publishing(|| {
            let (store, clock) = (&self.shared.store, &self.shared.clock);
            store.join_load(location, key, || key.to_key(), loads_live, clock)
        });
        let FlightMember { flight, is_leader, mut preceding } = match joined {
            ControlFlow::Break(value) => return ControlFlow::Break(Lookup::Live(value)),
            ControlFlow::Continue(member) => member,
        };
        if mem::replace(&mut call.has_joined, true) {
            // The flight is newer than this call, which therefore accepts each of its loads: it would otherwise wait
            // forever behind repeated writes.
            preceding = Preceding::default();
        }
        let member = FlightMember { flight, is_leader, preceding };
        let load_guard = self.load_guard(location, member, loads_live);
        if is_leader {
            return ControlFlow::Break(Lookup::Leader(load_guard));
        }
        if ReentrancyScope::is(&load_guard.flight) {
            return ControlFlow::Break(Lookup::Nested);
        }
        ControlFlow::Continue(load_guard)
    }

    /// Waits for the load of another caller, or takes its place. Waits for a background refresh no longer than its time
    /// limit: its runtime may not be driven, and then its own timer is not either. A load that a caller runs has no
    /// limit.
    pub(super) async fn wait<Q>(
        &self,
        load_guard: LoadGuard<K, V, S>,
        key: &Q,
    ) -> Lookup<V, LoadGuard<K, V, S>>
    where
        Q: ToKey<K> + ?Sized,
    {
        let LoadGuard { flight, location, preceding, .. } = &load_guard;
        let mut waited = None;
        if flight.is_refreshing() {
            waited = Box::pin(within_timeout(flight.wait(*preceding))).await;
            if waited.is_none() && self.shared.store.end_stalled_refresh(*location, flight) {
                tracing::warn!(
                    cache = self.shared.name(),
                    timeout = ?REFRESH_TIMEOUT,
                    "background refresh makes no progress, a waiter loads the value"
                );
            }
        }
        let waited = match waited {
            Some(waited) => waited,
            None => flight.wait(*preceding).await,
        };
        self.end_wait(load_guard, key, waited)
    }

    /// Returns the result of a wait for a flight. A caller that has taken the lead looks the key up before it loads.
    pub(super) fn end_wait<Q>(
        &self,
        mut load_guard: LoadGuard<K, V, S>,
        key: &Q,
        waited: Lookup<V>,
    ) -> Lookup<V, LoadGuard<K, V, S>>
    where
        Q: ToKey<K> + ?Sized,
    {
        match waited {
            Lookup::Leader(()) => {
                load_guard.is_leader = true;
                let LoadGuard { flight, location, loads_live, .. } = &load_guard;
                let (store, clock) = (&self.shared.store, &self.shared.clock);
                let found = self
                    .publishing(|| store.restart_load(*location, key, flight, *loads_live, clock));
                if let ControlFlow::Break(value) = found {
                    load_guard.finish(Lookup::Live(value.clone()));
                    return Lookup::Live(value);
                }
                Lookup::Leader(load_guard)
            }
            Lookup::Live(value) => Lookup::Live(value),
            Lookup::Nested => Lookup::Nested,
            Lookup::Loaded(value) => Lookup::Loaded(value),
            Lookup::Failed(error) => Lookup::Failed(error),
            Lookup::Again => Lookup::Again,
        }
    }

    /// Returns the guard of a caller or a background refresh that has joined a flight.
    pub(super) fn load_guard(
        &self,
        location: Location,
        FlightMember { flight, is_leader, preceding }: FlightMember<V>,
        loads_live: bool,
    ) -> LoadGuard<K, V, S> {
        let shared = Arc::downgrade(&self.shared);
        LoadGuard { shared, location, flight, is_leader, loads_live, preceding, tagged_since: None }
    }

    /// Runs an operation of the store that may remove an entry, and publishes its event.
    fn publishing<T>(&self, operation: impl FnOnce() -> T) -> T {
        let _flush = self.shared.publisher.flush_on_panic();
        let result = operation();
        self.shared.publisher.flush();
        result
    }
}

impl<K, V, S> LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Prepares for a load whose value gets its TTL and tags by `ttl`. Called before the loader runs.
    pub(super) fn begin_load(&mut self, ttl: &impl TimeToLive<V>) {
        if ttl.has_tags()
            && let Some(shared) = self.shared.upgrade()
        {
            self.tagged_since = Some(shared.store.tagged_loads.begin());
        }
    }

    /// Ends the flight with the result of its leader, and wakes its followers.
    pub(super) fn finish(mut self, lookup: Lookup<V>) {
        // Cleared first: if a waker panics in `finish`, the drop of `self` must not abandon a finished flight.
        self.is_leader = false;
        self.flight.finish(lookup);
    }
}

impl<K, V, S> Drop for LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    fn drop(&mut self) {
        if self.is_leader {
            self.flight.abandon();
        }
        // Without the state, the flights of its keys are gone as well.
        if let Some(shared) = self.shared.upgrade() {
            if let Some(tagged_since) = self.tagged_since {
                shared.store.tagged_loads.end(tagged_since);
            }
            shared.store.leave_load(self.location, &self.flight);
        }
    }
}
