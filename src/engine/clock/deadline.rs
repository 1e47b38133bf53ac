//! Instants and deadlines as ticks: the only arithmetic on time, and the one place that says what is dead and
//! what overflows.
//!
//! A [`Tick`] counts nanoseconds; the epoch of its clock is tick [`EPOCH`]. So an instant before the epoch has a
//! tick too, and zero is free to mean "persistent" in a [`Deadline`].

use std::{
    num::NonZeroU64,
    // No race is decided by the order in which it is read: not for shuttle.
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The tick of a clock's epoch: instants up to nine years before it have ticks of their own.
pub(super) const EPOCH: u64 = 1 << 58;

/// An instant in nanoseconds; see [`EPOCH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(super) NonZeroU64);

/// The tick at which a value dies, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(pub(super) Option<NonZeroU64>);

/// A [`Deadline`] that who only reads may put off.
pub(crate) struct AtomicDeadline(AtomicU64);

/// What tells whether a deadline has been reached: a [`Tick`], or a [`Clock`](super::Clock) read only where needed.
pub(crate) trait Now {
    fn is_dead(&self, deadline: Deadline) -> bool;
    fn tick(&self) -> Tick;

    #[inline(always)]
    fn has_reached(&self, tick: Tick) -> bool {
        self.is_dead(tick.into())
    }

    /// As [`has_reached`](Now::has_reached), by when the call began where that is known: for what may then be left for the
    /// next call.
    #[inline(always)]
    fn had_reached(&self, tick: Tick) -> bool {
        self.has_reached(tick)
    }

    /// Whether the call has taken long by now, where it matters.
    #[inline(always)]
    fn has_ticked(&self) -> bool {
        false
    }

    /// A tick that the present has reached: the present, or one a step of a coarse clock ago.
    #[inline]
    fn at_least(&self) -> Tick {
        self.tick()
    }

    /// A tick that the present has not passed: the present, or up to 50 ms ahead. None where `deadline` has been reached.
    /// Both by one reading.
    #[inline(always)]
    fn unless_dead(&self, deadline: Deadline) -> Option<Tick> {
        let now = self.tick();
        (!deadline.is_dead(now)).then_some(now)
    }
}

impl Tick {
    /// The tick of a clock's epoch.
    pub(crate) const EPOCH: Tick = match NonZeroU64::new(EPOCH) {
        Some(tick) => Tick(tick),
        None => unreachable!(),
    };

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

    /// The one of the two that comes first.
    #[inline]
    pub(crate) fn sooner(self, other: Deadline) -> Deadline {
        if other.order() < self.order() { other } else { self }
    }

    #[inline]
    fn bits(self) -> u64 {
        self.0.map_or(0, NonZeroU64::get)
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

impl AtomicDeadline {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self(AtomicU64::new(deadline.bits()))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Deadline {
        Deadline(NonZeroU64::new(self.0.load(Relaxed)))
    }

    #[inline]
    pub(crate) fn set(&mut self, deadline: Deadline) {
        *self.0.get_mut() = deadline.bits();
    }

    /// Puts it off; one that is later already stays. Several may at a time.
    #[inline]
    pub(crate) fn put_off(&self, to: Deadline) {
        let bits = self.0.load(Relaxed);
        if bits != 0 && to.order() > bits {
            match to.bits() {
                0 => self.0.store(0, Relaxed),
                to => _ = self.0.fetch_max(to, Relaxed),
            }
        }
    }
}

impl From<Tick> for Deadline {
    fn from(tick: Tick) -> Deadline {
        Deadline(Some(tick.0))
    }
}

/// As `Duration::as_nanos`, without its 128 bits; `None` where it overflows.
#[inline]
pub(crate) fn nanoseconds(duration: Duration) -> Option<u64> {
    let seconds = duration.as_secs().checked_mul(1_000_000_000)?;
    seconds.checked_add(u64::from(duration.subsec_nanos()))
}
