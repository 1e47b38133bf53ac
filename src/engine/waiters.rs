//! The waiters of a shard, by key: for loads, turns, inserts and departures. A shard without waiters allocates nothing.

pub(crate) mod flight;
pub(crate) mod tagged_loads;
pub(crate) mod wait_map;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::sync::Notify;

use self::{
    flight::{Flight, Preceding},
    wait_map::WaitMap,
};
use crate::engine::event::departure::{DepartureSignal, Event};

pub(crate) struct Waiters<K, V> {
    /// Loads under way.
    pub(crate) loads: WaitMap<K, Flight<V>>,
    /// Turns of callers that change a key's value one at a time.
    pub(crate) turns: WaitMap<K, KeyTurn>,
    /// Tasks that wait for a value of a key. By hash only: a wake-up for another key is harmless.
    pub(crate) insert_waiters: WaitMap<(), Notify>,
    /// Tasks that wait for the removal of a key's value.
    pub(crate) departure_waiters: WaitMap<K, DepartureWaiters<K, V>>,
}

/// Held by the caller that changes the value of a key; the other callers queue for it.
pub(crate) type KeyTurn = tokio::sync::Mutex<()>;

/// Tasks that wait for the removal of a value.
pub(crate) type DepartureWaiters<K, V> = DepartureSignal<Arc<Event<K, V>>>;

/// The waiters of a removed value, and the key under which they were registered.
type WaiterHandoff<K, V> = Box<(Arc<DepartureWaiters<K, V>>, K)>;

/// A caller that has joined a flight.
pub(crate) struct FlightMember<V> {
    pub(crate) flight: Arc<Flight<V>>,
    /// True if the caller leads the flight, which is new.
    pub(crate) is_leader: bool,
    pub(crate) preceding: Preceding,
}

impl<K, V> Waiters<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            loads: WaitMap::new(),
            turns: WaitMap::new(),
            insert_waiters: WaitMap::new(),
            departure_waiters: WaitMap::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.loads.is_empty()
            && self.turns.is_empty()
            && self.insert_waiters.is_empty()
            && self.departure_waiters.is_empty()
    }

    pub(crate) fn has_departure_waiters(&self) -> bool {
        !self.departure_waiters.is_empty()
    }

    /// Takes the departure waiters of this key out of the map.
    pub(crate) fn take_departure_waiters(
        &mut self,
        key: &K,
        hash: impl FnOnce(&K) -> u64,
    ) -> Option<WaiterHandoff<K, V>>
    where
        K: Eq,
    {
        if self.departure_waiters.is_empty() {
            return None;
        }
        // The entry is already out of the table: if `Eq` panics, its departure must still be recorded.
        let taken = catch_unwind(AssertUnwindSafe(|| self.departure_waiters.take(hash(key), key)));
        taken.unwrap_or_default().map(Box::new)
    }
}
