//! Sliding-window rate limits on the crate's own store.
//!
//! 1. A check is one change of one entry under its shard's lock: all limits are charged, or none.
//! 2. The algorithms are pure ([`algorithm::Algorithm`]); what a key has in use is the value of its entry, whose
//!    deadline is when nothing is in use any more. So the sweep forgets idle keys, and no answer depends on it.
//! 3. The time is read under the lock, so that the times of a key's charges come in order.

mod algorithm;
mod buckets;
mod builder;
mod check;
mod denial_log;
mod gcra;
mod key_state;
mod limit;
mod limited;
mod limiter;
mod log;
mod overflow;
mod peek;
mod per_limit;
mod permit;
mod refund;
#[cfg(feature = "axum")]
mod remaining;
mod standing;
mod stats;
mod until_ready;
mod waiting;

use std::{
    borrow::Borrow,
    fmt,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "axum")]
pub(crate) use self::algorithm::Remaining;
#[cfg(any(feature = "axum", feature = "redis"))]
pub(crate) use self::per_limit::PerLimit;
#[cfg(feature = "redis")]
pub(crate) use self::waiting::Waiting;
use self::{buckets::Buckets, gcra::Gcra, limiter::Limiter, log::Log};
pub use self::{
    builder::RateLimiterBuilder,
    limit::{Limit, Window},
    limited::Limited,
    permit::Permit,
    standing::{Standing, State},
    stats::LimiterStats,
};
#[cfg(feature = "axum")]
use crate::engine::clock::LazyNow;
use crate::engine::{coop, hasher::DefaultHasher};

/// Limits how much each key may do in any window of time.
///
/// A `RateLimiter` is a handle: cheap to clone, and all clones are one limiter. A check charges its cost to
/// all limits of a key or, where one of them has no room, to none. Keys are given in any borrowed form that
/// can be made owned (`&str` for `String`).
///
/// Which calls pass is decided by the [`Window`]: by default [`Window::Log`], which never lets more than
/// the quota pass in **any** `(now - per, now]`, and denies nothing that would keep to that. What was denied
/// is not charged; a lone caller that waits [`retry_after`](Limited::retry_after) passes.
///
/// # Memory
///
/// At most [`max_keys`](RateLimiterBuilder::max_keys) keys are held. A key of which nothing is in use any
/// more leaves by itself; one that is in use is never given up. Keys beyond the bound share one window of
/// the same limits, so that nobody gets off by asking under many names; and a new key that finds room while
/// something of that window is in use begins with as much in use.
///
/// # Under the lock
///
/// As in [`Cache`](crate::Cache), `Hash`, `Eq` and `Clone` of keys run while a shard is locked: they must not
/// call the limiter.
///
/// # Time
///
/// Tokio's, as that of [`Cache`](crate::Cache): tests pause and advance it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Limit, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter = RateLimiter::builder()
///     .limit(Limit::per_second(2).named("burst"))
///     .limit(Limit::per_hour(1_000).named("hourly"))
///     .build();
///
/// assert_eq!(limiter.check("ada").await.unwrap().remaining(), 1);
/// assert!(limiter.check("ada").await.is_ok());
/// let limited = limiter.check("ada").await.unwrap_err();
/// assert_eq!(limited.limit().name(), Some("burst"));
/// assert_eq!(limited.retry_after(), Duration::from_secs(1));
///
/// tokio::time::advance(limited.retry_after()).await;
/// assert!(limiter.check("ada").await.is_ok());
/// # let _: RateLimiter<String> = limiter;
/// # }
/// ```
pub struct RateLimiter<K, S = DefaultHasher>(ByWindow<K, S>);

/// The limiter for each way to count.
enum ByWindow<K, S> {
    Log(Arc<Limiter<K, Log, S>>),
    Buckets(Arc<Limiter<K, Buckets, S>>),
    Gcra(Arc<Limiter<K, Gcra, S>>),
}

/// The same for each way to count. Matched once a call: behind a `dyn` nothing of a check could be inlined.
macro_rules! dispatch {
    ($by_window:expr, $limiter:ident => $what:expr) => {
        match $by_window {
            ByWindow::Log($limiter) => $what,
            ByWindow::Buckets($limiter) => $what,
            ByWindow::Gcra($limiter) => $what,
        }
    };
}

impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Charges one unit to `key`, or tells when to come again. About as long as a look-up.
    ///
    /// # Errors
    ///
    /// [`Limited`] where a limit has no room; then nothing is charged.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before its end charged nothing. So are all the others.
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> impl Future<Output = Result<Permit, Limited>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.check_n(key, 1)
    }

    /// As [`check`](RateLimiter::check), for a call that costs `cost` units. A cost of 0 always passes.
    ///
    /// # Errors
    ///
    /// [`Limited`] where a limit has no room; with [`Duration::MAX`] to wait where the cost is above a
    /// quota, so that it never has.
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, cost: u32) -> impl Future<Output = Result<Permit, Limited>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        poll_fn(move |cx| dispatch!(&self.0, limiter => limiter.poll_check(cx, key, cost)))
    }

    /// As [`check`](RateLimiter::check), by `limits` in place of the limiter's own: plans, tiers.
    ///
    /// A key's limits are told apart by their order. One whose plan changes keeps what it has in use, as far
    /// as the plans before counted it; with no limits at all everything passes, and nothing is charged.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let free = [Limit::per_minute(1)];
    /// let paid = [Limit::per_minute(100)];
    /// let limiter = RateLimiter::<String>::builder().limit(free[0].clone()).build();
    ///
    /// assert!(limiter.check_with("ada", &free).await.is_ok());
    /// assert!(limiter.check_with("ada", &free).await.is_err());
    /// assert_eq!(limiter.check_with("ada", &paid).await.unwrap().remaining(), 98);
    /// # }
    /// ```
    pub async fn check_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.check_n_with(key, 1, limits).await
    }

    /// [`check_n`](RateLimiter::check_n) and [`check_with`](RateLimiter::check_with) in one.
    pub async fn check_n_with<Q>(
        &self,
        key: &Q,
        cost: u32,
        limits: &[Limit],
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.decide(key, Some(limits), cost))
    }

    /// What is left for `key`. Charges nothing.
    pub async fn peek<Q>(&self, key: &Q) -> State
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.peek(key, None))
    }

    /// What is left for `key` by `limits`, as of [`check_with`](RateLimiter::check_with).
    pub async fn peek_with<Q>(&self, key: &Q, limits: &[Limit]) -> State
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.peek(key, Some(limits)))
    }

    /// Forgets what `key` has in use; tells whether anything was known of it.
    ///
    /// What keys beyond the bound share is nobody's, and stays.
    pub async fn reset<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.reset(key))
    }

    /// Waits until a call of one unit passes, and charges it. Who waits for the same key is let in, one
    /// after the other, in the order of asking; a [`check`](RateLimiter::check) meanwhile may come first. A
    /// refund or a reset meanwhile does not wake who waits for what was in use before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: who gives up was not charged, and those behind move up.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    /// use tokio::time::Instant;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<u32>::builder().limit(Limit::per_second(2)).build();
    /// let start = Instant::now();
    /// for _ in 0..6 {
    ///     limiter.until_ready(&7).await;
    /// }
    /// assert_eq!(start.elapsed().as_secs(), 2);
    /// # }
    /// ```
    pub async fn until_ready<Q>(&self, key: &Q) -> Permit
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let permit = dispatch!(&self.0, limiter => limiter.until_ready(key, None).await);
        permit.expect("without an end to the wait it ends with a permit")
    }

    /// As [`until_ready`](RateLimiter::until_ready), for at most `max_wait`.
    ///
    /// # Errors
    ///
    /// [`Limited`] where it can't pass within `max_wait`: at once where that is clear, else when it is over.
    pub async fn until_ready_within<Q>(
        &self,
        key: &Q,
        max_wait: Duration,
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        dispatch!(&self.0, limiter => limiter.until_ready(key, Some(max_wait)).await)
    }

    /// [`check_n_with`](RateLimiter::check_n_with) at once, without a part in the cooperative budget; and what
    /// it left of each limit.
    #[cfg(feature = "axum")]
    pub(crate) fn decide(
        &self,
        key: &K,
        cost: u32,
        limits: Option<&[Limit]>,
    ) -> (Result<Permit, Limited>, PerLimit<Remaining>) {
        dispatch!(&self.0, limiter => limiter.decide_with_remaining(key, limits, cost))
    }

    /// What is left of each limit.
    #[cfg(feature = "axum")]
    pub(crate) fn remaining(&self, key: &K, limits: Option<&[Limit]>) -> PerLimit<Remaining> {
        dispatch!(&self.0, limiter => limiter.remaining(key, limits))
    }

    /// What the limiter has decided and holds. O(shards).
    pub fn stats(&self) -> LimiterStats {
        dispatch!(&self.0, limiter => limiter.stats())
    }
}

impl<K, S> RateLimiter<K, S> {
    /// The limits that hold where no others are given.
    pub fn limits(&self) -> &[Limit] {
        dispatch!(&self.0, limiter => limiter.limits())
    }

    /// The present, as the limiter sees it.
    #[cfg(feature = "axum")]
    pub(crate) fn lazy_now(&self) -> LazyNow<'_> {
        dispatch!(&self.0, limiter => limiter.lazy_now())
    }
}

impl<K, S> Clone for RateLimiter<K, S> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            ByWindow::Log(limiter) => ByWindow::Log(limiter.clone()),
            ByWindow::Buckets(limiter) => ByWindow::Buckets(limiter.clone()),
            ByWindow::Gcra(limiter) => ByWindow::Gcra(limiter.clone()),
        })
    }
}

impl<K, S> fmt::Debug for RateLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        dispatch!(&self.0, limiter => limiter.fmt(f))
    }
}
