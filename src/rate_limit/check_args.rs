//! A check under way: what all that decides of it needs to know.

use super::{algorithm::LimitParams, stats::CheckCounts};
use crate::engine::{clock::LazyNow, store::Location};

/// What is to be charged, where, and by which rules. Its cost is neither 0 nor above a quota.
pub(super) struct Check<'a> {
    pub(super) place: Location,
    pub(super) params: &'a [LimitParams],
    pub(super) cost: u32,
    /// Read where it is first needed, which is under the lock: so the times of a key's charges come in order.
    pub(super) now: LazyNow<'a>,
    /// It asks whether its wait is over. Where it is not, nobody was denied anything.
    pub(super) waits: bool,
}

impl Check<'_> {
    /// Counts what was decided of it, by which limit where it was denied. Under a lock.
    #[inline]
    pub(super) fn count(&self, denied: Option<usize>, counts: &CheckCounts) {
        if denied.is_none() || !self.waits {
            counts.count(denied);
        }
    }
}
