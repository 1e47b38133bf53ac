//! `Limited`, the denial of a check, as the caller sees it. `key_state` decides which of several limits it names. Its
//! HTTP response is in `axum/response.rs`.

use std::{fmt, num::NonZeroU32, time::Duration};

use tokio::time::Instant;

use super::Limit;
use crate::engine::clock::LazyInstant;

/// Error of a check that was denied, with the time to wait. Nothing was charged.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::{Limit, RateLimiter};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1).named("mails"));
/// limiter.check("ada").await.unwrap();
///
/// let limited = limiter.check("ada").await.unwrap_err();
/// assert_eq!(limited.retry_after(), Duration::from_secs(60));
/// assert_eq!(limited.to_string(), "over the limit of 1 in 60s (mails), retry after 60s");
/// # }
/// ```
///
/// With feature `axum` it is also a response (429), so a handler may use `limiter.check(&user).await?`.
#[doc(alias = "NotUntil")]
#[doc(alias = "InsufficientCapacity")]
#[derive(Clone, Debug)]
pub struct Limited {
    /// The exceeded limit; of several, the one with the longest wait.
    limit: Limit,
    cost: u32,
    /// One more than the units that the limit had left; `None` if unknown.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "reported by responses"))]
    left: Option<NonZeroU32>,
    /// When the call would pass. If it never can: when more units are available, `None` if nothing is in use.
    at: Option<LazyInstant>,
    /// All exceeded limits if there are several. Most denials have one, and allocate nothing.
    several: Option<Box<Several>>,
}

/// Several exceeded limits, behind one word because denials are moved often.
#[derive(Clone, Debug)]
pub(crate) struct Several(Box<[Limit]>);

impl Several {
    /// Returns `None` for a single limit.
    pub(crate) fn of<'a>(limits: impl Iterator<Item = &'a Limit>) -> Option<Box<Self>> {
        let limits: Box<[Limit]> = limits.cloned().collect();
        (limits.len() > 1).then(|| Box::new(Self(limits)))
    }
}

impl Limited {
    #[inline]
    pub(crate) fn new(
        limit: Limit,
        cost: u32,
        at: Option<LazyInstant>,
        several: Option<Box<Several>>,
    ) -> Self {
        Self { limit, cost, left: None, at, several }
    }

    /// Adds the number of units that the limit had left.
    #[inline]
    pub(crate) fn with_remaining(self, units: u32) -> Self {
        // Never the largest number: the call was denied, so its cost is above.
        Self { left: NonZeroU32::new(units.wrapping_add(1)), ..self }
    }

    /// Returns the number of units that the limit had left, if it is known.
    #[cfg(feature = "axum")]
    pub(crate) fn remaining(&self) -> Option<u32> {
        self.left.map(|left| left.get() - 1)
    }

    /// Returns when more units are available: the units of the call, or any if it can never pass.
    #[cfg(feature = "axum")]
    pub(crate) fn more_at(&self) -> Option<Instant> {
        self.at.map(LazyInstant::instant)
    }

    /// Adds `by` to the wait, if one helps.
    #[cfg(feature = "axum")]
    pub(crate) fn delayed(self, by: Duration) -> Self {
        let by = if self.cost > self.limit.quota() { Duration::ZERO } else { by };
        Self { at: self.at.map(|at| at.delayed(by)), ..self }
    }

    /// Returns the time from now until the call would pass, if no other call is charged until then. Returns
    /// [`Duration::MAX`] if the cost is above the quota, so that the call can never pass.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// limiter.check("ada").await.unwrap();
    /// let limited = limiter.check("ada").await.unwrap_err();
    /// tokio::time::sleep(limited.retry_after()).await;
    /// assert!(limiter.check("ada").await.is_ok());
    /// # }
    /// ```
    #[doc(alias = "wait_time_from")]
    pub fn retry_after(&self) -> Duration {
        match self.ready_at() {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    /// Returns the time at which the call would pass, if no other call is charged until then. Returns `None` if the
    /// cost is above the quota, so that the call can never pass.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let imports: RateLimiter<String> = RateLimiter::new(Limit::per_hour(100));
    /// imports.check_n("ada", 80).await.unwrap();
    ///
    /// let later = imports.check_n("ada", 30).await.unwrap_err();
    /// assert!(later.ready_at().is_some());
    /// let never = imports.check_n("ada", 101).await.unwrap_err();
    /// assert_eq!(never.ready_at(), None);
    /// # }
    /// ```
    pub fn ready_at(&self) -> Option<Instant> {
        if self.cost > self.limit.quota() { None } else { self.at.map(LazyInstant::instant) }
    }

    /// Returns the limit that denied the call; of several, the one with the longest wait.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(5).named("logins"));
    /// limiter.check_n("ada", 5).await.unwrap();
    /// let limited = limiter.check("ada").await.unwrap_err();
    /// println!("denied by {}", limited.limit()); // "5 in 60s (logins)"
    /// # assert_eq!(limited.limit().quota(), 5);
    /// # }
    /// ```
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns all limits that denied the call, in the order in which they were given. Of more than 32 limits, those
    /// after the first 32 are included only if they have the longest wait.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_second(1).named("burst"))
    ///     .limit(Limit::per_hour(1).named("hourly"))
    ///     .build();
    /// limiter.check("ada").await.unwrap();
    /// let limited = limiter.check("ada").await.unwrap_err();
    /// assert_eq!(limited.limit().name(), Some("hourly"), "the longest wait");
    /// assert_eq!(limited.exceeded().len(), 2);
    /// # }
    /// ```
    pub fn exceeded(&self) -> &[Limit] {
        self.several.as_ref().map_or(std::slice::from_ref(&self.limit), |several| &several.0)
    }

    /// Returns the cost of the denied call, in units.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let rows: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1_000));
    /// let limited = rows.check_n("ada", 3_000).await.unwrap_err();
    /// println!("{} rows of at most {}", limited.cost(), limited.limit().quota());
    /// # assert_eq!(limited.cost(), 3_000);
    /// # }
    /// ```
    pub fn cost(&self) -> u32 {
        self.cost
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit();
        match self.ready_at() {
            None => write!(f, "a cost of {} can never pass a limit of {limit}", self.cost),
            Some(_) => write!(f, "over the limit of {limit}, retry after {:?}", self.retry_after()),
        }
    }
}

impl std::error::Error for Limited {}
