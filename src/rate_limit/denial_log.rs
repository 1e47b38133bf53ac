//! Log event for denied calls: at most one per second, so that an attack does not fill the disk.

use super::Limit;
use crate::engine::{
    clock::Tick,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Minimum time between two log events, in nanoseconds.
const LOG_EVERY: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct DenialLog {
    /// Tick before which no denial is logged.
    silent_until: AtomicU64,
    /// Total number of denials at the last log event.
    logged: AtomicU64,
}

impl DenialLog {
    /// Returns `true` to one caller per [`LOG_EVERY`], which then logs.
    #[inline]
    pub(super) fn is_due(&self, now: Tick) -> bool {
        let silent_until = self.silent_until.load(Relaxed);
        // Checked by a load, so that denials of an attack do not contend for the cache line.
        if now.nanoseconds() < silent_until {
            return false;
        }
        let next = now.later(LOG_EVERY).nanoseconds();
        // A concurrent caller that loses the exchange leaves the event to the winner.
        self.silent_until.compare_exchange(silent_until, next, Relaxed, Relaxed).is_ok()
    }

    /// Logs the denials since the last event; `denied` is their total number so far.
    #[cold]
    pub(super) fn write(&self, limiter: &str, denied: u64, limit: &Limit) {
        // A slow caller may find a later total, so the difference saturates.
        let denials = denied - self.logged.swap(denied, Relaxed).min(denied);
        tracing::info!(limiter, denials, %limit, "rate limiter denied calls");
    }
}
