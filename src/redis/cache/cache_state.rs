//! State shared by all handles of a cache in one process: its settings, counters and subscriptions.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use super::{
    super::{Error, Format, codec::decode_key},
    commands::Commands,
    event_record::EventDecoder,
    expiry::EncodedFreshness,
    failures::{DiscardOnDrop, Failures},
    flights::Flights,
    near::DynNearCache,
    stats::Counters,
    stored_value::untagged,
};
use crate::engine::event::{Event, Lagged};

pub(super) struct CacheState<K, V> {
    pub(super) name: String,
    /// Subscription tasks hold the commands but not the state, so that the streams end with the last handle.
    pub(super) commands: Arc<Commands>,
    pub(super) format: Format,
    /// Its strong count is one, apart from loads that are running: see [`Load::run_refresh`](super::load::Load).
    pub(super) freshness: Arc<EncodedFreshness>,
    /// Failed loads of this process, if `negative_ttl` or `refresh_ahead` needs them.
    pub(super) failures: Option<Arc<Failures>>,
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
    /// Returns a guard that discards the kept error of a key that is about to be written, if errors are kept.
    pub(super) fn discard_failure<'a>(&'a self, key: &'a [u8]) -> Option<DiscardOnDrop<'a>> {
        self.discard_failures([key])
    }

    pub(super) fn discard_failures<'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<DiscardOnDrop<'a>> {
        self.failures.as_ref().map(|failures| failures.discard_on_drop(keys))
    }

    pub(super) fn event_decoder(&self) -> EventDecoder<K, V> {
        EventDecoder { commands: self.commands.clone(), format: self.format, types: PhantomData }
    }
}

impl<K: DeserializeOwned, V> CacheState<K, V> {
    pub(super) fn decode_key(&self, key: &[u8]) -> Result<K, Error> {
        decode_key(key, || self.commands.keyspace.record(key))
    }
}

impl<K, V: DeserializeOwned> CacheState<K, V> {
    pub(super) fn decode(&self, key: &[u8], value: &[u8]) -> Result<V, Error> {
        self.format.decode(untagged(value), || self.commands.keyspace.record(key))
    }
}
