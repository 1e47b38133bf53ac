//! What the handles of a cache in one process share: how it was built, its counters, and its streams.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use super::{
    super::{Error, Format},
    commands::Commands,
    event_record::EventDecoder,
    flights::Flights,
    near::Near,
    stats::Counters,
};
use crate::engine::event::{Event, Lagged};

pub(super) struct CacheState<K, V> {
    pub(super) name: String,
    /// Tasks of streams hold this and not the state, so that they end with the last handle.
    pub(super) commands: Arc<Commands>,
    pub(super) format: Format,
    pub(super) time_to_live: Option<Duration>,
    pub(super) event_capacity: usize,
    pub(super) lease: Duration,
    /// Between two looks of a subscriber at the server.
    pub(super) poll_every: Duration,
    /// Of handles and tasks together.
    pub(super) counters: Arc<Counters>,
    /// What is being loaded for somebody in this process.
    pub(super) flights: Arc<Flights>,
    /// What is kept in this process, if anything.
    pub(super) near: Option<Arc<dyn Near<V>>>,
    /// Into which the one task of all [`Events`](super::Events) writes, while there is such a task.
    pub(super) ring: Arc<Mutex<Ring<K, V>>>,
    /// Whether the streams are to end. They also do when this is dropped.
    pub(super) stop: watch::Sender<bool>,
}

/// Weak, so that the channel is closed when its task ends.
pub(super) type Ring<K, V> = Option<broadcast::WeakSender<BroadcastItem<K, V>>>;

/// An event, or how many were missed before they came here.
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
