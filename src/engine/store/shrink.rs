//! Shrinking of sparse tables, which DashMap never does by itself.
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

use hashbrown::raw::RawTable;

use super::{
    Location, ShardState, Store,
    entry::Entry,
    old_table::OldTable,
    window::{self, ShardWriteGuard, Table, WINDOW},
};
use crate::engine::sync::atomic::Ordering::Relaxed;

/// Number of entries up to which a table is not worth shrinking. Small under shuttle, which explores interleavings.
const MIN_ENTRIES: usize = if cfg!(all(test, shuttle)) { 8 } else { 64 };

/// Number of windows that are moved under one lock. They are at most a quarter full, so these are at most 128 entries,
/// which take about 10 µs.
const WINDOWS_PER_LOCK: usize = if cfg!(all(test, shuttle)) { 1 } else { 16 };

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Begins to shrink a shard that is less than a quarter full. Returns whether it did.
    ///
    /// A shard that is being emptied is shrunk once it is nearly empty, or once it has as many entries as its recent
    /// peak, which fades by an eighth per call. Otherwise, the same entries would be moved again and again while their
    /// number falls.
    pub(crate) fn shrink(&self, index: usize) -> bool {
        let shrink_target = |table: &Table<K, V>| {
            let target = self.reserved.max(2 * table.len());
            let sparse = table.len() < table.buckets() / 4;
            (sparse && table.capacity() > 2 * target.max(MIN_ENTRIES)).then_some(target)
        };
        if index == 0 {
            self.tags.shrink_if_sparse(|| self.len());
        }
        let table = self.shards.read(index);
        let (len, target) = (table.len(), shrink_target(&table));
        drop(table);
        let meta = &self.meta[index];
        let faded = meta.peak.load(Relaxed) / 8 * 7;
        meta.peak.store(faded.max(len), Relaxed);
        let is_ready = len <= MIN_ENTRIES || len >= faded;
        let Some(target) = target.filter(|_| is_ready) else { return false };
        // Allocated, touched and later freed outside of the lock: under it, readers would wait for the system's memory.
        let mut other = RawTable::with_capacity(target);
        window::touch_pages(&mut other);
        // Only an attempt: returning memory is not urgent, and the sweeper must not wait behind readers.
        let Some(mut locked) = self.shards.try_write(index) else { return false };
        let (table, state) = locked.parts();
        if state.old.is_some() || table.len() > other.capacity() {
            return false;
        }
        mem::swap(table, &mut other);
        state.index.clear();
        state.entries_moved(table);
        let old_side_tables = state.side_tables.resize(table.buckets());
        if !other.is_empty() {
            state.index.mark_all_due();
            state.old = Some(OldTable {
                table: mem::take(&mut other),
                side_tables: old_side_tables,
                next: 0,
            });
            meta.earliest_expiry.store(0, Relaxed);
        }
        drop(locked);
        true
    }

    /// Returns whether the table of a shard is too small to be shrunk, however few entries it has.
    pub(crate) fn is_small(&self, index: usize) -> bool {
        self.shards.read(index).capacity() <= 2 * self.reserved.max(MIN_ENTRIES)
    }

    /// Moves the entries of the next windows out of the old table. Returns their number, and the old table once it is
    /// empty. The caller frees it after the unlock.
    pub(super) fn move_windows(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        shard: usize,
    ) -> (usize, Option<Table<K, V>>) {
        let (mut moving, mut moved) = (Vec::new(), 0);
        for _ in 0..WINDOWS_PER_LOCK {
            let (_, state) = locked.parts();
            let Some(OldTable { table, next, .. }) = &mut state.old else { break };
            let window = *next..table.buckets().min(*next + WINDOW);
            *next = window.end;
            let taken = |bucket, key, entry| moving.push((bucket, key, entry));
            window::drain_window(table, window, taken);
            let is_last = *next == table.buckets();
            moved += moving.len();
            for (from, key, entry) in moving.drain(..) {
                let hash = self.hash_or_zero(&key);
                self.move_entry(locked, Location { hash, index: shard }, from, key, entry);
            }
            if is_last {
                let (_, state) = locked.parts();
                return (moved, state.old.take().map(|old| old.table));
            }
        }
        (moved, None)
    }

    /// Moves the entry of this hash for which `matches` returns true, if it is in the old table.
    #[cold]
    pub(super) fn move_key(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        location: Location,
        matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) {
        let (_, state) = locked.parts();
        let Some(old) = &mut state.old else { return };
        let found = window::find_where(&mut old.table, location.hash, matches);
        if let Some(bucket) = found.map(|(bucket, _)| bucket) {
            let (key, entry) = window::take_at(&mut old.table, bucket);
            self.move_entry(locked, location, bucket, key, entry);
        }
    }

    /// Inserts an entry from bucket `from` of the old table, and moves its side table data.
    fn move_entry(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        location: Location,
        from: usize,
        key: K,
        entry: Entry<V>,
    ) {
        let to = self.insert(locked, location, key, entry);
        let (_, ShardState { side_tables, old, .. }) = locked.parts();
        if let Some(old) = old {
            side_tables.relocate(&mut old.side_tables, from, to);
        }
    }
}
