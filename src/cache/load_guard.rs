//! A place among those who wait for one load.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use crate::engine::{
    state::SharedState,
    store::{Failure, Flight, Landing, Location},
};

/// A place among those who wait for one load, until it is dropped. It keeps no cache alive.
pub(super) struct Seat<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    pub(super) shared: Weak<SharedState<K, V, S>>,
    pub(super) place: Location,
    pub(super) flight: Arc<Flight<V>>,
    pub(super) leads: bool,
}

impl<K, V, S> Seat<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Tells all of what came of the load.
    pub(super) fn land(mut self, began: u32, outcome: Result<V, Failure>) {
        // Before: a waker that panics must not have it given up again.
        self.leads = false;
        self.flight.land(Landing { began, outcome });
    }
}

impl<K, V, S> Drop for Seat<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    fn drop(&mut self) {
        if self.leads {
            self.flight.give_up();
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.store.leave_load(self.place, &self.flight);
        }
    }
}
