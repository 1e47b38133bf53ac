//! Arguments of a check in progress.

use super::{algorithm::LimitParams, stats::CheckCounts, waiting::WaiterUnits};
use crate::engine::{clock::LazyNow, store::Location};

/// Key, limits and cost of a check. The cost is neither 0 nor above a quota.
pub(super) struct Check<'a> {
    pub(super) place: Location,
    pub(super) params: &'a [LimitParams],
    pub(super) cost: u32,
    /// Read when it is first needed, which is under the shard's lock. So the charges of a key are in order of time.
    pub(super) now: LazyNow<'a>,
    pub(super) caller: Caller<'a>,
}

/// Caller of a check.
#[derive(Clone, Copy)]
pub(super) enum Caller<'a> {
    /// Its denial is counted.
    Final,
    /// It may continue to wait, so its denial is not counted. If it is in a queue, its units are ahead of those of
    /// later waiters until they are charged.
    Waiter(Option<&'a WaiterUnits>),
}

impl Check<'_> {
    /// Counts the decision, and the limit that denied it, if any. The caller holds the lock that guards `counts`.
    #[inline]
    pub(super) fn count(&self, denied: Option<usize>, counts: &CheckCounts) {
        if let Caller::Waiter(units) = self.caller {
            if denied.is_some() {
                return;
            }
            // Under the lock of the charge, so that later waiters find the units in exactly one place.
            units.into_iter().for_each(WaiterUnits::depart);
        }
        counts.count(denied);
    }

    /// Returns `true` if a denial ends the call.
    #[inline]
    pub(super) fn is_final(&self) -> bool {
        matches!(self.caller, Caller::Final)
    }
}
