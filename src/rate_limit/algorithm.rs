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

/// Remaining quota of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remaining {
    pub(crate) units: u32,
    /// When more units are available; `None` if nothing is in use.
    pub(crate) more_at: Option<Tick>,
}

impl Remaining {
    /// Returns what remains if both apply: the fewer units, until the later time if they are equal.
    pub(super) fn least(self, other: Self) -> Self {
        match self.units.cmp(&other.units) {
            Ordering::Less => self,
            Ordering::Equal => Self { more_at: self.more_at.max(other.more_at), ..self },
            Ordering::Greater => other,
        }
    }
}

/// Window algorithm: the usage of one limit by one key.
///
/// 1. If [`ready`](Algorithm::ready) returned `None`, [`charge`](Algorithm::charge) may follow with the same `now` and
///    cost. The cost passed to `ready` is never above the quota. A debt is charged without asking `ready`.
/// 2. The parameters may differ from call to call (plans). Usage stays, and counts for as long as the parameters of
///    each call say.
pub(crate) trait Algorithm: Clone + Default + Send + Sync + 'static {
    /// Returns when `cost` more units pass, unless more is charged in the meantime; `None` if they pass now.
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick>;

    /// Charges `cost` and drops charges that have left the window. Returns the charge and the units left.
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32);

    /// Takes a charge by these parameters back, except for the part that has left the window.
    fn refund(&mut self, charge: Charge, params: &LimitParams, now: &impl Now);

    /// Converts the usage to the parameters of a check that follows, which may be by another plan than the last one.
    #[inline]
    fn fit(&mut self, _params: &LimitParams, _now: &impl Now) {}

    /// Removes the usage, and leaves earlier charges without effect on later ones.
    fn clear(&mut self, _now: &impl Now) {
        *self = Self::default();
    }

    /// Converts the usage if the limit changes: as many units are in use by `new` as were by `old`, at most the quota
    /// of `new` and what was a debt.
    fn adapt(&mut self, _old: &LimitParams, _new: &LimitParams, _now: &impl Now) {}

    /// Returns the number of units in use.
    fn used(&self, params: &LimitParams, now: &impl Now) -> u32;

    /// Returns `true` only if nothing is in use, by any parameters.
    fn is_empty(&self, now: &impl Now) -> bool;

    /// Returns the time at which nothing is in use, so that the state equals a new one; `None` for a new one.
    fn idle_from(&self, params: &LimitParams) -> Option<Tick>;

    fn remaining(&self, params: &LimitParams, now: &impl Now) -> Remaining {
        let used = self.used(params, now);
        let units = params.quota.saturating_sub(used);
        // At most the quota, as `ready` requires, since something is in use.
        let more = || self.ready(params, now, units + 1).unwrap_or_else(|| now.at_least());
        Remaining { units, more_at: (used > 0).then(more) }
    }
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

impl Charge {
    /// Returns the charge of `units` of the units that were charged.
    pub(super) fn part(&self, units: u32) -> Self {
        Self { amount: self.amount >> 32 << 32 | u64::from(units), ..*self }
    }
}

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
            // Exact: rounded, another number of units than the quota would leak in `per`.
            Window::Gcra => (per / u64::from(quota), (per % u64::from(quota)) as u32, 1),
        };
        Self { quota, per, step, fraction, buckets }
    }
}
