//! Lifetimes of entries: hard, idle and stale deadlines.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::Store;
use crate::engine::clock::{Deadline, Now, Tick, nanoseconds};

/// Idle time below which reads use the precise clock for the new idle deadline, since an error of 50 ms would matter.
const SHORT_IDLE: Duration = Duration::from_secs(5);

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

    /// Returns the stale cutoff: entries that expired by then are past their stale window.
    #[inline]
    pub(super) fn stale_cutoff(&self, now: Tick) -> Tick {
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
            Some(time_to_idle) if time_to_idle >= SHORT_IDLE => {
                Some(now.unless_dead(deadline)?.after(time_to_idle))
            }
            _ if now.is_expired(deadline) => None,
            Some(time_to_idle) => Some(now.tick().after(time_to_idle)),
            None => Some(deadline),
        }
    }
}
