//! Usage that decides a call, for reads that charge nothing.

use super::{
    algorithm::{Algorithm, LimitParams, Remaining},
    key_state::{Denied, KeyState},
    per_limit::PerLimit,
};
use crate::engine::clock::{LazyNow, Tick};

/// Usage of one key; for a key beyond `max_keys`, together with the usage that it shares.
pub(super) struct Usage<'a, A> {
    pub(super) own: &'a KeyState<A>,
    pub(super) shared: Option<&'a KeyState<A>>,
}

impl<'a, A: Algorithm> Usage<'a, A> {
    /// Returns the usage of a key that shares none.
    #[inline]
    pub(super) fn of(own: &'a KeyState<A>) -> Self {
        Self { own, shared: None }
    }

    /// Returns an error if `cost` more units do not pass all limits.
    pub(super) fn ensure_fits(
        &self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<(), Denied> {
        let own = self.own.ensure_fits(params, now, cost);
        let shared = self.shared.map_or(Ok(()), |shared| shared.ensure_fits(params, now, cost));
        match (own, shared) {
            (Err(own), Err(shared)) => Err(own.longer(shared)),
            (own, shared) => own.and(shared),
        }
    }

    /// Returns when `cost` more units pass one of the limits behind `ahead` units of waiting calls, at the earliest.
    pub(super) fn ready_behind(
        &self,
        limit: usize,
        params: &LimitParams,
        now: &LazyNow<'_>,
        ahead: u64,
        cost: u32,
    ) -> Tick {
        let of = |state: &KeyState<A>| state.ready_behind(limit, params, now, ahead, cost);
        let own = of(self.own);
        self.shared.map_or(own, |shared| own.max(of(shared)))
    }

    pub(super) fn remaining(
        &self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
    ) -> PerLimit<Remaining> {
        let own = self.own.remaining(params, now);
        let Some(shared) = self.shared else { return own };
        let shared = shared.remaining(params, now);
        let least = own.iter().zip(&*shared).map(|(own, shared)| own.least(*shared));
        least.collect()
    }
}
