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

mod bounded;
mod clear;
mod counters;
mod entry;
mod gate;
mod index;
mod journal;
mod old_table;
#[cfg(test)]
mod policy;
mod scan;
mod shrink;
mod sweep;
mod window;
mod write;

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

pub use self::entry::Cause;
pub(crate) use self::{
    bounded::Vacant,
    clear::ClearPass,
    counters::bump,
    entry::{Departure, Entry},
    journal::{Journal, Taken},
    sweep::{Patience, ShardPass},
};
use self::{
    counters::{Counts, DepartureCounters, ReadCounters},
    index::Index,
    old_table::OldTable,
    window::{Locked, Reading, Shards, Table},
};
use crate::engine::{
    clock::{Deadline, Now, Tick},
    sync::{
        DashMap,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
};

pub(crate) struct Store<K, V, S> {
    shards: Shards<K, V, Beside<K, V>, S>,
    /// What of each shard is read without its lock.
    notes: Box<[Notes]>,
    reads: ReadCounters,
    /// What a shard is never shrunk below: the capacity that the user asked for.
    reserved: usize,
    journal: Arc<Journal<K, V>>,
    /// How many entries [`Store::put_fresh`] may make; then they are counted.
    max_keys: usize,
    keys: AtomicUsize,
    /// [`Deadline::order`] of when a sweeper that rests looks again; zero where none rests.
    alarm: AtomicU64,
    /// Keys whose `Hash` panicked while a table grew or shrank.
    unhashed: AtomicUsize,
}

/// What the lock of a shard guards beside its table.
struct Beside<K, V> {
    index: Index,
    /// What has not moved yet from a table that was too large: see [`Store::shrink`].
    old: Option<OldTable<K, V>>,
    /// The bucket at which the next pass goes on.
    cursor: usize,
    /// Entries changed places since the last pass.
    moved: bool,
    /// How often they did.
    generation: u32,
}

/// Written under the shard's lock, on lines that no other shard shares.
#[repr(align(128))]
struct Notes {
    /// [`Deadline::order`] of a deadline before which nothing in the shard dies.
    soonest: AtomicU64,
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
            shards: Shards::new(map, Beside::new),
            notes: (0..shards).map(|_| Notes::new()).collect(),
            reads: ReadCounters::new(),
            reserved: capacity.div_ceil(shards),
            journal: Arc::new(Journal::new()),
            max_keys: usize::MAX,
            keys: AtomicUsize::new(0),
            alarm: AtomicU64::new(0),
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
        self.notes.iter().for_each(|notes| notes.departures.add_to(&mut counts));
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
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.place_of(self.shards.hasher().hash_one(key))
    }

    /// Where a key of this hash is, if it is anywhere.
    #[inline]
    pub(crate) fn place_of(&self, hash: u64) -> Location {
        Location { hash, index: self.shards.index_of(hash) }
    }

    /// A clone of the live value. A dead one is expired on the way.
    #[inline]
    pub(crate) fn get<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let found = self.read(key, now, |entry| entry.value.clone());
        self.reads.count(found.is_some());
        found
    }

    /// The live entry's deadline. A dead one is expired on the way.
    pub(crate) fn deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<Deadline>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.read(key, now, |entry| entry.deadline)
    }

    /// Whether nothing in the shard dies before `now`, as far as is known without its lock.
    #[inline]
    pub(crate) fn has_nothing_due(&self, shard: usize, now: Tick) -> bool {
        self.notes[shard].soonest.load(Relaxed) > Deadline::from(now).order()
    }

    /// Has the sweeper woken by who next writes what dies before `at`; false where something there already does.
    pub(crate) fn set_alarm(&self, at: Deadline) -> bool {
        self.alarm.store(at.order(), Relaxed);
        fence(SeqCst);
        let mut soonest = self.notes.iter().map(|notes| notes.soonest.load(Relaxed));
        let may_rest = soonest.all(|soonest| soonest >= at.order());
        if !may_rest {
            self.clear_alarm();
        }
        may_rest
    }

    /// Nobody rests any more.
    pub(crate) fn clear_alarm(&self) {
        self.alarm.store(0, Relaxed);
        self.journal.take_rung();
    }

    #[inline]
    fn read<Q, R>(&self, key: &Q, now: &impl Now, what: impl FnOnce(&Entry<V>) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place @ Location { hash, index } = self.place(key);
        let shard = self.shards.read(index);
        let entry = shard.find(hash, key)?;
        if !now.is_dead(entry.deadline) {
            return Some(what(entry));
        }
        drop(shard);
        self.expire_dead(place, key, now);
        None
    }

    /// Expires what a reader found dead, unless a writer was there first.
    #[cold]
    fn expire_dead<Q>(&self, place: Location, key: &Q, now: &impl Now)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut locked = self.write(place, |k, _| k.borrow() == key);
        let (table, _) = locked.parts();
        // Looked for again: between the two locks somebody may have written a new value, which lives.
        let found = window::find(table, place.hash, |k| k.borrow() == key);
        let dead = found.filter(|(_, entry)| now.is_dead(entry.deadline));
        if let Some((bucket, _)) = dead {
            self.expire_found(locked, place.index, bucket, now);
        }
    }

    #[cold]
    fn expire_found(
        &self,
        mut locked: Locked<'_, K, V, Beside<K, V>>,
        index: usize,
        bucket: usize,
        now: &impl Now,
    ) {
        let (key, entry) = window::take_at(locked.parts().0, bucket);
        self.give_room(1);
        self.expired(locked, index, entry.depart(key, Cause::Expired, now.tick()));
    }

    /// Records and counts what was taken from a shard because it was dead, and unlocks the shard.
    fn expired(
        &self,
        locked: Locked<'_, K, V, Beside<K, V>>,
        index: usize,
        departure: Departure<K, V>,
    ) {
        let unwanted = self.journal.record(index, departure);
        bump(&self.notes[index].departures.expired, 1);
        drop(locked);
        drop(unwanted);
    }

    fn insert(
        &self,
        locked: &mut Locked<'_, K, V, Beside<K, V>>,
        Location { hash, index }: Location,
        key: K,
        entry: Entry<V>,
    ) {
        let (table, beside) = locked.parts();
        if table.capacity() == table.len() {
            // Grown here and not within `insert`, so that it is known when entries change places.
            table.reserve(1, |(key, _)| self.rehash(key));
            beside.entries_moved(table);
        }
        let deadline = entry.deadline;
        let bucket = window::insert(table, hash, key, entry, |key| self.rehash(key));
        self.note(beside, index, bucket, deadline);
    }

    /// The shard of a key, locked for writing. If the key `is_it`, its entry is in the table.
    #[inline]
    fn write(
        &self,
        Location { hash, index }: Location,
        is_it: impl FnMut(&K, &Entry<V>) -> bool,
    ) -> Locked<'_, K, V, Beside<K, V>> {
        let mut locked = self.shards.write(index);
        if locked.beside().old.is_some() {
            self.move_key(&mut locked, Location { hash, index }, is_it);
        }
        locked
    }

    /// What is in this bucket dies at `deadline`.
    #[inline]
    fn note(&self, beside: &mut Beside<K, V>, shard: usize, bucket: usize, deadline: Deadline) {
        if let Some(soonest) = beside.index.note(bucket, deadline) {
            self.note_soonest(shard, soonest);
        }
    }

    #[cold]
    fn note_soonest(&self, shard: usize, soonest: Deadline) {
        self.notes[shard].soonest.store(soonest.order(), Relaxed);
        // Either we see the alarm, or who sets it sees what is soonest.
        fence(SeqCst);
        if soonest.order() < self.alarm.load(Relaxed) {
            self.journal.ring();
        }
    }

    /// The hash of a key that moves. One that panics would cost other entries their place, so such a key
    /// gets any hash: nobody finds it again, and the sweep lets it leave when its time comes.
    fn rehash(&self, key: &K) -> u64 {
        catch_unwind(AssertUnwindSafe(|| self.shards.hasher().hash_one(key))).unwrap_or_else(|_| {
            self.unhashed.fetch_add(1, Relaxed);
            0
        })
    }
}

