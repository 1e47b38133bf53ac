//! The handle for code that is not async: [`SyncRateLimiter`].

use std::{
    fmt,
    hash::{BuildHasher, Hash},
};

use equivalent::Equivalent;

use super::{ByWindow, Limit, Limited, Permit, RateLimiter, State, check_args::Caller, dispatch};
use crate::engine::{coop, hasher::DefaultHasher, to_key::ToKey};

/// Handle to a [`RateLimiter`] for code that is not async: the same keys and limits, through methods without `.await`.
///
/// ```
/// use fleeting::{Limit, RateLimiter, SyncRateLimiter};
///
/// /// A mailer whose methods are not async.
/// struct Mailer {
///     limiter: SyncRateLimiter<String>,
/// }
///
/// impl Mailer {
///     fn new() -> Self {
///         let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).background_thread().build();
///         Self { limiter: limiter.sync().clone() }
///     }
///
///     fn send(&self, recipient: &str) -> Result<(), String> {
///         match self.limiter.check(recipient) {
///             Ok(_) => Ok(()),
///             Err(limited) => Err(format!("try again in {:?}", limited.retry_after())),
///         }
///     }
/// }
///
/// assert!(Mailer::new().send("ada@example.org").is_ok());
/// ```
///
/// You get it by [`RateLimiter::sync`]. Use both handles at once: what you charge through one counts for the other.
/// Each method does what the method of the same name of `RateLimiter` does, by the same code. None of them waits, so
/// you may call them on any thread, with or without a runtime. They take no part in Tokio's cooperative budget.
pub struct SyncRateLimiter<K, S = DefaultHasher>(pub(super) ByWindow<K, S>);

impl<K, S> RateLimiter<K, S> {
    /// Returns the same limiter for code that is not async.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).background_thread().build();
    /// assert!(limiter.sync().check("ada").is_ok());
    /// assert!(limiter.sync().check("ada").is_err());
    /// # let _: &RateLimiter<String> = &limiter;
    /// ```
    ///
    /// This costs nothing: it is another view of the same handle.
    #[doc(alias = "block_on")]
    #[doc(alias = "blocking")]
    pub fn sync(&self) -> &SyncRateLimiter<K, S> {
        &self.inner
    }
}

impl<K, S> SyncRateLimiter<K, S> {
    /// Gives back the whole cost of `permit`, as [`Permit::refund`] does. The permit may be of any limiter.
    pub fn refund(&self, permit: Permit) {
        coop::count();
        permit.refund_now();
    }

    /// Corrects the cost of `permit` to `actual`, as [`Permit::settle`] does. The permit may be of any limiter.
    pub fn settle(&self, permit: Permit, actual: u32) {
        coop::count();
        permit.settle_now(actual);
    }
}

impl<K, S> SyncRateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Charges one call to `key`, or denies it, as [`RateLimiter::check`] does.
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if a limit is exceeded.
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        self.check_n(key, 1)
    }

    /// Charges `cost` to `key`, or denies the call, as [`RateLimiter::check_n`] does.
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if a limit is exceeded, or if `cost` is above a quota.
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        coop::count();
        dispatch!(&self.0, limiter => limiter.check_n(key, cost))
    }

    /// Charges one call to `key` by the given limits, as [`RateLimiter::check_with`] does.
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if a limit is exceeded.
    pub fn check_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        coop::count();
        dispatch!(&self.0, limiter => limiter.decide(key, Some(limits), 1, Caller::Final, None))
    }

    /// Returns what is left of each limit for `key`, without a charge, as [`RateLimiter::peek`] does.
    pub fn peek<Q>(&self, key: &Q) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        dispatch!(&self.0, limiter => limiter.peek(key, None))
    }

    /// Returns what is left of the given limits for `key`, as [`RateLimiter::peek_with`] does.
    pub fn peek_with<Q>(&self, key: &Q, limits: &[Limit]) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        dispatch!(&self.0, limiter => limiter.peek(key, Some(limits)))
    }

    /// Forgets the usage of `key`, and returns whether there was any, as [`RateLimiter::reset`] does.
    pub fn reset<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        dispatch!(&self.0, limiter => limiter.reset(key))
    }
}

impl<K, S> Clone for SyncRateLimiter<K, S> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            ByWindow::Log(limiter) => ByWindow::Log(limiter.clone()),
            ByWindow::Buckets(limiter) => ByWindow::Buckets(limiter.clone()),
            ByWindow::Gcra(limiter) => ByWindow::Gcra(limiter.clone()),
        })
    }
}

impl<K, S> fmt::Debug for SyncRateLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        dispatch!(&self.0, limiter => limiter.fmt(f))
    }
}
