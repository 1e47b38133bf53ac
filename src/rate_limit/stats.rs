//! What a limiter has counted. Each shard counts for itself, so that cores share no line of memory; a reader adds
//! up, and never sees more denials than checks.

use crate::engine::{
    store::bump,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed},
    },
};

/// What a [`RateLimiter`](super::RateLimiter) has decided and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimiterStats {
    /// Keys in memory: in use, or idle and not yet swept.
    pub keys: usize,
    /// Checks that passed, but for those of cost 0.
    pub admitted: u64,
    /// Checks that did not, but for those that never will; and waits that ended before it was their turn to check.
    pub denied: u64,
    /// Calls that waited for their turn or for room, whatever came of it.
    pub waited: u64,
    /// Permits that were given back.
    pub refunded: u64,
    /// Checks of keys beyond the bound, of all.
    pub overflowed: u64,
}

/// What came to one shard, written under its lock. On a line of memory of its own: beside another's, each check
/// would take the line from a core that checks there.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct CheckCounts {
    checks: AtomicU64,
    denials: AtomicU64,
}

impl LimiterStats {
    pub(super) fn add(&mut self, counts: &CheckCounts) {
        // In this order, as a denial is counted after its check.
        let denied = counts.denials.load(Acquire);
        self.denied += denied;
        self.admitted += counts.checks().saturating_sub(denied);
    }
}

impl CheckCounts {
    #[inline]
    pub(super) fn checks(&self) -> u64 {
        self.checks.load(Relaxed)
    }

    /// Under a lock.
    #[inline]
    pub(super) fn count(&self, denied: bool) {
        // In the order that `LimiterStats::add` relies on.
        bump(&self.checks, 1);
        bump(&self.denials, u64::from(denied));
    }
}
