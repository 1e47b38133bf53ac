//! Usage of one key, for all its limits, which are charged together or not at all; and of several exceeded limits, the
//! one that a denial names.

use super::{
    algorithm::{Algorithm, Back, LimitParams, Remaining},
    charges::{Charges, ManyCharges},
    per_limit::PerLimit,
    position::Position,
};
use crate::engine::{
    clock::{Deadline, LazyNow, Now, Tick},
    store::Entry,
};

/// Usage of one key.
#[derive(Clone, Debug)]
pub(crate) struct KeyState<A> {
    /// Number of this state. An earlier state of the same key had another number, so a permit for it takes nothing from
    /// this one.
    pub(super) id: u64,
    /// Usage by the limits at each position.
    positions: PerLimit<Position<A>>,
}

/// Charge of a check that all limits admitted.
pub(super) struct Admitted {
    pub(super) charges: Charges,
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
    pub(super) fn new(id: u64, params: &[LimitParams]) -> Self {
        Self { id, positions: params.iter().map(Position::new).collect() }
    }

    /// Charges all limits, or none.
    #[inline(always)]
    pub(super) fn charge(
        &mut self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<Admitted, Denied> {
        // Most limiters have one limit; this path needs no loops and collections.
        if let (PerLimit::One(position), [params]) = (&mut self.positions, params)
            && let Some(state) = position.only(params)
        {
            return match state.ready(params, now, cost) {
                Some(ready) => {
                    let remaining = left_for(cost, || state.remaining(params, now));
                    Err(Denied { limits: Exceeded::one(0), ready, remaining })
                }
                None => {
                    let (charge, remaining) = state.charge(params, now, cost);
                    Ok(Admitted { charges: Charges::One(charge), remaining: remaining.into() })
                }
            };
        }
        self.charge_all(params, now, cost)
    }

    #[inline(never)]
    fn charge_all(
        &mut self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<Admitted, Denied> {
        self.adopt(params, now);
        // All limits are asked before one is charged, so a denied check charges none.
        self.ensure_fits(params, now, cost)?;
        let (charges, remaining) = self.charge_each(params, now, cost);
        Ok(Admitted { charges, remaining: remaining.into() })
    }

    /// Makes the limits known, even if the check is denied: its usage then counts for as long as they say.
    pub(super) fn adopt(&mut self, params: &[LimitParams], now: &LazyNow<'_>) {
        self.grow_to(params);
        for (position, params) in self.positions.iter_mut().zip(params) {
            position.adopt(params, now);
        }
    }

    fn charge_each(
        &mut self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> (Charges, u32) {
        let (mut charges, mut least) = (ManyCharges::default(), u32::MAX);
        for (position, params) in self.positions.iter_mut().zip(params) {
            least = least.min(position.charge(params, now, cost, &mut charges));
        }
        (charges.into(), least)
    }

    /// Returns an error if `cost` more units do not pass all limits.
    pub(super) fn ensure_fits(
        &self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
    ) -> Result<(), Denied> {
        let waits = self.positions.iter().zip(params).enumerate().filter_map(
            |(limit, (position, params))| {
                let ready = position.ready(params, now, cost)?;
                let remaining = left_for(cost, || position.remaining(params, now));
                Some(Denied { limits: Exceeded::one(limit), ready, remaining })
            },
        );
        waits.reduce(Denied::longer).map_or(Ok(()), Err)
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
        match self.positions.get(limit) {
            Some(position) => position.ready_behind(params, now, ahead, cost),
            None => A::new(params).ready_behind(params, now, ahead, cost),
        }
    }

    /// Charges all limits, even above their quotas.
    pub(super) fn charge_anyway(&mut self, params: &[LimitParams], now: &LazyNow<'_>, cost: u32) {
        self.adopt(params, now);
        self.charge_each(params, now, cost);
    }

    /// Makes limits known by which the usage counts for longer.
    pub(super) fn convert(&mut self, params: &[LimitParams], now: &LazyNow<'_>) {
        for (position, params) in self.positions.iter_mut().zip(params) {
            position.convert(params, now);
        }
    }

    /// Takes charges back that were made by these limits. Those of an unknown limit are only taken back if they can be
    /// found by their times.
    pub(super) fn refund(
        &mut self,
        charges: &Charges,
        charged_by: &[LimitParams],
        back: Back,
        now: &LazyNow<'_>,
    ) {
        let positions = self.positions.iter_mut().zip(charges.each()).enumerate();
        for (index, (position, charge)) in positions {
            position.refund(charged_by.get(index), *charge, charges.noted(index), back, now);
        }
    }

    #[inline]
    pub(super) fn remaining(
        &self,
        params: &[LimitParams],
        now: &LazyNow<'_>,
    ) -> PerLimit<Remaining> {
        let positions = self.positions.iter().map(Some).chain(std::iter::repeat(None));
        let remaining = |(params, position): (&LimitParams, Option<&Position<A>>)| match position {
            Some(position) => position.remaining(params, now),
            None => Remaining { units: params.quota, more_at: None },
        };
        params.iter().zip(positions).map(remaining).collect()
    }

    /// Returns the time at which nothing is in use; `None` if nothing was ever charged.
    #[inline]
    pub(super) fn idle_from(&self) -> Option<Tick> {
        // As in `charge`: the path of most limiters, without loops.
        if let PerLimit::One(position) = &self.positions
            && let Some(state) = position.single()
        {
            return state.idle_from();
        }
        self.positions.iter().filter_map(Position::idle_from).max()
    }

    /// Returns `true` if nothing is in use, by any limits.
    pub(super) fn is_idle(&self, now: &LazyNow<'_>) -> bool {
        self.idle_from().is_none_or(|idle_from| now.has_reached(idle_from))
    }

    /// Adds positions if a plan has more limits than earlier ones. Those of further limits stay.
    #[inline]
    fn grow_to(&mut self, params: &[LimitParams]) {
        if let Some(missing) = params.get(self.positions.len()..)
            && !missing.is_empty()
        {
            let old = self.positions.iter().cloned();
            // Rebuilt, not extended: a boxed slice cannot grow. Plans change rarely.
            self.positions = old.chain(missing.iter().map(Position::new)).collect();
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
pub(super) fn move_deadline<A: Algorithm>(entry: &mut Entry<KeyState<A>>) {
    if let Some(idle) = entry.value.idle_from().map(Deadline::from)
        && idle.is_later_than(entry.deadline())
    {
        // Only later, for the sweeper: a refund sets an earlier one if nothing is in use.
        entry.set_deadline(idle);
    }
}
