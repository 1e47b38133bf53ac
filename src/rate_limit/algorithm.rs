//! Interface of the window algorithms, and the parameters that they compute with. Pure: no map, no clock.

use std::cmp::Ordering;

use super::{Limit, Window};
use crate::engine::clock::{Now, Tick};

/// A limit converted to the numbers that its algorithm uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitParams {
    pub(super) quota: u32,
    /// Length of the window in nanoseconds, as all durations here.
    pub(super) per: u64,
    /// Length of a bucket, or the whole nanoseconds in which one unit leaks.
    pub(super) step: u64,
    /// Rest of that time: the numerator of a fraction of a nanosecond whose denominator is the quota.
    pub(super) fraction: u32,
    pub(super) buckets: u16,
}

/// Charge to one limit, with what is needed to take it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    /// Identifies the charge among those of the same state.
    pub(super) mark: Tick,
    /// Units in the lower half; the upper half belongs to the mark.
    pub(super) amount: u64,
}

/// Charge of a call to another limit than the one that admitted it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    /// Position of the limit.
    pub(super) position: usize,
    /// The limit, which identifies the state.
    pub(super) params: LimitParams,
    pub(super) charge: Charge,
    /// Amount that was charged, in parts of which a unit has `per`. It may be less than the cost.
    pub(super) parts: u128,
}

/// Amount of a charge that is taken back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Back {
    /// Units to take back.
    pub(super) units: u32,
    /// Units that stay charged.
    pub(super) stay: u32,
}

/// Remaining quota of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remaining {
    pub(crate) units: u32,
    /// When more units are available; `None` if nothing is in use.
    pub(crate) more_at: Option<Tick>,
}

impl Remaining {
    /// Returns what remains if some units are in use. `ready` returns when a cost passes.
    pub(super) fn of(
        used: u32,
        params: &LimitParams,
        now: &impl Now,
        ready: impl FnOnce(u32) -> Option<Tick>,
    ) -> Self {
        let units = params.quota.saturating_sub(used);
        // At most the quota, as `ready` requires, since something is in use.
        let more = || ready(units + 1).unwrap_or_else(|| now.at_least());
        Self { units, more_at: (used > 0).then(more) }
    }

    /// Returns what remains if both apply: the fewer units, until the later time if they are equal.
    pub(super) fn least(self, other: Self) -> Self {
        match self.units.cmp(&other.units) {
            Ordering::Less => self,
            Ordering::Equal => Self { more_at: self.more_at.max(other.more_at), ..self },
            Ordering::Greater => other,
        }
    }
}

/// Window algorithm: the usage of one key, as counted by one limit.
///
/// 1. If [`ready`](Algorithm::ready) returned `None`, [`charge`](Algorithm::charge) may follow with the same `now` and
///    cost. The cost passed to `ready` is never above the quota. A debt is charged without asking `ready`.
/// 2. A state belongs to one limit: all parameters passed to it satisfy [`is_for`](Algorithm::is_for). `Log` and
///    `Buckets` count the same for all limits of one window, so there only the quota may differ.
/// 3. A call that another limit at the same position has admitted is noted. So no limit forgets a call because the key
///    was checked by another one, and no call counts by the times of another limit.
pub(crate) trait Algorithm: Clone + Send + Sync + 'static {
    /// Returns the state of a limit by which nothing is in use.
    fn new(params: &LimitParams) -> Self;

    /// Returns the state of a limit by which the key was not checked before, from those of other limits by which
    /// anything is in use.
    fn derive<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> Self
    where
        Self: 'a;

    /// Returns when `cost` more units would pass a limit by which the key was not checked before, as if it were checked
    /// then for the first time; `None` for now.
    fn ready_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
    ) -> Option<Tick>
    where
        Self: 'a,
    {
        Self::derive(known, params, now).ready(params, now, cost)
    }

    /// Returns the units in use by a limit by which the key was not checked before.
    fn used_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> u32
    where
        Self: 'a,
    {
        Self::derive(known, params, now).used(params, now)
    }

    /// Returns the state of a limit that replaces the known ones, if it differs from a derived one.
    fn convert<'a>(
        _known: impl Iterator<Item = &'a Self> + Clone,
        _params: &LimitParams,
        _now: &impl Now,
    ) -> Option<Self>
    where
        Self: 'a,
    {
        None
    }

    /// Returns `true` if the state is that of a limit.
    fn is_for(&self, params: &LimitParams) -> bool;

    /// Returns the parameters of the state's limit. If states do not depend on the quota, it is an estimate.
    fn params(&self) -> LimitParams;

    /// Returns when `cost` more units pass, unless more is charged in the meantime; `None` if they pass now.
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick>;

    /// Returns when `cost` more units pass behind `ahead` units of waiting calls, at the earliest: each of those is
    /// charged as soon as it passes.
    ///
    /// By default, the unit after a whole quota passes `per` after the first one of that quota. So it is exact if all
    /// calls cost one unit. A call of several units is charged when its last unit passes, thus the true time is later.
    fn ready_behind(&self, params: &LimitParams, now: &impl Now, ahead: u64, cost: u32) -> Tick {
        ready_unit_by_unit(params, now, ahead, cost, |first| self.ready(params, now, first))
    }

    /// The same for a limit by which the key was not checked before.
    fn ready_behind_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
        ahead: u64,
        cost: u32,
    ) -> Tick
    where
        Self: 'a,
    {
        ready_unit_by_unit(params, now, ahead, cost, |first| {
            Self::ready_unknown(known, params, now, first)
        })
    }

    /// Charges `cost` and drops charges that have left the window. Returns the charge and the units left.
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32);

    /// Charges a call that another limit has admitted, and was charged to `current`. Returns the charge and its parts,
    /// if a refund needs them.
    fn note(
        &mut self,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
        current: &Self,
    ) -> Option<(Charge, u128)>;

    /// Takes a charge back, except for the part that has left the window. Returns `true` if the state contains the
    /// charge, but cannot tell which part: it has to be derived again.
    fn refund(&mut self, charge: Charge, back: Back, now: &impl Now) -> bool;

    /// Takes a charge back that was noted.
    fn refund_noted(&mut self, noted: &Noted, back: Back, now: &impl Now) -> bool {
        self.refund(noted.charge, back, now)
    }

    /// Takes a charge back that was made while the state did not exist: contained in it if it was derived since.
    fn refund_unrecorded(&mut self, charge: Charge, back: Back, now: &impl Now) -> bool;

    /// Returns the number of units in use.
    fn used(&self, params: &LimitParams, now: &impl Now) -> u32;

    /// Returns the time at which nothing is in use, so that the state equals a new one; `None` for a new one.
    fn idle_from(&self) -> Option<Tick>;

    /// Returns the time, after nothing is in use, until refunds of earlier permits find nothing.
    fn lag(&self) -> u64 {
        0
    }

    fn remaining(&self, params: &LimitParams, now: &impl Now) -> Remaining {
        let ready = |cost| self.ready(params, now, cost);
        Remaining::of(self.used(params, now), params, now, ready)
    }
}

