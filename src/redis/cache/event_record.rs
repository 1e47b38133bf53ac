//! Record of an expiration in a server's stream, and its conversion to an [`Event`].

use std::{
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{
    super::{Error, Format, codec::decode_key},
    commands::Commands,
};
use crate::engine::event::{Cause, Event};

/// Entry of a stream as the server returns it: its id, and names and values in turn.
pub(super) type StreamEntry = (String, Vec<Vec<u8>>);

/// Expiration as written by `append_event` of `prelude.lua`.
pub(super) struct EventRecord {
    /// Server time in milliseconds when it was added to the stream, a hyphen, and a sequence number.
    pub(super) id: String,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Server time in milliseconds.
    deadline: u64,
}

/// Decoder of the records of one cache.
pub(super) struct EventDecoder<K, V> {
    pub(super) commands: Arc<Commands>,
    pub(super) format: Format,
    pub(super) types: PhantomData<fn() -> (K, V)>,
}

/// One instant on the server's clock and on this process's clock. Other times of the server are converted relative to
/// it, because the two clocks may differ.
#[derive(Clone, Copy)]
pub(super) struct ClockPair {
    /// Milliseconds since the Unix epoch.
    pub(super) server: u64,
    pub(super) local: Instant,
}

impl EventRecord {
    /// Returns the approximate memory usage in bytes.
    pub(super) fn size(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

impl From<StreamEntry> for EventRecord {
    fn from((id, fields): StreamEntry) -> Self {
        let mut record = Self { id, key: Vec::new(), value: Vec::new(), deadline: 0 };
        let mut fields = fields.into_iter();
        while let (Some(name), Some(field)) = (fields.next(), fields.next()) {
            match &name[..] {
                b"key" => record.key = field,
                b"value" => record.value = field,
                b"deadline" => record.deadline = parse_millis(&field),
                // A later release may add fields.
                _ => {}
            }
        }
        record
    }
}

impl<K: DeserializeOwned, V: DeserializeOwned> EventDecoder<K, V> {
    pub(super) fn decode(
        &self,
        record: &EventRecord,
        now: ClockPair,
    ) -> Result<Event<K, V>, Error> {
        if let Some(invalidations) = self.commands.client.invalidations() {
            // A subscriber that has received the event must not read the expired value from the near cache.
            invalidations.invalidate(&record.key);
        }
        let (key, value) = self.key_and_value(record)?;
        // The id of a stream entry begins with the server's time in milliseconds.
        let published_at = record.id.split('-').next().and_then(|at| at.parse().ok());
        Ok(Event {
            key,
            value,
            cause: Cause::Expired,
            deadline: now.instant(record.deadline),
            // Otherwise the time of the reply, before which the event was published.
            at: published_at.and_then(|at| now.instant(at)).unwrap_or(now.local),
        })
    }

    /// Decodes key and value. Deserializers are user code: a panic would end the task, and the event would be delivered
    /// again to every subscriber that takes over.
    fn key_and_value(&self, record: &EventRecord) -> Result<(K, V), Error> {
        let name = || self.commands.keyspace.record(&record.key);
        // Deserializing is user code. A panic in it must not end the task that delivers the events.
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            Ok((decode_key(&record.key, name)?, self.format.decode(&record.value, name)?))
        }));
        decoded.unwrap_or_else(|_| {
            let key = String::from_utf8_lossy(&name()).into_owned();
            Err(Error::Decode { key, source: "the deserializer panicked".into() })
        })
    }
}

impl ClockPair {
    /// Returns the server's current time in milliseconds, extrapolated by this process's clock.
    pub(super) fn now_on_server(self) -> u64 {
        let elapsed = u64::try_from(self.local.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.server.saturating_add(elapsed)
    }

    fn instant(self, milliseconds: u64) -> Option<Instant> {
        let distance = |from: u64, to: u64| Duration::from_millis(from.saturating_sub(to));
        // One of the two distances is zero.
        self.local
            .checked_sub(distance(self.server, milliseconds))?
            .checked_add(distance(milliseconds, self.server))
    }
}

fn parse_millis(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
