//! An expiration as the server's streams hold it, and how an [`Event`] is made of it.

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

/// An entry of a stream as the server answers it: its id, then names and values in turns.
pub(super) type StreamEntry = (String, Vec<Vec<u8>>);

/// An expiration, as `tell` of `prelude.lua` has written it.
pub(super) struct EventRecord {
    /// The milliseconds at which it was put on the stream, and a number.
    pub(super) id: String,
    key: Vec<u8>,
    value: Vec<u8>,
    /// In the server's milliseconds.
    deadline: u64,
}

/// Makes events of records.
pub(super) struct EventDecoder<K, V> {
    pub(super) commands: Arc<Commands>,
    pub(super) format: Format,
    pub(super) types: PhantomData<fn() -> (K, V)>,
}

/// One moment, on the server's clock and on this process's own. What the server says of other moments is
/// counted from it, as the two clocks need not agree.
#[derive(Clone, Copy)]
pub(super) struct ClockPair {
    /// In milliseconds.
    pub(super) server: u64,
    pub(super) local: Instant,
}

impl EventRecord {
    /// How much of memory it takes, about.
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
                b"deadline" => record.deadline = number(&field),
                // A later release may say more.
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
            // Whoever hears of it finds nothing from before.
            invalidations.invalidate(&record.key);
        }
        let (key, value) = self.key_and_value(record)?;
        let told_at = record.id.split('-').next().and_then(|at| at.parse().ok());
        Ok(Event {
            key,
            value,
            cause: Cause::Expired,
            deadline: now.instant(record.deadline),
            at: told_at.and_then(|at| now.instant(at)).unwrap_or(now.local),
        })
    }

    /// What decodes them is of users. A panic would end the task, and come again for ever to all who take over.
    fn key_and_value(&self, record: &EventRecord) -> Result<(K, V), Error> {
        let name = || self.commands.keyspace.record(&record.key);
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            Ok((decode_key(&record.key)?, self.format.decode(&record.value, name)?))
        }));
        decoded.unwrap_or_else(|_| {
            let key = String::from_utf8_lossy(&name()).into_owned();
            Err(Error::Decode { key, source: "what decodes it has panicked".into() })
        })
    }
}

impl ClockPair {
    /// What the server's clock says by now, in milliseconds.
    pub(super) fn now_on_server(self) -> u64 {
        let since = u64::try_from(self.local.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.server.saturating_add(since)
    }

    fn instant(self, milliseconds: u64) -> Option<Instant> {
        let since = |from: u64, to: u64| Duration::from_millis(from.saturating_sub(to));
        // One of the two is zero.
        self.local
            .checked_sub(since(self.server, milliseconds))?
            .checked_add(since(milliseconds, self.server))
    }
}

fn number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