/// Returns when the last of the units passes if each is charged as soon as it passes. `ready` returns when the first
/// units do, at most a quota.
fn ready_unit_by_unit(
    params: &LimitParams,
    now: &impl Now,
    ahead: u64,
    cost: u32,
    ready: impl FnOnce(u32) -> Option<Tick>,
) -> Tick {
    let quota = u64::from(params.quota);
    // Index of the last unit, from 0.
    let last = ahead.saturating_add(cost.into()).saturating_sub(1);
    // At most the quota, as `Algorithm::ready` requires.
    let first = (last % quota) as u32 + 1;
    let ready = ready(first).unwrap_or_else(|| now.tick());
    ready.later((last / quota).saturating_mul(params.per))
}

/// Usage as groups of units that leave the window together: the time at which they do, and their number. In order of
/// time.
pub(super) trait Releases: Iterator<Item = (Tick, u32)> + Sized {
    /// Returns when enough of `used` units have left for `cost` more; `None` if they fit now.
    #[inline]
    fn ready(self, used: u64, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // Usage may be above the quota: by a debt, or by the smaller quota of another plan.
        let excess = used + u64::from(cost);
        let mut excess = excess.saturating_sub(u64::from(params.quota));
        for (leaves_at, units) in self {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(u64::from(units));
            if excess == 0 {
                return (!now.has_reached(leaves_at)).then_some(leaves_at);
            }
        }
        None
    }

    /// Returns how many of `used` units are still in the window.
    fn used(self, used: u64, now: &impl Now) -> u32 {
        // Cannot underflow: the callers pass the exact sum of all items, not a saturated one.
        let left = self.take_while(|(leaves_at, _)| now.has_reached(*leaves_at));
        let used = left.fold(used, |used, (_, units)| used - u64::from(units));
        u32::try_from(used).unwrap_or(u32::MAX)
    }
}

impl<I: Iterator<Item = (Tick, u32)>> Releases for I {}

impl LimitParams {
    pub(super) fn new(limit: &Limit, window: Window) -> Self {
        let (quota, per) = (limit.quota(), limit.per_nanoseconds());
        let (step, fraction, buckets) = match window {
            Window::Log => (per, 0, 1),
            Window::Buckets(n) => {
                let n = u16::try_from(n).expect("the builder accepts at most 10,000 buckets");
                // Rounded up: shorter buckets would cover less than `per`, and admit more than the quota in it.
                (per.div_ceil(u64::from(n)), 0, n)
            }
            Window::Gcra => return Self::leaking(quota, per),
        };
        Self { quota, per, step, fraction, buckets }
    }

    /// Returns the parameters of a bucket that leaks `quota` units in `per`.
    pub(super) fn leaking(quota: u32, per: u64) -> Self {
        // Exact: rounded, another number of units than the quota would leak in `per`.
        let (step, fraction) = (per / u64::from(quota), (per % u64::from(quota)) as u32);
        Self { quota, per, step, fraction, buckets: 1 }
    }
}
