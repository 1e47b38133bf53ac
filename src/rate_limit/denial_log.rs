//! The line in tracing that calls are denied: at most one a second, so that an attack fills no disk.

use super::Limit;
use crate::engine::{
    clock::Tick,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// How often it is logged at most that calls are denied, in nanoseconds.
const LOG_EVERY: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct DenialLog {
    /// No denial is logged before this tick.
    silent_until: AtomicU64,
    /// How many denials there were when the last one was logged.
    logged: AtomicU64,
}

impl DenialLog {
    /// Whether a denial at `now` is to be written. To one caller alone it says so, for each [`LOG_EVERY`].
    #[inline]
    pub(super) fn is_due(&self, now: Tick) -> bool {
        let silent_until = self.silent_until.load(Relaxed);
        if now.nanoseconds() < silent_until {
            return false;
        }
        let next = now.later(LOG_EVERY).nanoseconds();
        // Of those who come at once, who loses knows that another writes.
        self.silent_until.compare_exchange(silent_until, next, Relaxed, Relaxed).is_ok()
    }

    /// Writes that so many were `denied` so far, the last one by `limit`.
    #[cold]
    pub(super) fn write(&self, limiter: &str, denied: u64, limit: &Limit) {
        // A slow writer may find that a later one has counted further.
        let denials = denied - self.logged.swap(denied, Relaxed).min(denied);
        tracing::info!(limiter, denials, %limit, "calls are denied");
    }
}
