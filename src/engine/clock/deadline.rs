//! Instants and deadlines as ticks: the only arithmetic on time, and the only definition of expiry and of overflow.
//!
//! A [`Tick`] counts nanoseconds; the epoch of its clock is tick [`EPOCH`]. So an instant before the epoch has a
//! tick too, and zero is free to mean "persistent" in a [`Deadline`].

use std::{
    num::NonZeroU64,
    // Not shuttle's atomics: no decision depends on the order of accesses to a deadline.
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The tick of a clock's epoch. Instants up to nine years before the epoch have ticks of their own.
pub(super) const EPOCH: u64 = 1 << 58;

/// An instant in nanoseconds; see [`EPOCH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(super) NonZeroU64);

/// The tick at which a value expires, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(pub(super) Option<NonZeroU64>);

/// A [`Deadline`] that concurrent readers may postpone, under a shared lock.
pub(crate) struct AtomicDeadline(AtomicU64);

/// A source of the present for expiry checks: a [`Tick`], or a [`Clock`](super::Clock) that is read only if needed.
pub(crate) trait Now {
    fn is_expired(&self, deadline: Deadline) -> bool;
    fn tick(&self) -> Tick;

    #[inline(always)]
    fn has_reached(&self, tick: Tick) -> bool {
        self.is_expired(tick.into())
    }

    /// Does the same as [`has_reached`](Now::has_reached), as of the beginning of the call if that is known. For work
    /// that may as well be left to the next call.
    #[inline(always)]
    fn had_reached(&self, tick: Tick) -> bool {
        self.has_reached(tick)
    }

    /// Returns whether the call has taken long so far, if that is tracked.
    #[inline(always)]
    fn has_ticked(&self) -> bool {
        false
    }

    /// Returns a tick that the present has certainly reached: the present, or up to one step of the coarse clock
    /// earlier.
    #[inline]
    fn at_least(&self) -> Tick {
        self.tick()
    }

    /// Returns a tick that the present has certainly not passed: the present, or up to 50 ms later.
    #[inline]
    fn at_most(&self) -> Tick {
        self.tick()
    }

    /// Returns a tick that the present has certainly not passed: the present, or up to 50 ms later. Returns `None` if
    /// `deadline` has been reached. Both results follow from one reading.
    #[inline(always)]
    fn unless_expired(&self, deadline: Deadline) -> Option<Tick> {
        let now = self.tick();
        (!deadline.is_expired(now)).then_some(now)
    }
}

impl Tick {
    /// The tick of a clock's epoch.
    pub(crate) const EPOCH: Tick = match NonZeroU64::new(EPOCH) {
        Some(tick) => Tick(tick),
        None => unreachable!(),
    };

    /// Returns the deadline `ttl` after this tick; persistent if it overflows.
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

    /// Returns the nanoseconds since `earlier`; zero if that is later.
    #[inline]
    pub(crate) fn nanoseconds_since(self, earlier: Tick) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    /// The inverse of [`nanoseconds`](Tick::nanoseconds).
    pub(crate) fn from_nanoseconds(nanoseconds: u64) -> Tick {
        Tick(NonZeroU64::new(nanoseconds).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the nanoseconds since an origin that all ticks of a clock share.
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
    fn is_expired(&self, deadline: Deadline) -> bool {
        deadline.is_expired(*self)
    }

    #[inline]
    fn tick(&self) -> Tick {
        *self
    }
}

impl Deadline {
    pub(crate) const PERSISTENT: Deadline = Deadline(None);

    #[inline(always)]
    pub(crate) fn is_expired(self, now: Tick) -> bool {
        self.0.is_some_and(|deadline| now.0 >= deadline)
    }

    pub(crate) fn is_persistent(self) -> bool {
        self.0.is_none()
    }

    /// Returns the tick of the deadline; `None` if persistent.
    #[cfg(feature = "metrics")]
    pub(crate) fn tick(self) -> Option<Tick> {
        self.0.map(Tick)
    }

    /// Returns this deadline postponed by `more`; persistent if it overflows.
    pub(crate) fn extended(self, more: Duration) -> Deadline {
        self.0.map_or(Self::PERSISTENT, |deadline| Tick(deadline).after(more))
    }

    /// Returns the earlier of the two deadlines.
    #[inline]
    pub(crate) fn sooner(self, other: Deadline) -> Deadline {
        if other.order() < self.order() { other } else { self }
    }

    #[inline]
    fn bits(self) -> u64 {
        self.0.map_or(0, NonZeroU64::get)
    }

    /// Returns the remaining TTL, zero if expired; `None` if persistent.
    pub(crate) fn remaining(self, now: Tick) -> Option<Duration> {
        self.0.map(|deadline| Duration::from_nanos(deadline.get().saturating_sub(now.0.get())))
    }

    /// Returns whether this deadline is later than `other`; persistent is later than all others.
    #[inline]
    pub(crate) fn is_later_than(self, other: Deadline) -> bool {
        self.order() > other.order()
    }

    /// Returns a number that orders deadlines; persistent is later than all others.
    #[inline]
    pub(crate) fn order(self) -> u64 {
        self.0.map_or(u64::MAX, NonZeroU64::get)
    }
}

impl AtomicDeadline {
    #[inline]
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

    /// Postpones the deadline; a later one stays. May be called concurrently: `fetch_max` keeps the latest of all.
    /// `Relaxed` is enough, because a deadline guards no other data.
    #[inline]
    pub(crate) fn put_off(&self, to: Deadline) {
        let bits = self.0.load(Relaxed);
        if bits != 0 && to.order() > bits {
            // Zero stands for persistent, but is the least number, so `fetch_max` cannot store it.
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

/// Does the same as `Duration::as_nanos`, but without 128-bit arithmetic; `None` on overflow.
#[inline]
pub(crate) fn nanoseconds(duration: Duration) -> Option<u64> {
    let seconds = duration.as_secs().checked_mul(1_000_000_000)?;
    seconds.checked_add(u64::from(duration.subsec_nanos()))
}
