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
        let lock = &self.map.shards()[index];
        let wanted = |table: &Table<K, V>| {
            let target = self.reserved.max(2 * table.len());
            let sparse = table.len() < table.buckets() / 4;
            (sparse && table.capacity() > 2 * target.max(SMALL)).then_some(target)
        };
        let table = lock.read();
        let (len, target) = (table.len(), wanted(&table));
        drop(table);
        let shard = &self.shards[index];
        let faded = shard.peak.load(Relaxed) / 8 * 7;
        shard.peak.store(faded.max(len), Relaxed);
        let is_ready = len <= SMALL || len >= faded;
        let Some(target) = target.filter(|_| is_ready) else { return false };
        // Made, touched and freed outside of the lock; only the moving is inside.
        let mut other = RawTable::with_capacity(target);
        window::touch(&mut other);
        self.warm(index);
        // Memory can wait: a sweeper that waited here would wait for readers.
        let Some(mut table) = lock.try_write() else { return false };
        if table.len() > other.capacity() {
            return false;
        }
        mem::swap(&mut *table, &mut other);
        for (key, entry) in other.drain() {
            table.insert(self.rehash(&key), (key, entry), |(key, _)| self.rehash(key));
        }
        self.mark_moved(index, &table);
        drop(table);
        true
    }

    /// Brings what will be moved into the processor's caches, window by window, so that it is moved in half
    /// the time under one lock.
    fn warm(&self, index: usize) {
        let lock = &self.map.shards()[index];
        let buckets = lock.read().buckets();
        for start in (0..buckets).step_by(WINDOW) {
            window::look_at(&lock.read(), start, |_, entry| {
                black_box(entry.deadline);
            });
        }
    }
}
