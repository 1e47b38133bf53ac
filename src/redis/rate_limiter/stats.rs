//! Statistics of a limiter in this process. Checks are counted in `check.rs`, replies of the server in
//! `limiter_state.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::breaker::Breaker;
use crate::rate_limit::COUNTED;

/// Statistics of a [`RateLimiter`](super::RateLimiter) in this process.
///
/// ```no_run
/// # use fleeting::redis::RateLimiter;
/// # fn f(limiter: RateLimiter<String>) {
/// let stats = limiter.stats();
/// if stats.by_policy > 0 {
///     println!("{} checks without the server, {} errors", stats.by_policy, stats.errors);
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimiterStats {
    /// Checks that passed, except those of cost 0. Behind a layer with `charge_failures`, checks cost nothing, and each
    /// failure that was charged on the server is counted in their place.
    pub admitted: u64,
    /// Admitted checks that waited.
    pub waited: u64,
    /// Denied checks, and waits that ended without admission. Not counted are costs above a quota and cancelled waits.
    pub denied: u64,
    /// Denied checks that were answered by the [`deny_cache`](super::RateLimiterBuilder::deny_cache), without a round
    /// trip; included in `denied`.
    pub denied_locally: u64,
    /// Checks that were admitted only because the layer is in shadow mode (`RateLimitLayer::shadow`).
    pub shadowed: u64,
    /// Permits that were refunded.
    pub refunded: u64,
    /// Calls to the server that failed or got no reply in time.
    pub errors: u64,
    /// Checks that [`OnError`](super::OnError) decided, because the server failed.
    pub by_policy: u64,
    /// Units that were drawn ahead of their checks: see [`reserve`](super::RateLimiterBuilder::reserve).
    pub reserved: u64,
    /// Reserved units that no check used, and that were given back to the server.
    pub returned: u64,
    /// Reserved units that no check used, and that could not be given back: they count until they leave their window.
    pub lapsed: u64,
    /// State of the circuit breaker.
    pub breaker: Breaker,
}

/// Independent counters: a snapshot is not atomic.
#[derive(Default)]
pub(super) struct LimiterCounters {
    pub(super) admitted: Counter,
    pub(super) waited: Counter,
    /// Denials by the index of the limit with the longest wait.
    denied: [Counter; COUNTED],
    pub(super) denied_locally: Counter,
    pub(super) shadowed: Counter,
    pub(super) refunded: Counter,
    pub(super) errors: Counter,
    pub(super) by_policy: Counter,
    pub(super) reserved: Counter,
    pub(super) returned: Counter,
    pub(super) lapsed: Counter,
}

#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl LimiterCounters {
    pub(super) fn snapshot(&self, breaker: Breaker) -> LimiterStats {
        LimiterStats {
            // Read before the totals that include them, so that no part exceeds its total.
            waited: self.waited.get(),
            denied_locally: self.denied_locally.get(),
            shadowed: self.shadowed.get(),
            returned: self.returned.get(),
            lapsed: self.lapsed.get(),
            reserved: self.reserved.get(),
            admitted: self.admitted.get(),
            denied: self.denials().sum(),
            refunded: self.refunded.get(),
            errors: self.errors.get(),
            by_policy: self.by_policy.get(),
            breaker,
        }
    }

    /// Returns the denials of each limit, by index.
    pub(super) fn denials(&self) -> impl Iterator<Item = u64> {
        self.denied.iter().map(Counter::get)
    }

    /// Counts a denial by the limit with this index.
    pub(super) fn count_denial(&self, limit: usize) {
        self.denied[limit.min(COUNTED - 1)].add(1);
    }
}

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
