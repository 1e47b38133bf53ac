//! Keeps calls from a server that does not answer, so that nobody waits for a timeout each time.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use tokio::time::Instant;

/// So many failures in a row open it.
pub(super) const FAILURES: u64 = 3;

/// How long the server is left alone, before one call tries it again.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// Whether a [`RateLimiter`](super::RateLimiter) asks its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Breaker {
    /// Each call does.
    #[default]
    Closed,
    /// None does, as the server has failed three times in a row, for half a second from the last failure on.
    Open,
    /// That time is over: one call does, for all.
    HalfOpen,
}

/// Closed with fewer than [`FAILURES`] in a row. Otherwise open until `retry_at`, and half open from then on.
pub(super) struct CircuitBreaker {
    epoch: Instant,
    /// In a row.
    failures: AtomicU64,
    /// When a call may try again, in nanoseconds since the epoch.
    retry_at: AtomicU64,
}

impl CircuitBreaker {
    pub(super) fn new() -> Self {
        Self { epoch: Instant::now(), failures: AtomicU64::new(0), retry_at: AtomicU64::new(0) }
    }

    /// Whether this call may ask the server. Who is let through while it is open is the only one for the
    /// next pause; so nobody is missed who gives up in the middle of it.
    pub(super) fn admits(&self) -> bool {
        if self.failures.load(Acquire) < FAILURES {
            return true;
        }
        let now = self.now();
        let retry_at = self.retry_at.load(Relaxed);
        let next = now.saturating_add(PAUSE.as_nanos() as u64);
        // Of all who come when the pause is over, one exchanges it.
        now >= retry_at && self.retry_at.compare_exchange(retry_at, next, Relaxed, Relaxed).is_ok()
    }

    /// The server has answered; tells whether that closes it.
    pub(super) fn succeeded(&self) -> bool {
        // Mostly there are none: a load leaves the cache line to all processors, a swap takes it from them.
        self.failures.load(Relaxed) > 0 && self.failures.swap(0, Relaxed) >= FAILURES
    }

    /// The server has not answered; tells whether that opens it.
    pub(super) fn failed(&self) -> bool {
        let retry_at = self.now().saturating_add(PAUSE.as_nanos() as u64);
        // First, so that who sees the last failure sees this too.
        self.retry_at.fetch_max(retry_at, Relaxed);
        self.failures.fetch_add(1, Release) + 1 == FAILURES
    }

    pub(super) fn state(&self) -> Breaker {
        if self.failures.load(Acquire) < FAILURES {
            Breaker::Closed
        } else if self.now() < self.retry_at.load(Relaxed) {
            Breaker::Open
        } else {
            Breaker::HalfOpen
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
