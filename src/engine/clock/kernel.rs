//! The clocks of Linux, read without a detour, and the proof that they are those of `Instant`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::deadline::EPOCH;

/// How far the coarse clock may lag, in nanoseconds: five of the slowest kernel's 10 ms steps.
pub(super) const MARGIN: u64 = 50_000_000;

/// The kernel's monotonic clocks, from which `Instant` is read too: the precise one here without the
/// detour over `Instant`'s arithmetic, and the coarse one, which `Instant` has not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// What the precise clock showed at the epoch, in nanoseconds.
    epoch: u64,
}

impl Kernel {
    /// A clock that counts from `epoch`, which must be the present; `None` where `Instant` turns out
    /// not to be this clock.
    pub(super) fn from(epoch: fn() -> Instant) -> (Instant, Option<Kernel>) {
        // Between two readings of our own: if `Instant` counted from another clock, it would not lie between.
        let before = nanoseconds(ClockId::Monotonic);
        let instant = epoch();
        let after = nanoseconds(ClockId::Monotonic);
        let epoch = reading(instant).filter(|reading| (before..=after).contains(reading));
        (instant, epoch.map(|epoch| Kernel { epoch }))
    }

    /// The tick of the present.
    #[inline]
    pub(super) fn tick(&self) -> u64 {
        EPOCH + nanoseconds(ClockId::Monotonic) - self.epoch
    }

    /// How long it is until the machine has run for a whole number of `every`.
    pub(super) fn until_beat(&self, every: Duration) -> Duration {
        let Some(beat) = super::nanoseconds(every) else { return every };
        Duration::from_nanos(beat - nanoseconds(ClockId::Monotonic) % beat)
    }

    /// The tick of the coarse clock.
    #[inline]
    pub(super) fn coarse_tick(&self) -> u64 {
        EPOCH + coarse() - self.epoch
    }

    /// Ticks between which the present lies for certain.
    #[inline]
    pub(super) fn bounds(&self) -> (u64, u64) {
        let earliest = self.coarse_tick();
        (earliest, earliest + MARGIN)
    }
}

/// What the coarse clock shows.
#[inline]
pub(super) fn coarse() -> u64 {
    nanoseconds(ClockId::MonotonicCoarse)
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

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
