//! What each way to count has to answer, and the figures that it counts with. Pure: no map, no clock.

use super::{Limit, Window};
use crate::engine::clock::{Now, Tick};

/// A limit in the numbers that its window counts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitParams {
    pub(super) quota: u32,
    /// All times in nanoseconds.
    pub(super) per: u64,
    /// The length of a bucket, or how long a unit takes to leak.
    pub(super) step: u64,
    pub(super) buckets: u16,
}

/// What was charged to one limit: enough to take it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    /// Tells this charge from others of the same state.
    pub(super) mark: Tick,
    /// Units, or nanoseconds of leaking.
    pub(super) amount: u64,
}

/// What is left of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remaining {
    pub(crate) units: u32,
    /// From when on more is; `None` where nothing is in use.
    pub(crate) more_at: Option<Tick>,
}

/// One way to count, for one limit of one key.
///
/// 1. Where nothing has to be waited for, [`charge`](Algorithm::charge) may follow, with the same `now` and
///    cost. A cost that is asked for is never above the quota; a debt is charged whether there is room or not.
/// 2. Rules may change from call to call (plans): what is in use stays in use, for as long as the rule of
///    each call says.
pub(crate) trait Algorithm: Clone + Default + Send + Sync + 'static {
    /// From when on there is room for `cost` more, unless more is charged until then; `None` for now.
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick>;

    /// Charges `cost`, and forgets what has left; tells how many units are left.
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32);

    /// Takes a charge back, as far as it has not left.
    fn refund(&mut self, charge: Charge, now: &impl Now);

    /// The limit changes: as many units are in use by the new rule as were by the old one, at least.
    fn adapt(&mut self, _old: &LimitParams, _new: &LimitParams, _now: &impl Now) {}

    /// How many units are in use.
    fn used(&self, params: &LimitParams, now: &impl Now) -> u32;

    /// From when on this state is as good as a new one.
    fn idle_from(&self, params: &LimitParams) -> Option<Tick>;

    fn remaining(&self, params: &LimitParams, now: &impl Now) -> Remaining {
        let used = self.used(params, now);
        let units = params.quota.saturating_sub(used);
        let more = || self.ready(params, now, units + 1).unwrap_or_else(|| now.at_least());
        Remaining { units, more_at: (used > 0).then(more) }
    }
}

/// What is in use, as units that leave together: when, and how many. Those that leave first come first.
pub(super) trait Releases: Iterator<Item = (Tick, u32)> + Sized {
    /// When so many have left of `used` units that `cost` have room; `None` where they have it now.
    #[inline]
    fn ready(self, used: u64, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // More may be in use than the quota: by a debt, or by a plan of a smaller one.
        let excess = used + u64::from(cost);
        let mut excess = excess.saturating_sub(u64::from(params.quota));
        for (leaves, units) in self {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(u64::from(units));
            if excess == 0 {
                return (!now.has_reached(leaves)).then_some(leaves);
            }
        }
        None
    }

    /// What is left of `used` units.
    fn used(self, used: u64, now: &impl Now) -> u32 {
        let left = self.take_while(|(leaves, _)| now.has_reached(*leaves));
        let used = left.fold(used, |used, (_, units)| used - u64::from(units));
        u32::try_from(used).unwrap_or(u32::MAX)
    }
}

impl<I: Iterator<Item = (Tick, u32)>> Releases for I {}

impl LimitParams {
    pub(super) fn new(limit: &Limit, window: Window) -> Self {
        let (quota, per) = (limit.quota(), limit.per_nanoseconds());
        let (step, buckets) = match window {
            Window::Log => (per, 1),
            Window::Buckets(n) => {
                let n = u16::try_from(n).expect("the builder takes no more");
                (per.div_ceil(u64::from(n)), n)
            }
            Window::Gcra => (per.div_ceil(u64::from(quota)), 1),
        };
        Self { quota, per, step, buckets }
    }
}
