//! The sample: a run of neighbouring buckets of one shard. With what else the lock of a shard guards, the crate's only
//! `unsafe`.
//!
//! `hashbrown` reads buckets by index only through `unsafe` calls. What makes each of them sound:
//!
//! 1. The table is borrowed for the whole call (exclusively where anything is taken out), so it can
//!    neither move nor be freed.
//! 2. Every index is below `buckets()`, by the `min` in `full_buckets`.
//! 3. A bucket is read or taken only where `is_bucket_full` said, under the same borrow, that it holds
//!    an entry.
//!
//! DashMap's locks hold a table and nothing else. What else they guard lies beside them, and is reached only through
//! a guard that holds the lock of its shard.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    hash::{BuildHasher, Hash},
    ops::{Deref, Range},
};

use dashmap::SharedValue;
use hashbrown::raw::RawTable;

use super::{entry::Entry, gate::Gate};
use crate::engine::{
    clock::{Deadline, Tick},
    sync::{DashMap, RwLockReadGuard, RwLockWriteGuard},
};

pub(super) type Table<K, V> = RawTable<(K, SharedValue<Entry<V>>)>;

/// Neighbouring buckets of which it is known together when the soonest of them dies.
pub(crate) const WINDOW: usize = 32;

/// The shards of a map: each a table, its gate and what else its lock guards, a `B`.
pub(super) struct Shards<K, V, B, S> {
    map: DashMap<K, Entry<V>, S>,
    gates: Box<[Gate]>,
    state: Box<[Guarded<B>]>,
}

struct Guarded<B>(UnsafeCell<B>);

// SAFETY: as of a lock for readers and writers. A `B` is only reached through `Reading` and `Locked`, which hold the
// lock of its shard.
unsafe impl<B: Send + Sync> Sync for Guarded<B> {}

/// A shard that is locked for reading.
pub(super) struct ShardReadGuard<'a, K, V, B> {
    table: RwLockReadGuard<'a, Table<K, V>>,
    state: &'a Guarded<B>,
}

/// A shard that is locked for writing.
pub(super) struct ShardWriteGuard<'a, K, V, B> {
    index: usize,
    table: RwLockWriteGuard<'a, Table<K, V>>,
    /// That of the same shard: [`Shards::locked`] is the only place that puts the two together.
    state: &'a Guarded<B>,
}

impl<K: Hash + Eq, V, B, S: BuildHasher + Clone> Shards<K, V, B, S> {
    /// Of a map that nobody else has; `state` is called with each of its tables.
    pub(super) fn new(map: DashMap<K, Entry<V>, S>, state: impl Fn(&Table<K, V>) -> B) -> Self {
        let shards = map.shards();
        let state = |index: usize| Guarded(UnsafeCell::new(state(&shards[index].read())));
        let state = (0..shards.len()).map(state).collect();
        let gates = shards.iter().map(|_| Gate::default()).collect();
        Self { map, gates, state }
    }

    pub(super) fn count(&self) -> usize {
        self.gates.len()
    }

    pub(super) fn hasher(&self) -> &S {
        self.map.hasher()
    }

    pub(super) fn index_of(&self, hash: u64) -> usize {
        self.map.determine_shard(hash as usize)
    }

    /// Waits behind a writer who waits.
    #[inline]
    pub(super) fn read(&self, index: usize) -> ShardReadGuard<'_, K, V, B> {
        self.gates[index].enter();
        ShardReadGuard { table: self.map.shards()[index].read(), state: &self.state[index] }
    }

    /// Waits for those who are reading now, and for none who comes later.
    #[inline]
    pub(super) fn write(&self, index: usize) -> ShardWriteGuard<'_, K, V, B> {
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
    pub(super) fn try_write(&self, index: usize) -> Option<ShardWriteGuard<'_, K, V, B>> {
        let table = self.map.shards()[index].try_write()?;
        Some(self.locked(index, table))
    }

    /// As [`try_write`](Shards::try_write), again and again while `keep_trying`, where nobody new comes in to read.
    pub(super) fn try_write_while(
        &self,
        index: usize,
        keep_trying: impl FnMut() -> bool,
    ) -> Option<ShardWriteGuard<'_, K, V, B>> {
        let lock = &self.map.shards()[index];
        let table = self.gates[index].try_write_while(|| lock.try_write(), keep_trying)?;
        Some(self.locked(index, table))
    }

    /// Says whether who locks the shard, or has it locked, holds it for microseconds.
    #[inline]
    pub(super) fn set_held_long(&self, index: usize, is_held_long: bool) {
        self.gates[index].set_held_long(is_held_long);
    }

    #[inline]
    fn locked<'a>(
        &'a self,
        index: usize,
        table: RwLockWriteGuard<'a, Table<K, V>>,
    ) -> ShardWriteGuard<'a, K, V, B> {
        ShardWriteGuard { index, table, state: &self.state[index] }
    }
}

impl<K, V, B> ShardReadGuard<'_, K, V, B> {
    /// What else the lock guards.
    #[inline]
    pub(super) fn state(&self) -> &B {
        // SAFETY: we hold the lock of this shard for reading, so no `Locked` of it is there as long as we are.
        unsafe { &*self.state.0.get() }
    }
}

