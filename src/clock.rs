//! Time as one word: the only arithmetic on deadlines in the crate.
//!
//! 1. A [`Tick`] counts nanoseconds; the epoch of its [`Clock`] is tick [`EPOCH`]. So an instant before
//!    the epoch has a tick too, and zero is free to mean "persistent" in a [`Deadline`].
//! 2. Dead means `now >= deadline`, and only [`Deadline::is_dead`] says so.
//! 3. The precise clock is fenced: read inside a look-up it stops the processor from overlapping cache
//!    misses. So a look-up asks the kernel's coarse clock, which is never ahead of the precise one and
//!    at most `MARGIN` behind; only a deadline between the two bounds needs the precise clock.

use std::{cell::Cell, num::NonZeroU64, time::Duration};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

/// The tick of a clock's epoch: instants up to nine years before it have ticks of their own.
const EPOCH: u64 = 1 << 58;

/// An instant in nanoseconds; see [`EPOCH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(NonZeroU64);

/// The tick at which a value dies, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(Option<NonZeroU64>);

/// What tells whether a deadline has been reached: a [`Tick`], or a [`Clock`] read only where needed.
pub(crate) trait Now {
    fn is_dead(&self, deadline: Deadline) -> bool;
    fn tick(&self) -> Tick;

    #[inline(always)]
    fn has_reached(&self, tick: Tick) -> bool {
        self.is_dead(tick.into())
    }

    /// A tick that the present has reached: the present, or one a step of a coarse clock ago.
    #[inline]
    fn at_least(&self) -> Tick {
        self.tick()
    }
}

/// The present, for one decision of many questions: all are answered as of one instant, and that is
/// read as coarsely as the questions allow.
pub(crate) struct Glance<'a> {
    clock: &'a Clock,
    bounds: Cell<Option<(Tick, Tick)>>,
    precise: Cell<Option<Tick>>,
}

/// An instant that is not worked out before somebody asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    epoch: Instant,
    tick: Tick,
}

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

impl Tick {
    /// The deadline of a value that may live for `ttl` from now; one that overflows is persistent.
    #[inline]
    pub(crate) fn after(self, ttl: Duration) -> Deadline {
        Deadline(nanoseconds(ttl).and_then(|ttl| self.0.checked_add(ttl)))
    }

    #[inline]
    pub(crate) fn later(self, nanoseconds: u64) -> Tick {
        Tick(self.0.saturating_add(nanoseconds))
    }

    #[inline]
    pub(crate) fn earlier(self, nanoseconds: u64) -> Tick {
        Tick(NonZeroU64::new(self.0.get().saturating_sub(nanoseconds)).unwrap_or(NonZeroU64::MIN))
    }

    /// Nanoseconds since `earlier`; none where that is later.
    #[inline]
    pub(crate) fn nanoseconds_since(self, earlier: Tick) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    /// The inverse of [`nanoseconds`](Tick::nanoseconds).
    pub(crate) fn from_nanoseconds(nanoseconds: u64) -> Tick {
        Tick(NonZeroU64::new(nanoseconds).unwrap_or(NonZeroU64::MIN))
    }

