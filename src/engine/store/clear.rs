//! Removal of all entries, or of those that a predicate chooses, a part of a shard under each lock.

use std::hash::{BuildHasher, Hash};

use super::Store;
use crate::engine::{
    clock::{Now, Tick},
    event::departure::Cause,
    panics,
    shard::{
        clear::{clears_one_by_one, count_entries},
        shard_state::ScannedEntry,
        table::Table,
        table_cursor::{BUCKETS_PER_LOCK, TableCursor},
    },
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Removes the entries of the next windows of a shard, or of the whole shard at once unless they are
    /// [cleared one by one](clears_one_by_one). Returns whether entries may be left.
    pub(crate) fn clear_windows(&self, cursor: &mut TableCursor, now: &impl Now) -> bool {
        // Allocated before the lock: under it, readers would wait for the allocator. Only for the step that replaces
        // the table, since the capacity may be that of millions of entries.
        let mut replacement =
            self.may_replace_table(cursor).then(|| Table::with_capacity(self.reserved));
        let mut departures = Vec::with_capacity(BUCKETS_PER_LOCK);
        let Ok(mut locked) = self.lock_shard(cursor.shard).unless_moving() else { return true };
        let now = now.tick();
        let is_empty = locked.clear_next(cursor, now, &mut replacement, &mut departures);
        drop(locked);
        if let Some(cleared) = &mut replacement {
            // Counted after the unlock, since that visits every entry. Locked again: the counters are incremented by a
            // load and a store, so all increments need the lock.
            let (expired, removed) = count_entries(cleared, now);
            if expired + removed > 0 {
                self.lock_shard(cursor.shard).count_cleared(expired, removed);
            }
        }
        // Dropped one by one: if one drop panics, dropping the table as a whole would leak the rest.
        panics::drop_all(departures);
        panics::drop_all(replacement.iter_mut().flat_map(Table::drain));
        !is_empty
    }

    /// Returns whether the next step may have to replace the table.
    fn may_replace_table(&self, cursor: &TableCursor) -> bool {
        let shard = self.shards.read(cursor.shard);
        !clears_one_by_one(&self.context, shard.state())
            || cursor.end_of_step(BUCKETS_PER_LOCK, shard.buckets()) == shard.buckets()
    }

    /// Removes the live entries of the next windows for which `should_remove` returns true, under the shard's lock.
    /// Returns their number, and whether there are more windows.
    pub(crate) fn remove_if(
        &self,
        cursor: &mut TableCursor,
        should_remove: &mut impl FnMut(&K, &V) -> bool,
        now: &impl Now,
    ) -> (usize, bool) {
        self.remove_next(cursor, now, usize::MAX, Cause::Removed, |scanned, now| {
            scanned.is_live(now) && should_remove(scanned.key, &scanned.entry.value)
        })
    }

    /// Removes up to `max_removed` entries of the next windows for which `should_remove` returns true, live or not,
    /// with `cause`, or as `Removed` if a tag removed them earlier. Returns their number, and whether there are more
    /// windows.
    pub(super) fn remove_next(
        &self,
        cursor: &mut TableCursor,
        now: &impl Now,
        max_removed: usize,
        cause: Cause,
        should_remove: impl FnMut(&ScannedEntry<'_, K, V>, Tick) -> bool,
    ) -> (usize, bool) {
        let mut departures = Vec::new();
        let Ok(mut locked) = self.lock_shard(cursor.shard).unless_moving() else {
            return (0, true);
        };
        let now = now.tick();
        let (removed, has_more) =
            locked.remove_next(cursor, now, max_removed, cause, should_remove, &mut departures);
        drop(locked);
        panics::drop_all(departures);
        if !has_more {
            *cursor = TableCursor::of(cursor.shard + 1);
        }
        (removed, cursor.shard < self.shard_count())
    }
}