impl<K, V, B> Deref for ShardReadGuard<'_, K, V, B> {
    type Target = Table<K, V>;

    #[inline]
    fn deref(&self) -> &Table<K, V> {
        &self.table
    }
}

impl<K, V, B> ShardWriteGuard<'_, K, V, B> {
    /// Which shard it is.
    #[inline]
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// What else the lock guards.
    #[inline]
    pub(super) fn state(&self) -> &B {
        // SAFETY: as below; this one is borrowed as long as the reference is, and so gives nobody a mutable one.
        unsafe { &*self.state.0.get() }
    }

    /// The table, and what else its lock guards.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Table<K, V>, &mut B) {
        // SAFETY: we hold the lock of this shard for writing, so no other `Locked` of it is there; and this one is
        // borrowed exclusively as long as the reference is.
        (&mut self.table, unsafe { &mut *self.state.0.get() })
    }
}

impl<K, V, B> Deref for ShardWriteGuard<'_, K, V, B> {
    type Target = Table<K, V>;

    #[inline]
    fn deref(&self) -> &Table<K, V> {
        &self.table
    }
}

/// The smallest page of memory in use.
const PAGE: usize = 4_096;

/// The entry of a key, and the bucket that it is in.
#[inline]
pub(super) fn find<K, V>(
    table: &mut Table<K, V>,
    hash: u64,
    mut eq: impl FnMut(&K) -> bool,
) -> Option<(usize, &mut Entry<V>)> {
    find_where(table, hash, |key, _| eq(key))
}

/// The entry of this hash that `is_it`, and the bucket that it is in.
#[inline]
pub(super) fn find_where<K, V>(
    table: &mut Table<K, V>,
    hash: u64,
    mut matches: impl FnMut(&K, &Entry<V>) -> bool,
) -> Option<(usize, &mut Entry<V>)> {
    let bucket = table.find(hash, |(key, entry)| matches(key, entry.get()))?;
    // SAFETY: the bucket was found in this table, which has not changed since.
    let index = unsafe { table.bucket_index(&bucket) };
    // SAFETY: it is full, and the table is borrowed exclusively as long as the entry is.
    let (_, entry) = unsafe { bucket.as_mut() };
    Some((index, entry.get_mut()))
}

/// As [`find`], for who only reads.
#[inline]
pub(super) fn find_shared<K, V>(
    table: &Table<K, V>,
    hash: u64,
    mut eq: impl FnMut(&K) -> bool,
) -> Option<(usize, &Entry<V>)> {
    let bucket = table.find(hash, |(key, _)| eq(key))?;
    // SAFETY: the bucket was found in this table, which has not changed since.
    let index = unsafe { table.bucket_index(&bucket) };
    // SAFETY: it is full, and the table is borrowed as long as the entry is.
    let (_, entry) = unsafe { bucket.as_ref() };
    Some((index, entry.get()))
}

/// Has the first of the table's own bytes fetched among which this hash is looked for.
pub(super) fn prefetch_group<K, V>(table: &Table<K, V>, hash: u64) {
    // They begin where the entries end.
    let group = table.data_end().as_ptr().cast::<u8>();
    prefetch(group.wrapping_add(hash as usize & (table.buckets() - 1)));
}

/// Has the entries fetched that may be of this hash.
pub(super) fn prefetch_entry<K, V>(table: &Table<K, V>, hash: u64) {
    table.get(hash, |entry| {
        prefetch((&raw const *entry).cast());
        false
    });
}

#[inline]
fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse"))]
    // SAFETY: to prefetch reads nothing, whatever the address; and it is there wherever this is compiled.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse")))]
    let _ = at;
}

/// Whether bucket `index` holds an entry.
#[inline]
pub(super) fn is_full<K, V>(table: &Table<K, V>, index: usize) -> bool {
    assert!(index < table.buckets(), "bucket {index} is not in the table");
    // SAFETY: the index is in bounds, and the table is borrowed.
    unsafe { table.is_bucket_full(index) }
}

/// The key and the entry in bucket `index`, if it holds one.
#[inline]
pub(super) fn entry_at<K, V>(table: &Table<K, V>, index: usize) -> Option<(&K, &Entry<V>)> {
    if !is_full(table, index) {
        return None;
    }
    // SAFETY: the index is in bounds, the bucket is full, and the table is borrowed as long as the entry is.
    let (key, entry) = unsafe { table.bucket(index).as_ref() };
    Some((key, entry.get()))
}

/// Takes out the entry in bucket `index`, which [`find`] gave.
pub(super) fn take_at<K, V>(table: &mut Table<K, V>, index: usize) -> (K, Entry<V>) {
    assert!(is_full(table, index), "bucket {index} holds no entry");
    // SAFETY: the index is in bounds, as `is_full` asserts; the bucket is full and belongs to this table, which is borrowed
    // exclusively.
    let ((key, entry), _) = unsafe { table.remove(table.bucket(index)) };
    (key, entry.into_inner())
}

