use std::{fmt, hash::Hash, marker::PhantomData, time::Duration};

use super::{ExpiringSet, ExpiringSets, keyed_members::Sets, members::Members, state::Shared};
use crate::engine::{
    event::Cause,
    shards::{checked_shards, default_shards},
};

/// Sets up an [`ExpiringSet`] or [`ExpiringSets`]. Made by [`ExpiringSet::builder`] and
/// [`ExpiringSets::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct ExpiringSetBuilder<B> {
    options: Options,
    shards: usize,
    builds: PhantomData<fn() -> B>,
}

#[derive(Debug)]
pub(super) struct Options {
    pub(super) ttl: Duration,
    pub(super) sweep_every: Duration,
    pub(super) event_capacity: usize,
    pub(super) causes: u8,
    pub(super) name: String,
}

impl<B> ExpiringSetBuilder<B> {
    pub(super) fn new(ttl: Duration, name: &str) -> Self {
        let options = Options {
            ttl,
            sweep_every: Duration::from_millis(100),
            event_capacity: 1_024,
            causes: Cause::Expired.bit(),
            name: name.to_owned(),
        };
        Self { options, shards: default_shards(), builds: PhantomData }
    }

    /// The least time between two sweeps, and so the longest that a dead member stays in memory where
    /// nobody calls. Defaults to 100 ms.
    ///
    /// # Panics
    ///
    /// Where `every` is zero.
    pub fn sweep_every(mut self, every: Duration) -> Self {
        assert!(!every.is_zero(), "sweep_every must be longer than zero, got {every:?}");
        self.options.sweep_every = every;
        self
    }

    /// How many events a subscriber of `events` may fall behind before it misses some. Defaults to 1,024.
    ///
    /// # Panics
    ///
    /// Where `events` is 0.
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.options.event_capacity = events;
        self
    }

    /// Which departures are sent as events. Defaults to [`Cause::Expired`].
    pub fn publish(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.options.causes = causes.into_iter().fold(0, |bits, cause| bits | cause.bit());
        self
    }

    /// The name that tracing shows. Defaults to `expiring set` or `expiring sets`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }
}

impl<T> ExpiringSetBuilder<ExpiringSet<T>>
where
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Makes the set and starts its sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver (`enable_time`).
    pub fn build(self) -> ExpiringSet<T> {
        ExpiringSet(Shared::start(self.options, std::iter::once(Members::new())))
    }
}

impl<K, T> ExpiringSetBuilder<ExpiringSets<K, T>> {
    /// How many parts the sets are in, each with a lock of its own; rounded up to a power of two.
    /// Defaults to four for each core, 64 at least.
    ///
    /// # Panics
    ///
    /// Where `shards` is 0 or above 65,536.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = checked_shards(shards);
        self
    }
}

impl<K, T> ExpiringSetBuilder<ExpiringSets<K, T>>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Makes the sets and starts their sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver (`enable_time`).
    pub fn build(self) -> ExpiringSets<K, T> {
        let parts = std::iter::repeat_with(Sets::new).take(self.shards);
        ExpiringSets(Shared::start(self.options, parts))
    }
}

impl<B> fmt::Debug for ExpiringSetBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringSetBuilder")
            .field("name", &self.options.name)
            .field("ttl", &self.options.ttl)
            .field("sweep_every", &self.options.sweep_every)
            .field("event_capacity", &self.options.event_capacity)
            .finish_non_exhaustive()
    }
}
