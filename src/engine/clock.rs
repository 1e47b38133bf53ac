//! Time as one word: the only arithmetic on deadlines in the crate.
//!
//! 1. Dead means `now >= deadline`, and only [`Deadline::is_dead`] says so.
//! 2. The precise clock is fenced: read inside a look-up it stops the processor from overlapping cache
//!    misses. So a look-up asks the kernel's coarse clock, which is never ahead of the precise one and, as each
//!    precise reading checks, not far behind; only a deadline between the two bounds needs the precise clock.
//! 3. What anybody has seen dead is dead for all who come after, however late the coarse clock is (`kernel`).

mod call;
mod deadline;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(all(test, target_os = "linux"))]
mod lateness;
mod lazy;
#[cfg(target_os = "linux")]
mod machine;
mod test_util;
mod wait;
#[cfg(feature = "serde")]
mod wall;

use std::{num::NonZeroU64, time::Duration};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

#[cfg(feature = "serde")]
pub(crate) use self::wall::wall_clock;
pub(crate) use self::{
    call::CallTime,
    deadline::{AtomicDeadline, Deadline, Now, Tick, nanoseconds},
    kernel::check,
    lazy::{LazyInstant, LazyNow},
};
use self::{deadline::EPOCH, test_util::TEST_UTIL};

/// The time of the runtime on which it was made.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    epoch: Instant,
    source: Source,
}

/// Where the time is read.
#[derive(Clone, Debug)]
enum Source {
    /// The clock of this runtime, which may be paused; also where it is read from elsewhere.
    Tokio(Handle),
    /// The machine's clock, by std.
    Real,
    /// The machine's clock, by the kernel.
    Kernel(kernel::Kernel),
}

impl Clock {
    /// A clock of the current runtime, or of the machine where there is none.
    ///
    /// Only a `current_thread` runtime can pause its clock, and only where Tokio was compiled with
    /// `test-util`; everywhere else real time is the truth and its cheap readings are exact.
    pub(crate) fn new() -> Clock {
        let pausable = |runtime: &Handle| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        if TEST_UTIL && let Some(runtime) = Handle::try_current().ok().filter(pausable) {
            return Clock { epoch: Instant::now(), source: Source::Tokio(runtime) };
        }
        let (epoch, kernel) = kernel::Kernel::from(real_now);
        Clock { epoch, source: kernel.map_or(Source::Real, Source::Kernel) }
    }

    /// Whether time may stand still, as in tests: then what happens one after the other has one stamp.
    pub(crate) fn may_pause(&self) -> bool {
        matches!(self.source, Source::Tokio(_))
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        let tick = match &self.source {
            Source::Kernel(kernel) => NonZeroU64::new(kernel.tick()),
            Source::Real => self.deadline_of(real_now()).0,
            Source::Tokio(runtime) => {
                let _context = runtime.enter();
                self.deadline_of(Instant::now()).0
            }
        };
        Tick(tick.expect("the machine has not run for five centuries"))
    }

    /// How long it is until the next of the moments that come each `every`, which are the same for all who ask: who ticks
    /// together wakes the runtime once. By a clock that may be paused, it is `every`, so that tests can tell.
    pub(crate) fn until_beat(&self, every: Duration) -> Duration {
        match &self.source {
            Source::Kernel(kernel) => kernel.until_beat(every),
            _ => every,
        }
    }

    /// A reading that moves on in steps of some milliseconds, of the machine's clock, and costs next to nothing.
    #[inline]
    fn coarse(&self) -> u64 {
        match &self.source {
            Source::Kernel(kernel) => kernel.coarse_tick(),
            _ => kernel::coarse(),
        }
    }

    /// What [`coarse`](Clock::coarse) shows now that it is `tick`, or a bit less.
    #[inline]
    fn coarse_at(&self, tick: Tick) -> u64 {
        match &self.source {
            Source::Kernel(_) => tick.0.get(),
            _ => kernel::coarse(),
        }
    }

    /// The tick of `instant`, or the last one where it is too far ahead to be counted.
    #[inline]
    pub(crate) fn tick_of(&self, instant: Instant) -> Tick {
        Tick(self.deadline_of(instant).0.unwrap_or(NonZeroU64::MAX))
    }

    /// The deadline at `instant`; one too far ahead to be counted is persistent.
    #[inline]
    pub(crate) fn deadline_of(&self, instant: Instant) -> Deadline {
        let tick = match instant.checked_duration_since(self.epoch) {
            Some(ahead) => nanoseconds(ahead).and_then(|ahead| EPOCH.checked_add(ahead)),
            None => {
                let behind = nanoseconds(self.epoch - instant).unwrap_or(EPOCH);
                Some(EPOCH.saturating_sub(behind).max(1))
            }
        };
        Deadline(tick.and_then(NonZeroU64::new))
    }
}