/// Puts in an entry for which there is room; returns the bucket that it is in.
pub(super) fn insert<K, V>(
    table: &mut Table<K, V>,
    hash: u64,
    key: K,
    entry: Entry<V>,
    rehash: impl Fn(&K) -> u64,
) -> usize {
    let bucket = table.insert(hash, (key, SharedValue::new(entry)), |(key, _)| rehash(key));
    // SAFETY: the bucket was made in this table, which has not changed since.
    unsafe { table.bucket_index(&bucket) }
}

/// Touches the memory of an empty table, so that whoever fills it under a lock need not wait for the
/// system to find it page by page: half of what the filling costs.
pub(super) fn touch_pages<K, V>(table: &mut Table<K, V>) {
    assert!(table.is_empty(), "what a table holds is not to be written over");
    let entries = table.buckets() * size_of::<(K, SharedValue<Entry<V>>)>();
    let (start, layout) = table.allocation_info();
    // The entries come first in the allocation, and the table's own bytes after them.
    for offset in (0..entries.min(layout.size())).step_by(PAGE) {
        // SAFETY: the offset is inside of the allocation, which is borrowed exclusively; in the bytes of
        // buckets that hold nothing anything may be written.
        unsafe { start.as_ptr().add(offset).write_volatile(0) };
    }
}

/// Calls `each` with every entry of the table.
pub(super) fn for_each<K, V>(table: &Table<K, V>, mut each: impl FnMut(&K, &Entry<V>)) {
    for start in (0..table.buckets()).step_by(WINDOW) {
        for_each_in_window(table, start, &mut each);
    }
}

/// Calls `each` with every entry of the window that begins at bucket `start`.
pub(super) fn for_each_in_window<K, V>(
    table: &Table<K, V>,
    start: usize,
    mut each: impl FnMut(&K, &Entry<V>),
) {
    let (full, count) = full_buckets(table, start..start + WINDOW);
    for offset in &full[..count] {
        // SAFETY: `full_buckets` gives offsets of full buckets of this table, and nothing changes them
        // while we borrow it.
        let (key, entry) = unsafe { table.bucket(start + usize::from(*offset)).as_ref() };
        each(key, entry.get());
    }
}

/// Takes out up to `eviction` of the entries in `range` that `leaves` names, and gives each to `taken`, with its bucket.
///
/// Returns how many entries were looked at and the bucket at which it stopped: the end, or the first
/// whose entry should leave but for which there was no room.
pub(super) fn take_if<K, V>(
    table: &mut Table<K, V>,
    range: Range<usize>,
    mut max_taken: usize,
    mut should_take: impl FnMut(&Entry<V>) -> bool,
    mut taken: impl FnMut(usize, K, Entry<V>),
) -> (usize, usize) {
    let (full, count) = full_buckets(table, range.clone());
    for (examined, offset) in full[..count].iter().enumerate() {
        let index = range.start + usize::from(*offset);
        // SAFETY: `full_buckets` gives offsets of full buckets of this table. It is borrowed
        // exclusively, and each of them is taken out at most once, below.
        let bucket = unsafe { table.bucket(index) };
        // SAFETY: as above: the bucket is full, and nothing else touches it.
        if should_take(unsafe { bucket.as_ref() }.1.get()) {
            if max_taken == 0 {
                return (examined, index);
            }
            // SAFETY: as above; taking an entry out moves no other.
            let ((key, entry), _) = unsafe { table.remove(bucket) };
            taken(index, key, entry.into_inner());
            max_taken -= 1;
        }
    }
    (count, range.end.min(table.buckets()))
}

/// [Takes out](take) what is dead. Tells besides when the first of what stays dies.
pub(super) fn take_expired<K, V>(
    table: &mut Table<K, V>,
    range: Range<usize>,
    max_taken: usize,
    now: Tick,
    taken: impl FnMut(usize, K, Entry<V>),
) -> (usize, usize, Deadline) {
    let mut earliest = Deadline::PERSISTENT;
    let should_take = |entry: &Entry<V>| {
        let is_dead = entry.deadline().is_dead(now);
        if !is_dead && earliest.is_later_than(entry.deadline()) {
            earliest = entry.deadline();
        }
        is_dead
    };
    let (examined, stop) = take_if(table, range, max_taken, should_take, taken);
    (examined, stop, earliest)
}

/// Which buckets of `range` (of the first [`WINDOW`] of it) hold an entry: how far each is from the
/// start, and how many there are.
///
/// About half of the buckets are empty and no processor can guess which, so nothing here branches on
/// it: that halves the cost of a sweep that finds nothing.
fn full_buckets<K, V>(table: &Table<K, V>, range: Range<usize>) -> ([u8; WINDOW], usize) {
    let mut full = [0; WINDOW];
    let mut count = 0;
    let end = range.end.min(table.buckets()).min(range.start + WINDOW);
    for index in range.start..end {
        full[count] = (index - range.start) as u8;
        // SAFETY: `index < end <= buckets()`, and the table is borrowed.
        count += usize::from(unsafe { table.is_bucket_full(index) });
    }
    (full, count)
}
