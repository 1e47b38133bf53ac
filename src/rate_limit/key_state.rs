//! Usage of one key, for all its limits, which are charged together or not at all.

use super::{
    algorithm::{Algorithm, Charge, LimitParams, Remaining},
    per_limit::PerLimit,
};
use crate::engine::{
    clock::{Deadline, LazyNow, Tick},
    store::Entry,
};

/// Usage of one key.
#[derive(Clone, Debug)]
pub(crate) struct KeyState<A> {
    /// Number of this state. An earlier state of the same key had another number, so a permit for it takes nothing from
    /// this one.
    pub(super) id: u64,
    each: PerLimit<A>,
}

/// Charge of a check that all limits admitted.
pub(super) struct Admitted {
    pub(super) charges: PerLimit<Charge>,
    /// Units left of the limit that has the least. A whole word: half a word is copied together with its padding, and
    /// reading more than was just written stalls the processor (failed store forwarding).
    pub(super) remaining: u64,
}

/// Denial of a check by at least one limit.
pub(super) struct Denied {
    /// The exceeded limits.
    pub(super) limits: Exceeded,
    /// When the check would pass, unless more is charged in the meantime.
    pub(super) ready: Tick,
    /// Units left of the limit with the longest wait.
    pub(super) remaining: u32,
}

/// Exceeded limits. The lower half is the index of the one with the longest wait. The upper half has a bit for each of
/// them, for the first 32 limits. One word, since two words that are copied right after they were written stall the
/// processor.
#[derive(Clone, Copy)]
pub(super) struct Exceeded(u64);

impl Exceeded {
    #[inline]
    pub(super) fn one(limit: usize) -> Self {
        let bit = 1_u64.checked_shl(32 + limit as u32).unwrap_or(0);
        Self(bit | u64::from(limit as u32))
    }

    fn union(self, other: Self) -> Self {
        // Only the bits of `other`: the index stays that of `self`.
        Self(self.0 | other.0 >> 32 << 32)
    }

    #[inline]
    fn longest(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    pub(super) fn are_several(self) -> bool {
        let bits = self.0 >> 32;
        bits & bits.wrapping_sub(1) != 0 || bits != 0 && self.longest() >= 32
    }

    pub(super) fn contains(self, limit: usize) -> bool {
        limit == self.longest() || limit < 32 && self.0 >> (32 + limit) & 1 == 1
    }
}

impl<A: Algorithm> KeyState<A> {
    #[inline]
    pub(super) fn new(id: u64, limits: usize) -> Self {
        Self { id, each: (0..limits.max(1)).map(|_| A::default()).collect() }
    }

