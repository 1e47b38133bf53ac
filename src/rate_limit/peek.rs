//! Reads without a charge: the remaining quota of a key, and the earliest time at which a call would pass.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

#[cfg(feature = "redis")]
use super::{ByWindow, RateLimiter, dispatch};
use super::{
    Limit, Limited, Standing, State,
    algorithm::{Algorithm, LimitParams, Remaining},
    key_state::{Denied, Exceeded},
    limit_set::CallLimits,
    limiter::Limiter,
    usage::Usage,
};
use crate::engine::clock::{LazyNow, Now};

#[cfg(feature = "redis")]
impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the earliest time at which a call of `cost` passes by `limits`, which must not be empty, as a denial.
    pub(crate) fn earliest_denial<Q>(&self, key: &Q, cost: u32, limits: &[Limit]) -> Limited
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        dispatch!(&self.inner.0, limiter => limiter.earliest_denial(key, Some(limits), cost, || 0))
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn peek<Q>(&self, key: &Q, limits: Option<&[Limit]>) -> State
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.with_limits(limits, |by| {
            let (decided, remaining) = self.probe_by(key, by, 1);
            let standing = |(remaining, limit): (&Remaining, &Limit)| Standing {
                limit: limit.clone(),
                remaining: remaining.units,
                more_at: remaining.more_at.map(|at| self.shared.clock.instant(at)),
            };
            State {
                standings: remaining.iter().zip(by.limits).map(standing).collect(),
                ready: decided.err().and_then(|limited| limited.ready_at()),
            }
        })
    }

    /// Returns the earliest time at which a call of `cost` passes behind waiters for `ahead` units, as a denial.
    pub(super) fn earliest_denial<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        ahead: impl FnOnce() -> u64,
    ) -> Limited
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.with_limits(limits, |CallLimits { limits, params, .. }| {
            let now = self.shared.clock.lazy_now();
            let denied = self.inspect(key, params, &now, |state| {
                // Under the lock of the usage, as `Waiter::ahead` requires.
                let ahead = ahead();
                let each = params.iter().enumerate().map(|(limit, params)| {
                    let ready = state.ready_behind(limit, params, &now, ahead, cost);
                    Denied { limits: Exceeded::one(limit), ready, remaining: 0 }
                });
                let mut denied = each.reduce(Denied::longer)?;
                let remaining = state.remaining(params, &now);
                denied.remaining = remaining.get(denied.longest()).map_or(0, |left| left.units);
                Some(denied)
            });
            // Without limits, which deny nothing.
            let none =
                || Denied { limits: Exceeded::one(0), ready: now.tick(), remaining: u32::MAX };
            let denied = denied.unwrap_or_else(none);
            self.limited_from(denied, limits, cost)
        })
    }

    /// Calls `inspect` with the usage of `key`, under its shard's lock.
    pub(super) fn inspect<Q, R>(
        &self,
        key: &Q,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        inspect: impl FnOnce(&Usage<'_, A>) -> R,
    ) -> R
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let store = &self.shared.store;
        let place = store.locate(key);
        let inspected = store.inspect(place, key, |entry| match entry {
            Some(entry) => inspect(&Usage::of(&entry.value)),
            None => self.untracked.inspect(place.hash(), store.is_full(), (params, now), inspect),
        });
        self.untracked.drop_idle();
        inspected
    }
}
