//! Usage of one key by the limits at one position: limits by which a key is checked in turn (plans, changed limits,
//! several releases) each have a state of their own.
//!
//! 1. A call is checked and charged by the state of its own limit, and noted in all others. So a limit knows each call
//!    of the key for as long as its own window is, regardless of other checks in between.
//! 2. The state of a limit by which the key was not checked before is derived from the known ones.
//! 3. The state of the longest window stays until nothing of the key is in use: all others can be derived from it. They
//!    are dropped when no check has used them for as long as that window. Not sooner, since a derived state is less
//!    exact.

use std::{iter, mem};

use super::{
    algorithm::{Algorithm, Back, Charge, LimitParams, Noted, Remaining},
    charges::ManyCharges,
};
use crate::engine::clock::{LazyNow, Now, Tick};

/// Maximum number of limits that are known for one position of a key. Each check charges all of them.
const MAX_LIMITS: usize = 8;

/// Usage of one key by the limits at one position.
#[derive(Clone, Debug)]
pub(super) struct Position<A> {
    /// State of the limit of the last check.
    current: A,
    /// States of further limits. Most keys are checked by one limit.
    others: Option<Box<Others<A>>>,
}

#[derive(Clone, Debug)]
struct Others<A> {
    /// Parameters of the limit of the last check; of several limits of one state, those of the highest quota.
    current: LimitParams,
    /// At least one.
    states: Vec<Known<A>>,
}

#[derive(Clone, Debug)]
struct Known<A> {
    state: A,
    params: LimitParams,
    /// Time of the last check by the limit; or later, by as long as a debt counts for longer than the window.
    checked_at: Tick,
}

impl<A: Algorithm> Position<A> {
    #[inline]
    pub(super) fn new(params: &LimitParams) -> Self {
        Self { current: A::new(params), others: None }
    }

    /// Returns the state, if it is the only one and that of the limit.
    #[inline(always)]
    pub(super) fn only(&mut self, params: &LimitParams) -> Option<&mut A> {
        (self.others.is_none() && self.current.is_for(params)).then_some(&mut self.current)
    }

