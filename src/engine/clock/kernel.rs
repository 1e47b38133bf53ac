//! The clocks of Linux, read without a detour, and the proof that they are those of `Instant`.
//!
//! The coarse clock shows when the kernel last ticked; the precise one adds what has passed since. How long that
//! may be nobody promises: while a processor that should tick is stolen or stopped, the coarse clock stands
//! still for all others. So its lag is not assumed but checked, by whatever else reads the precise clock:
//!
//! 1. The coarse clock is never ahead of the precise one.
//! 2. `seen` is a precise reading, which only grows. Once a precise reading `p` has been returned, `seen` is above
//!    `p - STEP` for all who come after: it was kept, or one less than `STEP` before it had been.
//! 3. A coarse reading `c` is trusted where it is at most [`LAG`] behind `seen`. Then `c + MARGIN` is above each `p` that
//!    was returned before, since `c + LAG >= seen > p - STEP`. So whatever anybody has seen dead stays dead.
//! 4. Where it is not, the precise clock is read, until the coarse one has caught up. That costs time, and is exact.
//! 5. So what is dead can pass for alive only where the coarse clock is late by more than [`MARGIN`], and only until
//!    the first precise reading after the death, in any thread and by any clock of the process. Each write with a
//!    TTL and each sweep is one, so where a sweeper runs that is its period at most, and how late it runs itself.
//!    Where nobody does anything but look up, one look-up in [`CHECK_EVERY`] of each thread is one.
//!
//! `Relaxed` is enough, as `seen` is all there is to agree on: who has heard of `p` reads a `seen` no older than the
//! one that `p` was compared with.

use std::{cell::Cell, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;

use super::{deadline::EPOCH, machine::Machine};

/// How far the coarse clock may be behind the last precise reading that was kept, in nanoseconds: the slowest kernel
/// ticks each 10 ms, and a tick may be late by as much and more.
pub(super) const LAG: u64 = 25_000_000;

/// How much newer a precise reading must be than the one that is kept, to be kept in its place: so no processor has to
/// fetch it anew at each call.
pub(super) const STEP: u64 = 25_000_000;

/// How far the coarse clock may be behind the present, where it is trusted.
pub(super) const MARGIN: u64 = LAG + STEP;

/// Look-ups of a thread between two that read the precise clock in any case.
pub(super) const CHECK_EVERY: u32 = 1_024;

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
        let now = self.machine.precise();
        if now.saturating_sub(self.machine.seen().load(Relaxed)) >= STEP {
            self.keep(now);
        }
        self.offset + now
    }

    /// Ticks between which the present lies: no precise reading that was returned before is outside.
    #[inline(always)]
    pub(super) fn bounds(&self) -> (u64, u64) {
        let coarse = self.machine.coarse();
        let seen = self.machine.seen().load(Relaxed);
        if coarse + LAG < seen || is_to_check() {
            return self.exact();
        }
        (self.offset + coarse.max(seen), self.offset + coarse + MARGIN)
    }

    /// The bounds by a precise reading.
    #[cold]
    fn exact(&self) -> (u64, u64) {
        let now = self.tick();
        (now, now)
    }

    #[cold]
    fn keep(&self, now: u64) {
        // The greatest: who read before another may come here after it.
        self.machine.seen().fetch_max(now, Relaxed);
    }
}

/// Whether it is time for a look-up of this thread that is precise in any case.
#[inline(always)]
fn is_to_check() -> bool {
    thread_local! {
        static LOOK_UPS: Cell<u32> = const { Cell::new(0) };
    }
    let look_ups = LOOK_UPS.get();
    LOOK_UPS.set(look_ups.wrapping_add(1));
    look_ups.is_multiple_of(CHECK_EVERY)
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
