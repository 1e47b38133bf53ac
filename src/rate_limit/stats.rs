//! Counters of a limiter. Each shard has its own, so that cores do not share a cache line; readers add them up.

use super::Limit;
use crate::engine::{
    store::bump,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed},
    },
};

/// Statistics of a [`RateLimiter`](super::RateLimiter). Returned by [`stats`](super::RateLimiter::stats), which has an
/// example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimiterStats {
    /// Number of keys in memory: those in use, and idle ones that were not swept yet.
    pub keys: usize,
    /// Number of checks that passed, not counting those of cost 0. Behind a layer with `charge_failures`, checks cost
    /// nothing, and each failure that was charged is counted in their place.
    pub admitted: u64,
    /// Number of admitted calls that had to wait.
    pub waited: u64,
    /// Number of denied checks and unsuccessful waits. A cost above a quota is not counted, and neither is a wait that
    /// was cancelled.
    pub denied: u64,
    /// Number of denied requests that a layer admitted because it only counts (`RateLimitLayer::shadow`).
    pub shadowed: u64,
    /// Number of permits that were refunded.
    pub refunded: u64,
    /// Number of checks of keys beyond [`max_keys`](super::RateLimiterBuilder::max_keys), included in `admitted` and
    /// `denied`.
    pub overflowed: u64,
}

/// Number of limits whose denials are counted separately; the last counter also counts all further limits. With the
/// counter of checks they fill one cache line.
pub(crate) const COUNTED: usize = 7;

/// Counters of one shard, written under its lock. They fill a cache line of their own: on a shared line, each check
/// would take the line from the core that checks in another shard.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct CheckCounts {
    checks: AtomicU64,
    /// Denials by limit; of several exceeded limits, the one with the longest wait counts.
    denials: [AtomicU64; COUNTED],
}

impl LimiterStats {
    pub(super) fn add(&mut self, counts: &CheckCounts) {
        // Denials first, as each is counted after its check. Writers store `Relaxed`, so on a weakly ordered processor
        // a reader may still see a denial before its check; then the subtraction saturates.
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
        // `Acquire` keeps the load of `checks` in `LimiterStats::add` behind these. It orders the reader's side only,
        // since writers store `Relaxed`.
        self.denials.iter().map(|denials| denials.load(Acquire))
    }

    /// Counts a check, and the limit that denied it, if any. The caller holds the shard's lock.
    #[inline]
    pub(super) fn count(&self, denied: Option<usize>) {
        // The check first: `LimiterStats::add` reads them in reverse order.
        bump(&self.checks, 1);
        if let Some(limit) = denied {
            bump(&self.denials[limit.min(COUNTED - 1)], 1);
        }
    }

    /// Counts a denied check by its limit. The caller needs no lock.
    pub(super) fn count_denial(&self, limit: usize) {
        self.checks.fetch_add(1, Relaxed);
        self.denials[limit.min(COUNTED - 1)].fetch_add(1, Relaxed);
    }
}

/// Returns each limit with its denials; `denials` are in the order of the limits.
pub(crate) fn with_denials(
    limits: &[Limit],
    denials: impl Iterator<Item = u64>,
) -> Vec<(Limit, u64)> {
    limits.iter().cloned().zip(denials.chain(std::iter::repeat(0))).collect()
}
