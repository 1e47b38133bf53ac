//! How long a value has still to live, and conditions on it, as Redis has them.

use std::time::Duration;

/// How long a value has still to live. Made by [`Cache::ttl`](crate::Cache::ttl).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ttl {
    /// There is no live value.
    Missing,
    /// It has no deadline.
    Persistent,
    /// So long until its deadline; never zero.
    Remaining(Duration),
}

/// A condition on the TTL that a value has, for [`Cache::expire_if`](crate::Cache::expire_if).
///
/// As in Redis, a persistent value counts as one with an infinite TTL: no new deadline is `Later`, and
/// each is `Sooner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum When {
    /// It has no deadline (Redis: `NX`).
    NoTtl,
    /// It has a deadline (Redis: `XX`).
    HasTtl,
    /// The new deadline comes after the one it has (Redis: `GT`).
    Later,
    /// The new deadline comes before the one it has (Redis: `LT`).
    Sooner,
}

impl Ttl {
    /// As the Redis command `TTL` answers: -2 for missing, -1 for persistent, else the seconds,
    /// rounded up.
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
                let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
                i64::try_from(seconds).unwrap_or(i64::MAX)
            }
        }
    }
}
