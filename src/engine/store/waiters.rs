//! What somebody waits for, by key: a load, a turn, a value. A shard of which nobody asks anything has none of it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::sync::Notify;

use super::{departure_signal::Farewell, entry::Event, flight::Flight, wait_map::Meetings};

pub(crate) struct Asked<K, V> {
    /// Values that are being loaded.
    pub(super) loads: Meetings<K, Flight<V>>,
    /// Keys whose values are changed one after the other.
    pub(super) turns: Meetings<K, Turn>,
    /// Keys that are to get a value.
    pub(super) comers: Meetings<(), Notify>,
    /// Keys whose values are to leave.
    pub(super) leavers: Meetings<K, Leavers<K, V>>,
}

/// Whose turn it is, of those who change the value of a key one after the other.
pub(crate) type Turn = tokio::sync::Mutex<()>;

/// Those who wait for a value to leave.
pub(crate) type Leavers<K, V> = Farewell<Arc<Event<K, V>>>;

/// Those who waited for a value that leaves, and the key by which they were found.
type Parting<K, V> = Box<(Arc<Leavers<K, V>>, K)>;

/// What is found by who wants a value that may have to be loaded.
pub(crate) enum Sought<V> {
    /// It has come.
    Live(V),
    /// Nobody loads it: who asked leads.
    Leads(Arc<Flight<V>>),
    /// It is being loaded; so many writes came before.
    Follows(Arc<Flight<V>>, u32),
}

impl<K, V> Asked<K, V> {
    pub(super) fn new() -> Self {
        Self {
            loads: Meetings::new(),
            turns: Meetings::new(),
            comers: Meetings::new(),
            leavers: Meetings::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loads.is_empty()
            && self.turns.is_empty()
            && self.comers.is_empty()
            && self.leavers.is_empty()
    }

    pub(super) fn has_leavers(&self) -> bool {
        !self.leavers.is_empty()
    }

    /// Those who wait for this key's value to leave, who do so no more.
    pub(super) fn farewell(
        &mut self,
        key: &K,
        hash: impl FnOnce(&K) -> u64,
    ) -> Option<Parting<K, V>>
    where
        K: Eq,
    {
        if self.leavers.is_empty() {
            return None;
        }
        // Its entry is out of the table by now: an `Eq` that panics must not have it lost.
        let taken = catch_unwind(AssertUnwindSafe(|| self.leavers.take(hash(key), key)));
        taken.unwrap_or_default().map(Box::new)
    }
}
