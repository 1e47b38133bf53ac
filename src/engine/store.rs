//! The sharded store of entries: all reads and changes of a cache's map, each under the lock of one shard.
//!
//! Invariants:
//!
//! 1. **The store never judges expiry by a clock of its own.** Every method takes `now` and evaluates it under the
//!    shard's lock. So an entry that one caller has seen as expired is never returned to a later caller, and the times of
//!    a key's departures never decrease.
//! 2. **One shard lock at a time.** No method waits for the lock of a shard while it holds that of another. Under a
//!    shard lock only the mutexes of the journal, of a flight's phase and of the hit model (by `try_lock`) are taken;
//!    no lock is taken under those.
//! 3. **User values are only moved under a lock**, and dropped by the caller after the unlock, since `Drop` is user
//!    code. The store calls no waker under a lock and sends nothing.
//! 4. **A departure is recorded in the [`Journal`] under the lock of its shard**, before a new value of the key can be
//!    read. So the events of a key are in the order in which the departures happened.
//! 5. **User code that has to run under a lock** (`Hash`, `Eq` and `Clone` of keys and values, the closures of
//!    [`Store::decide`], [`Store::update`], [`Store::change`] and [`Store::remove_if`], and the weigher after a change)
//!    may panic. It runs before the first change to the table. If it has to run later (hashing a moved key, finding
//!    waiters), a panic is caught.
//! 6. **Entries change buckets only if a table grows ([`Store::insert`]), shrinks ([`Store::shrink`]) or is cleared
//!    ([`Store::clear_windows`])**. Each of these calls [`ShardState::entries_moved`], which restarts the next pass at
//!    the first bucket and invalidates every [`TableCursor`]. So no entry moves behind a cursor without being examined.
//! 7. **Every lower bound on expiry times may be too early, never too late**: of a window, of a group of windows and of
//!    a shard.

mod batch;
mod bound;
mod change;
mod clear;
#[cfg(feature = "serde")]
mod copy;
mod counters;
mod departure_signal;
mod entry;
mod evict;
mod eviction_state;
mod flight;
mod gate;
mod grow;
mod index;
mod journal;
mod lifetime;
mod old_table;
mod policy;
mod raw_entry;
mod read;
mod scan;
mod shard;
mod shrink;
mod side_tables;
mod sweep;
mod table_cursor;
mod tag_removal;
mod tags;
mod wait_map;
mod waiters;
mod waiting;
mod wake_deadline;
mod window;
mod write;

use std::{
    hash::{BuildHasher, Hash},
    mem::needs_drop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "serde")]
