//! How a cache is set up.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use super::Cache;
use crate::engine::{
    event::Cause,
    hasher::DefaultHasher,
    shards::{checked_shards, default_shards},
    state::SharedState,
    store::Store,
    sweeper::{self, Sweep},
};

/// Sets up a [`Cache`]. Made by [`Cache::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<K, V, S = DefaultHasher> {
    time_to_live: Option<Duration>,
    sweep: Sweep,
    shards: usize,
    initial_capacity: usize,
    hasher: S,
    event_capacity: usize,
    causes: u8,
    name: String,
    entries: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Builder<K, V> {
    pub(super) fn new() -> Self {
        Self {
            time_to_live: None,
            sweep: Sweep::default(),
            shards: default_shards(),
            initial_capacity: 0,
            hasher: DefaultHasher::default(),
            event_capacity: 1_024,
            causes: Cause::Expired.bit() | Cause::Evicted.bit(),
            name: "cache".to_owned(),
            entries: PhantomData,
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// The TTL that [`Cache::set`] gives. Defaults to none: what is set lives until it is removed.
    pub fn time_to_live(mut self, ttl: Duration) -> Self {
        self.time_to_live = Some(ttl);
        self
    }

    /// How dead values are found. Defaults to [`Sweep::default`]: at most 100 ms of staleness.
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// How many parts the cache has, each with a lock of its own; rounded up to a power of two, and to 2
    /// at least. Defaults to four for each core, 64 at least.
    ///
    /// # Panics
    ///
    /// Where `shards` is 0 or above 65,536.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = checked_shards(shards).max(2);
        self
    }

    /// For how many entries memory is taken at once and never given back. Defaults to 0.
    ///
    /// [`build`](Builder::build) panics, or ends the process, where there is not so much memory.
    pub fn initial_capacity(mut self, entries: usize) -> Self {
        self.initial_capacity = entries;
        self
    }

    /// What hashes the keys. Defaults to foldhash, which is fast and seeded for each cache, but only
    /// partly resists chosen collisions: where an attacker chooses the keys, take
    /// [`std::hash::RandomState`].
    pub fn hasher<T>(self, hasher: T) -> Builder<K, V, T> {
        Builder {
            time_to_live: self.time_to_live,
            sweep: self.sweep,
            shards: self.shards,
            initial_capacity: self.initial_capacity,
            hasher,
            event_capacity: self.event_capacity,
            causes: self.causes,
            name: self.name,
            entries: PhantomData,
        }
    }

    /// How many events a subscriber of [`Cache::events`] may fall behind before it misses some.
    /// Defaults to 1,024.
    ///
    /// # Panics
    ///
    /// Where `events` is 0.
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.event_capacity = events;
        self
    }

    /// Which departures are sent as events. Defaults to [`Cause::Expired`] and [`Cause::Evicted`].
    pub fn publish(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes = Cause::bits(causes);
        self
    }

    /// The name that tracing shows. Defaults to `cache`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

impl<K, V, S> Builder<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Makes the cache and starts its sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver (`enable_time`).
    pub fn build(self) -> Cache<K, V, S> {
        let store = Store::new(self.shards, self.initial_capacity, self.hasher);
        let shared =
            SharedState::new(store, self.causes, self.event_capacity, self.sweep, self.name);
        let shared = sweeper::start(shared);
        Cache { handles: Arc::default(), shared, time_to_live: self.time_to_live }
    }
}

impl<K, V, S> fmt::Debug for Builder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("time_to_live", &self.time_to_live)
            .field("sweep", &self.sweep)
            .field("shards", &self.shards)
            .field("initial_capacity", &self.initial_capacity)
            .field("event_capacity", &self.event_capacity)
            .finish_non_exhaustive()
    }
}
