//! Circuit breaker: stops calls to a server that does not answer, so that they do not each wait for a timeout.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use ::redis::RedisError;
use tokio::time::Instant;

/// Number of consecutive failures that open the breaker.
pub(super) const MAX_FAILURES: u64 = 3;

/// Time from the last failure until one call tests the server.
pub(super) const OPEN_FOR: Duration = Duration::from_millis(500);

/// State of the circuit breaker between a [`RateLimiter`](super::RateLimiter) and its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Breaker {
    /// Every call is sent.
    #[default]
    Closed,
    /// No call is sent, because the server has failed three times in a row. Lasts half a second from the last failure
    /// on.
    Open,
    /// The half second has passed: one call is sent to test the server.
    HalfOpen,
}

/// Closed with fewer than [`MAX_FAILURES`] consecutive failures. Otherwise open until `retry_at`, and then half open.
pub(super) struct CircuitBreaker {
    epoch: Instant,
    /// Number of consecutive failures.
    failures: AtomicU64,
    /// Time from which a call may test the server, in nanoseconds since the epoch.
    retry_at: AtomicU64,
    /// Error of the last failure, if it was that there was no connection.
    cause: Mutex<Option<RedisError>>,
}

impl CircuitBreaker {
    pub(super) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            failures: AtomicU64::new(0),
            retry_at: AtomicU64::new(0),
            cause: Mutex::new(None),
        }
    }

    /// Returns whether this call may be sent.
    ///
    /// A half-open breaker admits one call and is open again for the same time. So it needs no notice of how that call
    /// ends: if it is cancelled, another one follows.
    pub(super) fn admits(&self) -> bool {
        // `Acquire` pairs with the `Release` in `record_failure`: with the last failure, its `retry_at` is visible.
        if self.failures.load(Acquire) < MAX_FAILURES {
            return true;
        }
        let now = self.now();
        let retry_at = self.retry_at.load(Relaxed);
        let next = now.saturating_add(OPEN_FOR.as_nanos() as u64);
        // Exactly one of several concurrent calls wins the exchange.
        now >= retry_at && self.retry_at.compare_exchange(retry_at, next, Relaxed, Relaxed).is_ok()
    }

    /// Records an answer of the server; returns whether it closes the breaker.
    pub(super) fn record_success(&self) -> bool {
        // A load first: there are rarely failures, and a swap would take the cache line from other processors at each
        // call.
        self.failures.load(Relaxed) > 0 && self.failures.swap(0, Relaxed) >= MAX_FAILURES
    }

    /// Records a failure of the server; returns whether it opens the breaker. `cause` is the error if there was no
    /// connection.
    pub(super) fn record_failure(&self, cause: Option<RedisError>) -> bool {
        self.set_cause(cause);
        let retry_at = self.now().saturating_add(OPEN_FOR.as_nanos() as u64);
        // Before the count, so that a call which sees the last failure also sees this time.
        self.retry_at.fetch_max(retry_at, Relaxed);
        self.failures.fetch_add(1, Release) + 1 == MAX_FAILURES
    }

    pub(super) fn set_cause(&self, cause: Option<RedisError>) {
        let mut current = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        *current = cause;
    }

    /// Returns the error of the last failure, if it was that there was no connection.
    pub(super) fn cause(&self) -> Option<RedisError> {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn state(&self) -> Breaker {
        if self.failures.load(Acquire) < MAX_FAILURES {
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
