//! The table of a shard, and the shards with their locks. The only file that names DashMap or the table inside of it,
//! and the crate's only `unsafe`.
//!
//! `hashbrown` accesses buckets by index only through `unsafe` calls. Each of them is sound because:
//!
//! 1. The table is borrowed for the whole call (exclusively if an entry is removed), so it can neither be reallocated
//!    nor freed.
//! 2. Every index is below `buckets()`: `full_buckets` limits it, and `is_full` asserts it.
//! 3. A bucket is read or removed only after `is_bucket_full` has returned true for it, under the same borrow.
//!
//! DashMap's locks guard a table and nothing else. The other data of a shard is in `Guarded`, next to the lock, and is
//! reached only through a guard that holds the lock of the same shard. A guard shows DashMap's `RawTable` as a
//! [`Table`], which is the same in memory.
#![allow(unsafe_code)]

#[cfg(all(test, shuttle))]
mod shuttle_map;

use std::{
    cell::UnsafeCell,
    hash::{BuildHasherDefault, DefaultHasher, Hash},
    mem::{self, offset_of},
    ops::{Deref, Range},
    ptr,
};

use dashmap::SharedValue;
#[cfg(not(all(test, shuttle)))]
use dashmap::{DashMap, RwLockReadGuard, RwLockWriteGuard};
use equivalent::Equivalent;
use hashbrown::raw::RawTable;

#[cfg(all(test, shuttle))]
use self::shuttle_map::{DashMap, RwLockReadGuard, RwLockWriteGuard};
use super::{entry::Entry, gate::Gate};
use crate::engine::clock::{Deadline, Tick};

type Raw<K, V> = RawTable<(K, SharedValue<Entry<V>>)>;

/// The entries of a shard, in buckets that a scan can access by index. Entries change buckets only if
/// [`reserve`](Table::reserve) grows the table.
#[repr(transparent)]
pub(crate) struct Table<K, V>(Raw<K, V>);

/// DashMap computes no hash: the store does.
type NoHasher = BuildHasherDefault<DefaultHasher>;

/// Number of adjacent buckets that the expiry index describes by one moment.
pub(crate) const WINDOW: usize = 32;

/// The shards of a map: for each its table, its gate, and a `B` that its lock guards as well.
pub(crate) struct Shards<K, V, B> {
    map: DashMap<K, Entry<V>, NoHasher>,
    gates: Box<[Gate]>,
    state: Box<[Guarded<B>]>,
}

/// Data that is guarded by the lock of a shard.
struct Guarded<B>(UnsafeCell<B>);

// SAFETY: the same bounds as of `RwLock<B>: Sync`. A `B` is reached only through `ShardReadGuard` and
// `ShardWriteGuard`, which hold the lock of its shard.
unsafe impl<B: Send + Sync> Sync for Guarded<B> {}

/// A shard that is locked for reading.
pub(crate) struct ShardReadGuard<'a, K, V, B> {
    table: RwLockReadGuard<'a, Raw<K, V>>,
    state: &'a Guarded<B>,
}

/// A shard that is locked for writing.
pub(crate) struct ShardWriteGuard<'a, K, V, B> {
    index: usize,
    table: RwLockWriteGuard<'a, Raw<K, V>>,
    /// The state of the same shard: only [`Shards::locked`] combines the two.
    state: &'a Guarded<B>,
}

impl<K: Hash + Eq, V, B> Shards<K, V, B> {
    /// Returns `count` shards with capacity for `capacity` entries in total. `state` is called with each of the tables.
    pub(crate) fn new(count: usize, capacity: usize, state: impl Fn(&Table<K, V>) -> B) -> Self {
        let hasher = NoHasher::default();
        let map = DashMap::with_capacity_and_hasher_and_shard_amount(capacity, hasher, count);
        let shards = map.shards();
        let state = |index: usize| {
            let table = shards[index].read();
            Guarded(UnsafeCell::new(state(Table::from_raw(&table))))
        };
        let state = (0..shards.len()).map(state).collect();
        let gates = shards.iter().map(|_| Gate::default()).collect();
        Self { map, gates, state }
    }

