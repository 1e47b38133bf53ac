//! What a limiter of this process has decided, counted where it is: a check in `check.rs`, an answer of the
//! server in `state.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::breaker::Breaker;
use crate::rate_limit::COUNTED;

/// What a [`RateLimiter`](super::RateLimiter) of this process has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimiterStats {
    /// Checks that passed, but for those of cost 0.
    pub admitted: u64,
    /// Of these, how many had to wait.
    pub waited: u64,
    /// Checks that a limit had no room for, and waits that were in vain; but for those that never pass. Who gives up
    /// waiting is in neither.
    pub denied: u64,
    /// Of these, how many were repeated from what the server had said before.
    pub denied_locally: u64,
    /// Of those denied, how many a layer that only watches let pass (`RateLimitLayer::shadow`).
    pub shadowed: u64,
    /// Permits that were given back.
    pub refunded: u64,
    /// Calls to which the server gave no answer, or a failure.
    pub errors: u64,
    /// Checks that [`OnError`](super::OnError) decided.
    pub by_policy: u64,
    /// Whether the server is asked.
    pub breaker: Breaker,
}

/// Each counts by itself: a snapshot need not be of one moment.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) admitted: Counter,
    pub(super) waited: Counter,
    /// By the limit that it takes longest to wait for.
    denied: [Counter; COUNTED],
    pub(super) denied_locally: Counter,
    pub(super) shadowed: Counter,
    pub(super) refunded: Counter,
    pub(super) errors: Counter,
    pub(super) by_policy: Counter,
}

#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counters {
    pub(super) fn snapshot(&self, breaker: Breaker) -> LimiterStats {
        LimiterStats {
            // Before all that it is a part of.
            waited: self.waited.get(),
            denied_locally: self.denied_locally.get(),
            shadowed: self.shadowed.get(),
            admitted: self.admitted.get(),
            denied: self.denials().sum(),
            refunded: self.refunded.get(),
            errors: self.errors.get(),
            by_policy: self.by_policy.get(),
            breaker,
        }
    }

    /// Of each limit, by its place.
    pub(super) fn denials(&self) -> impl Iterator<Item = u64> {
        self.denied.iter().map(Counter::get)
    }

    /// A denial by the limit at this place.
    pub(super) fn count_denial(&self, place: usize) {
        self.denied[place.min(COUNTED - 1)].add(1);
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
