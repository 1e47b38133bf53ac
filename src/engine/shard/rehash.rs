//! Moves of entries between buckets: growth, and the old table of a shard that is being shrunk.
//!
//! Entries move to a smaller table a few windows at a time, so that no lock is held for long:
//!
//! 1. In the meantime, the shard has two tables, and each entry is in exactly one of them. Readers search both. A
//!    writer moves the entry of its key to the current table before anything else. A sweep, a clear and every other
//!    scan move all the rest before they examine anything.
//! 2. New entries are inserted only into the current table, so the old one only loses entries.
//! 3. A shard with two tables counts as due (its earliest expiry is 0), so that the next sweep does not skip it.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use equivalent::Equivalent;

use super::{
    Shard,
    entry::Entry,
    shard_state::{OldTable, ShardState},
    side_tables::SideTables,
    table::{Table, WINDOW},
};
use crate::engine::sync::atomic::Ordering::Relaxed;

/// Number of windows that are moved under one lock. They are at most a quarter full, so these are at most 128 entries,
/// which take about 10 µs.
const WINDOWS_PER_LOCK: usize = if cfg!(all(test, shuttle)) { 1 } else { 16 };

impl<K, V, S> Shard<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    /// Inserts an entry whose key is in neither table of the shard. Returns its bucket.
    pub(crate) fn insert(&mut self, hash: u64, key: K, entry: Entry<V>) -> usize {
        let context = self.context();
        let (table, state) = self.parts();
        if table.capacity() == table.len() {
            // Grown here and not by `Table::insert`, so that the shard learns when entries change buckets.
            let rehash = |key: &K| context.hash_or_zero(key);
            match state.side_tables.is_active() {
                false => table.reserve(rehash),
                true => grow(table, &mut state.side_tables, rehash),
            }
            state.entries_moved(table);
        }
        let deadline = entry.deadline();
        let bucket = table.insert(hash, key, entry, |key| context.hash_or_zero(key));
        self.note_deadline(bucket, deadline);
        bucket
    }

    /// Replaces the table by `other`, which is empty and has capacity for all entries, and begins to move them. Leaves
    /// a table that is to be freed after the unlock in `other`. Returns false, without any change, if the shard is
    /// being shrunk already, or has grown.
    pub(crate) fn begin_shrink(&mut self, other: &mut Table<K, V>) -> bool {
        let shard = self.index();
        let (table, state) = self.parts();
        if state.old.is_some() || table.len() > other.capacity() {
            return false;
        }
        mem::swap(table, other);
        state.index.clear();
        state.entries_moved(table);
        let side_tables = state.side_tables.resize(table.buckets());
        if !other.is_empty() {
            state.index.mark_all_due();
            state.old = Some(Box::new(OldTable { table: other.take(), side_tables, next: 0 }));
            self.context().meta[shard].earliest_expiry.store(0, Relaxed);
        }
        true
    }

    /// Moves the entry of `key` to the current table, if it is still in the old one.
    #[inline]
    pub(crate) fn ensure_moved<Q>(&mut self, hash: u64, key: &Q)
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.ensure_moved_where(hash, |k, _| key.equivalent(k));
    }

    /// Moves the entry of this hash for which `matches` returns true, as [`ensure_moved`](Self::ensure_moved) does.
    #[inline]
    pub(crate) fn ensure_moved_where(
        &mut self,
        hash: u64,
        matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) {
        if self.state().old.is_some() {
            self.move_entry_where(hash, matches);
        }
    }

    #[cold]
    fn move_entry_where(&mut self, hash: u64, matches: impl FnMut(&K, &Entry<V>) -> bool) {
        let Some(old) = &mut self.parts().1.old else { return };
        let found = old.table.find_mut(hash, matches);
        if let Some(bucket) = found.map(|(bucket, _)| bucket) {
            let (key, entry) = old.table.take_at(bucket);
            self.move_entry(hash, bucket, key, entry);
        }
    }

    /// Moves the entries of the next windows out of the old table. Returns their number, and the old table once it is
    /// empty. The caller frees it after the unlock.
    pub(crate) fn move_windows(&mut self) -> (usize, Option<Table<K, V>>) {
        let (mut moving, mut moved) = (Vec::new(), 0);
        for _ in 0..WINDOWS_PER_LOCK {
            let Some(OldTable { table, next, .. }) = self.parts().1.old.as_deref_mut() else {
                break;
            };
            let window = *next..table.buckets().min(*next + WINDOW);
            *next = window.end;
            let taken = |bucket, key, entry| moving.push((bucket, key, entry));
            table.drain_window(window, taken);
            let is_last = *next == table.buckets();
            moved += moving.len();
            for (from, key, entry) in moving.drain(..) {
                let hash = self.context().hash_or_zero(&key);
                self.move_entry(hash, from, key, entry);
            }
            if is_last {
                return (moved, self.parts().1.old.take().map(|old| old.table));
            }
        }
        (moved, None)
    }

    /// Continues to move entries if the shard is being shrunk: every scan does so before it examines anything. Unlocks
    /// the shard and returns the number of moved entries; returns the shard if it has one table.
    #[inline]
    pub(crate) fn unless_moving(mut self) -> Result<Self, usize> {
        if self.state().old.is_none() {
            return Ok(self);
        }
        let (moved, emptied) = self.move_windows();
        // In this order: freeing a table takes long.
        drop(self);
        drop(emptied);
        Err(moved)
    }

    /// Inserts an entry from bucket `from` of the old table, and moves its side table data.
    fn move_entry(&mut self, hash: u64, from: usize, key: K, entry: Entry<V>) {
        let to = self.insert(hash, key, entry);
        let (_, ShardState { side_tables, old, .. }) = self.parts();
        if let Some(old) = old {
            side_tables.relocate(&mut old.side_tables, from, to);
        }
    }
}

