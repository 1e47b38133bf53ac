//! Removals of many entries from one shard: all of them, or those that a scan chooses.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use super::{
    Shard,
    context::ShardContext,
    shard_state::{ScannedEntry, ShardState},
    table::Table,
    table_cursor::{BUCKETS_PER_LOCK, TableCursor},
};
use crate::engine::{
    clock::Tick,
    event::departure::{Cause, Departure},
};

impl<K, V, S> Shard<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    /// Removes the entries of the next buckets, or the whole table at once unless they are
    /// [cleared one by one](clears_one_by_one). Returns whether the shard is empty.
    ///
    /// The last step replaces the table by `replacement` and leaves the old one there, with all entries that were not
    /// removed one by one: the caller [counts](Self::count_cleared) them. Without a replacement, that step is left to
    /// the next call.
    pub(crate) fn clear_next(
        &mut self,
        cursor: &mut TableCursor,
        now: Tick,
        replacement: &mut Option<Table<K, V>>,
        departures: &mut Vec<Departure<K, V>>,
    ) -> bool {
        // Clearing counts as a write to every key: loads that began before are not stored.
        self.state().bump_all_write_versions();
        let is_one_by_one = clears_one_by_one(self.context(), self.state());
        if is_one_by_one {
            cursor.resume_in(self.state().generation);
            let end = cursor.end_of_step(BUCKETS_PER_LOCK, self.buckets());
            for bucket in cursor.next..end {
                let Some((_, entry)) = self.entry_at(bucket) else { continue };
                let is_expired = entry.deadline().is_expired(now);
                let cause = if is_expired { Cause::Expired } else { Cause::Removed };
                self.remove_into(bucket, cause, now, departures);
            }
            cursor.next = end;
        }
        let (table, state) = self.parts();
        let is_last = !is_one_by_one || cursor.next == table.buckets();
        let is_cleared = is_last && (!is_one_by_one || table.is_empty());
        if is_cleared && let Some(other) = replacement {
            mem::swap(table, other);
            let freed = state.side_tables.cleared(other.len());
            state.side_tables.resize(table.buckets());
            state.index.clear();
            state.entries_moved(table);
            self.add_freed(freed);
        }
        self.record(departures);
        // Without a replacement, the last subscriber left, or the table was replaced by a smaller one, after the
        // caller had looked: once more.
        is_last && !(is_cleared && replacement.is_none())
    }

    /// Counts the departures of entries that [`clear_next`](Self::clear_next) removed with their table.
    pub(crate) fn count_cleared(&mut self, expired: u64, removed: u64) {
        self.count_many(Cause::Expired, expired);
        self.count_many(Cause::Removed, removed);
    }

    /// Removes up to `max_removed` entries of the next buckets for which `should_remove` returns true, live or not,
    /// with `cause`, or as `Removed` if a tag removed them earlier. The cursor stops before the first one that exceeds
    /// `max_removed`. Returns the number of removed entries, and whether the shard has more buckets.
    pub(crate) fn remove_next(
        &mut self,
        cursor: &mut TableCursor,
        now: Tick,
        max_removed: usize,
        cause: Cause,
        mut should_remove: impl FnMut(&ScannedEntry<'_, K, V>, Tick) -> bool,
        departures: &mut Vec<Departure<K, V>>,
    ) -> (usize, bool) {
        let context = self.context();
        let (table, state) = self.parts();
        cursor.resume_in(state.generation);
        let buckets = if table.is_empty() { 0 } else { table.buckets() };
        let mut end = cursor.end_of_step(BUCKETS_PER_LOCK, buckets);
        let mut chosen = Vec::new();
        // All entries are chosen before the first is removed: if user code panics, nothing has changed.
        for bucket in cursor.next..end {
            if let Some(scanned) = ScannedEntry::at(table, &state.side_tables, bucket)
                && should_remove(&scanned, now)
            {
                if chosen.len() == max_removed {
                    end = bucket;
                    break;
                }
                // Not for an expired entry: no look-up returns it, so its key may be loaded since.
                if cause == Cause::Removed || scanned.is_tag_removed() {
                    state.bump_write_version_of(|| context.hash_or_zero(scanned.key), scanned.key);
                }
                chosen.push(bucket);
            }
        }
        for bucket in &chosen {
            self.remove_into(*bucket, cause, now, departures);
        }
        self.record(departures);
        cursor.next = end;
        (chosen.len(), end < buckets)
    }
}

/// Returns whether entries are cleared one by one: a subscriber or waiter needs their departures, or a removed tag
/// decides the causes by which they are counted.
pub(crate) fn clears_one_by_one<K, V, S>(
    context: &ShardContext<K, V, S>,
    state: &ShardState<K, V>,
) -> bool {
    context.journal.has_subscriber(Cause::Expired)
        || context.journal.has_subscriber(Cause::Removed)
        || context.tag_removals.is_pending()
        || state.waiters.as_ref().is_some_and(|waiters| waiters.has_departure_waiters())
}

/// Returns the numbers of expired and live entries of a table.
pub(crate) fn count_entries<K, V>(table: &Table<K, V>, now: Tick) -> (u64, u64) {
    let (mut expired, mut live) = (0, 0);
    table.for_each(|_, entry| {
        *(if entry.deadline().is_expired(now) { &mut expired } else { &mut live }) += 1;
    });
    (expired, live)
}
