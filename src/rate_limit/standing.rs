//! Results of a peek: the remaining quota of a key, for each of its limits.

use std::time::Duration;

use tokio::time::Instant;

use super::{Limit, per_limit::PerLimit};

/// Remaining quota of one key, at the time of the call. Returned by [`peek`](super::RateLimiter::peek).
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::{Limit, RateLimiter};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(2));
/// limiter.check_n("ada", 2).await.unwrap();
///
/// let state = limiter.peek("ada").await;
/// assert_eq!((state.remaining(), state.retry_after()), (0, Duration::from_secs(60)));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) standings: PerLimit<Standing>,
    /// When one unit would pass; `None` if it would pass now.
    pub(crate) ready: Option<Instant>,
}

/// Remaining quota of one key by one [`Limit`], at the time of the call. Returned by [`State::standings`].
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) limit: Limit,
    pub(crate) remaining: u32,
    pub(crate) more_at: Option<Instant>,
}

impl State {
    /// Returns the number of units that would have passed in one call: the smallest number that any limit had left.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_second(10))
    ///     .limit(Limit::per_hour(5))
    ///     .build();
    /// assert_eq!(limiter.peek("ada").await.remaining(), 5, "by the limit with the fewest units left");
    /// # }
    /// ```
    pub fn remaining(&self) -> u32 {
        self.standings.iter().map(Standing::remaining).min().unwrap_or(u32::MAX)
    }

    /// Returns the time from now until a call of one unit would pass; zero if it would pass now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// assert_eq!(limiter.peek("ada").await.retry_after(), Duration::ZERO);
    /// limiter.check("ada").await.unwrap();
    /// assert_eq!(limiter.peek("ada").await.retry_after(), Duration::from_secs(60));
    /// # }
    /// ```
    pub fn retry_after(&self) -> Duration {
        self.ready.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the remaining quota of each limit, in the order in which the limits were given.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_second(10))
    ///     .limit(Limit::per_hour(1_000))
    ///     .build();
    /// limiter.check_n("ada", 4).await.unwrap();
    /// for standing in limiter.peek("ada").await.standings() {
    ///     println!("{} of {} left", standing.remaining(), standing.limit());
    /// }
    /// # let state = limiter.peek("ada").await;
    /// # let left: Vec<_> = state.standings().iter().map(|standing| standing.remaining()).collect();
    /// # assert_eq!(left, [6, 996]);
    /// # }
    /// ```
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }
}

impl Standing {
    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the number of units of the limit that were left.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns the time from now until more units may pass; `None` if the whole quota is left.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(10));
    /// assert_eq!(limiter.peek("ada").await.standings()[0].more_after(), None);
    /// limiter.check("ada").await.unwrap();
    /// let more_after = limiter.peek("ada").await.standings()[0].more_after();
    /// assert_eq!(more_after, Some(Duration::from_secs(60)));
    /// # }
    /// ```
    pub fn more_after(&self) -> Option<Duration> {
        Some(self.more_at?.saturating_duration_since(Instant::now()))
    }
}