    pub(crate) fn count(&self) -> usize {
        self.gates.len()
    }

    pub(crate) fn index_of(&self, hash: u64) -> usize {
        self.map.determine_shard(hash as usize)
    }

    /// Locks a shard for reading. Waits for writers that wait already.
    #[inline(always)]
    pub(crate) fn read(&self, index: usize) -> ShardReadGuard<'_, K, V, B> {
        self.gates[index].enter();
        ShardReadGuard { table: self.map.shards()[index].read(), state: &self.state[index] }
    }

    /// Locks a shard for writing. Waits for present readers, but not for later ones.
    #[inline]
    pub(crate) fn write(&self, index: usize) -> ShardWriteGuard<'_, K, V, B> {
        let lock = &self.map.shards()[index];
        let table = match lock.try_write() {
            Some(table) => table,
            None => {
                let is_read = || lock.try_read().is_some();
                self.gates[index].write(|| lock.try_write(), is_read, || lock.write())
            }
        };
        self.locked(index, table)
    }

    #[inline]
    pub(crate) fn try_write(&self, index: usize) -> Option<ShardWriteGuard<'_, K, V, B>> {
        let table = self.map.shards()[index].try_write()?;
        Some(self.locked(index, table))
    }

    /// Tries to lock as [`try_write`](Shards::try_write) does, repeatedly while `keep_trying` returns true and with the
    /// gate closed to new readers.
    pub(crate) fn try_write_while(
        &self,
        index: usize,
        keep_trying: impl FnMut() -> bool,
    ) -> Option<ShardWriteGuard<'_, K, V, B>> {
        let lock = &self.map.shards()[index];
        let table = self.gates[index].try_write_while(|| lock.try_write(), keep_trying)?;
        Some(self.locked(index, table))
    }

    /// Sets whether the present holder of the lock holds it for microseconds at a time.
    #[inline]
    pub(crate) fn set_held_long(&self, index: usize, is_held_long: bool) {
        self.gates[index].set_held_long(is_held_long);
    }

    #[inline]
    fn locked<'a>(
        &'a self,
        index: usize,
        table: RwLockWriteGuard<'a, Raw<K, V>>,
    ) -> ShardWriteGuard<'a, K, V, B> {
        ShardWriteGuard { index, table, state: &self.state[index] }
    }
}

impl<K, V, B> ShardReadGuard<'_, K, V, B> {
    /// Returns the other data that the lock guards.
    #[inline]
    pub(crate) fn state(&self) -> &B {
        // SAFETY: `self` holds the read lock of this shard, so no `ShardWriteGuard` of it exists while the reference
        // does.
        unsafe { &*self.state.0.get() }
    }
}

impl<K, V, B> Deref for ShardReadGuard<'_, K, V, B> {
    type Target = Table<K, V>;

    #[inline]
    fn deref(&self) -> &Table<K, V> {
        Table::from_raw(&self.table)
    }
}

impl<K, V, B> ShardWriteGuard<'_, K, V, B> {
    /// Returns the index of the shard.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the other data that the lock guards.
    #[inline]
    pub(crate) fn state(&self) -> &B {
        // SAFETY: `self` holds the write lock of this shard and is borrowed while the reference exists, so `parts`,
        // which borrows it exclusively, cannot be called in the meantime.
        unsafe { &*self.state.0.get() }
    }

    /// Returns the table and the other data that the lock guards.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut Table<K, V>, &mut B) {
        // SAFETY: `self` holds the write lock of this shard, so no other guard of it exists, and `self` is borrowed
        // exclusively while the reference exists.
        let state = unsafe { &mut *self.state.0.get() };
        (Table::from_raw_mut(&mut self.table), state)
    }
}

impl<K, V, B> Deref for ShardWriteGuard<'_, K, V, B> {
    type Target = Table<K, V>;

    #[inline]
    fn deref(&self) -> &Table<K, V> {
        Table::from_raw(&self.table)
    }
}

