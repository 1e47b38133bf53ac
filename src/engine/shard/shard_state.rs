//! Everything besides the table that the lock of a shard guards, and look-ups under the read lock.

use std::{iter, sync::Arc};

use equivalent::Equivalent;
use tokio::sync::Notify;

#[cfg(feature = "serde")]
use super::tags::TagSet;
use super::{
    entry::Entry,
    expiry_index::Index,
    side_tables::{OldSideTables, SideTables},
    table::{ShardReadGuard, ShardWriteGuard, Table},
};
use crate::engine::{
    clock::{Deadline, Tick},
    waiters::{Waiters, flight::Flight},
};

/// Everything that the lock of a shard guards in addition to its table.
pub(crate) struct ShardState<K, V> {
    pub(super) index: Index,
    /// Entries that were not moved yet out of a table that is being shrunk; see [`rehash`](super::rehash).
    /// In a box: it is rare, and the other fields fit in two cache lines.
    pub(super) old: Option<Box<OldTable<K, V>>>,
    pub(super) side_tables: SideTables,
    /// `None` if no task waits for a key of this shard.
    pub(super) waiters: Option<Box<Waiters<K, V>>>,
    /// Sweep cursor: the bucket at which the next pass continues.
    pub(super) cursor: usize,
    /// True if entries changed buckets since the last pass, so that the next pass must examine the whole shard.
    pub(super) moved: bool,
    /// Table generation: number of times that entries changed buckets.
    pub(super) generation: u32,
}

/// A table that is being shrunk, with the entries that were not moved yet.
pub(crate) struct OldTable<K, V> {
    pub(super) table: Table<K, V>,
    /// Side tables of its entries.
    pub(super) side_tables: OldSideTables,
    /// First bucket from which no entry was moved yet, except single keys by writers.
    pub(super) next: usize,
}

/// An entry that was found under the read lock.
pub(crate) struct FoundEntry<'a, V> {
    pub(crate) bucket: usize,
    /// True if the bucket is one of the old table, from which entries are being moved.
    pub(crate) in_old_table: bool,
    pub(crate) entry: &'a Entry<V>,
}

/// An entry that a scan of the table examines.
pub(crate) struct ScannedEntry<'a, K, V> {
    pub(crate) key: &'a K,
    pub(crate) entry: &'a Entry<V>,
    bucket: usize,
    side_tables: &'a SideTables,
}

impl<'a, K, V> ScannedEntry<'a, K, V> {
    /// Returns the entry in `bucket`, if it holds one.
    #[inline]
    pub(crate) fn at(
        table: &'a Table<K, V>,
        side_tables: &'a SideTables,
        bucket: usize,
    ) -> Option<Self> {
        let (key, entry) = table.entry_at(bucket)?;
        Some(Self { key, entry, bucket, side_tables })
    }

    /// Returns whether a tag of the entry was removed before its deadline.
    #[inline]
    pub(crate) fn is_tag_removed(&self) -> bool {
        self.side_tables.is_removed(self.bucket, self.entry.deadline())
    }

    /// Returns whether a tag of the entry was removed, before its deadline or in its stale window.
    #[inline]
    pub(crate) fn has_removed_tag(&self) -> bool {
        self.side_tables.is_removed(self.bucket, Deadline::PERSISTENT)
    }

    /// Returns whether a look-up at `now` would return the entry.
    #[inline]
    pub(crate) fn is_live(&self, now: Tick) -> bool {
        !self.entry.deadline().is_expired(now) && !self.is_tag_removed()
    }

    pub(crate) fn weight(&self) -> u32 {
        self.side_tables.weight(self.bucket)
    }

    #[cfg(feature = "serde")]
    #[inline]
    pub(crate) fn hard_deadline(&self) -> Deadline {
        self.side_tables.hard_deadline(self.bucket).unwrap_or_else(|| self.entry.deadline())
    }

    #[cfg(feature = "serde")]
    #[inline]
    pub(crate) fn tags(&self) -> Option<TagSet> {
        self.side_tables.tags(self.bucket)
    }
}

impl<K, V> ShardState<K, V> {
    pub(crate) fn new(table: &Table<K, V>) -> Self {
        Self {
            index: Index::new(table),
            old: None,
            side_tables: SideTables::default(),
            waiters: None,
            cursor: 0,
            moved: false,
            generation: 0,
        }
    }

    /// Records that entries of this shard changed buckets, or that `table` replaced another one.
    pub(crate) fn entries_moved(&mut self, table: &Table<K, V>) {
        self.moved = true;
        self.generation = self.generation.wrapping_add(1);
        self.index.entries_moved(table);
    }

