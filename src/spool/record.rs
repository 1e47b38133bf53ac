//! Serialized events. The key and the value are converted to JSON when the event is taken off the stream.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Serialize, ser::Error as _};
use tokio::time::Instant;

use crate::{
    dirq::{Element, Schema},
    engine::{encodable::Encodable, event::Event},
};

/// An event as it is written to the queue.
pub(super) struct SpoolRecord {
    /// As JSON.
    key: String,
    /// As JSON.
    value: String,
    meta: Meta,
}

#[derive(Clone, Copy, Serialize)]
struct Meta {
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<f64>,
    at: f64,
    cause: &'static str,
}

pub(super) fn schema() -> Schema {
    Schema::new([("key", "string"), ("value", "string"), ("meta", "table")])
        .expect("the names and types are valid")
}

impl SpoolRecord {
    /// Fails if serializing the key or the value fails or panics, or if JSON cannot represent them.
    pub(super) fn of<K: Serialize, V: Serialize>(
        event: &Event<K, V>,
        wall_clock: &WallClock,
    ) -> serde_json::Result<Self> {
        Ok(Self {
            key: to_json(&event.key)?,
            value: to_json(&event.value)?,
            meta: Meta {
                deadline: event.deadline.map(|deadline| wall_clock.seconds(deadline)),
                at: wall_clock.seconds(event.at),
                cause: event.cause.as_str(),
            },
        })
    }

    /// Returns a record with all optional fields.
    pub(super) fn sample() -> Self {
        let meta = Meta { deadline: Some(0.0), at: 0.0, cause: "expired" };
        Self { key: "null".to_owned(), value: "null".to_owned(), meta }
    }

    /// Returns its approximate size in bytes.
    pub(super) fn len(&self) -> usize {
        // About the length of the field names and of `meta`.
        const META: usize = 96;
        self.key.len() + self.value.len() + META
    }

    /// Returns the body for a simple queue.
    pub(super) fn body(&self) -> Vec<u8> {
        let Self { key, value, meta } = self;
        let meta = serde_json::to_string(meta).expect("numbers and a word are JSON");
        format!(r#"{{"key":{key},"value":{value},"meta":{meta}}}"#).into_bytes()
    }

    /// Returns the element for a normal queue.
    pub(super) fn element(&self) -> Element {
        let mut meta = BTreeMap::from([
            ("at", self.meta.at.to_string()),
            ("cause", self.meta.cause.to_owned()),
        ]);
        if let Some(deadline) = self.meta.deadline {
            meta.insert("deadline", deadline.to_string());
        }
        Element::new().with("key", &*self.key).with("value", &*self.value).with("meta", meta)
    }
}

/// The same moment on the monotonic clock and on the wall clock.
pub(super) struct WallClock {
    instant: Instant,
    /// Microseconds since 1970.
    micros: i64,
}

impl WallClock {
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), micros: micros(since) }
    }

    /// Converts to seconds since 1970, with microsecond precision.
    fn seconds(&self, instant: Instant) -> f64 {
        let micros = match instant.checked_duration_since(self.instant) {
            Some(later) => self.micros.saturating_add(micros(later)),
            None => self.micros.saturating_sub(micros(self.instant - instant)),
        };
        micros as f64 / 1e6
    }
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    // Inside of the body, so that a consumer can read it.
    let value = Encodable::as_json(value).inside(1);
    // `Serialize` is user code. A panic in it must not lose the events behind this one.
    catch_unwind(AssertUnwindSafe(|| serde_json::to_string(&value)))
        .unwrap_or_else(|_| Err(serde_json::Error::custom("the serialization panicked")))
}
