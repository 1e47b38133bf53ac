//! Sliding-window rate limits on the crate's own store.
//!
//! 1. A check is one change of one entry under its shard's lock: all limits are charged, or none.
//! 2. The algorithms are pure ([`algorithm::Algorithm`]); what a key has in use is the value of its entry, whose
//!    deadline is when nothing is in use any more. So the sweep forgets idle keys, and no answer depends on it.
//! 3. The time is read under the lock, so that the times of a key's charges come in order.

mod algorithm;
mod buckets;
mod builder;
mod check_args;
mod debt;
mod denial_log;
mod gcra;
mod idle_evictor;
#[cfg(all(test, shuttle))]
mod interleavings;
mod key_state;
mod limit;
mod limit_set;
mod limited;
mod limiter;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod peek;
mod per_limit;
mod permit;
#[cfg(feature = "axum")]
mod remaining;
mod set_limits;
mod settle;
mod standing;
mod stats;
#[cfg(feature = "dashboard")]
pub(crate) mod top_denied;
mod totals;
mod until_ready;
mod untracked_keys;
mod waiting;

use std::{
    fmt,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

#[cfg(feature = "axum")]
pub(crate) use self::algorithm::Remaining;
#[cfg(any(feature = "axum", feature = "redis"))]
pub(crate) use self::per_limit::PerLimit;
use self::{buckets::Buckets, gcra::Gcra, limiter::Limiter, log::Log};
pub use self::{
    builder::RateLimiterBuilder,
    limit::{Limit, Window},
    limited::Limited,
    permit::Permit,
    standing::{Standing, State},
    stats::LimiterStats,
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    limited::Several,
    stats::{COUNTED, with_denials},
    waiting::{WaitSettings, Waiting},
};
use crate::engine::{coop, hasher::DefaultHasher, to_key::ToKey};

/// Limits how much each key may do in any window of time.
///
/// A `RateLimiter` is a handle: cheap to clone, and all clones are one limiter. A check charges its cost to
/// all limits of a key or, where one of them has no room, to none. Keys are given as whatever they can be made of
/// (`&str` for `String`, see [`ToKey`]); what charges nothing takes whatever is [`Equivalent`] to them.
///
/// Which calls pass is decided by the [`Window`]: by default [`Window::Log`], which never lets more than
/// the quota pass in **any** `(now - per, now]`, and denies nothing that would keep to that. What was denied
/// is not charged; a lone caller that waits [`retry_after`](Limited::retry_after) passes.
///
/// # Memory
///
/// At most [`max_keys`](RateLimiterBuilder::max_keys) keys are held. A key of which nothing is in use any
/// more leaves by itself; one that is in use is never given up. Keys beyond the bound share one window of
/// the same limits, so that nobody gets off by asking under many names; one that finds room later keeps what it
/// had of it.
///
/// So a flood of keys (who has a /48 of IPv6 has 65,536 networks of 64 bits) can keep *new* keys out, all but a
/// quota of them, as long as it goes on, and until one of its keys is idle: `per`, after its last call. Known keys
/// don't notice it; what it takes in memory is bounded. Let `max_keys` be well above the keys that one client may
/// have, or count by a shorter prefix (`TrustedProxies::ipv6_prefix`), too.
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
use dispatch;

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
        Q: ToKey<K> + ?Sized,
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
        Q: ToKey<K> + ?Sized,
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
        Q: ToKey<K> + ?Sized,
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
        Q: ToKey<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.decide(key, Some(limits), cost))
    }

    /// What is left for `key`. Charges nothing.
    pub async fn peek<Q>(&self, key: &Q) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.peek(key, None))
    }

    /// What is left for `key` by `limits`, as of [`check_with`](RateLimiter::check_with).
    pub async fn peek_with<Q>(&self, key: &Q, limits: &[Limit]) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.peek(key, Some(limits)))
    }

    /// Forgets what `key` has in use; tells whether anything was known of it.
    ///
    /// What keys beyond the bound share is nobody's, and stays. What [`settle`](Permit::settle) finds that it costs
    /// is charged anew.
    pub async fn reset<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.0, limiter => limiter.reset(key))
    }

    /// Waits until a call of one unit passes, and charges it. Who waits for the same key is let in, one
    /// after the other, in the order of asking; a [`check`](RateLimiter::check) meanwhile may come first. A
    /// refund or a reset meanwhile does not wake who waits for what was in use before;
    /// [`set_limits`](RateLimiter::set_limits) does.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: who gives up was not charged, and those behind move up. One that is kept and no longer polled (a
    /// branch of `select!` that lost, and is waited for again later) holds them up for a second after it could pass,
    /// or for some seconds where it comes to the head of the line by others giving up. Then they go first, until it is
    /// polled again.
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
        Q: ToKey<K> + ?Sized,
    {
        self.until_ready_n(key, 1).await.expect("one unit is above no quota")
    }

    /// As [`until_ready`](RateLimiter::until_ready), for a call that costs `cost` units. One that waits for many
    /// is not overtaken by those behind it that wait for few.
    ///
    /// # Errors
    ///
    /// [`Limited`] where the cost is above a quota, so that it can never pass: at once, or as soon as
    /// [`set_limits`](RateLimiter::set_limits) makes it so.
    ///
    /// # Cancel safety
    ///
    /// As that of [`until_ready`](RateLimiter::until_ready).
    pub async fn until_ready_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        dispatch!(&self.0, limiter => {
            limiter.until_ready(key, cost, None, None, &mut |_, _| {}).await.0
        })
    }

    /// As [`until_ready`](RateLimiter::until_ready), for at most `max_wait`.
    ///
    /// # Errors
    ///
    /// [`Limited`] where it can't pass within `max_wait`: at once where that is clear from what is in use and what
    /// those before it wait for, or where [as many](RateLimiterBuilder::max_waiting) wait as may; else when it is over.
    /// So no more wait for a key than may pass in time.
    ///
    /// # Cancel safety
    ///
    /// As that of [`until_ready`](RateLimiter::until_ready).
    pub async fn until_ready_within<Q>(
        &self,
        key: &Q,
        max_wait: Duration,
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        dispatch!(&self.0, limiter => {
            limiter.until_ready(key, 1, None, Some(max_wait), &mut |_, _| {}).await.0
        })
    }

    /// Changes the limits, for all handles and from now on: a plan that was bought, a backend that is slow, a file
    /// that was read anew. What was charged stays charged, as the new limits count it; they are told apart by their
    /// order, and one that is new begins with nothing in use. ([`Window::Gcra`] knows but a time: what keys of other
    /// [plans](RateLimiter::check_with) have in use changes as that of all, and a permit from before gives nothing back.)
    /// Who waits is woken, and waits by the new limits. A call that is under way on another thread may
    /// still be decided by the old ones, and is counted as long as those say.
    ///
    /// Where a window gets longer or shorter, all keys are gone through, at some tenths of a microsecond each, and
    /// one lock of many at a time. What a check charges at the same moment counts by the old limits or the new; where a
    /// window changes its length, it may count by the ratio of the two more or less. A limiter whose limits were ever
    /// changed takes some nanoseconds more for each check.
    ///
    /// # Panics
    ///
    /// Without a limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder().limit(Limit::per_minute(100)).build();
    /// limiter.check_n("ada", 30).await.unwrap();
    ///
    /// limiter.set_limits([Limit::per_minute(50)]);
    /// assert_eq!(limiter.peek("ada").await.remaining(), 20);
    /// # }
    /// ```
    pub fn set_limits(&self, limits: impl IntoIterator<Item = Limit>) {
        let limits: Vec<Limit> = limits.into_iter().collect();
        assert!(!limits.is_empty(), "a rate limiter needs at least one limit, got none");
        dispatch!(&self.0, limiter => limiter.set_limits(limits));
    }
}

impl<K, S> RateLimiter<K, S> {
    /// The limits that hold where no others are given.
    pub fn limits(&self) -> Arc<[Limit]> {
        dispatch!(&self.0, limiter => limiter.limits())
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
