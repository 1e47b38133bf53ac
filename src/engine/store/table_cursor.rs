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
#[derive(Clone, Copy, Default)]
pub(crate) struct TableCursor {
    pub(super) shard: usize,
    pub(super) next: usize,
    /// Table generation of the shard when its scan began.
    generation: Option<u32>,
}

impl TableCursor {
    /// Starts a scan at the first bucket of `shard`.
    pub(crate) fn of(shard: usize) -> Self {
        Self { shard, ..Self::default() }
    }

    /// Continues in the current shard, which is locked and has this table generation.
    pub(super) fn resume_in(&mut self, generation: u32) {
        // Entries that changed buckets may be behind the cursor.
        if self.generation != Some(generation) {
            (self.generation, self.next) = (Some(generation), 0);
        }
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
        self.remove_next(cursor, now, |side_tables, bucket, key, entry, now| {
            let deadline = entry.deadline();
            !deadline.is_expired(now)
                && !side_tables.is_removed(bucket, deadline)
                && should_remove(key, &entry.value)
        })
    }

    /// Removes the entries of the next windows for which `should_remove` returns true, live or not, as `Removed`.
    pub(super) fn remove_next(
        &self,
        cursor: &mut TableCursor,
        now: &impl Now,
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
        let end = buckets.min(cursor.next + BUCKETS_PER_LOCK);
        // All entries are chosen before the first is removed: if user code panics, nothing has changed.
        for bucket in cursor.next..end {
            if let Some((key, entry)) = window::entry_at(table, bucket)
                && should_remove(&state.side_tables, bucket, key, entry, now)
            {
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
