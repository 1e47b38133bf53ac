//! The sharded map of entries: every change of the cache, each under the lock of one shard.
//!
//! 1. Every method takes `now`, and asks it under the lock: what others saw dead is dead, and the stamps of a key
//!    never go back. The store itself reads no clock and sends nothing.
//! 2. Under a lock, departed values are only moved. They are dropped after it, by whoever called.
//! 3. A departure is recorded in the [`Journal`] under the lock of its shard, which fixes its order.
//! 4. `Hash`, `Eq` and `Clone` of user types, and the closure of [`Store::update`], do run under a lock.
//!    One that panics leaves the map whole.
//! 5. Entries of a shard move between buckets, or its table is another, only after [`Store::insert`],
//!    [`Store::shrink`] and [`Store::clear_windows`], and all mark the shard, so that the next pass looks at
//!    all of it and no entry slips behind the cursor.

mod batch;
mod bound;
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
mod write_bounded;

use std::{
    hash::{BuildHasher, Hash},
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
    clock::{Deadline, Now},
    sync::{
        DashMap,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

pub(crate) struct Store<K, V, S> {
    shards: Shards<K, V, ShardState<K, V>, S>,
    /// What of each shard is read without its lock.
    meta: Box<[ShardMeta]>,
    reads: ReadCounters,
    /// What a shard is never shrunk below: the capacity that the user asked for.
    reserved: usize,
    journal: Arc<Journal<K, V>>,
    bound: Option<Box<Bound<K, V>>>,
    /// How long an entry may be idle.
    time_to_idle: Option<Duration>,
    /// How long what is dead stays for those who ask for it, in nanoseconds.
    stale_window: u64,
    /// Odd where tags were removed that values may still have; never the same again.
    tag_removals: AtomicUsize,
    tags: TagNames,
    /// [`Deadline::order`] of when a sweeper that rests looks again; zero where none rests.
    wake_deadline: AtomicU64,
    /// Keys whose `Hash` panicked while a table grew or shrank.
    unhashed: AtomicUsize,
}

/// What the lock of a shard guards beside its table.
struct ShardState<K, V> {
    index: Index,
    /// What has not moved yet from a table that was too large: see [`Store::shrink`].
    old: Option<OldTable<K, V>>,
    side_tables: SideTables,
    /// None where nobody waits for anything.
    waiters: Option<Box<Waiters<K, V>>>,
    /// The bucket at which the next pass goes on.
    cursor: usize,
    /// Entries changed places since the last pass.
    moved: bool,
    /// How often they did.
    generation: u32,
}

/// Written under the shard's lock, on lines that no other shard shares.
#[repr(align(128))]
struct ShardMeta {
    /// [`Deadline::order`] of a deadline before which nothing in the shard dies.
    earliest_expiry: AtomicU64,
    departures: DepartureCounters,
    /// The most entries that there were of late, for [`Store::shrink`].
    peak: AtomicUsize,
}

/// Where a key is, if it is anywhere.
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
            wake_deadline: AtomicU64::new(0),
            unhashed: AtomicUsize::new(0),
        }
    }

    pub(crate) fn journal(&self) -> &Arc<Journal<K, V>> {
        &self.journal
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.count()
    }

    /// Resident entries.
    pub(crate) fn len(&self) -> usize {
        (0..self.shard_count()).map(|index| self.shards.read(index).resident()).sum()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.reads.add_to(&mut counts);
        self.meta.iter().for_each(|meta| meta.departures.add_to(&mut counts));
        counts
    }

    /// How many keys could not be hashed since this was last asked.
    pub(crate) fn take_unhashed(&self) -> usize {
        match self.unhashed.load(Relaxed) {
            0 => 0,
            _ => self.unhashed.swap(0, Relaxed),
        }
    }

    /// Where `key` is, if it is anywhere.
    #[inline]
    pub(crate) fn place<Q>(&self, key: &Q) -> Location
    where
        Q: Hash + ?Sized,
    {
        self.place_of(self.shards.hasher().hash_one(key))
    }

    /// Where a key of this hash is, if it is anywhere.
    #[inline]
    pub(crate) fn place_of(&self, hash: u64) -> Location {
        Location { hash, index: self.shards.index_of(hash) }
    }

    #[cold]
    fn expire_found(
        &self,
        mut locked: ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        index: usize,
        bucket: usize,
        now: &impl Now,
    ) {
        let (key, entry) = self.take_out(&mut locked, bucket);
        self.record_expired(locked, index, entry.depart(key, Cause::Expired, now.tick()));
    }

    /// Takes an entry out of its shard.
    fn take_out(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        bucket: usize,
    ) -> (K, Entry<V>) {
        let (table, state) = locked.parts();
        let taken = window::take_at(table, bucket);
        self.release(state.side_tables.departed(bucket));
        taken
    }

    /// So much has left.
    #[inline]
    fn release(&self, weight: u64) {
        if let Some(bound) = &self.bound {
            bound.release(weight);
        }
    }

    /// Records and counts what was taken from a shard because it was dead, and unlocks the shard.
    fn record_expired(
        &self,
        mut locked: ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        index: usize,
        mut departure: Departure<K, V>,
    ) {
        self.attach_waiters(locked.parts().1, &mut departure);
        let unrecorded = self.journal.record(index, departure);
        bump(&self.meta[index].departures.expired, 1);
        drop(locked);
        drop(unrecorded);
    }

    /// Has those told who wait for what leaves here.
    #[inline]
    fn attach_waiters(&self, state: &mut ShardState<K, V>, departure: &mut Departure<K, V>) {
        if let Some(waiters) = &mut state.waiters {
            departure.waiters =
                waiters.take_departure_waiters(&departure.key, |key| self.hash_or_zero(key));
        }
    }

    fn insert(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        Location { hash, index }: Location,
        key: K,
        entry: Entry<V>,
    ) -> usize {
        let (table, state) = locked.parts();
        if table.capacity() == table.len() {
            // Grown here and not within `insert`, so that it is known when entries change places.
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

    /// The shard of a key, locked for writing. If the key `is_it`, its entry is in the table.
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

    /// If the key `is_it`, its entry is in the table of its shard from now on.
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

    /// What is in this bucket dies at `deadline`.
    #[inline]
    fn note_deadline(
        &self,
        state: &mut ShardState<K, V>,
        shard: usize,
        bucket: usize,
        deadline: Deadline,
    ) {
        if let Some(bound) = self.evicting_bound() {
            bound.note_deadline(deadline);
        }
        if let Some(earliest) = state.index.note_deadline(bucket, deadline) {
            self.note_earliest_expiry(shard, earliest);
        }
    }

    /// The hash of a key that moves. One that panics would cost other entries their place, so such a key
    /// gets any hash: nobody finds it again, and the sweep lets it leave when its time comes.
    fn hash_or_zero(&self, key: &K) -> u64 {
        catch_unwind(AssertUnwindSafe(|| self.shards.hasher().hash_one(key))).unwrap_or_else(|_| {
            self.unhashed.fetch_add(1, Relaxed);
            0
        })
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

    /// Entries have moved, in this table.
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
