//! When a denied client may come again: what `Retry-After` says, and with it the body and the fields of
//! [`Headers`](super::Headers).
//!
//! Waits are rounded up, and never to 0: who comes again too early is denied again.

use std::time::Duration;

use ::axum::http::{HeaderMap, header};

use crate::{
    engine::clock::{Now, Tick},
    rate_limit::{Limit, Limited},
};

/// Where a server failed, and nobody knows for how long.
#[cfg(feature = "redis")]
pub(super) const UNKNOWN: &str = "1";

/// The wait of one denial. Read once, as time goes on meanwhile: so all that an answer tells of it agrees.
pub(super) struct RetryAfter<'a> {
    /// Which denied.
    pub(super) limit: &'a Limit,
    /// `None` where no wait helps.
    wait: Option<Duration>,
}

impl<'a> RetryAfter<'a> {
    pub(super) fn of(limited: &'a Limited) -> Self {
        let wait = limited.ready_at().map(|_| limited.retry_after());
        Self { limit: limited.limit(), wait }
    }

    /// Says when to come again, unless that is said already.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.seconds() {
            headers.entry(header::RETRY_AFTER).or_insert_with(|| seconds.into());
        }
    }

    pub(super) fn seconds(&self) -> Option<u64> {
        self.wait.map(whole_seconds)
    }

    pub(super) fn milliseconds(&self) -> Option<u64> {
        let milliseconds = self.wait?.as_nanos().div_ceil(1_000_000).max(1);
        Some(u64::try_from(milliseconds).unwrap_or(u64::MAX))
    }
}

pub(super) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// As [`whole_seconds`], of what is left until `at`.
pub(super) fn whole_seconds_until(at: Tick, now: &impl Now) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    // By the coarse clock it is these, or one less.
    let most = at.nanoseconds_since(now.at_least()).div_ceil(SECOND).max(1);
    let is_less = most > 1 && now.has_reached(at.earlier((most - 1) * SECOND));
    most - u64::from(is_less)
}
