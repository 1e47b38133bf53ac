//! State shared by all handles of a cache in one process: its settings, counters and subscriptions.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use super::{
    super::{Error, Format},
    commands::Commands,
    event_record::EventDecoder,
    flights::Flights,
    near::DynNearCache,
    stats::Counters,
};
use crate::engine::event::{Event, Lagged};

pub(super) struct CacheState<K, V> {
    pub(super) name: String,
    /// Subscription tasks hold the commands but not the state, so that the streams end with the last handle.
    pub(super) commands: Arc<Commands>,
    pub(super) format: Format,
    pub(super) time_to_live: Option<Duration>,
    pub(super) event_capacity: usize,
    pub(super) lease: Duration,
    /// Pause between two polls of a subscriber.
    pub(super) poll_every: Duration,
    /// Counters of all handles and tasks.
    pub(super) counters: Arc<Counters>,
    /// Loads of callers in this process.
    pub(super) flights: Arc<Flights>,
    /// Near cache, if enabled.
    pub(super) near: Option<Arc<dyn DynNearCache<V>>>,
    /// Channel of the task that serves all [`Events`](super::Events), while such a task runs.
    pub(super) ring: Arc<Mutex<Ring<K, V>>>,
    /// True once the settings of the server were examined for a warning.
    pub(super) is_eviction_checked: AtomicBool,
    /// True once the streams are to end. They also end when this sender is dropped with the last handle.
    pub(super) stop: watch::Sender<bool>,
}

/// Weak, so that the channel closes when its task ends.
pub(super) type Ring<K, V> = Option<broadcast::WeakSender<BroadcastItem<K, V>>>;

/// An event, or the number of events that were missed before it.
pub(super) type BroadcastItem<K, V> = Result<Arc<Event<K, V>>, Lagged>;

impl<K, V> CacheState<K, V> {
    pub(super) fn event_decoder(&self) -> EventDecoder<K, V> {
        EventDecoder { commands: self.commands.clone(), format: self.format, types: PhantomData }
    }
}

impl<K, V: DeserializeOwned> CacheState<K, V> {
    pub(super) fn decode(&self, key: &[u8], value: &[u8]) -> Result<V, Error> {
        self.format.decode(value, || self.commands.keyspace.record(key))
    }
}
