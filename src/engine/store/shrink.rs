//! Giving back the memory that the dead leave: DashMap never does by itself.
//!
//! What is left moves to a smaller table, some windows at a time, so that nobody waits for all of it:
//!
//! 1. Meanwhile the shard has two tables, and each entry is in one of them. Who reads looks into both, who writes
//!    moves the entry of its key first, and a sweep moves the rest before it looks at anything.
//! 2. A shard with two tables counts as due, so the next sweep comes.

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

/// A table for this many entries is not worth giving back. (Few, where each order of threads is tried.)
const MIN_ENTRIES: usize = if cfg!(all(test, shuttle)) { 8 } else { 64 };

/// How many windows move under one lock. They are a quarter full at most, and so these are 128 entries and some 10 µs.
const WINDOWS_PER_LOCK: usize = if cfg!(all(test, shuttle)) { 1 } else { 16 };

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Gives memory back where a shard is less than a quarter full. Tells whether it begins to.
    ///
    /// A shard that is being emptied waits until next to nothing is left, or as much as of its last peak, which fades
    /// by an eighth each time: else the same entries would move over and over.
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
        // Made, touched and freed outside of the lock.
        let mut other = RawTable::with_capacity(target);
        window::touch_pages(&mut other);
        // Memory can wait: a sweeper that waited here would wait for readers.
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

    /// Moves some of what is still in the old table. Tells how many, and gives the table back once it is empty, to be
    /// freed after the lock.
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
            window::take_if(table, window, usize::MAX, |_| true, taken);
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

    /// Moves the entry of this hash that `is_it`, if the old table has it.
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

    /// Puts in what was in bucket `from` of the old table.
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
