//! Durations and instants serialized as numbers of seconds.

use std::time::Duration;

use serde::Serializer;
use tokio::time::Instant;

use crate::engine::clock::wall_clock;

/// Serializes a duration: `0.25` is a quarter of a second.
pub(crate) fn duration<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

/// Serializes an instant as seconds since 1970 by the wall clock, with microsecond precision.
pub(crate) fn instant<S: Serializer>(instant: &Instant, to: S) -> Result<S::Ok, S::Error> {
    // Microseconds, because an `f64` cannot represent today's time in nanoseconds exactly.
    to.serialize_f64(wall_clock(*instant).as_micros() as f64 / 1e6)
}

#[cfg(all(feature = "dirq", unix))]
pub(crate) fn maybe_duration<S: Serializer>(
    maybe: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match maybe {
        Some(some) => duration(some, to),
        None => to.serialize_none(),
    }
}

pub(crate) fn maybe_instant<S: Serializer>(
    maybe: &Option<Instant>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match maybe {
        Some(some) => instant(some, to),
        None => to.serialize_none(),
    }
}