pub(crate) use self::copy::Copied;
pub use self::entry::{Cause, Event};
#[cfg(feature = "serde")]
pub(crate) use self::tags::Tag;
#[cfg(feature = "redis")]
pub(crate) use self::wait_map::{Joined, WaitMap};
pub(crate) use self::{
    batch::PART,
    bound::Weigher,
    counters::bump,
    entry::{Departure, Entry},
    flight::{Failure, Flight, LoadResult, WaitOutcome},
    journal::{Journal, Taken},
    raw_entry::VacantEntry,
    sweep::{LockWait, ShardPass},
    table_cursor::TableCursor,
    tag_removal::TagPurge,
    waiters::{DepartureWaiters, LoadLookup, Turn},
    write::{Decision, Written},
};
use self::{
    bound::Bound,
    counters::{Counts, DepartureCounters, ReadCounters},
    index::Index,
    old_table::OldTable,
    side_tables::SideTables,
    tags::TagNames,
    waiters::Waiters,
    window::{ShardWriteGuard, Shards, Table},
};
use crate::engine::{
    clock::Deadline,
    panics,
    sync::{
        DashMap, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// The entries of a cache, in shards that are locked one by one.
pub(crate) struct Store<K, V, S> {
    shards: Shards<K, V, ShardState<K, V>, S>,
    /// Data of each shard that is read without its lock.
    meta: Box<[ShardMeta]>,
    reads: ReadCounters,
    /// Capacity per shard below which no table is shrunk: the initial capacity that the user configured.
    reserved: usize,
    journal: Arc<Journal<K, V>>,
    bound: Option<Box<Bound<K, V>>>,
    /// Time without a read after which an entry expires.
    time_to_idle: Option<Duration>,
    /// Time for which an expired entry stays readable by loaders, in nanoseconds.
    stale_window: u64,
    /// Generation of tag removals. Odd if resident entries may have a removed tag; a purge that has seen them all
    /// clears the lowest bit. No odd value is used twice, so a purge does not clear a removal that happened after it
    /// began.
    tag_removals: AtomicUsize,
    tags: TagNames,
    /// Progress of the purge in which writers at the bound remove values with removed tags; `None` while one of them
    /// continues it. Never held together with another lock.
    tag_purge: Mutex<Option<TagPurge>>,
    /// [`Deadline::order`] of the time at which a sleeping sweeper wakes by itself; zero if no sweeper sleeps.
    wake_deadline: AtomicU64,
    /// Number of keys whose `Hash` panicked while a table grew or shrank, since the last report.
    unhashed: AtomicUsize,
    /// [`Store::drain`]. `Drop` calls it by this pointer, because it cannot require the bounds of `K` and `S`.
    drain: fn(&mut Self),
}

/// Everything that the lock of a shard guards in addition to its table.
struct ShardState<K, V> {
    index: Index,
    /// Entries that were not moved yet out of a table that is being shrunk; see [`Store::shrink`].
    old: Option<OldTable<K, V>>,
    side_tables: SideTables,
    /// `None` if no task waits for a key of this shard.
    waiters: Option<Box<Waiters<K, V>>>,
    /// Sweep cursor: the bucket at which the next pass continues.
    cursor: usize,
    /// True if entries changed buckets since the last pass, so that the next pass must examine the whole shard.
    moved: bool,
    /// Table generation: number of times that entries changed buckets.
    generation: u32,
}

/// Atomics of one shard that are written under its lock and read without it. Aligned so that no two
/// shards share a cache line.
#[repr(align(128))]
struct ShardMeta {
    /// [`Deadline::order`] of the earliest expiry: no entry of the shard expires before it. Zero while a table is being
    /// shrunk.
    earliest_expiry: AtomicU64,
    departures: DepartureCounters,
    /// Recent maximum of the number of entries, for [`Store::shrink`]. Fades by an eighth at each of its calls.
    peak: AtomicUsize,
}

/// Hash of a key and the index of its shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    hash: u64,
    index: usize,
}

impl Location {
    #[inline]
    pub(crate) fn shard(self) -> usize {
        self.index
    }

    #[inline]
    pub(crate) fn hash(self) -> u64 {
        self.hash
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    pub(crate) fn new(shards: usize, capacity: usize, hasher: S) -> Self {
        let map = DashMap::with_capacity_and_hasher_and_shard_amount(capacity, hasher, shards);
        Self {
            shards: Shards::new(map, ShardState::new),
            meta: (0..shards).map(|_| ShardMeta::new()).collect(),
            reads: ReadCounters::new(),
            reserved: capacity.div_ceil(shards),
            journal: Arc::new(Journal::new()),
            bound: None,
            time_to_idle: None,
            stale_window: 0,
            tag_removals: AtomicUsize::new(0),
            tags: TagNames::new(),
            tag_purge: Mutex::new(None),
            wake_deadline: AtomicU64::new(0),
            unhashed: AtomicUsize::new(0),
            drain: Self::drain,
        }
    }

    /// Drops all entries one by one. If the tables were dropped as a whole, a panic in the `Drop` of an entry would leak
    /// the rest of its shard, and a second one in another shard would abort the process.
    fn drain(&mut self) {
        if !needs_drop::<(K, V)>() {
            return;
        }
        for index in 0..self.shard_count() {
            let mut locked = self.shards.write(index);
            let (table, state) = locked.parts();
            let old = state.old.iter_mut().flat_map(|old| old.table.drain());
            for (key, entry) in table.drain().chain(old) {
                // Separately: the second of two panics in one drop would abort the process, too.
                panics::drop_all([key]);
                panics::drop_all([entry]);
            }
        }
    }

    pub(crate) fn journal(&self) -> &Arc<Journal<K, V>> {
        &self.journal
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.count()
    }

    /// Returns the number of resident entries.
    pub(crate) fn len(&self) -> usize {
        (0..self.shard_count()).map(|index| self.shards.read(index).resident()).sum()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.reads.add_to(&mut counts);
        self.meta.iter().for_each(|meta| meta.departures.add_to(&mut counts));
        counts
    }

    /// Returns and resets the number of keys whose `Hash` panicked.
    pub(crate) fn take_unhashed(&self) -> usize {
        // A load first: the sweeper calls this at every tick, and a swap would take the line exclusively each time.
        match self.unhashed.load(Relaxed) {
            0 => 0,
            _ => self.unhashed.swap(0, Relaxed),
        }
    }

    /// Returns the location of `key`, present or not.
    #[inline]
    pub(crate) fn place<Q>(&self, key: &Q) -> Location
    where
        Q: Hash + ?Sized,
    {
        self.place_of(self.shards.hasher().hash_one(key))
    }

    /// Returns the location of keys with this hash.
    #[inline]
    pub(crate) fn place_of(&self, hash: u64) -> Location {
        Location { hash, index: self.shards.index_of(hash) }
    }

    /// Inserts an entry whose key is in neither table of the shard. Returns its bucket.
    fn insert(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        Location { hash, index }: Location,
        key: K,
        entry: Entry<V>,
    ) -> usize {
        let (table, state) = locked.parts();
        if table.capacity() == table.len() {
            // Grown here and not by `RawTable::insert`, so that the store learns when entries change buckets.
            match state.side_tables.is_active() {
                false => table.reserve(1, |(key, _)| self.hash_or_zero(key)),
                true => self.grow(table, &mut state.side_tables),
            }
            state.entries_moved(table);
        }
        let deadline = entry.deadline();
        let bucket = window::insert(table, hash, key, entry, |key| self.hash_or_zero(key));
        self.note_deadline(state, index, bucket, deadline);
        bucket
    }

    /// Locks the shard of a key for writing. The entry for which `matches` returns true is then in the current table if
    /// it exists: a writer need not search the old one.
    #[inline]
    fn write(
        &self,
        location: Location,
        matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) -> ShardWriteGuard<'_, K, V, ShardState<K, V>> {
        let mut locked = self.shards.write(location.index);
        self.ensure_moved(&mut locked, location, matches);
        locked
    }

    /// Moves the entry for which `matches` returns true to the current table, if it is still in the old one.
    #[inline]
    fn ensure_moved(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        location: Location,
        matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) {
        if locked.state().old.is_some() {
            self.move_key(locked, location, matches);
        }
    }

    /// Records that the entry in `bucket` expires at `deadline`, in all lower bounds that this may lower.
    #[inline]
    fn note_deadline(
        &self,
        state: &mut ShardState<K, V>,
        shard: usize,
        bucket: usize,
        deadline: Deadline,
    ) {
        if let Some(earliest) = state.index.note_deadline(bucket, deadline) {
            self.note_earliest_expiry(shard, earliest);
        }
        // After the shard's own earliest expiry: see `expire_to_fit`.
        if let Some(bound) = self.evicting_bound() {
            bound.note_deadline(deadline);
        }
    }

    /// Returns the hash of a key that is already in the store, or 0 if `Hash` panics. A panic while a table is rehashed
    /// would lose the other entries. With a wrong hash only this key is lost: no look-up finds it, and a sweep removes
    /// it after its deadline.
    fn hash_or_zero(&self, key: &K) -> u64 {
        catch_unwind(AssertUnwindSafe(|| self.shards.hasher().hash_one(key))).unwrap_or_else(|_| {
            self.unhashed.fetch_add(1, Relaxed);
            0
        })
    }
}

impl<K, V, S> Drop for Store<K, V, S> {
    fn drop(&mut self) {
        (self.drain)(self);
    }
}

impl<K, V> ShardState<K, V> {
    fn new(table: &Table<K, V>) -> Self {
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
    fn entries_moved(&mut self, table: &Table<K, V>) {
        self.moved = true;
        self.generation = self.generation.wrapping_add(1);
        self.index.entries_moved(table);
    }
}

impl ShardMeta {
    fn new() -> Self {
        Self {
            earliest_expiry: AtomicU64::new(Deadline::PERSISTENT.order()),
            departures: DepartureCounters::default(),
            peak: AtomicUsize::new(0),
        }
    }
}
