//! Decisions for a layer, each with the quota that it left of each limit.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    ByWindow, Limit, Limited, Permit, RateLimiter,
    algorithm::Remaining,
    check_args::{Caller, Observed},
    dispatch,
    limiter::Limiter,
    per_limit::PerLimit,
};
use crate::engine::{
    clock::{LazyNow, Tick},
    sync::atomic::Ordering::Relaxed,
};

impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Decides as [`check_n_with`](RateLimiter::check_n_with), without taking part in the cooperative budget. Also
    /// returns the remaining quota of each limit.
    pub(crate) fn decide(
        &self,
        key: &K,
        cost: u32,
        limits: Option<&[Limit]>,
    ) -> (Result<Permit, Limited>, PerLimit<Remaining>) {
        let observed = Observed::default();
        let decided = dispatch!(&self.inner.0, limiter => {
            limiter.decide(key, limits, cost, Caller::Final, Some(&observed))
        });
        // If the cost alone decided, nothing was observed.
        (decided, observed.take().unwrap_or_else(|| self.remaining(key, limits)))
    }

    /// Waits as [`until_ready_within`](RateLimiter::until_ready_within). Also returns the remaining quota of each
    /// limit, and whether the call had to wait.
    pub(crate) async fn wait(
        &self,
        key: &K,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Duration,
    ) -> (Result<Permit, Limited>, PerLimit<Remaining>, bool) {
        let mut remaining = None;
        let (decided, has_waited) = dispatch!(&self.inner.0, limiter => {
            limiter.until_ready(key, cost, limits, Some(max_wait), Some(&mut remaining)).await
        });
        // A call that was denied because of the queue ahead of it observed nothing.
        (decided, remaining.unwrap_or_else(|| self.remaining(key, limits)), has_waited)
    }

    /// Returns the remaining quota of each limit.
    pub(crate) fn remaining(&self, key: &K, limits: Option<&[Limit]>) -> PerLimit<Remaining> {
        // A cost of 0 always passes.
        dispatch!(&self.inner.0, limiter => limiter.probe(key, 0, limits).1)
    }
}

impl<K, S> RateLimiter<K, S> {
    /// Returns the limits set by `set_limits`; `None` while the first ones apply.
    pub(crate) fn changed_limits(&self) -> Option<Arc<[Limit]>> {
        dispatch!(&self.inner.0, limiter => limiter.changed_limits())
    }

    /// Returns the current time of the limiter's clock.
    pub(crate) fn lazy_now(&self) -> LazyNow<'_> {
        dispatch!(&self.inner.0, limiter => limiter.lazy_now())
    }

    pub(crate) fn instant(&self, at: Tick) -> Instant {
        dispatch!(&self.inner.0, limiter => limiter.instant(at))
    }

    /// Counts a denied request that a layer in shadow mode admitted.
    pub(crate) fn count_shadowed(&self) {
        dispatch!(&self.inner.0, limiter => limiter.shadowed.fetch_add(1, Relaxed));
    }
}

impl<K, A, S> Limiter<K, A, S> {
    pub(super) fn changed_limits(&self) -> Option<Arc<[Limit]>> {
        self.current_limits.changed().map(|limit_set| limit_set.limits.clone())
    }

    pub(super) fn lazy_now(&self) -> LazyNow<'_> {
        self.shared.clock.lazy_now()
    }

    pub(super) fn instant(&self, at: Tick) -> Instant {
        self.shared.clock.instant(at)
    }
}
