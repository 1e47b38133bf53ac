//! Clock, ticks and deadlines: the only arithmetic on time in the crate.
//!
//! 1. Expired means `now >= deadline`, and only [`Deadline::is_expired`] defines it.
//! 2. The precise clock is fenced: a reading inside a lookup keeps the processor from overlapping cache misses. So a
//!    lookup reads the kernel's coarse clock. That one is never ahead of the precise clock, and every precise reading
//!    checks that it is not far behind. Only a deadline between the two bounds needs the precise clock.
//! 3. A value that any thread has seen expired is expired for all later calls, however late the coarse clock is (see
//!    `coarse_clock`).

mod call;
#[cfg(target_os = "linux")]
mod coarse_clock;
#[cfg(all(test, target_os = "linux"))]
mod coarse_clock_tests;
mod deadline;
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
    coarse_clock::check,
    deadline::{AtomicDeadline, Deadline, Now, Tick, nanoseconds},
    lazy::{LazyInstant, LazyNow},
};
use self::{deadline::EPOCH, test_util::TEST_UTIL};

/// Time to live, or to idle, below which a deadline is computed by the precise clock, since an error of 50 ms would
/// matter.
pub(crate) const SHORT: Duration = Duration::from_secs(5);

/// The clock of the runtime on which it was created.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    epoch: Instant,
    source: ClockSource,
}

/// Source of the readings of a clock.
#[derive(Clone, Debug)]
enum ClockSource {
    /// The clock of this runtime, which may be paused. Also used for readings outside of the runtime.
    Tokio(Handle),
    /// The machine's clock, read by the standard library.
    Real,
    /// The machine's clock, read from the kernel.
    Kernel(coarse_clock::Kernel),
}

impl Clock {
    /// Returns a clock of the current runtime, or of the machine if there is no runtime.
    ///
    /// Only a `current_thread` runtime can pause its clock, and only if Tokio was compiled with `test-util`. In all
    /// other cases the clock shows real time, and its cheap readings are exact.
    pub(crate) fn new() -> Clock {
        let pausable = |runtime: &Handle| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        if TEST_UTIL && let Some(runtime) = Handle::try_current().ok().filter(pausable) {
            return Clock { epoch: Instant::now(), source: ClockSource::Tokio(runtime) };
        }
        Self::real()
    }

    /// Returns a clock of the machine.
    pub(crate) fn real() -> Clock {
        let (epoch, kernel) = coarse_clock::Kernel::from(real_now);
        Clock { epoch, source: kernel.map_or(ClockSource::Real, ClockSource::Kernel) }
    }

    /// Returns whether the clock may be paused, as in tests. Then consecutive actions have the same time stamp.
    pub(crate) fn may_pause(&self) -> bool {
        matches!(self.source, ClockSource::Tokio(_))
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        let tick = match &self.source {
            ClockSource::Kernel(kernel) => NonZeroU64::new(kernel.tick()),
            ClockSource::Real => self.deadline_of(real_now()).0,
            ClockSource::Tokio(runtime) => {
                // The paused clock belongs to its runtime: outside of it, `Instant::now` reads the real clock.
                let _context = runtime.enter();
                self.deadline_of(Instant::now()).0
            }
        };
        Tick(tick.expect("the machine has not run for five centuries"))
    }

    /// Returns the time until the next multiple of `every` on the machine's clock. It is the same instant for all
    /// callers, so sweepers that tick together wake the process once. For a clock that may be paused it is `every`, so
    /// that ticks in tests are predictable.
    pub(crate) fn until_beat(&self, every: Duration) -> Duration {
        match &self.source {
            ClockSource::Kernel(kernel) => kernel.until_beat(every),
            _ => every,
        }
    }

    /// Returns whether a deadline has been reached that is near, or passed. Out of line: among a million entries, each
    /// instruction of a look-up delays the cache misses of the next one.
    #[cold]
    fn is_expired_soon(&self, deadline: Deadline) -> bool {
        if let ClockSource::Kernel(kernel) = &self.source
            && let Some((earliest, latest)) = kernel.bounds()
        {
            if deadline.order() > latest {
                return false;
            }
            if deadline.order() <= earliest {
                return true;
            }
        }
        deadline.is_expired(self.now())
    }

    /// Reads the machine's clock in steps of some milliseconds, at almost no cost.
    #[inline]
    fn coarse(&self) -> u64 {
        match &self.source {
            ClockSource::Kernel(kernel) => kernel.coarse_tick(),
            _ => coarse_clock::coarse(),
        }
    }

    /// Returns the reading of [`coarse`](Clock::coarse) at `tick`, which is the present, or a little less.
    #[inline]
    fn coarse_at(&self, tick: Tick) -> u64 {
        match &self.source {
            // Saves a second reading. It is at most a tick ahead of the coarse clock, so only a later tick exceeds it.
            ClockSource::Kernel(_) => tick.0.get(),
            _ => coarse_clock::coarse(),
        }
    }

    /// Returns the tick of `instant`, or the last tick if it is too far ahead to be represented.
    #[inline]
    pub(crate) fn tick_of(&self, instant: Instant) -> Tick {
        Tick(self.deadline_of(instant).0.unwrap_or(NonZeroU64::MAX))
    }

