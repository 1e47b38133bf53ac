//! Direct readings of Linux's monotonic clocks, and the check that they are the clocks of `Instant`.
//!
//! The coarse clock shows the time of the kernel's last tick; the precise clock adds the time since. That time has no
//! upper bound: if the processor that should tick is stolen or stopped, the coarse clock stands still for all others.
//! So its lag is not assumed but checked, by every precise reading:
//!
//! 1. The coarse clock is never ahead of the precise one.
//! 2. `horizon` only grows, and is above every precise reading that was returned: a reading that is not below it raises
//!    it to [`STEP`] above the reading. So it is at most `STEP` ahead of the present, and is written at most once per
//!    `STEP`.
//! 3. A coarse reading `c` is trusted if `c + MARGIN` is not below the horizon. Then no reading has reached a deadline
//!    after `c + MARGIN`. So a value that any thread has seen expired stays expired.
//! 4. If it is not trusted, it is more than [`LAG`] late, and the precise clock is read until it has caught up. That
//!    costs time, and is exact.
//! 5. So an expired value can appear live only if the coarse clock is more than [`MARGIN`] late, and only until the
//!    first precise reading after the deadline, in any thread and by any clock of the process. Each write with a short
//!    TTL and each sweep makes such a reading. With a sweeper, the delay is at most its interval plus its own lateness.
//!    Of all other calls, about one in a thousand makes one ([`check`]).
//!
//! `Relaxed` is enough, because threads need to agree on the horizon alone. A thread that learns of a reading through
//! other synchronization finds a horizon no older than the one that the reading was compared with.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;

use super::{deadline::EPOCH, machine::Machine};

/// Lag up to which the coarse clock is certainly trusted, in nanoseconds. The slowest kernels tick every 10 ms, and a
/// tick may itself be late by more than that.
pub(super) const LAG: u64 = 25_000_000;

/// Distance of the horizon from the present when it is written. It keeps the cache line of the horizon shared, instead
/// of written by each call.
pub(super) const STEP: u64 = 25_000_000;

/// Maximum lag of a coarse clock that is trusted.
pub(super) const MARGIN: u64 = LAG + STEP;

/// The kernel's monotonic clocks, which `Instant` reads too. The precise one is read without `Instant`'s arithmetic;
/// the coarse one is not available through `Instant`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    machine: Machine,
    /// Added to a reading to get a tick: [`EPOCH`] minus the precise clock's reading at the epoch.
    offset: u64,
}

impl Kernel {
    /// Returns a clock that counts from `epoch`, which must return the present; `None` if `Instant` does not use this
    /// clock.
    pub(super) fn from(epoch: fn() -> Instant) -> (Instant, Option<Kernel>) {
        // The epoch is read between two readings of the kernel's clock. An `Instant` of another clock is not between
        // them.
        let before = Machine::REAL.precise();
        let instant = epoch();
        let after = Machine::REAL.precise();
        let epoch = reading(instant).filter(|reading| (before..=after).contains(reading));
        (instant, epoch.map(|epoch| Kernel::of(Machine::REAL, epoch)))
    }

    /// Returns the clocks of a machine whose precise clock showed `epoch` at the epoch.
    pub(super) fn of(machine: Machine, epoch: u64) -> Kernel {
        Kernel { machine, offset: EPOCH - epoch }
    }

    /// Returns the tick of the present.
    #[inline]
    pub(super) fn tick(&self) -> u64 {
        self.offset + read(self.machine)
    }

    /// Returns the time until the machine's uptime is a multiple of `every`.
    pub(super) fn until_beat(&self, every: Duration) -> Duration {
        let Some(beat) = super::nanoseconds(every) else { return every };
        Duration::from_nanos(beat - self.machine.precise() % beat)
    }

    /// Returns the tick of the coarse clock.
    #[inline]
    pub(super) fn coarse_tick(&self) -> u64 {
        self.offset + self.machine.coarse()
    }

    /// Returns ticks between which the present lies; no earlier precise reading is outside of them. `None` if the
    /// coarse clock cannot be trusted.
    #[inline(always)]
    pub(super) fn bounds(&self) -> Option<(u64, u64)> {
        let coarse = self.machine.coarse();
        let latest = coarse + MARGIN;
        let horizon = self.machine.horizon().load(Relaxed);
        if latest < horizon {
            return None;
        }
        // The horizon was written as `STEP` above a precise reading, so the present is at least that reading.
        let earliest = coarse.max(horizon.saturating_sub(STEP));
        Some((self.offset + earliest, self.offset + latest))
    }

    /// Returns whether the present is certainly before `tick`, judged by the coarse clock alone as in
    /// [`bounds`](Self::bounds).
    #[inline(always)]
    pub(super) fn is_before(&self, tick: u64) -> bool {
        let latest = self.machine.coarse() + MARGIN;
        latest >= self.machine.horizon().load(Relaxed) && self.offset + latest < tick
    }

    #[cfg(test)]
    pub(super) fn horizon(&self) -> u64 {
        self.offset + self.machine.horizon().load(Relaxed)
    }
}

/// Reads the precise clock only to detect a late coarse clock.
pub(crate) fn check() {
    read(Machine::REAL);
}

/// Reads the precise clock, and keeps the horizon above it for readers of the coarse clock.
#[inline]
fn read(machine: Machine) -> u64 {
    let now = machine.precise();
    if now >= machine.horizon().load(Relaxed) {
        raise_horizon(machine, now);
    }
    now
}

#[cold]
fn raise_horizon(machine: Machine, now: u64) {
    // The maximum, because a thread with an earlier reading may get here later.
    machine.horizon().fetch_max(now + STEP, Relaxed);
}

/// Reads the machine's coarse clock.
#[inline]
pub(super) fn coarse() -> u64 {
    Machine::REAL.coarse()
}

/// Returns the clock's reading at `instant`. `Instant` does not expose it, but can be moved back until its seconds
/// underflow, and then its nanoseconds.
fn reading(instant: Instant) -> Option<u64> {
    let to_the_floor =
        most(u64::MAX, |seconds| instant.checked_sub(Duration::from_secs(seconds)).is_some());
    let floor = instant.checked_sub(Duration::from_secs(to_the_floor))?;
    let nanoseconds = most(999_999_999, |nanoseconds| {
        floor.checked_sub(Duration::from_nanos(nanoseconds)).is_some()
    });
    // `Instant` holds its seconds as an `i64`, so it can be moved back to `i64::MIN`. If the standard library changes
    // this, the result is not between the two readings of `from`, and the kernel's clock is not used.
    let seconds = to_the_floor.checked_sub(i64::MIN.unsigned_abs())?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// Returns the greatest number up to `limit` for which `holds` is true; it must be true for all smaller numbers.
fn most(limit: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
