//! Until when an entry lives, and until when it stays: where it dies idle, and where somebody may want it after that.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{ShardState, Store, tags::TagSet};
use crate::engine::clock::{Deadline, Now, Tick, nanoseconds};

/// Below this, who reads an idle entry asks the precise clock, so that it lives for just so long.
const SHORT_IDLE: Duration = Duration::from_secs(5);

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Entries die when nobody has read them for so long.
    pub(crate) fn with_time_to_idle(mut self, time_to_idle: Duration) -> Self {
        self.time_to_idle = Some(time_to_idle);
        for index in 0..self.shard_count() {
            let mut locked = self.shards.write(index);
            let (table, state) = locked.parts();
            state.side_tables.track_hard_deadlines(table.buckets());
        }
        self
    }

    /// What is dead stays for so long, for those who ask for it.
    pub(crate) fn with_stale_window(mut self, stale_window: Duration) -> Self {
        self.stale_window = nanoseconds(stale_window).unwrap_or(u64::MAX);
        self
    }

    /// What died by then does not stay any longer.
    #[inline]
    pub(super) fn stale_cutoff(&self, now: Tick) -> Tick {
        now.earlier(self.stale_window)
    }

    /// Whether what dies at `deadline` stays no longer.
    #[inline]
    pub(super) fn is_past_stale_window(&self, deadline: Deadline, now: &impl Now) -> bool {
        match self.stale_window {
            0 => now.is_dead(deadline),
            _ => deadline.is_dead(self.stale_cutoff(now.tick())),
        }
    }

    /// When an entry dies that may live until `hard_deadline`, and is read or written now.
    #[inline]
    pub(super) fn deadline_after_write(&self, hard_deadline: Deadline, now: &impl Now) -> Deadline {
        match self.time_to_idle {
            None => hard_deadline,
            Some(time_to_idle) => hard_deadline.sooner(now.tick().after(time_to_idle)),
        }
    }

    /// When an entry would die that dies at `deadline`, and is read now and then no more, were it not for its own deadline;
    /// none where it is dead. Up to 50 ms later than by the precise clock, where that does not matter.
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
            _ if now.is_dead(deadline) => None,
            Some(time_to_idle) => Some(now.tick().after(time_to_idle)),
            None => Some(deadline),
        }
    }

    /// A value was written to this bucket, which may live until `hard_deadline` and has these tags.
    #[inline]
    pub(super) fn write_side_tables(
        &self,
        state: &mut ShardState<K, V>,
        bucket: usize,
        hard_deadline: Deadline,
        tags: Option<TagSet>,
    ) {
        if tags.is_some() || state.side_tables.is_active() {
            self.write_active_side_tables(state, bucket, hard_deadline, tags);
        }
    }

    fn write_active_side_tables(
        &self,
        state: &mut ShardState<K, V>,
        bucket: usize,
        hard_deadline: Deadline,
        tags: Option<TagSet>,
    ) {
        let is_tagged = tags.is_some();
        state.side_tables.write(bucket, hard_deadline, tags);
        if is_tagged && state.side_tables.is_removed(bucket, Deadline::PERSISTENT) {
            self.note_tag_removal();
        }
    }
}