    /// Returns the deadline at `instant`; persistent if it is too far ahead to be represented.
    #[inline]
    pub(crate) fn deadline_of(&self, instant: Instant) -> Deadline {
        let tick = match instant.checked_duration_since(self.epoch) {
            Some(ahead) => nanoseconds(ahead).and_then(|ahead| EPOCH.checked_add(ahead)),
            None => {
                let behind = nanoseconds(self.epoch - instant).unwrap_or(EPOCH);
                // Zero would mean persistent.
                Some(EPOCH.saturating_sub(behind).max(1))
            }
        };
        Deadline(tick.and_then(NonZeroU64::new))
    }
}

impl Now for Clock {
    #[inline]
    fn is_expired(&self, deadline: Deadline) -> bool {
        let Some(at) = deadline.0 else { return false };
        match &self.source {
            ClockSource::Kernel(kernel) if kernel.is_before(at.get()) => false,
            _ => self.is_expired_soon(deadline),
        }
    }

    fn tick(&self) -> Tick {
        self.now()
    }

    #[inline]
    fn at_least(&self) -> Tick {
        if let ClockSource::Kernel(kernel) = &self.source
            && let Some((earliest, _)) = kernel.bounds()
            && let Some(earliest) = NonZeroU64::new(earliest)
        {
            return Tick(earliest);
        }
        self.now()
    }

    #[inline(always)]
    fn unless_expired(&self, deadline: Deadline) -> Option<Tick> {
        if let ClockSource::Kernel(kernel) = &self.source
            && let Some((_, latest)) = kernel.bounds()
            && deadline.order() > latest
        {
            return NonZeroU64::new(latest).map(Tick);
        }
        let now = self.now();
        (!deadline.is_expired(now)).then_some(now)
    }
}

fn real_now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

#[cfg(not(target_os = "linux"))]
mod coarse_clock {
    use std::{sync::LazyLock, time, time::Duration};

    use tokio::time::Instant;

    /// Returns a reading in steps of four milliseconds, by the standard library's clock.
    pub(super) fn coarse() -> u64 {
        static START: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);
        // Not zero, by which `CallTime` marks a call whose duration is not tracked.
        1 + START.elapsed().as_millis() as u64 / 4
    }

    /// Does nothing, since all readings are precise.
    pub(crate) fn check() {}

    /// Never created: on this system, no other clock is known to be that of `Instant`.
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

        pub(super) fn is_before(&self, _tick: u64) -> bool {
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokio_clock_can_be_paused_in_tests() {
        const { assert!(TEST_UTIL) }
    }

    #[test]
    fn deadline_takes_one_word() {
        // `Option<Instant>` would take 16 bytes more per entry (docs/architecture.md).
        assert_eq!(size_of::<Deadline>(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn value_is_expired_from_its_deadline_on() {
        let clock = Clock::new();
        let deadline = clock.now().after(Duration::from_nanos(10));
        tokio::time::advance(Duration::from_nanos(9)).await;
        assert!(!clock.is_expired(deadline));
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(clock.is_expired(deadline));
        assert_eq!(clock.instant_of(deadline), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn overflowing_deadline_is_persistent() {
        let clock = Clock::new();
        assert!(clock.now().after(Duration::MAX).is_persistent());
        assert!(clock.now().after(Duration::from_secs(1)).extended(Duration::MAX).is_persistent());
        assert!(clock.deadline_of(Instant::now() + Duration::from_secs(1 << 35)).is_persistent());
    }

    #[tokio::test(start_paused = true)]
    async fn instants_survive_the_conversion_to_deadlines() {
        let clock = Clock::new();
        let now = Instant::now();
        for seconds in [0, 1, 3_600, 1 << 33] {
            let later = now + Duration::from_secs(seconds);
            assert_eq!(clock.instant_of(clock.deadline_of(later)), Some(later));
        }
        let mut earlier = now;
        while let Some(before) = earlier.checked_sub(Duration::from_secs(60)) {
            assert_eq!(clock.instant_of(clock.deadline_of(before)), Some(before));
            assert!(clock.is_expired(clock.deadline_of(before)));
            earlier = before;
            if now - earlier > Duration::from_secs(86_400) {
                break;
            }
        }
    }

    /// The real clock is the subject: the kernel's reading equals that of `Instant`, to the nanosecond.
    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn kernel_clock_agrees_with_instant() {
        let clock = Clock::new();
        for _ in 0..100_000 {
            let before = Instant::now();
            let between = clock.instant(clock.now());
            let after = Instant::now();
            assert!((before..=after).contains(&between), "{before:?} {between:?} {after:?}");
        }
    }

    /// The real clock is the subject: the precise reading is always within the coarse bounds.
    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn coarse_bounds_contain_the_precise_clock() {
        let clock = Clock::new();
        let ClockSource::Kernel(real) = clock.source else {
            panic!("no kernel clock was found that agrees with `Instant`: {clock:?}");
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
    async fn coarse_and_precise_clock_agree_on_every_deadline() {
        let clock = Clock::new();
        let deadline = clock.now().after(Duration::from_millis(120));
        while !clock.is_expired(deadline) {
            assert!(!deadline.is_expired(clock.now()) || clock.is_expired(deadline));
        }
        assert!(deadline.is_expired(clock.now()), "expired before its deadline");
    }
}
