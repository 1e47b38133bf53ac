//! Arguments of a check in progress.

use super::{algorithm::LimitParams, stats::CheckCounts};
use crate::engine::{clock::LazyNow, store::Location};

/// Key, limits and cost of a check. The cost is neither 0 nor above a quota.
pub(super) struct Check<'a> {
    pub(super) place: Location,
    pub(super) params: &'a [LimitParams],
    pub(super) cost: u32,
    /// Read when it is first needed, which is under the shard's lock. So the charges of a key are in order of time.
    pub(super) now: LazyNow<'a>,
    /// Set for a check by a waiter. Its denial is not counted: it continues to wait.
    pub(super) is_waiter: bool,
}

impl Check<'_> {
    /// Counts the decision, and the limit that denied it, if any. The caller holds the lock that guards `counts`.
    #[inline]
    pub(super) fn count(&self, denied: Option<usize>, counts: &CheckCounts) {
        if denied.is_none() || !self.is_waiter {
            counts.count(denied);
        }
    }
}
