//! The time of one call, and whether the call keeps its worker for long.

use std::cell::Cell;

use super::{
    Clock,
    deadline::{Deadline, Now, Tick},
};

/// The time of one call. Unlike [`LazyNow`](super::LazyNow) it advances: a check under a lock is answered as of that
/// moment, however long ago the call began. So a value that another thread has seen expired stays expired, and time
/// stamps made under one lock never go back.
pub(crate) struct CallTime<'a> {
    clock: &'a Clock,
    begin: Cell<Option<Tick>>,
    /// A tick that the present had reached when the call began, if no more was needed.
    at_least: Cell<Option<Tick>>,
    /// Reading of the coarse clock, or a little more, when the call was first seen to begin; zero if the duration of
    /// the call is not tracked.
    coarse: Cell<u64>,
    /// True if the duration of the call is tracked.
    may_be_long: bool,
}

impl Clock {
    /// Returns the time of a call that begins now. The clock is not read until it is needed.
    #[inline(always)]
    pub(crate) fn call(&self, may_be_long: bool) -> CallTime<'_> {
        CallTime {
            clock: self,
            begin: Cell::new(None),
            at_least: Cell::new(None),
            coarse: Cell::new(0),
            may_be_long,
        }
    }
}

impl CallTime<'_> {
    /// Returns the time at which the call began, read precisely, and once.
    #[inline]
    pub(crate) fn begin(&self) -> Tick {
        if let Some(begin) = self.begin.get() {
            return begin;
        }
        let begin = self.clock.now();
        self.begin.set(Some(begin));
        if self.may_be_long {
            self.coarse.set(self.clock.coarse_at(begin));
        }
        begin
    }
}

impl Now for CallTime<'_> {
    /// Also records the coarse time, if it is the first check: the work that may take long follows it.
    #[inline(always)]
    fn is_expired(&self, deadline: Deadline) -> bool {
        if let Some(begin) = self.begin.get() {
            // The first check needs no reading.
            return deadline.is_expired(begin) || self.clock.is_expired(deadline);
        }
        if self.may_be_long {
            self.coarse.set(self.clock.coarse());
        }
        self.clock.is_expired(deadline)
    }

    #[inline(always)]
    fn had_reached(&self, tick: Tick) -> bool {
        let known = self.begin.get().or(self.at_least.get());
        known.map_or_else(|| self.has_reached(tick), |known| known >= tick)
    }

    fn tick(&self) -> Tick {
        self.clock.now()
    }

    #[inline]
    fn at_least(&self) -> Tick {
        if let Some(known) = self.begin.get().or(self.at_least.get()) {
            return known;
        }
        let at_least = self.clock.at_least();
        self.at_least.set(Some(at_least));
        if self.may_be_long && self.coarse.get() == 0 {
            self.coarse.set(self.clock.coarse_at(at_least));
        }
        at_least
    }

    /// Returns whether the coarse clock has ticked since the first check. Its probability is the share of a tick that
    /// the call took; it is certain for a call that took a whole tick.
    #[inline(always)]
    fn has_ticked(&self) -> bool {
        let before = self.coarse.get();
        before != 0 && self.clock.coarse() > before
    }

    #[inline(always)]
    fn unless_expired(&self, deadline: Deadline) -> Option<Tick> {
        if self.may_be_long && self.begin.get().is_none() {
            self.coarse.set(self.clock.coarse());
        }
        let latest = self.clock.unless_expired(deadline)?;
        // A value that had expired when the call began must not appear live to it later.
        let had_expired = self.begin.get().is_some_and(|begin| deadline.is_expired(begin));
        (!had_expired).then_some(latest)
    }
}