    /// Returns the only state.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<&A> {
        if self.others.is_none() { Some(&self.current) } else { None }
    }

    /// Makes the limit of a check the current one, and drops states that are not needed any more.
    pub(super) fn adopt(&mut self, params: &LimitParams, now: &LazyNow<'_>) {
        if self.only(params).is_some() {
            return;
        }
        if self.current.is_for(params) {
            if let Some(others) = &mut self.others {
                others.current.quota = others.current.quota.max(params.quota);
            }
        } else if self.others.is_none() && is_spent(&self.current, now) {
            self.current = A::new(params);
        } else {
            let (state, params) = match self.take_known(params) {
                Some(known) => known,
                None => (A::derive(self.in_use(now), params, now), *params),
            };
            self.switch(state, params, now);
        }
        self.prune(now);
    }

    /// Removes the state of another limit than the current one, with its parameters.
    fn take_known(&mut self, params: &LimitParams) -> Option<(A, LimitParams)> {
        let states = &mut self.others.as_mut()?.states;
        let index = states.iter().position(|known| known.state.is_for(params))?;
        let known = states.swap_remove(index);
        let quota = known.params.quota.max(params.quota);
        Some((known.state, LimitParams { quota, ..*params }))
    }

    /// Makes another limit the current one.
    fn switch(&mut self, state: A, params: LimitParams, now: &LazyNow<'_>) {
        let others = self.others.get_or_insert_with(|| {
            Box::new(Others { current: self.current.params(), states: Vec::new() })
        });
        let state = mem::replace(&mut self.current, state);
        let params = mem::replace(&mut others.current, params);
        let checked_at = match state.idle_from() {
            Some(idle_from) => idle_from.earlier(params.per).max(now.tick()),
            None => now.tick(),
        };
        others.states.push(Known { state, params, checked_at });
    }

    /// Drops states that are not needed any more.
    fn prune(&mut self, now: &LazyNow<'_>) {
        let Some(others) = &mut self.others else { return };
        let of_others = others.states.iter().map(|known| known.params.per).max();
        let longest = of_others.unwrap_or(0).max(others.current.per);
        // One state of the longest window is enough.
        let mut has_longest = others.current.per == longest;
        others.states.retain(|known| {
            let is_longest = known.params.per == longest && !has_longest;
            has_longest |= is_longest;
            let unused_at = known.checked_at.later(longest).later(known.state.lag());
            // Usage that others noted may count for longer than any window.
            let ends_at = known.state.idle_from().unwrap_or(now.at_least());
            let outlasts = ends_at > now.tick().later(longest);
            is_longest || outlasts || !now.has_reached(unused_at)
        });
        while others.states.len() >= MAX_LIMITS {
            let ends_at = |known: &Known<A>| {
                // The longest last: all others can be derived from it.
                let ends_at = known.state.idle_from().map_or(0, Tick::nanoseconds);
                (known.params.per == longest, ends_at)
            };
            let each = others.states.iter().enumerate();
            let Some((index, _)) = each.min_by_key(|(_, known)| ends_at(known)) else { break };
            others.states.swap_remove(index);
        }
        if others.states.is_empty() {
            self.others = None;
        }
    }

    /// Charges the current limit, and notes the call in all other states. Returns the units left.
    pub(super) fn charge(
        &mut self,
        params: &LimitParams,
        now: &LazyNow<'_>,
        cost: u32,
        charges: &mut ManyCharges,
    ) -> u32 {
        let position = charges.next_position();
        let (charge, left) = self.current.charge(params, now, cost);
        charges.push(charge);
        for known in self.others.iter_mut().flat_map(|others| &mut others.states) {
            let Known { state, params, .. } = known;
            if let Some((charge, parts)) = state.note(params, now, cost, &self.current) {
                charges.note(Noted { position, params: *params, charge, parts });
            }
        }
        left
    }

    /// Takes a charge by a limit back from all states; `None` if the limit is not known any more.
    pub(super) fn refund<'a>(
        &mut self,
        charged_by: Option<&LimitParams>,
        charge: Charge,
        noted: impl Iterator<Item = &'a Noted> + Clone,
        back: Back,
        now: &LazyNow<'_>,
    ) {
        let mut outdated = Vec::new();
        for (index, state) in self.states_mut().enumerate() {
            let is_outdated = if charged_by.is_some_and(|params| state.is_for(params)) {
                state.refund(charge, back, now)
            } else if let Some(noted) = noted.clone().find(|noted| state.is_for(&noted.params)) {
                state.refund_noted(noted, back, now)
            } else {
                state.refund_unrecorded(charge, back, now)
            };
            if is_outdated {
                outdated.push((index, state.params()));
            }
        }
        // After all others, from which they are derived.
        let is_outdated = |index: usize| outdated.iter().any(|(other, _)| *other == index);
        for (index, params) in &outdated {
            let known = self.states().enumerate().filter(|(index, _)| !is_outdated(*index));
            let known = known.map(|(_, state)| state);
            if known.clone().next().is_some() {
                let derived = A::derive(known, params, now);
                *self.states_mut().nth(*index).expect("it was found above") = derived;
            }
        }
    }

    /// Returns when `cost` more units pass a limit; `None` for now.
    pub(super) fn ready(&self, params: &LimitParams, now: &LazyNow<'_>, cost: u32) -> Option<Tick> {
        match self.known(params) {
            Some(state) => state.ready(params, now, cost),
            None => A::ready_unknown(self.in_use(now), params, now, cost),
        }
    }

    /// Returns when `cost` more units pass a limit behind `ahead` units of waiting calls, at the earliest.
    pub(super) fn ready_behind(
        &self,
        params: &LimitParams,
        now: &LazyNow<'_>,
        ahead: u64,
        cost: u32,
    ) -> Tick {
        match self.known(params) {
            Some(state) => state.ready_behind(params, now, ahead, cost),
            None => A::ready_behind_unknown(self.in_use(now), params, now, ahead, cost),
        }
    }

    pub(super) fn remaining(&self, params: &LimitParams, now: &LazyNow<'_>) -> Remaining {
        match self.known(params) {
            Some(state) => state.remaining(params, now),
            None => {
                let used = A::used_unknown(self.in_use(now), params, now);
                Remaining::of(used, params, now, |cost| self.ready(params, now, cost))
            }
        }
    }

    /// Makes a limit that replaces the known ones known, too, if it cannot be derived later: because the usage counts
    /// for longer by it, or is converted.
    pub(super) fn convert(&mut self, params: &LimitParams, now: &LazyNow<'_>) {
        let idle_from = self.idle_from().filter(|idle_from| !now.has_reached(*idle_from));
        if idle_from.is_none() || !self.is_unknown(params) {
            return;
        }
        let derived = || Some(A::derive(self.in_use(now), params, now));
        let lasts = |derived: &A| derived.idle_from() > idle_from;
        let converted = A::convert(self.in_use(now), params, now);
        if let Some(state) = converted.or_else(|| derived().filter(lasts)) {
            self.switch(state, *params, now);
            self.prune(now);
        }
    }

    /// Returns the time at which nothing is in use; `None` if nothing was ever charged.
    pub(super) fn idle_from(&self) -> Option<Tick> {
        self.states().filter_map(A::idle_from).max()
    }

    fn is_unknown(&self, params: &LimitParams) -> bool {
        self.known(params).is_none()
    }

    /// Returns the state of a limit.
    #[inline]
    fn known(&self, params: &LimitParams) -> Option<&A> {
        self.states().find(|state| state.is_for(params))
    }

    /// Returns the states by which anything is in use. All others may be forgotten at any time.
    fn in_use<'a>(&'a self, now: &'a LazyNow<'_>) -> impl Iterator<Item = &'a A> + Clone {
        let is_in_use = |idle_from| !now.has_reached(idle_from);
        self.states().filter(move |state| state.idle_from().is_some_and(is_in_use))
    }

    fn states(&self) -> impl Iterator<Item = &A> + Clone {
        let others = self.others.iter().flat_map(|others| &others.states);
        iter::once(&self.current).chain(others.map(|known| &known.state))
    }

    fn states_mut(&mut self) -> impl Iterator<Item = &mut A> {
        let others = self.others.iter_mut().flat_map(|others| &mut others.states);
        iter::once(&mut self.current).chain(others.map(|known| &mut known.state))
    }
}

/// Returns `true` if nothing is in use, and no permit can take anything back.
fn is_spent<A: Algorithm>(state: &A, now: &LazyNow<'_>) -> bool {
    state.idle_from().is_none_or(|idle_from| now.has_reached(idle_from.later(state.lag())))
}
