//! What somebody waits for, by key: a load, a turn, a value. A shard of which nobody asks anything has none of it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::sync::Notify;

use super::{departure_signal::DepartureSignal, entry::Event, flight::Flight, wait_map::WaitMap};

pub(crate) struct Waiters<K, V> {
    /// Values that are being loaded.
    pub(super) loads: WaitMap<K, Flight<V>>,
    /// Keys whose values are changed one after the other.
    pub(super) turns: WaitMap<K, Turn>,
    /// Keys that are to get a value.
    pub(super) insert_waiters: WaitMap<(), Notify>,
    /// Keys whose values are to leave.
    pub(super) departure_waiters: WaitMap<K, DepartureWaiters<K, V>>,
}

/// Whose turn it is, of those who change the value of a key one after the other.
pub(crate) type Turn = tokio::sync::Mutex<()>;

/// Those who wait for a value to leave.
pub(crate) type DepartureWaiters<K, V> = DepartureSignal<Arc<Event<K, V>>>;

/// Those who waited for a value that leaves, and the key by which they were found.
type WaiterHandoff<K, V> = Box<(Arc<DepartureWaiters<K, V>>, K)>;

/// What is found by who wants a value that may have to be loaded.
pub(crate) enum LoadLookup<V> {
    /// It has come.
    Live(V),
    /// Nobody loads it: who asked leads.
    Leader(Arc<Flight<V>>),
    /// It is being loaded; so many writes came before.
    Follower(Arc<Flight<V>>, u32),
}

impl<K, V> Waiters<K, V> {
    pub(super) fn new() -> Self {
        Self {
            loads: WaitMap::new(),
            turns: WaitMap::new(),
            insert_waiters: WaitMap::new(),
            departure_waiters: WaitMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loads.is_empty()
            && self.turns.is_empty()
            && self.insert_waiters.is_empty()
            && self.departure_waiters.is_empty()
    }

    pub(super) fn has_departure_waiters(&self) -> bool {
        !self.departure_waiters.is_empty()
    }

    /// Those who wait for this key's value to leave, who do so no more.
    pub(super) fn take_departure_waiters(
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
        // Its entry is out of the table by now: an `Eq` that panics must not have it lost.
        let taken = catch_unwind(AssertUnwindSafe(|| self.departure_waiters.take(hash(key), key)));
        taken.unwrap_or_default().map(Box::new)
    }
}
