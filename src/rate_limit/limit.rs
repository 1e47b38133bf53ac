//! What a limit is, and by which window it is counted.

use std::{borrow::Cow, fmt, time::Duration};

use crate::engine::clock::nanoseconds;

/// A century: longer windows are a mistake.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// How much may pass in how long: a quota of units in any `per`.
///
/// ```
/// use std::time::Duration;
/// use fleeting::Limit;
///
/// let burst = Limit::per_second(10).named("burst");
/// let daily = Limit::new(50_000, Duration::from_secs(86_400)).named("daily");
/// assert_eq!(burst.to_string(), "10 in 1s (burst)");
/// # drop(daily);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    quota: u32,
    per: Duration,
    name: Option<Cow<'static, str>>,
    of_bytes: bool,
}

/// How a [`RateLimiter`](crate::RateLimiter) counts what has passed.
///
/// | | at most in any `per` | a call's quota is free again | memory for each limit of a key |
/// | --- | --- | --- | --- |
/// | `Log` | the quota, exactly | after `per`, exactly | 12 bytes for each time at which calls passed |
/// | `Buckets(n)` | the quota | after `per`, up to `per / n` late | 4 bytes for each of `n + 1` buckets |
/// | `Gcra` | twice the quota, less one | evenly, a unit each `per / quota` | 16 bytes |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Window {
    /// The time of every call that passed (a sliding window log). Exact, and made for quotas of up to some
    /// thousands.
    #[default]
    Log,
    /// `n` parts of the window, and the oldest one counts in full until all of it has left. Never above the
    /// quota, in memory that does not grow with it.
    ///
    /// Counters that weigh the oldest part by what is left of it, or that start anew with each window, let
    /// up to twice the quota pass in some windows. Where `n` does not divide `per`, each part is rounded up to
    /// whole nanoseconds. What a key has in use when it changes to a plan of other parts counts as charged
    /// with its next call.
    Buckets(usize),
    /// The generic cell rate algorithm (ITU-T I.371): a bucket that leaks a unit each `per / quota`, rounded
    /// up to whole nanoseconds. Smooth, and the least memory; but a burst of the whole quota may come just
    /// before `per` in which the same leaks again.
    ///
    /// It knows a sum, and no single calls: where several permits of a key are refunded, those that were given
    /// before the last refund may get back less than they had left, and never more.
    Gcra,
}

/// More buckets than this tell nothing more.
const MAX_BUCKETS: usize = 10_000;

impl Window {
    /// Itself, for a builder. Panics where the number of buckets is none that can be.
    pub(crate) fn checked(self) -> Self {
        if let Self::Buckets(n) = self {
            assert!((1..=MAX_BUCKETS).contains(&n), "Buckets must be 1 to {MAX_BUCKETS}, got {n}");
        }
        self
    }
}

impl Limit {
    /// `quota` units in any `per`.
    ///
    /// # Panics
    ///
    /// Where `quota` is 0, or `per` is zero or above 100 years.
    pub fn new(quota: u32, per: Duration) -> Self {
        assert!(quota > 0, "quota must be at least 1, got {quota}");
        assert!(
            !per.is_zero() && per <= LONGEST,
            "per must be longer than zero and at most 100 years, got {per:?}"
        );
        Self { quota, per, name: None, of_bytes: false }
    }

    /// `quota` units in any second.
    ///
    /// # Panics
    ///
    /// Where `quota` is 0, as the next two.
    pub fn per_second(quota: u32) -> Self {
        Self::new(quota, Duration::from_secs(1))
    }

    /// `quota` units in any minute.
    pub fn per_minute(quota: u32) -> Self {
        Self::new(quota, Duration::from_secs(60))
    }

    /// `quota` units in any hour.
    pub fn per_hour(quota: u32) -> Self {
        Self::new(quota, Duration::from_secs(3_600))
    }

    /// Gives it a name, for headers, errors and logs. Defaults to none.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says that its units are bytes, as a layer tells clients (`qu="content-bytes"`): what a call costs is up to who
    /// charges it, as ever. Defaults to requests.
    ///
    /// ```
    /// # use fleeting::Limit;
    /// let sent = Limit::per_minute(1 << 20).of_bytes();
    /// assert_eq!(sent.to_string(), "1048576 bytes in 60s");
    /// ```
    #[must_use]
    pub fn of_bytes(mut self) -> Self {
        self.of_bytes = true;
        self
    }

    /// How many units may pass.
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// In how long.
    pub fn per(&self) -> Duration {
        self.per
    }

    /// What it is called.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether its units are bytes.
    #[cfg(any(feature = "axum", feature = "redis"))]
    pub(crate) fn is_of_bytes(&self) -> bool {
        self.of_bytes
    }

    pub(super) fn per_nanoseconds(&self) -> u64 {
        nanoseconds(self.per).expect("a century of nanoseconds fits")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.of_bytes { " bytes" } else { "" };
        write!(f, "{}{unit} in {:?}", self.quota, self.per)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}
