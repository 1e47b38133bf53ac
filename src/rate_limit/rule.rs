use super::{Limit, Window};
use crate::clock::{Now, Tick};

/// A limit in the numbers that its window counts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(super) quota: u32,
    /// All times in nanoseconds.
    pub(super) per: u64,
    /// The length of a bucket, or how long a unit takes to leak.
    pub(super) step: u64,
    pub(super) buckets: usize,
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
pub(crate) struct Left {
    pub(super) remaining: u32,
    /// From when on more is; `None` where nothing is in use.
    pub(super) more_at: Option<Tick>,
}

/// One way to count, for one limit of one key. Pure: no map, no clock.
///
/// 1. Where [`room`](Algorithm::room) found room, [`charge`](Algorithm::charge) may follow, with the same
///    `now` and cost. A cost is never above the quota.
/// 2. `room` forgets what has left, and nothing else.
/// 3. Rules may change from call to call (plans): what is in use stays in use, for as long as the rule of
///    each call says.
pub(crate) trait Algorithm: Clone + Default + Send + Sync + 'static {
    /// Whether `cost` more may pass; else from when on, unless more is charged until then.
    fn room(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> Result<(), Tick>;

    /// Charges `cost`, for which there is room; tells how many units are left, too.
    fn charge(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> (Charge, u32);

    /// Takes a charge back, as far as it has not left.
    fn refund(&mut self, charge: Charge, now: &impl Now);

    fn left(&self, rule: &Rule, now: &impl Now) -> Left;

    /// From when on this state is as good as a new one.
    fn idle_from(&self, rule: &Rule) -> Option<Tick>;
}

impl Rule {
    pub(super) fn new(limit: &Limit, window: Window) -> Self {
        let (quota, per) = (limit.quota(), limit.per_nanoseconds());
        let (step, buckets) = match window {
            Window::Log => (per, 1),
            Window::Buckets(n) => (per.div_ceil(n as u64), n),
            Window::Gcra => (per.div_ceil(u64::from(quota)), 1),
        };
        Self { quota, per, step, buckets }
    }
}