impl<K, V> Beside<K, V> {
    fn new(table: &Table<K, V>) -> Self {
        Self { index: Index::new(table), old: None, cursor: 0, moved: false, generation: 0 }
    }

    /// Entries have moved, in this table.
    fn entries_moved(&mut self, table: &Table<K, V>) {
        self.moved = true;
        self.generation = self.generation.wrapping_add(1);
        self.index.entries_moved(table);
    }
}

impl<K, V> Reading<'_, K, V, Beside<K, V>> {
    /// How many entries there are.
    fn resident(&self) -> usize {
        self.tables().map(Table::len).sum()
    }

    /// The tables that hold entries: one, or two while entries move from one to the other.
    fn tables(&self) -> impl Iterator<Item = &Table<K, V>> {
        let old = self.beside().old.as_ref();
        iter::once(&**self).chain(old.map(|old| &old.table))
    }

    #[inline]
    fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // Not `window::find`: that wants the lock for writing, and tells a bucket that no reader needs.
        let mut found = self.get(hash, |(k, _)| k.borrow() == key);
        if found.is_none()
            && let Some(old) = &self.beside().old
        {
            found = old.table.get(hash, |(k, _)| k.borrow() == key);
        }
        found.map(|(_, entry)| entry.get())
    }
}

impl Notes {
    fn new() -> Self {
        Self {
            soonest: AtomicU64::new(Deadline::PERSISTENT.order()),
            departures: DepartureCounters::default(),
            peak: AtomicUsize::new(0),
        }
    }
}