/// Rehashes a full table and moves its side tables along. Used instead of `Table::reserve`, which does not report
/// to which buckets it moves entries. If enough buckets are free, the new table has the same size: the table was full
/// of tombstones, which removals leave behind. At least an eighth of the buckets is free then, so a rehash is paid for
/// by that many inserts.
pub(crate) fn grow<K, V>(
    table: &mut Table<K, V>,
    side_tables: &mut SideTables,
    hash: impl Fn(&K) -> u64,
) {
    let full = if table.buckets() < 8 { table.buckets() - 1 } else { table.buckets() / 8 * 7 };
    let capacity = if table.len() < full / 8 * 7 { full } else { full + 1 };
    let mut larger = Table::with_capacity(capacity);
    let mut old_side_tables = side_tables.resize(larger.buckets());
    for start in (0..table.buckets()).step_by(WINDOW) {
        let end = table.buckets().min(start + WINDOW);
        let taken = |from, key, entry| {
            let to = larger.insert(hash(&key), key, entry, &hash);
            side_tables.relocate(&mut old_side_tables, from, to);
        };
        table.drain_window(start..end, taken);
    }
    mem::swap(table, &mut larger);
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::engine::{
        clock::{Deadline, Tick},
        hasher::DefaultHasher,
        store::Store,
    };

    /// Inserts and removals leave tombstones. Clearing them must not make the table larger.
    #[test]
    fn table_at_its_bound_does_not_grow() {
        let store = Store::<u64, u64, _>::new(64, 0, DefaultHasher::default());
        let store = store.evicting(10_000, None, || 1);
        for key in 0..300_000 {
            store.set(key, key, &Tick::EPOCH, |_| Deadline::PERSISTENT);
        }
        let buckets = (0..64).map(|shard| store.table_size(shard).0).sum::<usize>();
        assert_eq!(store.len(), 10_000);
        assert!(buckets <= 20_000, "{buckets}");
    }
}
