//! Cursor of a scan over all entries, some buckets under each lock, and the removal of entries by a predicate.

use std::hash::{BuildHasher, Hash};

use super::{
    Store,
    entry::{Cause, Entry},
    side_tables::SideTables,
    window::{self, WINDOW},
};
use crate::engine::{
    clock::{Now, Tick},
    panics,
};

/// Number of buckets that are examined under one lock.
const BUCKETS_PER_LOCK: usize = 8 * WINDOW;

/// Position of a scan over all entries.
///
/// While entries keep their buckets, each entry that stays in the store is examined exactly once. If they change
/// buckets (the table grows or shrinks), the shard is scanned again from its start. So no entry is missed, but some may
/// be examined twice.
///
/// Each restart multiplies the part of the shard that is scanned under one lock by [`FACTOR_PER_RESTART`]. So a shard
/// restarts only a few times, even if other tasks rehash its table faster than the first parts are scanned.
#[derive(Clone, Copy, Default)]
pub(crate) struct TableCursor {
    pub(super) shard: usize,
    pub(super) next: usize,
    /// Table generation of the shard when its scan began.
    generation: Option<u32>,
    /// Number of times that the scan of the shard was started again.
    restarts: u32,
}

/// Factor by which a restart increases the part of a shard that is scanned under one lock.
const FACTOR_PER_RESTART: usize = 8;

impl TableCursor {
    /// Starts a scan at the first bucket of `shard`.
    pub(crate) fn of(shard: usize) -> Self {
        Self { shard, ..Self::default() }
    }

    /// Continues in the current shard, which is locked and has this table generation.
    pub(super) fn resume_in(&mut self, generation: u32) {
        // Entries that changed buckets may be behind the cursor.
        if self.generation != Some(generation) {
            self.restarts += u32::from(self.generation.is_some());
            (self.generation, self.next) = (Some(generation), 0);
        }
    }

    /// Returns the factor by which the work under one lock exceeds that of a scan without restarts.
    pub(super) fn work_factor(&self) -> usize {
        FACTOR_PER_RESTART.saturating_pow(self.restarts)
    }

    /// Returns the bucket before which a step ends that examines at most `count` of `buckets`, times the
    /// [`work_factor`](Self::work_factor).
    pub(super) fn end_of_step(&self, count: usize, buckets: usize) -> usize {
        buckets.min(self.next.saturating_add(count.saturating_mul(self.work_factor())))
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Removes the live entries of the next windows for which `should_remove` returns true, under the shard's lock.
    /// Returns their number, and whether there are more windows.
    pub(crate) fn remove_if(
        &self,
        cursor: &mut TableCursor,
        should_remove: &mut impl FnMut(&K, &V) -> bool,
        now: &impl Now,
    ) -> (usize, bool) {
        self.remove_next(cursor, now, usize::MAX, |side_tables, bucket, key, entry, now| {
            let deadline = entry.deadline();
            !deadline.is_expired(now)
                && !side_tables.is_removed(bucket, deadline)
                && should_remove(key, &entry.value)
        })
    }

    /// Removes up to `max_removed` entries of the next windows for which `should_remove` returns true, live or not, as
    /// `Removed`. The cursor stops before the first one that exceeds `max_removed`.
    pub(super) fn remove_next(
        &self,
        cursor: &mut TableCursor,
        now: &impl Now,
        max_removed: usize,
        mut should_remove: impl FnMut(&SideTables, usize, &K, &Entry<V>, Tick) -> bool,
    ) -> (usize, bool) {
        let index = cursor.shard;
        let mut departures = Vec::new();
        let mut chosen = Vec::new();
        let mut locked = self.lock_shard(index);
        if locked.state().old.is_some() {
            let (_, emptied) = self.move_windows(&mut locked, index);
            drop(locked);
            drop(emptied);
            return (0, true);
        }
        let now = now.tick();
        let (table, state) = locked.parts();
        cursor.resume_in(state.generation);
        let buckets = if table.is_empty() { 0 } else { table.buckets() };
        let mut end = cursor.end_of_step(BUCKETS_PER_LOCK, buckets);
        // All entries are chosen before the first is removed: if user code panics, nothing has changed.
        for bucket in cursor.next..end {
            if let Some((key, entry)) = window::entry_at(table, bucket)
                && should_remove(&state.side_tables, bucket, key, entry, now)
            {
                if chosen.len() == max_removed {
                    end = bucket;
                    break;
                }
                state.bump_write_version_of(|| self.hash_or_zero(key), key);
                chosen.push(bucket);
            }
        }
        for bucket in &chosen {
            locked.remove_into(*bucket, Cause::Removed, now, &mut departures);
        }
        locked.record(&mut departures);
        drop(locked);
        panics::drop_all(departures);
        cursor.next = end;
        if end == buckets {
            *cursor = TableCursor::of(index + 1);
        }
        (chosen.len(), cursor.shard < self.shard_count())
    }
}
