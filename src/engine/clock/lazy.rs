//! The present and other instants, computed when first needed: most decisions need less than a precise reading.

use std::{cell::Cell, num::NonZeroU64, time::Duration};

use tokio::time::Instant;

use super::{
    Clock, ClockSource,
    deadline::{Deadline, EPOCH, Now, Tick},
};

/// The present, for one decision that consists of several checks. The clock is read once, as coarsely as the checks
/// allow, and a second time if one of them needs a precise reading. So no check is answered as of an earlier instant
/// than the check before it.
pub(crate) struct LazyNow<'a> {
    clock: &'a Clock,
    bounds: Cell<Option<(Tick, Tick)>>,
    precise: Cell<Option<Tick>>,
}

/// An instant that is computed when it is first needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LazyInstant {
    pub(super) epoch: Instant,
    pub(super) tick: Tick,
}

impl Clock {
    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        self.lazy_instant(tick).instant()
    }

    #[inline]
    pub(crate) fn lazy_instant(&self, tick: Tick) -> LazyInstant {
        LazyInstant { epoch: self.epoch, tick }
    }

    /// Returns the instant of `deadline`; `None` if it is persistent.
    pub(crate) fn instant_of(&self, deadline: Deadline) -> Option<Instant> {
        deadline.0.map(|deadline| self.instant(Tick(deadline)))
    }

    /// Returns the present, which is read when it is first needed.
    #[inline]
    pub(crate) fn lazy_now(&self) -> LazyNow<'_> {
        LazyNow { clock: self, bounds: Cell::new(None), precise: Cell::new(None) }
    }
}

impl From<Instant> for LazyInstant {
    fn from(instant: Instant) -> Self {
        Self { epoch: instant, tick: Tick(NonZeroU64::new(EPOCH).expect("it is not zero")) }
    }
}

impl LazyInstant {
    /// Returns the instant `by` later, or the last one that can be represented.
    #[cfg(feature = "axum")]
    pub(crate) fn delayed(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self { tick: self.tick.later(by), ..self }
    }

    pub(crate) fn instant(self) -> Instant {
        let tick = self.tick.0.get();
        match tick.checked_sub(EPOCH) {
            Some(ahead) => self.epoch + Duration::from_nanos(ahead),
            None => {
                let behind = Duration::from_nanos(EPOCH - tick);
                // Some platforms have no instants before their boot.
                self.epoch.checked_sub(behind).unwrap_or(self.epoch)
            }
        }
    }
}

impl LazyNow<'_> {
    /// Returns ticks between which the present certainly lies.
    #[inline(always)]
    fn bounds(&self) -> (Tick, Tick) {
        if let Some(precise) = self.precise.get() {
            return (precise, precise);
        }
        if let Some(bounds) = self.bounds.get() {
            return bounds;
        }
        let ClockSource::Kernel(kernel) = &self.clock.source else { return self.exact() };
        let Some((earliest, latest)) = kernel.bounds() else { return self.exact() };
        let tick =
            |tick| Tick(NonZeroU64::new(tick).expect("a clock does not go back to its beginning"));
        let bounds = (tick(earliest), tick(latest));
        self.bounds.set(Some(bounds));
        bounds
    }

    #[cold]
    fn exact(&self) -> (Tick, Tick) {
        let now = self.tick();
        (now, now)
    }
}

impl Now for LazyNow<'_> {
    #[inline(always)]
    fn is_expired(&self, deadline: Deadline) -> bool {
        let (earliest, latest) = self.bounds();
        if deadline.is_expired(earliest) {
            return true;
        }
        deadline.is_expired(latest) && deadline.is_expired(self.tick())
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

    #[inline]
    fn at_most(&self) -> Tick {
        self.bounds().1
    }
}
