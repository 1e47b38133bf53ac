//! Lifetimes of entries: hard, idle and stale deadlines; and lock-free lower bounds on the next expiry, so that the
//! sweeper may skip a shard or sleep.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::Store;
use crate::engine::{
    clock::{Deadline, Now, SHORT, Tick, nanoseconds},
    sync::atomic::{
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Lets entries expire if they were not read for `time_to_idle`.
    pub(crate) fn with_time_to_idle(mut self, time_to_idle: Duration) -> Self {
        self.time_to_idle = Some(time_to_idle);
        for index in 0..self.shard_count() {
            self.lock_shard(index).track_hard_deadlines();
        }
        self
    }

    /// Keeps expired entries for `stale_window`, so that loaders may return them.
    pub(crate) fn with_stale_window(mut self, stale_window: Duration) -> Self {
        self.stale_window = nanoseconds(stale_window).unwrap_or(u64::MAX);
        self
    }

    /// Returns whether expired entries are kept, for a stale window.
    #[inline]
    pub(super) fn keeps_stale(&self) -> bool {
        self.stale_window > 0
    }

    /// Returns whether a value that is written with this deadline departs at once, instead of staying for its stale
    /// window: a caller that writes a value with a TTL of zero wants that no one gets it from the cache. Calls
    /// `deadline` only if there is a stale window.
    #[inline]
    pub(super) fn expires_at_once(
        &self,
        deadline: impl FnOnce() -> Deadline,
        now: &impl Now,
    ) -> bool {
        self.keeps_stale() && now.is_expired(deadline())
    }

    /// Returns the stale cutoff: entries that expired by then are past their stale window.
    #[inline]
    pub(in crate::engine) fn stale_cutoff(&self, now: Tick) -> Tick {
        now.earlier(self.stale_window)
    }

    /// Returns whether an entry with this deadline is past its stale window; without a window, whether it has expired.
    #[inline]
    pub(super) fn is_past_stale_window(&self, deadline: Deadline, now: &impl Now) -> bool {
        match self.stale_window {
            0 => now.is_expired(deadline),
            _ => deadline.is_expired(self.stale_cutoff(now.tick())),
        }
    }

    /// Returns the deadline of an entry that is written now: the sooner of its hard deadline and its idle deadline.
    #[inline]
    pub(super) fn deadline_after_write(&self, hard_deadline: Deadline, now: &impl Now) -> Deadline {
        match self.time_to_idle {
            None => hard_deadline,
            Some(time_to_idle) => hard_deadline.sooner(now.tick().after(time_to_idle)),
        }
    }

    /// Returns the deadline of an entry that is read now, before its hard deadline is applied; `None` if it has
    /// expired. With a long idle time, it may be up to 50 ms later than by the precise clock.
    #[inline(always)]
    pub(super) fn deadline_after_read(
        &self,
        deadline: Deadline,
        now: &impl Now,
    ) -> Option<Deadline> {
        match self.time_to_idle {
            Some(time_to_idle) if time_to_idle >= SHORT => {
                Some(now.unless_expired(deadline)?.after(time_to_idle))
            }
            _ if now.is_expired(deadline) => None,
            Some(time_to_idle) => Some(now.tick().after(time_to_idle)),
            None => Some(deadline),
        }
    }

    /// Returns whether no entry of the shard is past its stale window at `now`, judged without the lock.
    #[inline]
    pub(crate) fn has_nothing_due(&self, shard: usize, now: Tick) -> bool {
        self.context.meta[shard].earliest_expiry.load(Relaxed)
            > Deadline::from(self.stale_cutoff(now)).order()
    }

    /// Returns the time until the next entry is past its stale window; `None` if no entry expires. May be too short.
    pub(crate) fn until_due(&self, now: Tick) -> Option<Duration> {
        let earliest =
            self.context.meta.iter().map(|meta| meta.earliest_expiry.load(Relaxed)).min()?;
        let due = Tick::from_nanoseconds(earliest).later(self.stale_window);
        (earliest != Deadline::PERSISTENT.order()).then(|| due.since(now))
    }

    /// Arms the wake deadline: a write of an entry that is due before `at` wakes the sweeper. Returns false, without
    /// arming it, if an entry is already due before `at`.
    pub(crate) fn arm_wake_deadline(&self, at: Tick) -> bool {
        let wake_deadline = Deadline::from(self.stale_cutoff(at)).order();
        self.context.wake_deadline.store(wake_deadline, Relaxed);
        // Pairs with the fence in `note_earliest_expiry`, see there. A tag removal needs no fence: `remove_tag`
        // requests the wake-up in any case.
        fence(SeqCst);
        let mut earliest = self.context.meta.iter().map(|meta| meta.earliest_expiry.load(Relaxed));
        let may_sleep = earliest.all(|earliest| earliest >= wake_deadline)
            && !self.has_tag_removals()
            && !self.has_deferred_evictions();
        if !may_sleep {
            self.disarm_wake_deadline();
        }
        may_sleep
    }

    /// Wakes the sweeper if it rests, because of work of which it does not know when it is due.
    pub(crate) fn wake_if_resting(&self) {
        // Pairs with the fence in `arm_wake_deadline`, as that of `note_earliest_expiry` does.
        fence(SeqCst);
        if self.context.wake_deadline.load(Relaxed) != 0 {
            self.context.journal.request_wake();
        }
    }

    /// Disarms the wake deadline, because the sweeper is awake.
    pub(crate) fn disarm_wake_deadline(&self) {
        self.context.wake_deadline.store(0, Relaxed);
        self.context.journal.take_wake_request();
    }
}
