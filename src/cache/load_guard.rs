//! Guard of a caller that takes part in a flight.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use crate::engine::{
    state::SharedState,
    store::{Failure, Flight, LoadResult, Location},
};

/// Membership of a flight; dropping it leaves the flight, and gives up its lead. It holds the state weakly, so that a
/// background refresh does not keep the cache alive.
pub(super) struct LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    pub(super) shared: Weak<SharedState<K, V, S>>,
    pub(super) location: Location,
    pub(super) flight: Arc<Flight<V>>,
    pub(super) is_leader: bool,
}

/// Outcome of a flight whose background refresh failed. No caller's error type is this one, so callers that wait for
/// the flight continue with their own loaders: the failure is reported to the hook instead.
pub(super) struct FailedRefresh;

impl<K, V, S> LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Ends the flight with the outcome of the load, and wakes its followers.
    pub(super) fn finish(mut self, started_at_version: u32, outcome: Result<V, Failure>) {
        // Cleared first: if a waker panics in `finish`, the drop of `self` must not abandon a finished flight.
        self.is_leader = false;
        self.flight.finish(LoadResult { started_at_version, is_loaded: true, outcome });
    }

    /// Sets the result to a live value that the leader found, and wakes all waiters.
    pub(super) fn finish_without_load(mut self, started_at_version: u32, value: V) {
        self.is_leader = false;
        self.flight.finish(LoadResult { started_at_version, is_loaded: false, outcome: Ok(value) });
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
            shared.store.leave_load(self.location, &self.flight);
        }
    }
}
