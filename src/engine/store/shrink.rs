//! Giving back the memory that the dead leave: DashMap never does by itself.

use std::{
    hash::{BuildHasher, Hash},
    hint::black_box,
    mem,
};

use hashbrown::raw::RawTable;

use super::{
    Store,
    window::{self, Table, WINDOW},
};
use crate::engine::sync::atomic::Ordering::Relaxed;

/// A table for this many entries is not worth giving back.
const SMALL: usize = 64;

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Gives memory back where a shard is less than a quarter full. Tells whether it did.
    ///
    /// What is left moves under the lock, 0.1 µs an entry. So a shard that is being emptied waits until next to
    /// nothing is left, or as much as of its last peak, which fades by an eighth each time.
    pub(crate) fn shrink(&self, index: usize) -> bool {
        let wanted = |table: &Table<K, V>| {
            let target = self.reserved.max(2 * table.len());
            let sparse = table.len() < table.buckets() / 4;
            (sparse && table.capacity() > 2 * target.max(SMALL)).then_some(target)
        };
        let table = self.shards.read(index);
        let (len, target) = (table.len(), wanted(&table));
        drop(table);
        let notes = &self.notes[index];
        let faded = notes.peak.load(Relaxed) / 8 * 7;
        notes.peak.store(faded.max(len), Relaxed);
        let is_ready = len <= SMALL || len >= faded;
        let Some(target) = target.filter(|_| is_ready) else { return false };
        // Made, touched and freed outside of the lock; only the moving is inside.
        let mut other = RawTable::with_capacity(target);
        window::touch(&mut other);
        self.warm(index);
        // Memory can wait: a sweeper that waited here would wait for readers.
        let Some(mut locked) = self.shards.try_write(index) else { return false };
        let (table, beside) = locked.parts();
        if table.len() > other.capacity() {
            return false;
        }
        mem::swap(table, &mut other);
        for (key, entry) in other.drain() {
            table.insert(self.rehash(&key), (key, entry), |(key, _)| self.rehash(key));
        }
        beside.entries_moved(table);
        drop(locked);
        true
    }

    /// Brings what will be moved into the processor's caches, window by window, so that it is moved in half
    /// the time under one lock.
    fn warm(&self, index: usize) {
        let buckets = self.shards.read(index).buckets();
        for start in (0..buckets).step_by(WINDOW) {
            window::look_at(&self.shards.read(index), start, |_, entry| {
                black_box(entry.deadline);
            });
        }
    }
}
