//! A place among those who wait for one load.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use crate::engine::{
    state::SharedState,
    store::{Failure, Flight, LoadResult, Location},
};

/// A place among those who wait for one load, until it is dropped. It keeps no cache alive.
pub(super) struct LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    pub(super) shared: Weak<SharedState<K, V, S>>,
    pub(super) place: Location,
    pub(super) flight: Arc<Flight<V>>,
    pub(super) is_leader: bool,
}

impl<K, V, S> LoadGuard<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Tells all of what came of the load.
    pub(super) fn finish(mut self, started_at_version: u32, outcome: Result<V, Failure>) {
        // Before: a waker that panics must not have it given up again.
        self.is_leader = false;
        self.flight.finish(LoadResult { started_at_version, outcome });
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
        if let Some(shared) = self.shared.upgrade() {
            shared.store.leave_load(self.place, &self.flight);
        }
    }
}
