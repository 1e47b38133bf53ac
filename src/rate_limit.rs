//! Sliding-window rate limiter on the crate's own store.
//!
//! 1. A check changes one entry under its shard's lock: it charges all limits or none.
//! 2. The algorithms are pure ([`algorithm::Algorithm`]). The value of an entry is the usage of its key, and its
//!    deadline is the time at which nothing is in use any more. So the sweeper removes idle keys, and no decision
//!    depends on the sweeper.
//! 3. The time is read under the lock, so that the charges of a key are in order of time.

mod algorithm;
mod buckets;
mod builder;
mod charges;
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
mod limit_text;
mod limited;
mod limiter;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod peek;
mod per_limit;
mod permit;
mod position;
mod probe;
#[cfg(feature = "axum")]
mod remaining;
mod set_limits;
mod settle;
mod standing;
mod stats;
mod sync_rate_limiter;
#[cfg(feature = "dashboard")]
pub(crate) mod top_denied;
mod totals;
mod until_ready;
mod untracked_keys;
mod usage;
mod waiting;
mod window;

use std::{
    fmt,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    sync::Arc,
    task::{Poll, ready},
};

use equivalent::Equivalent;

#[cfg(feature = "axum")]
pub(crate) use self::algorithm::Remaining;
#[cfg(any(feature = "axum", feature = "redis"))]
pub(crate) use self::per_limit::PerLimit;
use self::{buckets::Buckets, check_args::Caller, gcra::Gcra, limiter::Limiter, log::Log};
pub use self::{
    builder::RateLimiterBuilder,
    limit::{InvalidLimit, Limit},
    limited::Limited,
    permit::Permit,
    standing::{Standing, State},
    stats::LimiterStats,
    sync_rate_limiter::SyncRateLimiter,
    window::Window,
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    limited::Several,
    stats::{COUNTED, with_denials},
    waiting::{WaitSettings, Waiting},
};
use crate::engine::{coop, hasher::DefaultHasher, to_key::ToKey};

/// Maximum length of a key of a layer and of a limiter on Redis; a longer one is shortened to its beginning and a hash.
#[cfg(any(feature = "axum", feature = "redis"))]
pub(crate) const MAX_KEY_BYTES: usize = 256;

/// Rate limiter that gives each of your users or clients a quota of calls, or of bytes, in any window of time.
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Limit, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter: RateLimiter<String> = RateLimiter::builder()
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
/// # }
/// ```
///
/// Your call has three forms: [`check`](Self::check) admits or denies it immediately,
/// [`until_ready`](Self::until_ready) waits until it passes, and [`peek`](Self::peek) charges nothing. A `RateLimiter`
/// is a handle: cloning it is cheap, and all clones share one limiter. For HTTP routes, `RateLimitLayer` (feature
/// `axum`) does the checks for you.
///
/// # Limits and keys
///
/// A check charges its cost to all limits of a key, or to none if one of them is exhausted. Denied calls are not
/// charged.
///
/// The [`Window`] decides which calls pass. The default, [`Window::Log`], never admits more than the quota in **any**
/// window `(now - per, now]`, and denies no call that would stay within it. If no other call uses the key, a call made
/// after [`retry_after`](Limited::retry_after) is admitted.
///
/// You can pass any borrowed form of a key. For methods that charge, it must be one that can be made owned (`&str` for
/// `String`, see [`ToKey`]); the others take any type that is [`Equivalent`] to a key.
///
/// # Memory
///
/// The limiter holds at most [`max_keys`](RateLimiterBuilder::max_keys) keys. A key is in use while any of its charges
/// counts toward a limit; otherwise it is idle. Idle keys are removed automatically, and a key that is in use is never
/// evicted.
///
/// Keys beyond the bound share one quota, as if they were one key with the same limits. So a client cannot evade its
/// limit by rotating keys. When such a key gets an entry later, its own charges are carried over.
///
/// A flood of keys can therefore lock *new* keys out (a client with an IPv6 /48 has 65,536 networks of 64 bits). While
/// the flood lasts, all new keys together get one quota. New keys get quotas of their own as the keys of the flood
/// become idle, each `per` after its last call. After a flood that was too large to record, new keys wait for them
/// until the last charge of the shared quota has expired. Known keys are not affected, and memory stays bounded.
///
/// Choose a `max_keys` well above the number of keys that one client may have, or also limit by a shorter prefix
/// (`TrustedProxies::ipv6_prefix`).
///
/// `max_keys` bounds the number of keys, not their bytes. If clients choose your keys, see
/// [long keys](crate::guide::rate_limits#long-keys).
///
/// # User code under the lock
///
/// As in [`Cache`](crate::Cache), `Hash`, `Eq` and `Clone` of your keys run while a shard is locked. They must not call
/// the limiter.
///
/// # Time
///
/// The limiter uses Tokio's clock, as [`Cache`](crate::Cache) does, so your tests can pause and advance it.
#[doc(alias = "governor")]
#[doc(alias = "DefaultKeyedRateLimiter")]
pub struct RateLimiter<K, S = DefaultHasher> {
    inner: SyncRateLimiter<K, S>,
}

