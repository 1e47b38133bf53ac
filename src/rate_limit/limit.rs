//! `Limit` and `Window`: a quota, and the algorithm that counts it.

use std::{borrow::Cow, fmt, time::Duration};

use crate::engine::clock::nanoseconds;

/// A century. A longer window is taken for a mistake; a century of nanoseconds also fits into a `u64`.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Quota of units in any window of length `per`: "ten calls per second".
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
#[doc(alias = "Quota")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    quota: u32,
    per: Duration,
    name: Option<Cow<'static, str>>,
    of_bytes: bool,
}

/// Error for a limit that cannot be: a quota of 0, a time of zero or more than 100 years, or a text in another form.
///
/// ```
/// use fleeting::Limit;
///
/// let invalid = "0/min".parse::<Limit>().unwrap_err();
/// assert_eq!(invalid.to_string(), "quota must be at least 1, got 0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLimit(pub(super) LimitFault);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LimitFault {
    Quota,
    Per(Duration),
    Text(String),
}

/// Algorithm by which a [`RateLimiter`](crate::RateLimiter) counts admitted calls: exact, compact or smooth.
///
/// ```
/// use fleeting::{Limit, RateLimiter, Window};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // A large quota: counters take less memory than the time of each call.
/// let limiter: RateLimiter<String> =
///     RateLimiter::builder().limit(Limit::per_hour(100_000)).window(Window::Buckets(60)).build();
/// # }
/// ```
///
/// Keep the default, `Log`, unless your quotas are above a few thousand.
///
/// | | admits at most, in any period of length `per` | quota is free again | memory per limit of a key |
/// | --- | --- | --- | --- |
/// | `Log` | the quota | after exactly `per` | 12 bytes per distinct time of an admitted call |
/// | `Buckets(n)` | the quota | after `per`, up to `per / n` late | 4 bytes for each of `n + 1` buckets |
/// | `Gcra` | twice the quota, less one | evenly, one unit every `per / quota` | 40 bytes |
///
/// [Several limits for one key](crate::guide::rate_limits#several-limits-for-one-key) defines what a limit counts if a
/// key is checked by other limits, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Window {
    /// Sliding-window log: the time of every admitted call. Exact, and suited to quotas of up to a few thousand.
    #[default]
    Log,
    /// Counters for `n` parts of the window. The oldest part counts in full until all of it has left the window, so the
    /// quota is never exceeded. Memory does not grow with the quota.
    ///
    /// Other algorithms with counters, which weigh the oldest part by its overlap or start again with each window,
    /// admit up to twice the quota in some windows; this one does not. If `n` does not divide `per`, each part is
    /// rounded up to whole nanoseconds. If a key is checked by a limit with another `per` for the first time, calls
    /// that share a bucket of an earlier limit count as if they were made at its end, or at the last call.
    Buckets(usize),
    /// Generic cell rate algorithm (ITU-T I.371): a bucket that leaks one unit every `per / quota`, exactly, even if
    /// that is less than a nanosecond. (On Redis, an interval of a millisecond or more is rounded up to whole
    /// microseconds, an error below 0.1 %; shorter ones are exact.) Smooth, with the least memory. But a key may use
    /// its whole quota at once and then one unit every `per / quota`: up to twice the quota, less one unit, within one
    /// `per`.
    ///
    /// It stores only a sum and not each call. The refund of the last call of a key is exact. If other calls were
    /// charged in between, a permit may give back less than it should, but never more; the rest leaks. If you refund
    /// most calls, and in another order than they were charged, that is most of the quota: use `Log` or `Buckets`.
    /// After random refunds of one to three units, a limit of 50 admitted 10 to 13.
    ///
    /// If a key is checked by other limits (a plan), its usage remains the same number of units, and leaks as the new
    /// limits say. So a key that used 100 units of a large plan and then is checked by a plan of one per minute is
    /// denied until 100 minutes have passed or it is checked by the large plan again.
    Gcra,
}

/// More buckets would not make a window noticeably more precise. The number also has to fit into a `u16`, in which
/// `Buckets` counts them.
const MAX_BUCKETS: usize = 10_000;

impl Window {
    /// Returns itself, for a builder. Panics if the number of buckets is out of range.
    pub(crate) fn checked(self) -> Self {
        if let Self::Buckets(n) = self {
            assert!((1..=MAX_BUCKETS).contains(&n), "Buckets must be 1 to {MAX_BUCKETS}, got {n}");
        }
        self
    }
}

