//! Wait of a denied request, as `Retry-After`, the body and the fields of [`Headers`](super::Headers) show it.
//!
//! Waits are rounded up, and are never 0: a client that returns too early is denied again.

use std::{borrow::Cow, time::Duration};

use ::axum::http::{HeaderMap, header};
use rand::{RngExt, rngs::SmallRng};

use crate::{
    engine::clock::{Now, Tick},
    rate_limit::{Limit, Limited},
};

/// Wait in seconds if a server failed: the time of its return is unknown.
#[cfg(feature = "redis")]
pub(super) const UNKNOWN: &str = "1";

/// Wait of one denial. Read from the clock once, so that all parts of a response agree.
pub(super) struct RetryAfter<'a> {
    /// The limit that denied the request.
    pub(super) limit: &'a Limit,
    /// `None` if no wait helps.
    wait: Option<Duration>,
}

impl<'a> RetryAfter<'a> {
    pub(super) fn of(limited: &'a Limited) -> Self {
        let wait = limited.ready_at().map(|_| limited.retry_after());
        Self { limit: limited.limit(), wait }
    }

    /// Writes `Retry-After`, unless it is present.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.seconds() {
            headers.entry(header::RETRY_AFTER).or_insert_with(|| seconds.into());
        }
    }

    /// Returns the wait; `None` if no wait helps.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.wait
    }

    pub(super) fn seconds(&self) -> Option<u64> {
        self.wait.map(whole_seconds)
    }

    pub(super) fn milliseconds(&self) -> Option<u64> {
        // At least 1, since the time may have come since the denial; a client that reads 0 would retry in a busy loop.
        let milliseconds = self.wait?.as_nanos().div_ceil(1_000_000).max(1);
        Some(u64::try_from(milliseconds).unwrap_or(u64::MAX))
    }
}

/// Returns the denial with a random time of up to `jitter` added to its wait.
pub(super) fn jittered(limited: &Limited, jitter: Duration) -> Cow<'_, Limited> {
    if jitter.is_zero() {
        return Cow::Borrowed(limited);
    }
    let mut random: SmallRng = rand::make_rng();
    Cow::Owned(limited.clone().delayed(jitter.mul_f64(random.random())))
}

pub(super) fn whole_seconds(wait: Duration) -> u64 {
    // `Retry-After` has whole seconds (RFC 9110, 10.2.3).
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// Returns the [`whole_seconds`] from now until `at`.
pub(super) fn whole_seconds_until(at: Tick, now: &impl Now) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    // The coarse clock is late, so this is the result or one second more. The precise clock is read only near the
    // boundary.
    let most = at.nanoseconds_since(now.at_least()).div_ceil(SECOND).max(1);
    let is_less = most > 1 && now.has_reached(at.earlier((most - 1) * SECOND));
    most - u64::from(is_less)
}
