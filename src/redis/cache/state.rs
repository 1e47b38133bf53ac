use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::Instant};

use super::{
    super::{Error, Format, codec::decode_key},
    broadcast::Ring,
    commands::Store,
};
use crate::engine::event::{Cause, Event};

/// What the handles of a cache in one process share.
pub(super) struct Shared<K, V> {
    pub(super) name: String,
    pub(super) store: Arc<Store>,
    pub(super) format: Format,
    pub(super) time_to_live: Option<Duration>,
    pub(super) event_capacity: usize,
    pub(super) lease: Duration,
    /// Between two looks of a subscriber.
    pub(super) every: Duration,
    pub(super) counts: Arc<Counts>,
    /// What the task of [`Events`](super::Events) fills, while there are any.
    pub(super) ring: Arc<Mutex<Ring<K, V>>>,
    /// Whether the streams are to end. They also do when this is dropped.
    pub(super) stop: watch::Sender<bool>,
}

#[derive(Default)]
pub(super) struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) missed: AtomicU64,
}

/// What the handles of a cache in this process have seen. Made by [`Cache::stats`](super::Cache::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Calls of `get` and `get_ex` that found a live value.
    pub hits: u64,
    /// Calls of `get` and `get_ex` that found none.
    pub misses: u64,
    /// Expirations that came to this process, whether to [`Events`](super::Events), once for all of them, or
    /// to [`LosslessEvents`](super::LosslessEvents).
    pub events: u64,
    /// Expirations that [`Events`](super::Events) missed on the server.
    pub missed: u64,
}

/// An expiration as the server tells it.
pub(super) struct Told {
    pub(super) id: String,
    key: Vec<u8>,
    value: Vec<u8>,
    deadline: u64,
}

/// One moment, on the server's clock and on ours.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) server: u64,
    pub(super) here: Instant,
}

/// How to read what is told.
pub(super) struct Reader<K, V> {
    pub(super) store: Arc<Store>,
    pub(super) format: Format,
    entries: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Shared<K, V> {
    pub(super) fn count<T>(&self, value: &Option<T>) {
        let count = if value.is_some() { &self.counts.hits } else { &self.counts.misses };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.counts.hits.load(Relaxed),
            misses: self.counts.misses.load(Relaxed),
            events: self.counts.events.load(Relaxed),
            missed: self.counts.missed.load(Relaxed),
        }
    }

    pub(super) fn reader(&self) -> Reader<K, V> {
        Reader { store: self.store.clone(), format: self.format, entries: PhantomData }
    }
}

impl<K, V: DeserializeOwned> Shared<K, V> {
    pub(super) fn decode(&self, key: &[u8], value: &[u8]) -> Result<V, Error> {
        self.format.decode(value, || self.store.names.record(key))
    }
}

impl<K: DeserializeOwned, V: DeserializeOwned> Reader<K, V> {
    pub(super) fn event(&self, told: &Told, now: Moment) -> Result<Event<K, V>, Error> {
        let at = told.id.split('-').next().and_then(|at| at.parse().ok());
        Ok(Event {
            key: decode_key(&told.key)?,
            value: self.format.decode(&told.value, || self.store.names.record(&told.key))?,
            cause: Cause::Expired,
            deadline: now.instant(told.deadline),
            at: at.and_then(|at| now.instant(at)).unwrap_or(now.here),
        })
    }
}

impl Told {
    /// An entry of the stream, as the server answers it.
    pub(super) fn new((id, fields): (String, Vec<Vec<u8>>)) -> Self {
        let mut told = Self { id, key: Vec::new(), value: Vec::new(), deadline: 0 };
        let mut fields = fields.into_iter();
        while let (Some(name), Some(field)) = (fields.next(), fields.next()) {
            match &name[..] {
                b"key" => told.key = field,
                b"value" => told.value = field,
                b"deadline" => told.deadline = number(&field),
                _ => {}
            }
        }
        told
    }
}

impl Moment {
    fn instant(self, milliseconds: u64) -> Option<Instant> {
        let ago = |from: u64, to: u64| Duration::from_millis(from.saturating_sub(to));
        self.here
            .checked_sub(ago(self.server, milliseconds))?
            .checked_add(ago(milliseconds, self.server))
    }
}

fn number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

impl<K, V> fmt::Debug for Shared<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("name", &self.name)
            .field("time_to_live", &self.time_to_live)
            .field("events", &self.store.is_told())
            .finish_non_exhaustive()
    }
}
