//! The time of one call, and how long it keeps its worker.

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
    /// What the coarse clock showed when it was first looked at.
    coarse: Cell<u64>,
}

impl Clock {
    /// The time of a call that begins now, and may not need it.
    #[inline]
    pub(crate) fn call(&self) -> CallTime<'_> {
        CallTime { clock: self, begin: Cell::new(None), coarse: Cell::new(0) }
    }
}

impl CallTime<'_> {
    /// When the call began: read precisely, and once. From then on it is known whether it takes long.
    #[inline]
    pub(crate) fn begin(&self) -> Tick {
        if let Some(begin) = self.begin.get() {
            return begin;
        }
        let begin = self.clock.now();
        self.begin.set(Some(begin));
        self.coarse.set(self.clock.coarse_at(begin));
        begin
    }

    /// Looks at the coarse clock, so that it is known whether what follows takes long.
    #[inline]
    pub(crate) fn watch(&self) {
        if self.coarse.get() == 0 {
            self.coarse.set(self.clock.coarse());
        }
    }

    /// Whether the coarse clock has ticked since it was first looked at: as likely as the call took a large part of a
    /// tick, and certain where it took one.
    #[inline]
    pub(crate) fn has_ticked(&self) -> bool {
        let before = self.coarse.get();
        before != 0 && self.clock.coarse() > before
    }
}

impl Now for CallTime<'_> {
    #[inline]
    fn is_dead(&self, deadline: Deadline) -> bool {
        if let Some(begin) = self.begin.get()
            && deadline.is_dead(begin)
        {
            return true;
        }
        self.clock.is_dead(deadline)
    }

    fn tick(&self) -> Tick {
        self.clock.now()
    }
}
