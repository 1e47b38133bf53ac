//! What a limiter has counted. Each shard counts for itself, so that cores share no line of memory; a reader adds
//! up, and never sees more denials than checks.

use super::Limit;
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
    /// Of these, how many had to wait.
    pub waited: u64,
    /// Checks that did not, and waits that were in vain; but for those that never pass. Who gives up waiting is in neither.
    pub denied: u64,
    /// Of these, how many a layer that only watches let pass (`RateLimitLayer::shadow`).
    pub shadowed: u64,
    /// Permits that were given back.
    pub refunded: u64,
    /// Checks of keys beyond the bound, of all.
    pub overflowed: u64,
}

/// Of so many limits denials are counted apart, and of the last of them together with all further ones.
pub(crate) const COUNTED: usize = 7;

/// What came to one shard, written under its lock. On a line of memory of its own, which it fills: beside another's,
/// each check would take the line from a core that checks there.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct CheckCounts {
    checks: AtomicU64,
    /// By the limit that it takes longest to wait for.
    denials: [AtomicU64; COUNTED],
}

impl LimiterStats {
    pub(super) fn add(&mut self, counts: &CheckCounts) {
        // In this order, as a denial is counted after its check.
        let denied: u64 = counts.denials().sum();
        self.denied += denied;
        self.admitted += counts.checks().saturating_sub(denied);
    }
}

impl CheckCounts {
    #[inline]
    pub(super) fn checks(&self) -> u64 {
        self.checks.load(Relaxed)
    }

    pub(super) fn denials(&self) -> impl Iterator<Item = u64> {
        self.denials.iter().map(|denials| denials.load(Acquire))
    }

    /// A check that a limit denied, if any did. Under a lock.
    #[inline]
    pub(super) fn count(&self, denied: Option<usize>) {
        // In the order that `LimiterStats::add` relies on.
        bump(&self.checks, 1);
        if let Some(limit) = denied {
            bump(&self.denials[limit.min(COUNTED - 1)], 1);
        }
    }

    /// A denial by a limit, under no lock.
    pub(super) fn count_denial(&self, limit: usize) {
        self.checks.fetch_add(1, Relaxed);
        self.denials[limit.min(COUNTED - 1)].fetch_add(1, Relaxed);
    }
}

/// Each limit with its denials, of `denials` by place.
pub(crate) fn with_denials(
    limits: &[Limit],
    denials: impl Iterator<Item = u64>,
) -> Vec<(Limit, u64)> {
    limits.iter().cloned().zip(denials.chain(std::iter::repeat(0))).collect()
}
