//! `Limit`: a quota, and which ones are refused.

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
