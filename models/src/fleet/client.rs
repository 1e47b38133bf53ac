//! Client of a process: retries and outages, as in `src/redis/client/{retry,outage}.rs`.

use super::engine::{MS, SECOND};

/// Total time of a call, including its retries.
pub(super) const TIMEOUT: u64 = SECOND;

/// Time without a connection after which calls fail immediately.
const PATIENCE: u64 = TIMEOUT / 20 * 19;

/// Pause between two attempts to connect in the background.
const RETRY_EVERY: u64 = 400 * MS;

/// First and longest pause between two attempts of a call.
const BACKOFF: (u64, u64) = (2 * MS, 50 * MS);

/// Attempts of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    pub(super) began: u64,
    pause: u64,
}

impl Attempts {
    pub(super) fn new(now: u64) -> Self {
        Self { began: now, pause: BACKOFF.0 }
    }

    /// Returns the pause before the next attempt; `None` if the timeout would pass.
    pub(super) fn next_pause(&mut self, now: u64) -> Option<u64> {
        let pause = self.pause;
        self.pause = BACKOFF.1.min(2 * pause);
        (now + pause < self.began + TIMEOUT).then_some(pause)
    }
}

/// Connection of one process to a server that may be down.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    down_since: Option<u64>,
    next_attempt: u64,
}

impl Connection {
    /// Returns whether a command may be sent.
    pub(super) fn admits(&mut self, now: u64) -> bool {
        if self.down_since.is_none_or(|since| now < since + PATIENCE) {
            return true;
        }
        let is_attempt = now >= self.next_attempt;
        if is_attempt {
            self.next_attempt = now + RETRY_EVERY;
        }
        is_attempt
    }

    pub(super) fn refused(&mut self, now: u64) {
        self.down_since.get_or_insert(now);
    }

    pub(super) fn answered(&mut self) {
        self.down_since = None;
    }
}

/// Returns the next tick from `at` on of a process of a number of processes. Each has its ticks at another time of the
/// period.
pub(super) fn tick_of((process, processes): (usize, usize), at: u64, period: u64) -> u64 {
    let phase = period * process as u64 / processes as u64;
    next_tick(at.saturating_sub(phase), period) + phase
}

/// Returns the end of the period in which `at` lies; `at` itself for a period of 0.
pub(super) fn next_tick(at: u64, period: u64) -> u64 {
    if period == 0 { at } else { at.div_ceil(period) * period }
}