/// The smallest page size in use.
const PAGE: usize = 4_096;

/// The usual size of a line of the processor's cache.
const CACHE_LINE: usize = 64;

impl<K, V> Table<K, V> {
    /// Size of an entry in a bucket, in bytes.
    const ENTRY_SIZE: usize = size_of::<(K, SharedValue<Entry<V>>)>();

    /// Returns an empty table without memory.
    pub(crate) fn new() -> Self {
        Self(RawTable::new())
    }

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(RawTable::with_capacity(capacity))
    }

    #[inline]
    fn from_raw(raw: &Raw<K, V>) -> &Self {
        // SAFETY: `Table` is `repr(transparent)`, so both are the same in memory; the reference keeps its lifetime.
        unsafe { &*ptr::from_ref(raw).cast() }
    }

    #[inline]
    fn from_raw_mut(raw: &mut Raw<K, V>) -> &mut Self {
        // SAFETY: as in `from_raw`; the reference stays exclusive.
        unsafe { &mut *ptr::from_mut(raw).cast() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    #[inline]
    pub(crate) fn buckets(&self) -> usize {
        self.0.buckets()
    }

    /// Reserves capacity for one more entry. Entries may change buckets.
    pub(crate) fn reserve(&mut self, rehash: impl Fn(&K) -> u64) {
        self.0.reserve(1, |(key, _)| rehash(key));
    }

    /// Takes the table and leaves an empty one.
    pub(crate) fn take(&mut self) -> Self {
        mem::replace(self, Self::new())
    }

    /// Takes all entries out of the table.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (K, Entry<V>)> {
        self.0.drain().map(|(key, entry)| (key, entry.into_inner()))
    }

    /// Returns the entry of `key`, at less cost than [`find`](Self::find).
    #[inline]
    pub(crate) fn get<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.0.get(hash, |(k, _)| key.equivalent(k)).map(|(_, entry)| entry.get())
    }

    /// Returns the entry of this hash for which `matches` returns true, and its bucket.
    #[inline]
    pub(crate) fn find_mut(
        &mut self,
        hash: u64,
        mut matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) -> Option<(usize, &mut Entry<V>)> {
        let bucket = self.0.find(hash, |(key, entry)| matches(key, entry.get()))?;
        // SAFETY: the bucket was found in this table, which has not changed since.
        let index = unsafe { self.0.bucket_index(&bucket) };
        // SAFETY: the bucket is full, and the table is borrowed exclusively while the entry is.
        let (_, entry) = unsafe { bucket.as_mut() };
        Some((index, entry.get_mut()))
    }

    /// Returns the entry of `key` and its bucket.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<(usize, &Entry<V>)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let bucket = self.0.find(hash, |(k, _)| key.equivalent(k))?;
        // SAFETY: the bucket was found in this table, which has not changed since.
        let index = unsafe { self.0.bucket_index(&bucket) };
        // SAFETY: the bucket is full, and the table is borrowed while the entry is.
        let (_, entry) = unsafe { bucket.as_ref() };
        Some((index, entry.get()))
    }

    /// Prefetches the control bytes at which a search for this hash begins.
    pub(crate) fn prefetch_group(&self, hash: u64) {
        prefetch(self.control_bytes().wrapping_add(hash as usize & (self.buckets() - 1)));
    }

    /// Prefetches the entries that may have this hash.
    pub(crate) fn prefetch_entry(&self, hash: u64) {
        self.0.get(hash, |entry| {
            prefetch((&raw const *entry).cast());
            false
        });
    }

    /// Prefetches the entry in bucket `index` and its control byte.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, index: usize) {
        prefetch(self.control_bytes().wrapping_add(index));
        prefetch(self.entry_address(index));
    }

    /// Returns whether bucket `index` holds an entry.
    #[inline]
    pub(crate) fn is_full(&self, index: usize) -> bool {
        assert!(index < self.buckets(), "bucket {index} is not in the table");
        // SAFETY: the index is in bounds, and the table is borrowed.
        unsafe { self.0.is_bucket_full(index) }
    }

    /// Returns the key and the entry in bucket `index`, if it holds one.
    #[inline]
    pub(crate) fn entry_at(&self, index: usize) -> Option<(&K, &Entry<V>)> {
        if !self.is_full(index) {
            return None;
        }
        // SAFETY: the index is in bounds, the bucket is full, and the table is borrowed while the entry is.
        let (key, entry) = unsafe { self.0.bucket(index).as_ref() };
        Some((key, entry.get()))
    }

    /// Returns the entry in bucket `index`, which must be full.
    #[inline]
    pub(crate) fn entry_at_mut(&mut self, index: usize) -> &mut Entry<V> {
        assert!(self.is_full(index), "bucket {index} holds no entry");
        // SAFETY: the index is in bounds, as `is_full` asserts, the bucket is full, and the table is borrowed
        // exclusively while the entry is.
        let (_, entry) = unsafe { self.0.bucket(index).as_mut() };
        entry.get_mut()
    }

    /// Removes the entry in bucket `index`, which must be full.
    pub(crate) fn take_at(&mut self, index: usize) -> (K, Entry<V>) {
        assert!(self.is_full(index), "bucket {index} holds no entry");
        // SAFETY: the index is in bounds, as `is_full` asserts. The bucket is full and belongs to this table, which is
        // borrowed exclusively.
        let ((key, entry), _) = unsafe { self.0.remove(self.0.bucket(index)) };
        (key, entry.into_inner())
    }

    /// Inserts an entry and returns its bucket. The caller has reserved capacity, so no entry moves.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: K,
        entry: Entry<V>,
        rehash: impl Fn(&K) -> u64,
    ) -> usize {
        let bucket = self.0.insert(hash, (key, SharedValue::new(entry)), |(key, _)| rehash(key));
        // SAFETY: the bucket was made in this table, which has not changed since.
        unsafe { self.0.bucket_index(&bucket) }
    }

    /// Writes to each page of an empty table, so that the system maps its memory now and not while a lock is held:
    /// mapping is half of the cost of filling the table.
    pub(crate) fn touch_pages(&mut self) {
        assert!(self.is_empty(), "only the memory of an empty table may be overwritten");
        let entries = self.buckets() * Self::ENTRY_SIZE;
        let (start, layout) = self.0.allocation_info();
        // The entries come first in the allocation, the control bytes after them.
        for offset in (0..entries.min(layout.size())).step_by(PAGE) {
            // SAFETY: the offset is inside of the allocation, which is borrowed exclusively. No entry is overwritten,
            // as the table is empty, nor a control byte, as the offset is below them.
            unsafe { start.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// Calls `each` with every entry of the table.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&K, &Entry<V>)) {
        for start in (0..self.buckets()).step_by(WINDOW) {
            self.for_each_in_window(start, &mut each);
        }
    }

    /// Calls `each` with every entry of the window at bucket `start`.
    fn for_each_in_window(&self, start: usize, mut each: impl FnMut(&K, &Entry<V>)) {
        let (full, count) = self.full_buckets(start..start + WINDOW);
        for offset in &full[..count] {
            // SAFETY: `full_buckets` returns offsets of full buckets of this table, and nothing changes them while it
            // is borrowed.
            let (key, entry) = unsafe { self.0.bucket(start + usize::from(*offset)).as_ref() };
            each(key, entry.get());
        }
    }

    /// Prefetches what [`select_expired`](Self::select_expired) reads of the window at bucket `start`. The processor
    /// loads these lines at the same time; the search alone waits for some after the others.
    #[inline]
    pub(crate) fn prefetch_window(&self, start: usize) {
        prefetch(self.control_bytes().wrapping_add(start));
        let deadline = offset_of!((K, SharedValue<Entry<V>>), 1) + Entry::<V>::DEADLINE_OFFSET;
        let first = self.entry_address(start + WINDOW - 1).wrapping_add(deadline);
        for line in (0..WINDOW * Self::ENTRY_SIZE).step_by(Self::ENTRY_SIZE.max(CACHE_LINE)) {
            prefetch(first.wrapping_add(line));
        }
    }

    /// Returns the address of the control bytes, which begin at the end of the entries.
    fn control_bytes(&self) -> *const u8 {
        self.0.data_end().as_ptr().cast()
    }

    /// Returns the address of bucket `index`, for a prefetch. The entries lie in descending order.
    fn entry_address(&self, index: usize) -> *const u8 {
        self.control_bytes().wrapping_sub((index + 1).wrapping_mul(Self::ENTRY_SIZE))
    }

    /// Selects up to `max_selected` expired entries of the window in `range`.
    #[inline]
    pub(crate) fn select_expired(
        &self,
        range: Range<usize>,
        max_selected: usize,
        now: Tick,
    ) -> Selection {
        let (full, count) = self.full_buckets(range.clone());
        let mut selection = Selection {
            start: range.start,
            offsets: [0; WINDOW],
            len: 0,
            examined: count,
            stop: range.end.min(self.buckets()),
            earliest: Deadline::PERSISTENT,
        };
        for (examined, offset) in full[..count].iter().enumerate() {
            let index = range.start + usize::from(*offset);
            // SAFETY: `full_buckets` returns offsets of full buckets of this table, and nothing changes them while it
            // is borrowed.
            let deadline = unsafe { self.0.bucket(index).as_ref() }.1.get().deadline();
            if deadline.is_expired(now) {
                if selection.len == max_selected {
                    (selection.examined, selection.stop) = (examined, index);
                    break;
                }
                selection.offsets[selection.len] = *offset;
                selection.len += 1;
            } else if selection.earliest.is_later_than(deadline) {
                selection.earliest = deadline;
            }
        }
        selection
    }

    /// Takes all entries of the window in `range` out of the table, to be moved to another one, and passes each to
    /// `taken`, with its bucket.
    pub(crate) fn drain_window(
        &mut self,
        range: Range<usize>,
        mut taken: impl FnMut(usize, K, Entry<V>),
    ) {
        let (full, count) = self.full_buckets(range.clone());
        for offset in &full[..count] {
            let index = range.start + usize::from(*offset);
            // SAFETY: `full_buckets` returns offsets of full buckets of this table. It is borrowed exclusively, each
            // bucket is removed once, and removing an entry moves no other one.
            let ((key, entry), _) = unsafe { self.0.remove(self.0.bucket(index)) };
            taken(index, key, entry.into_inner());
        }
    }

    /// Returns the offsets of the full buckets in the first [`WINDOW`] buckets of `range`, and their number.
    ///
    /// About half of the buckets are empty, in an order that no branch predictor can learn. So nothing here branches on
    /// it, which halves the cost of a sweep that finds nothing.
    fn full_buckets(&self, range: Range<usize>) -> ([u8; WINDOW], usize) {
        let mut full = [0; WINDOW];
        let mut count = 0;
        let end = range.end.min(self.buckets()).min(range.start + WINDOW);
        for index in range.start..end {
            full[count] = (index - range.start) as u8;
            // SAFETY: `index < end <= buckets()`, and the table is borrowed.
            count += usize::from(unsafe { self.0.is_bucket_full(index) });
        }
        (full, count)
    }
}

/// Expired entries of a window, to be removed.
pub(crate) struct Selection {
    start: usize,
    offsets: [u8; WINDOW],
    len: usize,
    /// Number of entries that were examined.
    pub(crate) examined: usize,
    /// The bucket at which the search stopped: the end, or the first entry that exceeds the maximum.
    pub(crate) stop: usize,
    /// Earliest deadline of the other examined entries.
    pub(crate) earliest: Deadline,
}

impl Selection {
    /// Returns the buckets of the selected entries.
    #[inline]
    pub(crate) fn buckets(&self) -> impl Iterator<Item = usize> {
        self.offsets[..self.len].iter().map(|offset| self.start + usize::from(*offset))
    }
}

#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse"))]
    // SAFETY: a prefetch accesses no memory, so any address is allowed; the instruction exists, since the target has
    // SSE.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse")))]
    let _ = at;
}
