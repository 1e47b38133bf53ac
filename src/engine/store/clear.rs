//! Removal of all entries, a part of a shard under each lock.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use hashbrown::raw::RawTable;

use super::{
    ShardState, Store,
    counters::bump,
    entry::Cause,
    table_cursor::TableCursor,
    window::{self, WINDOW},
};
use crate::engine::{clock::Now, panics};

/// Number of buckets that are cleared under one lock.
const BUCKETS_PER_LOCK: usize = 8 * WINDOW;

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Removes the entries of the next windows of a shard, or of the whole shard at once if no subscriber or waiter
    /// needs the departures. Returns whether entries may be left.
    pub(crate) fn clear_windows(&self, cursor: &mut TableCursor, now: &impl Now) -> bool {
        // Allocated before the lock: under it, readers would wait for the allocator. Only for the step that replaces the
        // table, since the capacity may be that of millions of entries.
        let has_replacement = self.may_replace_table(cursor);
        let mut old_table = match has_replacement {
            true => RawTable::with_capacity(self.reserved),
            false => RawTable::new(),
        };
        let mut departures = Vec::with_capacity(BUCKETS_PER_LOCK);
        let mut locked = self.lock_shard(cursor.shard);
        if locked.state().old.is_some() {
            let (_, emptied) = self.move_windows(&mut locked, cursor.shard);
            drop(locked);
            drop(emptied);
            return true;
        }
        let now = now.tick();
        let (table, state) = locked.parts();
        // Clearing counts as a write to every key: loads that began before are not stored.
        state.bump_all_write_versions();
        let is_recorded = self.records_clear(state);
        if is_recorded {
            cursor.resume_in(state.generation);
            let end = cursor.end_of_step(BUCKETS_PER_LOCK, table.buckets());
            for bucket in cursor.next..end {
                let Some((_, entry)) = window::entry_at(&locked, bucket) else { continue };
                let is_expired = entry.deadline().is_expired(now);
                let cause = if is_expired { Cause::Expired } else { Cause::Removed };
                locked.remove_into(bucket, cause, now, &mut departures);
            }
            cursor.next = end;
        }
        let (table, state) = locked.parts();
        let mut is_last = !is_recorded || cursor.next == table.buckets();
        if is_last && (!is_recorded || table.is_empty()) && !has_replacement {
            // The last subscriber left, or the table was replaced by a smaller one, after the check: once more.
            is_last = false;
        } else if !is_recorded || is_last && table.is_empty() {
            mem::swap(table, &mut old_table);
            let freed = state.side_tables.cleared(old_table.len());
            state.side_tables.resize(table.buckets());
            state.index.clear();
            state.entries_moved(table);
            locked.add_freed(freed);
        }
        locked.record(&mut departures);
        drop(locked);
        // Departures without subscribers are counted after the unlock, since that visits every entry.
        let (mut expired, mut removed) = (0, 0);
        window::for_each(&old_table, |_, entry| {
            *(if entry.deadline().is_expired(now) { &mut expired } else { &mut removed }) += 1;
        });
        if expired + removed > 0 {
            // Locked again: the counters are incremented by a load and a store, so all increments need the lock.
            let counting = self.shards.write(cursor.shard);
            let counters = &self.meta[cursor.shard].departures;
            bump(&counters.expired, expired);
            bump(&counters.removed, removed);
            drop(counting);
        }
        // Dropped one by one: if one drop panics, dropping the table as a whole would leak the rest.
        panics::drop_all(departures);
        panics::drop_all(old_table.drain());
        !is_last
    }

    /// Returns whether the next step may have to replace the table.
    fn may_replace_table(&self, cursor: &TableCursor) -> bool {
        let shard = self.shards.read(cursor.shard);
        !self.records_clear(shard.state())
            || cursor.end_of_step(BUCKETS_PER_LOCK, shard.buckets()) == shard.buckets()
    }

    /// Returns whether a subscriber or waiter needs the departures of cleared entries.
    fn records_clear(&self, state: &ShardState<K, V>) -> bool {
        self.journal.has_subscriber(Cause::Expired)
            || self.journal.has_subscriber(Cause::Removed)
            || state.waiters.as_ref().is_some_and(|waiters| waiters.has_departure_waiters())
    }
}
