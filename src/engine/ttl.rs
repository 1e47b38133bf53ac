//! Time to live of a value, and conditions on it, as in Redis.

use std::time::Duration;

use crate::engine::clock::{Deadline, Tick};

/// Time to live of a value. Returned by [`Cache::ttl`](crate::Cache::ttl),
/// [`Cache::get_with_ttl`](crate::Cache::get_with_ttl) and [`TimeoutDict::ttl`](crate::TimeoutDict::ttl).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ttl {
    /// The key has no live value.
    Missing,
    /// The value has no deadline.
    Persistent,
    /// The time until the deadline of the value; never zero, except from
    /// [`TimeoutDict::ttl`](crate::TimeoutDict::ttl), for an entry that is due or claimed.
    Remaining(Duration),
}

/// Condition on the current TTL of a value, for [`Cache::expire_if`](crate::Cache::expire_if).
///
/// As in Redis, a persistent value counts as one with an infinite TTL: no new deadline is `Later`, and every new
/// deadline is `Sooner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum When {
    /// The value has no deadline (Redis: `NX`).
    NoTtl,
    /// The value has a deadline (Redis: `XX`).
    HasTtl,
    /// The new deadline is later than the current one (Redis: `GT`).
    Later,
    /// The new deadline is earlier than the current one (Redis: `LT`).
    Sooner,
}

impl Ttl {
    /// Returns the time from `now` until `deadline`.
    pub(crate) fn until(deadline: Deadline, now: Tick) -> Self {
        deadline.remaining(now).map_or(Ttl::Persistent, Ttl::Remaining)
    }

    /// Returns the answer of the Redis command `TTL`: -2 if missing, -1 if persistent, otherwise the seconds, rounded
    /// up.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Ttl;
    ///
    /// assert_eq!(Ttl::Missing.as_secs(), -2);
    /// assert_eq!(Ttl::Persistent.as_secs(), -1);
    /// assert_eq!(Ttl::Remaining(Duration::from_millis(1_001)).as_secs(), 2);
    /// ```
    pub fn as_secs(&self) -> i64 {
        match self {
            Ttl::Missing => -2,
            Ttl::Persistent => -1,
            Ttl::Remaining(left) => {
                // Rounded up: the remaining time of a live value is never zero, so none is reported with 0.
                let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
                i64::try_from(seconds).unwrap_or(i64::MAX)
            }
        }
    }
}