impl Limit {
    /// Creates a limit of `quota` units in any `per`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Limit;
    /// let daily = Limit::new(50_000, Duration::from_secs(86_400));
    /// assert_eq!(daily.to_string(), "50000 in 86400s");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `quota` is 0, or if `per` is zero or longer than 100 years. [`try_new`](Limit::try_new) returns an
    /// error instead.
    #[doc(alias = "with_period")]
    #[doc(alias = "allow_burst")]
    #[doc(alias = "burst_size")]
    pub fn new(quota: u32, per: Duration) -> Self {
        Self::try_new(quota, per).unwrap_or_else(|invalid| panic!("{invalid}"))
    }

    /// Creates a limit of `quota` units in any `per`, for numbers from your configuration.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Limit;
    ///
    /// let minute = Duration::from_secs(60);
    /// assert_eq!(Limit::try_new(100, minute), Ok(Limit::per_minute(100)));
    /// let invalid = Limit::try_new(0, minute).unwrap_err();
    /// assert_eq!(invalid.to_string(), "quota must be at least 1, got 0");
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`InvalidLimit`] if `quota` is 0, or if `per` is zero or longer than 100 years.
    pub fn try_new(quota: u32, per: Duration) -> Result<Self, InvalidLimit> {
        if quota == 0 {
            return Err(InvalidLimit(LimitFault::Quota));
        }
        if per.is_zero() || per > LONGEST {
            return Err(InvalidLimit(LimitFault::Per(per)));
        }
        Ok(Self { quota, per, name: None, of_bytes: false })
    }

    /// Creates a limit of `quota` units in any second.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let searches: RateLimiter<String> = RateLimiter::new(Limit::per_second(5));
    /// assert_eq!(searches.check("ada").await.unwrap().remaining(), 4);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `quota` is 0.
    pub fn per_second(quota: u32) -> Self {
        Self::new(quota, Duration::from_secs(1))
    }

    /// Creates a limit of `quota` units in any minute.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let logins: RateLimiter<String> = RateLimiter::new(Limit::per_minute(3));
    /// assert!(logins.check("ada").await.is_ok());
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `quota` is 0.
    pub fn per_minute(quota: u32) -> Self {
        Self::new(quota, Duration::from_secs(60))
    }

    /// Creates a limit of `quota` units in any hour.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let invitations: RateLimiter<String> = RateLimiter::new(Limit::per_hour(20));
    /// assert!(invitations.check("ada").await.is_ok());
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `quota` is 0.
    pub fn per_hour(quota: u32) -> Self {
        Self::new(quota, Duration::from_secs(3_600))
    }

    /// Sets the name that appears in headers, errors and logs, to tell limits apart. Defaults to none.
    ///
    /// ```
    /// # use fleeting::Limit;
    /// let burst = Limit::per_second(10).named("burst");
    /// assert_eq!(burst.name(), Some("burst"));
    /// assert_eq!(burst.to_string(), "10 in 1s (burst)");
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Declares that the units are bytes. A layer then reports the unit to clients (`qu="content-bytes"`). You still
    /// set the cost of each call. By default, units are requests.
    ///
    /// # Examples
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

    /// Returns the number of units that may pass in any [`per`](Limit::per).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Limit;
    /// let limit = Limit::per_minute(300);
    /// println!("up to {} calls in {:?}", limit.quota(), limit.per());
    /// # assert_eq!((limit.quota(), limit.per()), (300, Duration::from_secs(60)));
    /// ```
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// Returns the length of the window.
    pub fn per(&self) -> Duration {
        self.per
    }

    /// Returns the name, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns `true` if the units are bytes.
    #[cfg(any(feature = "axum", feature = "redis", feature = "serde"))]
    pub(crate) fn is_of_bytes(&self) -> bool {
        self.of_bytes
    }

    pub(super) fn per_nanoseconds(&self) -> u64 {
        nanoseconds(self.per).expect("a century of nanoseconds fits into a u64")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.of_bytes { " bytes" } else { "" };
        write!(f, "{}{unit} in {:?}", self.quota, self.per)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            LimitFault::Quota => f.write_str("quota must be at least 1, got 0"),
            LimitFault::Per(per) => {
                write!(f, "per must be longer than zero and at most 100 years, got {per:?}")
            }
            LimitFault::Text(text) => {
                write!(f, "invalid limit {text:?}, expected a quota and a time such as 100/min")
            }
        }
    }
}

impl std::error::Error for InvalidLimit {}
