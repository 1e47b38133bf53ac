//! Arguments of a check in progress.

use std::cell::Cell;

use super::{
    algorithm::{Algorithm, Remaining},
    limit_set::CallLimits,
    per_limit::PerLimit,
    stats::CheckCounts,
    usage::Usage,
    waiting::WaiterUnits,
};
use crate::engine::{clock::LazyNow, store::Location};

/// Remaining quota of each limit after a decision, for callers that report it.
pub(super) type Observed = Cell<Option<PerLimit<Remaining>>>;

/// Key, limits and cost of a check. The cost is neither 0 nor above a quota.
pub(super) struct Check<'a> {
    pub(super) place: Location,
    pub(super) by: CallLimits<'a>,
    pub(super) cost: u32,
    /// Read when it is first needed, which is under the shard's lock. So the charges of a key are in order of time.
    pub(super) now: LazyNow<'a>,
    pub(super) caller: Caller<'a>,
    pub(super) observed: Option<&'a Observed>,
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

    /// Stores the remaining quota, if the caller reports it. Under the lock of the charge, so that no other call comes
    /// in between.
    #[inline]
    pub(super) fn observe<A: Algorithm>(&self, usage: &Usage<'_, A>) {
        if let Some(observed) = self.observed {
            observed.set(Some(usage.remaining(self.by.params, &self.now)));
        }
    }

    /// Returns `true` if a denial ends the call.
    #[inline]
    pub(super) fn is_final(&self) -> bool {
        matches!(self.caller, Caller::Final)
    }
}
