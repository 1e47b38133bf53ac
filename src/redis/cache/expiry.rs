//! Conversion of a TTL to the server's milliseconds, and back.

use std::time::Duration;

use tokio::time::Instant;

use crate::cache::FreshnessPolicy;

/// A TTL from here on means persistent. Lua numbers are doubles, exact up to 2^53, so that a deadline (now plus the
/// TTL) stays exact.
pub(super) const MAX_TTL_MILLIS: u128 = 1 << 52;

/// Minimum TTL of values that invalidate a load by being present at its end, in milliseconds. A load that takes longer
/// may miss a value that was written and expired in the meantime. In return, a plain `SET` needs no script.
const LONG_TTL_MILLIS: u64 = 60_000;

/// Freshness settings of a cache. Its keys, which the hook for errors of refreshes gets, are encoded.
pub(super) type EncodedFreshness = FreshnessPolicy<Vec<u8>>;

/// Expiry of a value that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The value is expired immediately. Redis has no such option, so it is removed or not written.
    Immediate,
    /// TTL in milliseconds, at least one.
    After(u64),
    /// The value is persistent.
    Never,
}

impl Expiry {
    pub(super) fn of(ttl: Duration) -> Self {
        // Rounded up, so that no value expires early.
        match ttl.as_nanos().div_ceil(1_000_000) {
            0 => Self::Immediate,
            ttl if ttl < MAX_TTL_MILLIS => Self::After(ttl as u64),
            _ => Self::Never,
        }
    }

    /// Returns the expiry of a value that is written or loaded with `ttl`, or else with the default TTL: shortened by
    /// the jitter.
    pub(super) fn of_written(freshness: &EncodedFreshness, ttl: Option<Duration>) -> Self {
        let ttl = ttl.or(freshness.settings.time_to_live);
        ttl.map_or(Self::Never, |ttl| Self::of(freshness.with_jitter(ttl)))
    }

    /// Returns the TTL, or `None` for a persistent value.
    pub(super) fn milliseconds(self) -> Option<u64> {
        match self {
            Self::Immediate => Some(0),
            Self::After(ttl) => Some(ttl),
            Self::Never => None,
        }
    }

    /// Returns whether a value with this expiry is present at the end of every load that began before it was written,
    /// except of very long ones: see [`LONG_TTL_MILLIS`].
    pub(super) fn is_long(self) -> bool {
        self.milliseconds().is_none_or(|ttl| ttl >= LONG_TTL_MILLIS)
    }

    /// Returns the argument for a script: empty for a persistent value.
    pub(super) fn arg(self) -> String {
        self.milliseconds().map_or_else(String::new, |ttl| ttl.to_string())
    }
}

/// Returns the time at which a value with this reply of `PTTL` expires; `None` for a persistent or missing value.
pub(super) fn expires_at(started: Instant, ttl: i64) -> Option<Instant> {
    started.checked_add(Duration::from_millis(u64::try_from(ttl).ok()?))
}
