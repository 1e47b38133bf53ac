//! Checks that charge nothing, and charges without a check, for requests whose charge depends on their response.

use std::hash::{BuildHasher, Hash};
#[cfg(feature = "axum")]
use std::time::Duration;

use equivalent::Equivalent;

#[cfg(any(feature = "axum", feature = "redis"))]
use super::{ByWindow, Limit, RateLimiter, dispatch};
use super::{
    Limited, Permit,
    algorithm::{Algorithm, Remaining},
    limit_set::CallLimits,
    limiter::Limiter,
    per_limit::PerLimit,
};
#[cfg(feature = "axum")]
use super::{check_args::Caller, settle::Settle};

/// Decision of a probe, with the remaining quota of each limit.
pub(crate) type Probed = (Result<Permit, Limited>, PerLimit<Remaining>);

#[cfg(any(feature = "axum", feature = "redis"))]
impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Decides as a check of `cost` units, and charges nothing: the permit has cost 0.
    pub(crate) fn probe(&self, key: &K, cost: u32, limits: Option<&[Limit]>) -> Probed {
        let probed = dispatch!(&self.inner.0, limiter => limiter.probe(key, cost, limits));
        self.count_probe(key, limits, probed)
    }

    /// Probes until the call passes, for at most `max_wait`. Also returns whether it had to wait.
    #[cfg(feature = "axum")]
    pub(crate) async fn probe_within(
        &self,
        key: &K,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Duration,
    ) -> (Probed, bool) {
        let (probed, has_waited) = dispatch!(&self.inner.0, limiter => {
            limiter.probe_within(key, cost, limits, max_wait).await
        });
        (self.count_probe(key, limits, probed), has_waited)
    }

    /// Charges `cost` units, even above a quota; the excess is a debt.
    #[cfg(feature = "axum")]
    pub(crate) fn charge_anyway(&self, key: &K, cost: u32, limits: Option<&[Limit]>) {
        dispatch!(&self.inner.0, limiter => limiter.charge_anyway(key, cost, limits));
    }

    fn count_probe(
        &self,
        key: &K,
        limits: Option<&[Limit]>,
        (decided, remaining): Probed,
    ) -> Probed {
        let count = |limited: Limited| match limited.ready_at() {
            Some(_) => dispatch!(&self.inner.0, limiter => {
                limiter.count_denied_waiter(key, limits, limited)
            }),
            // As for checks: a cost that can never pass is not counted.
            None => limited,
        };
        (decided.map_err(count), remaining)
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Decides as a check of `cost` units by these limits, and charges nothing: the permit has cost 0.
    #[cold]
    pub(super) fn probe_by<Q>(&self, key: &Q, by: CallLimits<'_>, cost: u32) -> Probed
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let now = self.shared.clock.lazy_now();
        let (denied, remaining) = self.inspect(key, by.params, &now, |usage| {
            // `ensure_fits` requires a cost of at most the quota.
            let fits =
                if by.decides(cost) { Ok(()) } else { usage.ensure_fits(by.params, &now, cost) };
            (fits.err(), usage.remaining(by.params, &now))
        });
        let least = remaining.iter().map(|remaining| remaining.units).min();
        let decided = match denied {
            Some(denied) => Err(self.limited_from(denied, by.limits, cost)),
            None if by.is_above(cost) => Err(self.never(by.limits, cost, &remaining)),
            None => Ok(self.free_permit(self.shared.store.locate(key), least.unwrap_or(u32::MAX))),
        };
        (decided, remaining)
    }

    #[cfg(any(feature = "axum", feature = "redis"))]
    pub(super) fn probe(&self, key: &K, cost: u32, limits: Option<&[Limit]>) -> Probed {
        let (decided, remaining) = self.with_limits(limits, |by| self.probe_by(key, by, cost));
        (decided.map(|permit| permit.with_override(limits, self.window)), remaining)
    }

    /// Does the work of [`RateLimiter::probe_within`].
    ///
    /// There is no order among the waiters: a passing probe takes nothing from another. Their queue counts them, and
    /// wakes its head if usage is released; if the head passes, it leaves the queue, which wakes the next one.
    #[cfg(feature = "axum")]
    async fn probe_within(
        &self,
        key: &K,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Duration,
    ) -> (Probed, bool) {
        let clock = &self.shared.clock;
        // Without an end if the time cannot be represented.
        let end = clock.instant_of(clock.now().after(max_wait));
        // Before the first probe: the comparisons then find each change that it may have missed.
        let mut version = self.current_limits.version();
        let (mut waiter, mut has_waited) = (None, false);
        loop {
            let releases = self.probing.releases();
            let probed = self.probe(key, cost, limits);
            let ready = probed.0.as_ref().err().and_then(Limited::ready_at);
            let Some(ready) = ready.filter(|ready| end.is_none_or(|end| *ready <= end)) else {
                return (probed, has_waited);
            };
            if waiter.is_none() {
                let joined = waiter.insert(self.probing.join(key.clone(), cost, limits));
                if joined.behind() >= self.wait.max_waiting {
                    return (probed, has_waited);
                }
                if self.probing.releases() != releases {
                    continue;
                }
            }
            let waiter = waiter.as_ref().expect("it has joined");
            let wake_at = self.wait.jittered(ready, &mut self.shared.random());
            let wake_at = end.map_or(wake_at, |end| wake_at.min(end));
            let probed_by = version;
            while self.sleep_as(waiter, wake_at, &mut version).await {
                has_waited = true;
                // Otherwise the waiter ahead has passed. This one sleeps until its own time, or all would pass at once.
                if version != probed_by
                    || self.probing.releases() != releases
                    || clock.instant(clock.now()) >= wake_at
                {
                    break;
                }
            }
        }
    }

    #[cfg(feature = "axum")]
    fn charge_anyway(&self, key: &K, cost: u32, limits: Option<&[Limit]>) {
        // By a check if it fits: that creates the entry of the key. A denial here concerns only the charge,
        // and is not counted.
        if self.decide(key, limits, cost, Caller::Waiter(None), None).is_err() {
            let free = self.free_permit(self.shared.store.locate(key), 0);
            self.settle(&free.with_override(limits, self.window), cost);
        }
    }
}
