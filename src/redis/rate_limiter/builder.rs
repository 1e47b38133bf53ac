//! Builder of a [`RateLimiter`]: its settings and their defaults.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    super::{Client, Error, keyspace::Kind},
    RateLimiter,
    breaker::CircuitBreaker,
    deny_cache::DenyCache,
    limit_set::{CurrentLimits, max_reserve_for},
    limiter_state::LimiterState,
    on_error::{Fallback, OnError},
    reservations::Reservations,
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{Limit, WaitSettings, Waiting, Window},
};

/// Builder of a [`RateLimiter`]: limits, window, error policy. Created by [`RateLimiter::builder`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use fleeting::{Limit, redis::{Client, OnError, RateLimiter}};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// let logins: RateLimiter<String> = RateLimiter::builder(&client, "logins")
///     .limit(Limit::per_minute(5))
///     .on_error(OnError::Deny)
///     .timeout(Duration::from_millis(100))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimiterBuilder<K> {
    client: Client,
    name: String,
    limits: Vec<Limit>,
    window: Window,
    on_error: OnError,
    timeout: Duration,
    /// Capacity in keys; 0 disables the cache.
    deny_cache: usize,
    /// Maximum number of units that one call draws ahead; 0 disables reservations.
    reserve: u32,
    /// `None` for a tenth of the shortest limit.
    reserve_for: Option<Duration>,
    wait: WaitSettings,
    #[cfg(feature = "dashboard")]
    are_keys_shown: bool,
    keys: PhantomData<fn(K)>,
}

impl<K> RateLimiter<K> {
    /// Creates a builder for the limiter `name`.
    ///
    /// All your processes that use the same name share its charges, and should use the same limits and the same window.
    /// Limits set by [`set_limits`](RateLimiter::set_limits) replace those of the builder, including in processes that
    /// start later, until [`clear_limits`](RateLimiter::clear_limits). A process logs a message when it applies them.
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let logins: RateLimiter<String> =
    ///     RateLimiter::builder(&client, "logins").limit(Limit::per_minute(5)).build()?;
    /// logins.check("ada").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: &Client, name: impl Into<String>) -> RateLimiterBuilder<K> {
        RateLimiterBuilder {
            // A connection of its own: a check must not wait behind large replies.
            client: client.for_limits(),
            name: name.into(),
            limits: Vec::new(),
            window: Window::default(),
            on_error: OnError::default(),
            timeout: Duration::from_millis(50),
            deny_cache: 10_000,
            reserve: 0,
            reserve_for: None,
            wait: WaitSettings::default(),
            #[cfg(feature = "dashboard")]
            are_keys_shown: false,
            keys: PhantomData,
        }
    }
}

