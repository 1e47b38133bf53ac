use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    super::{Client, Error},
    RateLimiter,
    breaker::Switch,
    deny_cache::Denials,
    protocol::Rule,
    state::{Policy, Shared},
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{Limit, Waiting, Window},
};

/// What a [`RateLimiter`] decides while its server fails: it is away, does not answer in time, or refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// All calls pass, and nobody counts them.
    Allow,
    /// None does: the error is returned.
    Deny,
    /// An embedded [`RateLimiter`](crate::RateLimiter) with the same limits decides, which begins empty. Each
    /// process has its own, so that several let as many quotas pass.
    #[default]
    Local,
}

/// Sets up a [`RateLimiter`]. Made by [`RateLimiter::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimiterBuilder<K> {
    client: Client,
    name: String,
    limits: Vec<Limit>,
    window: Window,
    on_error: OnError,
    timeout: Duration,
    denials: usize,
    keys: PhantomData<fn(K)>,
}

impl<K> RateLimiterBuilder<K> {
    pub(super) fn new(client: Client, name: String) -> Self {
        Self {
            client,
            name,
            limits: Vec::new(),
            window: Window::default(),
            on_error: OnError::default(),
            timeout: Duration::from_millis(50),
            denials: 10_000,
            keys: PhantomData,
        }
    }

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
        self.denials = keys;
        self
    }

    /// Makes the limiter. Nothing is sent yet.
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
        let names = self.client.names(&self.name)?;
        let policy = match self.on_error {
            OnError::Allow => Policy::Allow,
            OnError::Deny => Policy::Deny,
            OnError::Local => {
                let local = crate::RateLimiter::builder().window(self.window);
                let local =
                    self.limits.iter().cloned().fold(local, |local, limit| local.limit(limit));
                Policy::Local(local.name(self.name.clone()).build())
            }
        };
        let rules = self.limits.iter().map(|limit| Rule::new(limit, self.window)).collect();
        let denials = (self.denials > 0).then(|| Denials::new(self.denials, &self.name));
        Ok(RateLimiter::from(Arc::new(Shared {
            client: self.client,
            names,
            name: self.name,
            window: self.window,
            limits: self.limits.into(),
            rules,
            timeout: self.timeout,
            policy,
            switch: Switch::new(),
            denials,
            waiting: Waiting::new(DefaultHasher::default()),
            counts: Default::default(),
            quiet_until: Default::default(),
        })))
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
            .field("deny_cache", &self.denials)
            .finish_non_exhaustive()
    }
}
