//! Shrinking of sparse tables, which DashMap never does by itself. `shard::rehash` moves the entries.

use std::hash::{BuildHasher, Hash};

use super::Store;
use crate::engine::{
    shard::{Shard, table::Table},
    sync::atomic::Ordering::Relaxed,
};

/// Number of entries up to which a table is not worth shrinking. Small under shuttle, which explores interleavings.
const MIN_ENTRIES: usize = if cfg!(all(test, shuttle)) { 8 } else { 64 };

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
        let meta = &self.context.meta[index];
        let faded = meta.peak.load(Relaxed) / 8 * 7;
        meta.peak.store(faded.max(len), Relaxed);
        let is_ready = len <= MIN_ENTRIES || len >= faded;
        let Some(target) = target.filter(|_| is_ready) else { return false };
        // Allocated, touched and later freed outside of the lock: under it, readers would wait for the system's memory.
        let mut other = Table::with_capacity(target);
        other.touch_pages();
        // Only an attempt: returning memory is not urgent, and the sweeper must not wait behind readers.
        let Some(locked) = self.shards.try_write(index) else { return false };
        let mut locked = Shard::new(&self.context, locked);
        let has_begun = locked.begin_shrink(&mut other);
        drop(locked);
        has_begun
    }

    /// Returns whether the table of a shard is too small to be shrunk, however few entries it has.
    pub(crate) fn is_small(&self, index: usize) -> bool {
        self.shards.read(index).capacity() <= 2 * self.reserved.max(MIN_ENTRIES)
    }
}