impl<K> RateLimiterBuilder<K> {
    /// Adds a limit; all limits apply together. Defaults to none, but at least one is required.
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let logins: RateLimiter<String> = RateLimiter::builder(&client, "logins")
    ///     .limit(Limit::per_minute(3).named("mistyped"))
    ///     .limit(Limit::per_hour(10).named("guessing"))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Sets the algorithm that counts calls. Defaults to [`Window::Log`], which is exact.
    ///
    /// All processes that share a name should use the same kind. If a release changes it, a key starts again with its
    /// whole quota at its first charge by the new kind, and earlier permits refund nothing. While processes with both
    /// kinds run, this repeats whenever they alternate on a key.
    ///
    /// # Panics
    ///
    /// Panics if the number of [`Window::Buckets`] is 0 or above 10,000.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use fleeting::{Limit, Window, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // A device may send ten messages at once, and then one every six seconds.
    /// let messages: RateLimiter<u32> = RateLimiter::builder(&client, "messages")
    ///     .limit(Limit::per_minute(10))
    ///     .window(Window::Gcra)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn window(mut self, window: Window) -> Self {
        self.window = window.checked();
        self
    }

    /// Sets the policy that decides checks while the server fails. Defaults to [`OnError::Local`].
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::{Client, OnError, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // Without Redis, no one may guess passwords.
    /// let logins: RateLimiter<String> = RateLimiter::builder(&client, "logins")
    ///     .limit(Limit::per_minute(5))
    ///     .on_error(OnError::Deny)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets the total time that a call waits for the server, including retries. Defaults to 50 ms.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // The server is on another continent.
    /// let limiter: RateLimiter<String> = RateLimiter::builder(&client, "api")
    ///     .limit(Limit::per_second(10))
    ///     .timeout(Duration::from_millis(400))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of keys whose last denials are cached, so that a denied key that is checked again too early
    /// costs no round trip. 0 disables the cache. Defaults to 10,000.
    ///
    /// A denial is repeated only for the same cost and limits, and only until the call would pass. A
    /// [`reset`](RateLimiter::reset) or [`refund`](super::Permit::refund) in this process removes the cached denial
    /// immediately; one in another process does not. Nor does a call that another process admits by other limits of the
    /// key: the repeated denial then names the time of the first, at which the call may be denied once more.
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // Up to a million denied clients may ask again too early, without a round trip.
    /// let limiter: RateLimiter<String> = RateLimiter::builder(&client, "api")
    ///     .limit(Limit::per_minute(60))
    ///     .deny_cache(1_000_000)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.deny_cache = keys;
        self
    }

    /// Sets the maximum number of units of a busy key that one call draws ahead, so that further checks of the key cost
    /// no round trip. 0, the default, disables reservations.
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // The API of a partner, called by all processes many times per second.
    /// let calls: RateLimiter<String> = RateLimiter::builder(&client, "partner")
    ///     .limit(Limit::per_minute(600_000))
    ///     .reserve(1_000)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// See [Reservations](RateLimiter#reservations) for what is admitted and what it costs.
    pub fn reserve(mut self, most: u32) -> Self {
        self.reserve = most;
        self
    }

    /// Sets the time for which units drawn by [`reserve`](RateLimiterBuilder::reserve) may be admitted. Those that are
    /// not used by then are given back. Defaults to a tenth of the shortest limit, which is also the maximum.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // At most 1 % fewer calls than the quota.
    /// let calls: RateLimiter<String> = RateLimiter::builder(&client, "partner")
    ///     .limit(Limit::per_minute(600_000))
    ///     .reserve(1_000)
    ///     .reserve_for(Duration::from_millis(600))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Reserved units count from the end of this time on. So a key that is busy all the time is admitted fewer calls
    /// than its quota, by up to the ratio of this time to that of the limit. If
    /// [`set_limits`](RateLimiter::set_limits) sets a shorter limit, a tenth of that applies.
    ///
    /// # Panics
    ///
    /// Panics if `time` is zero. [`build`](RateLimiterBuilder::build) panics if it is above a tenth of the shortest
    /// limit.
    pub fn reserve_for(mut self, time: Duration) -> Self {
        assert!(!time.is_zero(), "reserve_for must be above zero, got {time:?}");
        self.reserve_for = Some(time);
        self
    }

    /// Sets the maximum number of callers per key that wait in this process, by
    /// [`until_ready_within`](RateLimiter::until_ready_within) or in a layer.
    ///
    /// Further callers are denied after one round trip. Callers that wait without a time limit are never denied for
    /// this reason, but they count. Defaults to no bound.
    ///
    /// # Panics
    ///
    /// Panics if `waiting` is 0.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // At most 20 requests of a user wait; further ones are denied.
    /// let searches: RateLimiter<String> = RateLimiter::builder(&client, "searches")
    ///     .limit(Limit::per_second(5))
    ///     .max_waiting(20)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_waiting(mut self, waiting: usize) -> Self {
        assert!(waiting > 0, "max_waiting must be at least 1, got {waiting}");
        self.wait.max_waiting = waiting;
        self
    }

    /// Sets the maximum random delay added to each wait, so that not all processes check at the same moment. Defaults
    /// to zero.
    ///
    /// The delay is chosen again for each denial, and also delays the waiters behind. A call that may pass immediately
    /// is not delayed, and no wait exceeds its time limit.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, redis::{Client, RateLimiter}};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // A hundred workers wait for the same key.
    /// let calls: RateLimiter<String> = RateLimiter::builder(&client, "partner")
    ///     .limit(Limit::per_second(10))
    ///     .jitter(Duration::from_millis(100))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.wait.jitter = jitter;
        self
    }

    /// Makes the [dashboard](crate::dashboard()) show the keys that this process denies most often (feature
    /// `dashboard`), as they are written on the server. Defaults to hashes of the keys.
    #[cfg(feature = "dashboard")]
    #[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
    pub fn show_keys(mut self) -> Self {
        self.are_keys_shown = true;
        self
    }

    /// Builds the limiter, and starts a task on the current Tokio runtime that polls for [changed
    /// limits](RateLimiter::set_limits), about twice per second, with one `GET`. If Tokio's clock is paused, the
    /// seconds are real ones: a virtual day costs no more polls than the time that the test takes.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    ///
    /// # Panics
    ///
    /// Panics without a [`limit`](RateLimiterBuilder::limit), outside of a Tokio runtime, and on a runtime without a
    /// time driver (`enable_time`). Panics if [`reserve_for`](RateLimiterBuilder::reserve_for) is above a tenth of the
    /// shortest limit.
    pub fn build(self) -> Result<RateLimiter<K>, Error> {
        assert!(!self.limits.is_empty(), "a rate limiter needs at least one limit, got none");
        let Self { client, name, limits, window, reserve, reserve_for, .. } = self;
        let most = max_reserve_for(&limits);
        if let Some(time) = reserve_for {
            assert!(
                time <= most,
                "reserve_for must be at most a tenth of the shortest limit, {most:?}, got {time:?}"
            );
        }
        let state = LimiterState {
            keyspace: client.keyspace(Kind::RateLimiter, &name)?,
            current_limits: CurrentLimits::new(limits.clone(), window),
            timeout: self.timeout,
            fallback: Fallback::new(self.on_error, &limits, window, &name),
            breaker: CircuitBreaker::new(),
            deny_cache: (self.deny_cache > 0).then(|| DenyCache::new(self.deny_cache, &name)),
            reservations: (reserve > 0).then(|| Reservations::new(reserve, reserve_for, window)),
            waiting: Waiting::new(DefaultHasher::default()),
            #[cfg(feature = "axum")]
            probing: Waiting::new(DefaultHasher::default()),
            wait: self.wait,
            counters: Default::default(),
            quiet_until: Default::default(),
            #[cfg(feature = "dashboard")]
            top_denied: super::top_denied::TopDenied::new(self.are_keys_shown),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
            client,
            name,
            window,
        };
        let state = Arc::new(state);
        #[cfg(feature = "metrics")]
        super::metrics::follow(&state);
        // A `Weak`, so that the task ends after the last handle is dropped.
        tokio::spawn(LimiterState::watch_limits(Arc::downgrade(&state)));
        if let Some(reservations) = &state.reservations {
            tokio::spawn(LimiterState::return_unused(Arc::downgrade(&state), reservations.wake()));
        }
        Ok(RateLimiter { state, keys: PhantomData })
    }
}

impl<K> fmt::Debug for RateLimiterBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiterBuilder")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .field("window", &self.window)
            .field("on_error", &self.on_error)
            .field("timeout", &self.timeout)
            .field("deny_cache", &self.deny_cache)
            .field("reserve", &self.reserve)
            .field("reserve_for", &self.reserve_for)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