/// Limiter of each window algorithm.
enum ByWindow<K, S> {
    Log(Arc<Limiter<K, Log, S>>),
    Buckets(Arc<Limiter<K, Buckets, S>>),
    Gcra(Arc<Limiter<K, Gcra, S>>),
}

/// Evaluates an expression for the limiter of any algorithm. One match per call costs less than a `dyn`, through which
/// nothing of a check could be inlined.
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
    /// Charges one unit to `key`, or returns the time to wait. Costs about as much as a lookup in a cache.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let mails: RateLimiter<String> = RateLimiter::new(Limit::per_hour(3));
    /// for _mail in 0..3 {
    ///     assert!(mails.check("ada").await.is_ok());
    /// }
    /// match mails.check("ada").await {
    ///     Ok(_) => println!("send it"),
    ///     Err(limited) => println!("try again in {:?}", limited.retry_after()),
    /// }
    /// # assert!(mails.check("ada").await.is_err());
    /// # }
    /// ```
    ///
    /// # Long keys
    ///
    /// Your key may have any length. Each check hashes all of it, and compares it with the stored key. The first one
    /// also copies it, and the copy is kept until the key is idle. If clients choose your keys, pass a hash or an id:
    /// [long keys](crate::guide::rate_limits#long-keys).
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if a limit is exhausted; nothing is charged then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it completes has charged nothing. This holds for all methods that
    /// check or read a key.
    #[doc(alias = "check_key")]
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> impl Future<Output = Result<Permit, Limited>>
    where
        Q: ToKey<K> + ?Sized,
    {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to `key`, or returns the time to wait. A cost of 0 always passes;
    /// [`remaining`](Permit::remaining) is then the remaining quota, as of [`peek`](RateLimiter::peek).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Each account may export 10,000 rows per minute.
    /// let rows: RateLimiter<u32> = RateLimiter::new(Limit::per_minute(10_000));
    /// assert_eq!(rows.check_n(&7, 8_000).await.unwrap().remaining(), 2_000);
    /// assert!(rows.check_n(&7, 3_000).await.is_err());
    ///
    /// let too_many = rows.check_n(&7, 20_000).await.unwrap_err();
    /// assert_eq!(too_many.retry_after(), Duration::MAX);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if a limit has fewer than `cost` units left. If the cost is above a quota, it can never
    /// pass, and [`retry_after`](Limited::retry_after) is [`Duration::MAX`](std::time::Duration::MAX).
    #[doc(alias = "check_key_n")]
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, cost: u32) -> impl Future<Output = Result<Permit, Limited>>
    where
        Q: ToKey<K> + ?Sized,
    {
        poll_fn(move |cx| {
            ready!(coop::poll_proceed(cx));
            Poll::Ready(dispatch!(&self.inner.0, limiter => limiter.check_n(key, cost)))
        })
    }

    /// Charges one unit to `key` by `limits` instead of the limiter's own, for plans and tiers.
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
    ///
    /// If you check a key by several limits in turn, each of them counts all its calls: a customer who changes plans
    /// keeps what was used. No limit is ever exceeded by its own calls, regardless of other limits in between.
    /// Limits are identified by their position in `limits`: [several limits for one
    /// key](crate::guide::rate_limits#several-limits-for-one-key) has the rules. Limits that should be independent of
    /// each other need keys of their own. If `limits` is empty, every call passes and nothing is charged.
    ///
    /// # Cost
    ///
    /// A check by limits that the key knows takes the time of a check for each known limit. The key knows up to 8
    /// limits per position, each with the memory of a [`Window`]; of more, those whose usage ends first are forgotten.
    ///
    /// # Errors
    ///
    /// The same as for [`check`](RateLimiter::check).
    pub async fn check_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        self.check_n_with(key, 1, limits).await
    }

    /// Charges `cost` units to `key` by `limits` instead of the limiter's own: [`check_n`](RateLimiter::check_n) and
    /// [`check_with`](RateLimiter::check_with) in one.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let (free, paid) = ([Limit::per_minute(100)], [Limit::per_minute(5_000)]);
    /// let rows: RateLimiter<String> = RateLimiter::new(free[0].clone());
    /// assert!(rows.check_n_with("ada", 800, &free).await.is_err());
    /// assert_eq!(rows.check_n_with("ada", 800, &paid).await.unwrap().remaining(), 4_200);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`check_n`](RateLimiter::check_n).
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
        dispatch!(&self.inner.0, limiter => {
            limiter.decide(key, Some(limits), cost, Caller::Final, None)
        })
    }

    /// Returns the remaining quota of `key`, for example for your users' account page. Charges nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder().limit(Limit::per_minute(10)).build();
    /// limiter.check_n("ada", 4).await.unwrap();
    ///
    /// let state = limiter.peek("ada").await;
    /// assert_eq!(state.remaining(), 6);
    /// assert_eq!(state.standings()[0].more_after(), Some(Duration::from_secs(60)));
    /// # }
    /// ```
    #[doc(alias = "StateSnapshot")]
    #[doc(alias = "remaining_burst_capacity")]
    pub async fn peek<Q>(&self, key: &Q) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.inner.0, limiter => limiter.peek(key, None))
    }

    /// Returns the remaining quota of `key` by `limits`, as for [`check_with`](RateLimiter::check_with). Charges
    /// nothing.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let (free, paid) = ([Limit::per_minute(10)], [Limit::per_minute(500)]);
    /// let limiter: RateLimiter<String> = RateLimiter::new(free[0].clone());
    /// limiter.check_n("ada", 8).await.unwrap();
    ///
    /// // Ada asks for the quota that a paid plan would leave.
    /// assert_eq!(limiter.peek_with("ada", &paid).await.remaining(), 492);
    /// # }
    /// ```
    pub async fn peek_with<Q>(&self, key: &Q, limits: &[Limit]) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.inner.0, limiter => limiter.peek(key, Some(limits)))
    }

    /// Removes the usage of `key`, so that it may use its whole quota again. Returns `true` if there was any record of
    /// it.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder().limit(Limit::per_hour(1)).build();
    /// limiter.check("ada").await.unwrap();
    /// assert!(limiter.reset("ada").await);
    /// assert!(limiter.check("ada").await.is_ok());
    /// # }
    /// ```
    ///
    /// Keys beyond [`max_keys`](RateLimiterBuilder::max_keys) share one quota; its usage belongs to no single key, and
    /// stays. If a permit from before the reset is [settled](Permit::settle) later, a difference that must be
    /// charged is still charged.
    pub async fn reset<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        dispatch!(&self.inner.0, limiter => limiter.reset(key))
    }
}

impl<K, S> Clone for RateLimiter<K, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K, S> fmt::Debug for RateLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
