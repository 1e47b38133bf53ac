//! How a [`RateLimiter`] is set up: the settings and their defaults.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    super::{Client, Error, keyspace::Kind},
    RateLimiter,
    breaker::CircuitBreaker,
    deny_cache::DenyCache,
    limit_set::OwnPlan,
    on_error::{Fallback, OnError},
    state::LimiterState,
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{Limit, WaitSettings, Waiting, Window},
};

/// Sets up a [`RateLimiter`]. Made by [`RateLimiter::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimiterBuilder<K> {
    client: Client,
    name: String,
    limits: Vec<Limit>,
    window: Window,
    on_error: OnError,
    timeout: Duration,
    /// Of how many keys.
    deny_cache: usize,
    wait: WaitSettings,
    #[cfg(feature = "dashboard")]
    are_keys_shown: bool,
    keys: PhantomData<fn(K)>,
}

impl<K> RateLimiter<K> {
    /// Sets up the limiter `name`. All processes that use a name share what is counted under it, and should
    /// have the same limits and the same window. Limits that were [set](RateLimiter::set_limits) hold in the place of
    /// those of the builder, also for processes that start later.
    pub fn builder(client: &Client, name: impl Into<String>) -> RateLimiterBuilder<K> {
        RateLimiterBuilder {
            client: client.for_limits(),
            name: name.into(),
            limits: Vec::new(),
            window: Window::default(),
            on_error: OnError::default(),
            timeout: Duration::from_millis(50),
            deny_cache: 10_000,
            wait: WaitSettings::default(),
            #[cfg(feature = "dashboard")]
            are_keys_shown: false,
            keys: PhantomData,
        }
    }
}

impl<K> RateLimiterBuilder<K> {
    /// One more limit: all of them hold at once. Defaults to none, with which nothing can be built.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// How what has passed is counted. Defaults to [`Window::Log`], which is exact.
    ///
    /// All processes that share a name must have the same: what one kind has written, the others refuse with
    /// [`Error::WrongType`].
    ///
    /// # Panics
    ///
    /// Where the number of [`Window::Buckets`] is 0 or above 10,000.
    pub fn window(mut self, window: Window) -> Self {
        self.window = window.checked();
        self
    }

    /// What is decided while the server fails. Defaults to [`OnError::Local`].
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// How long a call waits for the server, all in all. Defaults to 50 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Of how many keys the last denials are remembered, so that who is denied and asks again at once costs
    /// the server nothing. 0 remembers none. Defaults to 10,000.
    ///
    /// A denial is repeated only for the same cost and limits, and only until the call would pass. What this
    /// process takes back by [`reset`](RateLimiter::reset) or [`refund`](super::Permit::refund) ends it at
    /// once; what another process takes back is seen when it ends by itself.
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.deny_cache = keys;
        self
    }

    /// How many may wait for a key at a time in this process, by
    /// [`until_ready_within`](RateLimiter::until_ready_within) or in a layer: who comes then is denied at once, by one
    /// round trip. Who waits without an end is never sent away, but counts. Defaults to no bound.
    ///
    /// # Panics
    ///
    /// Where `waiting` is 0.
    pub fn max_waiting(mut self, waiting: usize) -> Self {
        assert!(waiting > 0, "max_waiting must be at least 1, got {waiting}");
        self.wait.most = waiting;
        self
    }

    /// Up to how much longer one waits that has to wait, so that not all processes ask the server at the same moment:
    /// a random part of it, anew each time that it is told to wait. Those behind it wait along. Who may pass at
    /// once does, and no wait goes beyond its end. Defaults to zero.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.wait.jitter = jitter;
        self
    }

    /// Lets the [dashboard](crate::dashboard()) show the keys that this process denies most often (feature `dashboard`),
    /// as the server has them. Defaults to hashes, which tell that two are the same and nothing else.
    #[cfg(feature = "dashboard")]
    #[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
    pub fn show_keys(mut self) -> Self {
        self.are_keys_shown = true;
        self
    }

    /// Makes the limiter, and starts the task on the current Tokio runtime that looks for [limits which were
    /// set](RateLimiter::set_limits), twice a second, with one `GET`.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that can't be part of a key.
    ///
    /// # Panics
    ///
    /// Without a [`limit`](RateLimiterBuilder::limit), outside of a Tokio runtime, and on one without a
    /// time driver (`enable_time`).
    pub fn build(self) -> Result<RateLimiter<K>, Error> {
        assert!(!self.limits.is_empty(), "a rate limiter needs at least one limit, got none");
        let Self { client, name, limits, window, .. } = self;
        let state = LimiterState {
            keyspace: client.keyspace(Kind::RateLimiter, &name)?,
            plan: OwnPlan::new(limits.clone(), window),
            timeout: self.timeout,
            fallback: Fallback::new(self.on_error, &limits, window, &name),
            breaker: CircuitBreaker::new(),
            deny_cache: (self.deny_cache > 0).then(|| DenyCache::new(self.deny_cache, &name)),
            waiting: Waiting::new(DefaultHasher::default()),
            wait: self.wait,
            counters: Default::default(),
            quiet_until: Default::default(),
            #[cfg(feature = "dashboard")]
            hot: super::top_denied::Hot::new(self.are_keys_shown),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
            client,
            name,
            window,
        };
        let state = Arc::new(state);
        #[cfg(feature = "metrics")]
        super::metrics::follow(&state);
        tokio::spawn(LimiterState::watch_limits(Arc::downgrade(&state)));
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
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