    /// Nanoseconds since a beginning that all ticks of a clock share.
    #[inline]
    pub(crate) fn nanoseconds(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Now for Tick {
    #[inline]
    fn is_dead(&self, deadline: Deadline) -> bool {
        deadline.is_dead(*self)
    }

    #[inline]
    fn tick(&self) -> Tick {
        *self
    }
}

impl Deadline {
    pub(crate) const PERSISTENT: Deadline = Deadline(None);

    #[inline(always)]
    pub(crate) fn is_dead(self, now: Tick) -> bool {
        self.0.is_some_and(|deadline| now.0 >= deadline)
    }

    pub(crate) fn is_persistent(self) -> bool {
        self.0.is_none()
    }

    /// This deadline moved back by `more`; one that overflows is persistent.
    pub(crate) fn extended(self, more: Duration) -> Deadline {
        self.0.map_or(Self::PERSISTENT, |deadline| Tick(deadline).after(more))
    }

    /// What is left of a life, zero once it is over; `None` for a persistent one.
    pub(crate) fn remaining(self, now: Tick) -> Option<Duration> {
        self.0.map(|deadline| Duration::from_nanos(deadline.get().saturating_sub(now.0.get())))
    }

    /// Whether this deadline comes after `other`; persistent comes after all.
    #[inline]
    pub(crate) fn is_later_than(self, other: Deadline) -> bool {
        self.order() > other.order()
    }

    /// A number that is the greater the later this deadline is; persistent comes after all.
    #[inline]
    pub(crate) fn order(self) -> u64 {
        self.0.map_or(u64::MAX, NonZeroU64::get)
    }
}

impl From<Tick> for Deadline {
    fn from(tick: Tick) -> Deadline {
        Deadline(Some(tick.0))
    }
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

    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        self.moment(tick).instant()
    }

    #[inline]
    pub(crate) fn moment(&self, tick: Tick) -> Moment {
        Moment { epoch: self.epoch, tick }
    }

    /// The instant of `deadline`; `None` for a persistent one.
    pub(crate) fn instant_of(&self, deadline: Deadline) -> Option<Instant> {
        deadline.0.map(|deadline| self.instant(Tick(deadline)))
    }
}

impl Now for Clock {
    #[inline]
    fn is_dead(&self, deadline: Deadline) -> bool {
        let Some(at) = deadline.0 else { return false };
        if let Source::Kernel(kernel) = &self.source {
            let (earliest, latest) = kernel.bounds();
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
}

impl Clock {
    /// The present, read when it is first asked for.
    #[inline]
    pub(crate) fn glance(&self) -> Glance<'_> {
        Glance { clock: self, bounds: Cell::new(None), precise: Cell::new(None) }
    }
}

impl From<Instant> for Moment {
    fn from(instant: Instant) -> Self {
        Self { epoch: instant, tick: Tick(NonZeroU64::new(EPOCH).expect("it is not zero")) }
    }
}

impl Moment {
    pub(crate) fn instant(self) -> Instant {
        let tick = self.tick.0.get();
        match tick.checked_sub(EPOCH) {
            Some(ahead) => self.epoch + Duration::from_nanos(ahead),
            None => {
                let behind = Duration::from_nanos(EPOCH - tick);
                self.epoch.checked_sub(behind).unwrap_or(self.epoch)
            }
        }
    }
}

impl Glance<'_> {
    /// Ticks between which the present lies for certain.
    #[inline(always)]
    fn bounds(&self) -> (Tick, Tick) {
        if let Some(precise) = self.precise.get() {
            return (precise, precise);
        }
        if let Some(bounds) = self.bounds.get() {
            return bounds;
        }
        let Source::Kernel(kernel) = &self.clock.source else {
            let now = self.tick();
            return (now, now);
        };
        let (earliest, latest) = kernel.bounds();
        let tick =
            |tick| Tick(NonZeroU64::new(tick).expect("a clock does not go back to its beginning"));
        let bounds = (tick(earliest), tick(latest));
        self.bounds.set(Some(bounds));
        bounds
    }
}

impl Now for Glance<'_> {
    #[inline(always)]
    fn is_dead(&self, deadline: Deadline) -> bool {
        let (earliest, latest) = self.bounds();
        if deadline.is_dead(earliest) {
            return true;
        }
        deadline.is_dead(latest) && deadline.is_dead(self.tick())
    }

    #[inline]
    fn tick(&self) -> Tick {
        if let Some(precise) = self.precise.get() {
            return precise;
        }
        let precise = self.clock.now();
        self.precise.set(Some(precise));
        precise
    }

    #[inline]
    fn at_least(&self) -> Tick {
        self.bounds().0
    }
}

/// As `Duration::as_nanos`, without its 128 bits; `None` where it overflows.
#[inline]
pub(crate) fn nanoseconds(duration: Duration) -> Option<u64> {
    let seconds = duration.as_secs().checked_mul(1_000_000_000)?;
    seconds.checked_add(u64::from(duration.subsec_nanos()))
}

fn real_now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

/// Whether Tokio was compiled with `test-util`, so that its clock may be paused.
const TEST_UTIL: bool = {
    // The glob shadows the `pause` below exactly where Tokio has one.
    #[allow(unused_imports)]
    use tokio::time::*;
    pause_is_tokios(pause)
};

struct NoPause;

trait Pause {
    const IS_TOKIOS: bool;
}

impl Pause for () {
    const IS_TOKIOS: bool = true;
}

impl Pause for NoPause {
    const IS_TOKIOS: bool = false;
}

const fn pause_is_tokios<P: Pause>(_: fn() -> P) -> bool {
    P::IS_TOKIOS
}

#[allow(dead_code)]
fn pause() -> NoPause {
    NoPause
}

#[cfg(target_os = "linux")]
mod kernel;

#[cfg(not(target_os = "linux"))]
mod kernel {
    use tokio::time::Instant;

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

        pub(super) fn bounds(&self) -> (u64, u64) {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
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
        for _ in 0..200_000 {
            let before = clock.now().0.get();
            let (earliest, latest) = real.bounds();
            let after = clock.now().0.get();
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
