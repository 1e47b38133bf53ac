//! The clocks of Linux, read without a detour, and the proof that they are those of `Instant`.
//!
//! The coarse clock shows when the kernel last ticked; the precise one adds what has passed since. How long that
//! may be nobody promises: while a processor that should tick is stolen or stopped, the coarse clock stands
//! still for all others. So its lag is not assumed but checked, by whatever else reads the precise clock:
//!
//! 1. The coarse clock is never ahead of the precise one.
//! 2. `horizon` only grows, and is above each precise reading that has been returned: one that is not raises it, to
//!    [`STEP`] above itself. So it is at most `STEP` ahead of the present, and written once in a `STEP` at most.
//! 3. A coarse reading `c` is trusted where `c + MARGIN` is not below the horizon. Then what dies after that was seen
//!    dead by nobody. So whatever anybody has seen dead stays dead.
//! 4. Where it is not trusted, it is late by more than [`LAG`], and the precise clock is read until it has caught up.
//!    That costs time, and is exact.
//! 5. So what is dead can pass for alive only where the coarse clock is late by more than [`MARGIN`], and only until
//!    the first precise reading after the death, in any thread and by any clock of the process. Each write with a
//!    TTL and each sweep is one, so where a sweeper runs that is its period at most, and how late it runs itself.
//!    Where nobody does anything but look up, one call in a thousand or so is one ([`check`]).
//!
//! `Relaxed` is enough, as the horizon is all there is to agree on: who has heard of a reading finds a horizon no older
//! than the one that the reading was compared with.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;

use super::{deadline::EPOCH, machine::Machine};

/// How far the coarse clock may be behind the present and be trusted for certain, in nanoseconds: the slowest kernel
/// ticks each 10 ms, and a tick may be late by as much and more.
pub(super) const LAG: u64 = 25_000_000;

/// How far the horizon is put ahead of the present, so that no processor has to fetch it anew at each call.
pub(super) const STEP: u64 = 25_000_000;

/// How far the coarse clock may be behind the present, where it is trusted.
pub(super) const MARGIN: u64 = LAG + STEP;

/// The kernel's monotonic clocks, from which `Instant` is read too: the precise one here without the
/// detour over `Instant`'s arithmetic, and the coarse one, which `Instant` has not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    machine: Machine,
    /// What makes a tick of a reading: [`EPOCH`], less what the precise clock showed at the epoch.
    offset: u64,
}

impl Kernel {
    /// A clock that counts from `epoch`, which must be the present; `None` where `Instant` turns out
    /// not to be this clock.
    pub(super) fn from(epoch: fn() -> Instant) -> (Instant, Option<Kernel>) {
        // Between two readings of our own: if `Instant` counted from another clock, it would not lie between.
        let before = Machine::REAL.precise();
        let instant = epoch();
        let after = Machine::REAL.precise();
        let epoch = reading(instant).filter(|reading| (before..=after).contains(reading));
        (instant, epoch.map(|epoch| Kernel::of(Machine::REAL, epoch)))
    }

    /// The clocks of a machine whose precise one showed `epoch` at the epoch.
    pub(super) fn of(machine: Machine, epoch: u64) -> Kernel {
        Kernel { machine, offset: EPOCH - epoch }
    }

    /// The tick of the present.
    #[inline]
    pub(super) fn tick(&self) -> u64 {
        self.offset + read(self.machine)
    }

    /// How long it is until the machine has run for a whole number of `every`.
    pub(super) fn until_beat(&self, every: Duration) -> Duration {
        let Some(beat) = super::nanoseconds(every) else { return every };
        Duration::from_nanos(beat - self.machine.precise() % beat)
    }

    /// The tick of the coarse clock.
    #[inline]
    pub(super) fn coarse_tick(&self) -> u64 {
        self.offset + self.machine.coarse()
    }

    /// Ticks between which the present lies: no precise reading that was returned before is outside. `None` where the
    /// coarse clock can't be trusted.
    #[inline(always)]
    pub(super) fn bounds(&self) -> Option<(u64, u64)> {
        let coarse = self.machine.coarse();
        let latest = coarse + MARGIN;
        let horizon = self.machine.horizon().load(Relaxed);
        if latest < horizon {
            return None;
        }
        // The horizon was a `STEP` ahead of the present.
        let earliest = coarse.max(horizon.saturating_sub(STEP));
        Some((self.offset + earliest, self.offset + latest))
    }

    #[cfg(test)]
    pub(super) fn horizon(&self) -> u64 {
        self.offset + self.machine.horizon().load(Relaxed)
    }
}

/// Reads the precise clock for no other reason than that a late coarse one is noticed.
pub(crate) fn check() {
    read(Machine::REAL);
}

/// What the precise clock shows, and for those who read the other one a horizon above it.
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
    // The greatest: who read before another may come here after it.
    machine.horizon().fetch_max(now + STEP, Relaxed);
}

/// What the machine's coarse clock shows.
#[inline]
pub(super) fn coarse() -> u64 {
    Machine::REAL.coarse()
}

/// What the clock showed at `instant`, which keeps that to itself. But it can be moved back until
/// its seconds underflow, and then its nanoseconds.
fn reading(instant: Instant) -> Option<u64> {
    let to_the_floor =
        most(u64::MAX, |seconds| instant.checked_sub(Duration::from_secs(seconds)).is_some());
    let floor = instant.checked_sub(Duration::from_secs(to_the_floor))?;
    let nanoseconds = most(999_999_999, |nanoseconds| {
        floor.checked_sub(Duration::from_nanos(nanoseconds)).is_some()
    });
    let seconds = to_the_floor.checked_sub(i64::MIN.unsigned_abs())?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// The greatest number up to `limit` that `holds`, where all below it do.
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