    /// Charges all limits, or none.
    #[inline(always)]
    pub(super) fn charge(
        &mut self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<Admitted, Denied> {
        match (&mut self.each, params) {
            // Most limiters have one limit; this path needs no loops and collections.
            (PerLimit::One(state), [params]) => {
                state.fit(params, now);
                match state.ready(params, now, cost) {
                    Some(ready) => {
                        let remaining = left_for(cost, || state.remaining(params, now));
                        Err(Denied { limits: Exceeded::one(0), ready, remaining })
                    }
                    None => {
                        let (charge, remaining) = state.charge(params, now, cost);
                        Ok(Admitted { charges: PerLimit::One(charge), remaining: remaining.into() })
                    }
                }
            }
            _ => self.charge_all(params, now, cost),
        }
    }

    #[inline(never)]
    fn charge_all(
        &mut self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<Admitted, Denied> {
        self.grow_to(params.len());
        for (state, params) in self.each.iter_mut().zip(params) {
            state.fit(params, now);
        }
        // All limits are asked before one is charged, so a denied check charges none.
        self.ensure_fits(params, now, cost)?;
        let mut least = u32::MAX;
        let charges = self.each.iter_mut().zip(params).map(|(state, params)| {
            let (charge, remaining) = state.charge(params, now, cost);
            least = least.min(remaining);
            charge
        });
        Ok(Admitted { charges: charges.collect(), remaining: least.into() })
    }

    /// Returns an error if `cost` more units do not pass all limits.
    pub(super) fn ensure_fits(
        &self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<(), Denied> {
        let waits =
            self.each.iter().zip(params).enumerate().filter_map(|(limit, (state, params))| {
                let ready = state.ready(params, now, cost)?;
                let remaining = left_for(cost, || state.remaining(params, now));
                Some(Denied { limits: Exceeded::one(limit), ready, remaining })
            });
        waits.reduce(Denied::longer).map_or(Ok(()), Err)
    }

    /// Returns when `cost` more units pass one of the limits; `None` for now.
    pub(super) fn ready(
        &self,
        limit: usize,
        params: &LimitParams,
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Option<Tick> {
        self.each.get(limit)?.ready(params, now, cost)
    }

    /// Charges all limits, even above their quotas.
    pub(super) fn charge_anyway(&mut self, params: &[LimitParams], now: &LazyNow<'_>, cost: u32) {
        self.grow_to(params.len());
        for (state, params) in self.each.iter_mut().zip(params) {
            state.charge(params, now, cost);
        }
    }

    /// Converts the usage to the parameters of other limits, and removes that of limits which are missing there.
    pub(super) fn adapt(&mut self, old: &[LimitParams], new: &[LimitParams], now: &LazyNow<'_>) {
        for (index, (state, old)) in self.each.iter_mut().zip(old).enumerate() {
            match new.get(index) {
                Some(new) => state.adapt(old, new, now),
                // A later limit at this position begins with nothing in use.
                None => state.clear(now),
            }
        }
    }

    /// Takes charges by these parameters back.
    pub(super) fn refund(&mut self, charges: &[Charge], params: &[LimitParams], now: &LazyNow<'_>) {
        for ((state, charge), params) in self.each.iter_mut().zip(charges).zip(params) {
            state.refund(*charge, params, now);
        }
    }

    #[inline]
    pub(super) fn remaining(
        &self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
    ) -> PerLimit<Remaining> {
        let states = self.each.iter().map(Some).chain(std::iter::repeat(None));
        let all = |params: &LimitParams| Remaining { units: params.quota, more_at: None };
        let remaining = |(params, state): (&LimitParams, Option<&A>)| {
            state.map_or_else(|| all(params), |state| state.remaining(params, now))
        };
        params.iter().zip(states).map(remaining).collect()
    }

    /// Returns the time at which nothing is in use by these parameters; `None` if nothing was ever charged.
    #[inline]
    pub(super) fn idle_from(&self, params: &[LimitParams]) -> Option<Tick> {
        // As in `charge`: the path of most limiters, without loops.
        match (&self.each, params) {
            (PerLimit::One(state), [params]) => state.idle_from(params),
            _ => self
                .each
                .iter()
                .zip(params)
                .filter_map(|(state, params)| state.idle_from(params))
                .max(),
        }
    }

    /// Returns `true` if nothing is in use, by any limits.
    pub(super) fn is_idle(&self, now: &LazyNow<'_>) -> bool {
        self.each.iter().all(|state| state.is_empty(now))
    }

    /// Adds states if a plan has more limits than earlier ones. States of further limits stay.
    #[inline]
    fn grow_to(&mut self, limits: usize) {
        if self.each.len() < limits {
            let missing = limits - self.each.len();
            let old = self.each.iter().cloned();
            // Rebuilt, not extended: a boxed slice cannot grow. Plans change rarely.
            self.each = old.chain((0..missing).map(|_| A::default())).collect();
        }
    }
}

/// Returns the units left of a limit that denied a cost: none, if one unit is too many.
#[inline]
fn left_for(cost: u32, remaining: impl FnOnce() -> Remaining) -> u32 {
    if cost == 1 { 0 } else { remaining().units }
}

impl Denied {
    /// Returns the index of the limit with the longest wait.
    #[inline]
    pub(super) fn longest(&self) -> usize {
        self.limits.longest()
    }

    /// Combines two denials: the one with the longer wait counts, the first of two equal ones.
    pub(super) fn longer(self, other: Self) -> Self {
        let (longer, shorter) =
            if other.ready > self.ready { (other, self) } else { (self, other) };
        Self { limits: longer.limits.union(shorter.limits), ..longer }
    }
}

/// Moves the deadline of an entry after a charge to the time at which nothing is in use.
#[inline(always)]
pub(super) fn move_deadline<A: Algorithm>(entry: &mut Entry<KeyState<A>>, params: &[LimitParams]) {
    if let Some(idle) = entry.value.idle_from(params).map(Deadline::from)
        && idle.is_later_than(entry.deadline())
    {
        // Only later: an earlier charge may have been by limits with a longer window.
        entry.set_deadline(idle);
    }
}
