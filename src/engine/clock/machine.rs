//! The machine's two monotonic clocks, and the horizon of precise readings that the whole process shares. Tests replace
//! all three by numbers that they set.

use std::sync::atomic::AtomicU64;

use rustix::time::{ClockId, clock_gettime};

/// The machine's monotonic clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    #[cfg(test)]
    fake: Option<&'static fake::Fake>,
}

/// On cache lines of its own: each lookup reads it, and it is written only once per `STEP`.
#[repr(align(128))]
struct Horizon(AtomicU64);

static HORIZON: Horizon = Horizon(AtomicU64::new(0));

impl Machine {
    pub(super) const REAL: Machine = Machine {
        #[cfg(test)]
        fake: None,
    };

    #[inline(always)]
    pub(super) fn precise(self) -> u64 {
        #[cfg(test)]
        if let Some(fake) = self.fake {
            return fake.precise();
        }
        nanoseconds(ClockId::Monotonic)
    }

    #[inline(always)]
    pub(super) fn coarse(self) -> u64 {
        #[cfg(test)]
        if let Some(fake) = self.fake {
            return fake.coarse();
        }
        nanoseconds(ClockId::MonotonicCoarse)
    }

    /// Returns the horizon, which is above all precise readings.
    #[inline(always)]
    pub(super) fn horizon(self) -> &'static AtomicU64 {
        #[cfg(test)]
        if let Some(fake) = self.fake {
            return fake.horizon();
        }
        &HORIZON.0
    }
}

#[inline(always)]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
pub(super) mod fake {
    // All threads see the steps of a fake clock in one order, as those of a hardware clock.
    use std::sync::{Mutex, atomic::Ordering::SeqCst};

    use super::*;

    /// All fakes, so that leak checkers find them reachable.
    static ALL: Mutex<Vec<&'static Fake>> = Mutex::new(Vec::new());

    /// Clocks that stand still until a test moves them, and that count their readings.
    #[derive(Debug, Default)]
    pub(in super::super) struct Fake {
        precise: AtomicU64,
        coarse: AtomicU64,
        horizon: AtomicU64,
        precise_readings: AtomicU64,
    }

    impl Fake {
        /// Returns clocks that both show `now`.
        pub(in super::super) fn at(now: u64) -> &'static Fake {
            let fake = Fake::default();
            fake.precise.store(now, SeqCst);
            fake.coarse.store(now, SeqCst);
            let fake: &'static Fake = Box::leak(Box::new(fake));
            ALL.lock().expect("nothing panics while it is held").push(fake);
            fake
        }

        pub(in super::super) fn machine(&'static self) -> Machine {
            Machine { fake: Some(self) }
        }

        /// Advances the precise clock; the coarse clock stands still.
        pub(in super::super) fn pass(&self, nanoseconds: u64) {
            self.precise.fetch_add(nanoseconds, SeqCst);
        }

        /// Advances the coarse clock to `lag` behind the precise one. It never goes back.
        pub(in super::super) fn tick(&self, lag: u64) {
            self.coarse.fetch_max(self.precise_now() - lag, SeqCst);
        }

        /// Returns the time of the precise clock without counting a reading.
        pub(in super::super) fn precise_now(&self) -> u64 {
            self.precise.load(SeqCst)
        }

        /// Returns the number of readings of the precise clock.
        pub(in super::super) fn precise_readings(&self) -> u64 {
            self.precise_readings.load(SeqCst)
        }

        pub(super) fn precise(&self) -> u64 {
            self.precise_readings.fetch_add(1, SeqCst);
            self.precise_now()
        }

        pub(super) fn coarse(&self) -> u64 {
            // `SeqCst`: a thread that sees a step of the coarse clock must see the earlier steps of the precise clock,
            // or the coarse clock would be ahead of it.
            self.coarse.load(SeqCst)
        }

        pub(in super::super) fn horizon(&'static self) -> &'static AtomicU64 {
            &self.horizon
        }
    }
}
