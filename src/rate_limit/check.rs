//! A check under way: what all that decides of it needs to know.

use super::algorithm::Rule;
use crate::engine::{clock::LazyNow, store::Location};

/// What is to be charged, where, and by which rules. Its cost is neither 0 nor above a quota.
pub(super) struct Check<'a> {
    pub(super) place: Location,
    pub(super) rules: &'a [Rule],
    pub(super) cost: u32,
    /// Read where it is first needed, which is under the lock: so the times of a key's charges come in order.
    pub(super) now: LazyNow<'a>,
}