    /// Increments the write version of a key's flight, so that a load that began earlier is not stored.
    #[inline]
    pub(crate) fn bump_write_version<Q>(&self, hash: u64, key: &Q)
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some(flight) = self.flight(hash, key) {
            flight.bump_write_version();
        }
    }

    /// Returns the flight of a key.
    #[inline]
    pub(crate) fn flight<Q>(&self, hash: u64, key: &Q) -> Option<&Arc<Flight<V>>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.waiters.as_ref()?.loads.find(hash, key)
    }

    /// As [`bump_write_version`](Self::bump_write_version), but computes the hash only if the shard has waiters.
    #[inline]
    pub(crate) fn bump_write_version_of(&self, hash: impl FnOnce() -> u64, key: &K)
    where
        K: Eq,
    {
        if self.waiters.is_some() {
            self.bump_write_version(hash(), key);
        }
    }

    /// Increments the write version of every flight of the shard.
    pub(crate) fn bump_all_write_versions(&self) {
        if let Some(waiters) = &self.waiters {
            waiters.loads.each(Flight::bump_write_version);
        }
    }

    /// Returns the insert waiters for this hash, to be notified after the unlock.
    #[inline]
    pub(crate) fn insert_waiters(&self, hash: u64) -> Option<Arc<Notify>> {
        self.waiters.as_ref()?.insert_waiters.find(hash, &()).cloned()
    }

    /// Returns whether any task waits for the removal of this key's value.
    #[inline]
    pub(crate) fn has_departure_waiters(&self, hash: u64, key: &K) -> bool
    where
        K: Eq,
    {
        let found =
            self.waiters.as_ref().and_then(|waiters| waiters.departure_waiters.find(hash, key));
        found.is_some()
    }

    /// Returns the waiters, to add one.
    pub(crate) fn waiters_mut(&mut self) -> &mut Waiters<K, V> {
        self.waiters.get_or_insert_with(|| Box::new(Waiters::new()))
    }
}

impl<K, V> ShardWriteGuard<'_, K, V, ShardState<K, V>> {
    /// Passes all entries to `each`, at the end of the store.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(K, Entry<V>)) {
        let (table, state) = self.parts();
        let old = state.old.iter_mut().flat_map(|old| old.table.drain());
        table.drain().chain(old).for_each(|(key, entry)| each(key, entry));
    }
}

impl<K, V> ShardReadGuard<'_, K, V, ShardState<K, V>> {
    /// Returns the entry in a bucket of the current table, if it holds one, for a scan.
    // Inlined, and so are the methods of the result: a result that is returned in memory is read only after the stores
    // of the previous copy, so the cache misses of a scan would not overlap.
    #[cfg(feature = "serde")]
    #[inline]
    pub(crate) fn scanned(&self, bucket: usize) -> Option<ScannedEntry<'_, K, V>> {
        ScannedEntry::at(self, &self.state().side_tables, bucket)
    }

    /// Returns the number of times that entries changed buckets.
    #[cfg(feature = "serde")]
    pub(crate) fn generation(&self) -> u32 {
        self.state().generation
    }

    /// Records a hit of an entry.
    #[inline]
    pub(crate) fn touch(&self, found: &FoundEntry<'_, V>) {
        if !found.in_old_table {
            self.state().side_tables.touch(found.bucket);
        }
    }

    /// Returns whether the missing key with this hash was evicted recently.
    pub(crate) fn was_evicted_recently(&self, hash: u64) -> bool {
        let eviction = self.state().side_tables.eviction.as_ref();
        eviction.is_some_and(|eviction| eviction.was_evicted_recently(hash))
    }

    /// Returns whether any task waits for any key.
    #[cfg(all(test, shuttle))]
    pub(crate) fn has_waiters(&self) -> bool {
        self.state().waiters.is_some()
    }

    /// Returns whether entries are being moved out of an old table.
    #[cfg(any(all(test, not(shuttle)), feature = "serde"))]
    pub(crate) fn is_shrinking(&self) -> bool {
        self.state().old.is_some()
    }

    /// Returns the number of entries in both tables.
    pub(crate) fn resident(&self) -> usize {
        self.tables().map(Table::len).sum()
    }

    /// Returns the tables that hold entries: one, or two while entries are being moved.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Table<K, V>> {
        let old = self.state().old.as_ref();
        iter::once(&**self).chain(old.map(|old| &old.table))
    }

    /// Returns the entry of `key`, in whichever table it is.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Not `Table::find`, which also computes the bucket's index.
        let mut found = self.get(hash, key);
        if found.is_none()
            && let Some(old) = &self.state().old
        {
            found = old.table.get(hash, key);
        }
        found
    }

    /// Returns the entry of `key` as [`find`](Self::find) does, with its bucket.
    #[inline]
    pub(crate) fn find_at<Q>(&self, hash: u64, key: &Q) -> Option<FoundEntry<'_, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some((bucket, entry)) = Table::find(self, hash, key) {
            return Some(FoundEntry { bucket, in_old_table: false, entry });
        }
        let old = self.state().old.as_ref()?;
        let (bucket, entry) = old.table.find(hash, key)?;
        Some(FoundEntry { bucket, in_old_table: true, entry })
    }

    /// Returns the hard deadline of an entry; `None` if the store has no idle deadlines, and the entry's own is the
    /// hard one.
    #[inline]
    pub(crate) fn hard_deadline(&self, found: &FoundEntry<'_, V>) -> Option<Deadline> {
        match (&self.state().old, found.in_old_table) {
            (Some(old), true) => old.side_tables.hard_deadline(found.bucket),
            _ => self.state().side_tables.hard_deadline(found.bucket),
        }
    }

    /// Returns whether one of the entry's tags was removed before `deadline`.
    pub(crate) fn is_removed(&self, found: &FoundEntry<'_, V>, deadline: Deadline) -> bool {
        match (&self.state().old, found.in_old_table) {
            (Some(old), true) => old.side_tables.is_removed(found.bucket, deadline),
            _ => self.state().side_tables.is_removed(found.bucket, deadline),
        }
    }
}
