//! The time of one call, and whether it keeps its worker for long.

use std::cell::Cell;

use super::{
    Clock,
    deadline::{Deadline, Now, Tick},
};

/// The time of one call. Unlike [`LazyNow`](super::LazyNow) it goes on: what is asked under a lock is answered as of
/// then, however long ago the call began. So what others saw dead before stays dead, and stamps made under one lock
/// never go back.
pub(crate) struct CallTime<'a> {
    clock: &'a Clock,
    begin: Cell<Option<Tick>>,
    /// What the coarse clock showed, or a bit more, when the call was seen to begin; zero where nobody looks.
    coarse: Cell<u64>,
    /// Whether it matters how long the call takes.
    may_be_long: bool,
}

impl Clock {
    /// The time of a call that begins now, and may not need it.
    #[inline(always)]
    pub(crate) fn call(&self, may_be_long: bool) -> CallTime<'_> {
        CallTime { clock: self, begin: Cell::new(None), coarse: Cell::new(0), may_be_long }
    }
}

impl CallTime<'_> {
    /// When the call began: read precisely, and once.
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
    /// What may take long comes after this is asked first.
    #[inline(always)]
    fn is_dead(&self, deadline: Deadline) -> bool {
        if let Some(begin) = self.begin.get() {
            return deadline.is_dead(begin) || self.clock.is_dead(deadline);
        }
        if self.may_be_long {
            self.coarse.set(self.clock.coarse());
        }
        self.clock.is_dead(deadline)
    }

    #[inline(always)]
    fn had_reached(&self, tick: Tick) -> bool {
        self.begin.get().map_or_else(|| self.has_reached(tick), |begin| begin >= tick)
    }

    fn tick(&self) -> Tick {
        self.clock.now()
    }

    /// Whether the coarse clock has ticked in what may be long of the call: as likely as that took a large part of a
    /// tick, and certain where it took one.
    #[inline(always)]
    fn has_ticked(&self) -> bool {
        let before = self.coarse.get();
        before != 0 && self.clock.coarse() > before
    }

    #[inline(always)]
    fn unless_dead(&self, deadline: Deadline) -> Option<Tick> {
        if self.may_be_long && self.begin.get().is_none() {
            self.coarse.set(self.clock.coarse());
        }
        let latest = self.clock.unless_dead(deadline)?;
        let had_died = self.begin.get().is_some_and(|begin| deadline.is_dead(begin));
        (!had_died).then_some(latest)
    }
}