impl Now for Clock {
    #[inline]
    fn is_dead(&self, deadline: Deadline) -> bool {
        let Some(at) = deadline.0 else { return false };
        if let Source::Kernel(kernel) = &self.source
            && let Some((earliest, latest)) = kernel.bounds()
        {
            if at.get() > latest {
                return false;
            }
            if at.get() <= earliest {
                return true;
            }
        }
        deadline.is_dead(self.now())
    }

    fn tick(&self) -> Tick {
        self.now()
    }

    #[inline(always)]
    fn unless_dead(&self, deadline: Deadline) -> Option<Tick> {
        if let Source::Kernel(kernel) = &self.source
            && let Some((_, latest)) = kernel.bounds()
            && deadline.order() > latest
        {
            return NonZeroU64::new(latest).map(Tick);
        }
        let now = self.now();
        (!deadline.is_dead(now)).then_some(now)
    }
}

fn real_now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::{sync::LazyLock, time, time::Duration};

    use tokio::time::Instant;

    /// In steps of four milliseconds, by the clock that is there.
    pub(super) fn coarse() -> u64 {
        static START: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);
        1 + START.elapsed().as_millis() as u64 / 4
    }

    /// All readings are precise.
    pub(crate) fn check() {}

    /// No other clock is known here to be that of `Instant`, so none is ever made.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Kernel {}

    impl Kernel {
        pub(super) fn from(epoch: fn() -> Instant) -> (Instant, Option<Kernel>) {
            (epoch(), None)
        }

        pub(super) fn tick(&self) -> u64 {
            match *self {}
        }

        pub(super) fn bounds(&self) -> Option<(u64, u64)> {
            match *self {}
        }

        pub(super) fn coarse_tick(&self) -> u64 {
            match *self {}
        }

        pub(super) fn until_beat(&self, _every: Duration) -> Duration {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokio_in_tests_has_a_clock_that_pauses() {
        const { assert!(TEST_UTIL) }
    }

    #[test]
    fn a_deadline_takes_one_word() {
        assert_eq!(size_of::<Deadline>(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn dead_from_the_deadline_on() {
        let clock = Clock::new();
        let deadline = clock.now().after(Duration::from_nanos(10));
        tokio::time::advance(Duration::from_nanos(9)).await;
        assert!(!clock.is_dead(deadline));
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(clock.is_dead(deadline));
        assert_eq!(clock.instant_of(deadline), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_overflows_is_persistent() {
        let clock = Clock::new();
        assert!(clock.now().after(Duration::MAX).is_persistent());
        assert!(clock.now().after(Duration::from_secs(1)).extended(Duration::MAX).is_persistent());
        assert!(clock.deadline_of(Instant::now() + Duration::from_secs(1 << 35)).is_persistent());
    }

    #[tokio::test(start_paused = true)]
    async fn instants_go_there_and_back() {
        let clock = Clock::new();
        let now = Instant::now();
        for seconds in [0, 1, 3_600, 1 << 33] {
            let later = now + Duration::from_secs(seconds);
            assert_eq!(clock.instant_of(clock.deadline_of(later)), Some(later));
        }
        let mut earlier = now;
        while let Some(before) = earlier.checked_sub(Duration::from_secs(60)) {
            assert_eq!(clock.instant_of(clock.deadline_of(before)), Some(before));
            assert!(clock.is_dead(clock.deadline_of(before)));
            earlier = before;
            if now - earlier > Duration::from_secs(86_400) {
                break;
            }
        }
    }

    /// The real clock is the subject: the kernel's reading is that of `Instant`, to the nanosecond.
    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_kernel_and_instant_agree() {
        let clock = Clock::new();
        for _ in 0..100_000 {
            let before = Instant::now();
            let between = clock.instant(clock.now());
            let after = Instant::now();
            assert!((before..=after).contains(&between), "{before:?} {between:?} {after:?}");
        }
    }

    /// The real clock is the subject: the coarse bounds must hold the precise reading, always.
    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn coarse_bounds_hold_the_precise_clock() {
        let clock = Clock::new();
        let Source::Kernel(real) = clock.source else {
            panic!("no kernel clock was found to be that of `Instant`: {clock:?}");
        };
        let mut trusted = 0;
        while trusted < 200_000 {
            let before = clock.now().0.get();
            let bounds = real.bounds();
            let after = clock.now().0.get();
            let Some((earliest, latest)) = bounds else { continue };
            trusted += 1;
            assert!(earliest <= after, "earliest {earliest} is ahead of {after}");
            assert!(before <= latest, "latest {latest} is behind {before}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn coarse_and_precise_agree_on_every_deadline() {
        let clock = Clock::new();
        let deadline = clock.now().after(Duration::from_millis(120));
        while !clock.is_dead(deadline) {
            assert!(!deadline.is_dead(clock.now()) || clock.is_dead(deadline));
        }
        assert!(deadline.is_dead(clock.now()), "called dead before its deadline");
    }
}
