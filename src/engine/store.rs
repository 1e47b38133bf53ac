//! The sharded map of entries: every change of the cache, each under the lock of one shard.
//!
//! 1. Every method takes `now`; the store reads no clock and sends nothing.
//! 2. Under a lock, departed values are only moved. They are dropped after it, by whoever called.
//! 3. A departure is recorded in the [`Journal`] under the lock of its shard, which fixes its order.
//! 4. `Hash`, `Eq` and `Clone` of user types, and the closure of [`Store::update`], do run under a lock.
//!    One that panics leaves the map whole.
//! 5. Entries of a shard move between buckets, or its table is another, only after [`Store::insert`],
//!    [`Store::shrink`] and [`Store::clear_shard`], and all mark the shard, so that the next pass looks at
//!    all of it and no entry slips behind the cursor.

mod bounded;
mod counters;
mod entry;
mod journal;
mod scan;
mod shrink;
mod sweep;
mod window;
mod zones;

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

pub use self::entry::Cause;
pub(crate) use self::{
    bounded::Vacant,
    counters::bump,
    entry::{Departure, Entry},
    journal::{Journal, Taken},
    sweep::ShardPass,
    window::WINDOW,
};
use self::{
    counters::{Counters, Counts},
    window::Table,
    zones::Zones,
};
use crate::engine::{
    clock::{Deadline, Now},
    sync::{
        DashMap, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

pub(crate) struct Store<K, V, S> {
    map: DashMap<K, Entry<V>, S>,
    /// Beside the map's shards, one each.
    shards: Box<[Shard]>,
    /// What a shard is never shrunk below: the capacity that the user asked for.
    reserved: usize,
    journal: Arc<Journal<K, V>>,
    /// How many entries [`Store::put_fresh`] may make; then they are counted.
    max_keys: usize,
    keys: AtomicUsize,
    /// Keys whose `Hash` panicked while a table grew or shrank.
    unhashed: AtomicUsize,
}

/// What the store knows of a shard beside its table. On a cache line of its own: the counters are
/// written by whoever just held the shard's lock.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    /// The bucket at which the next window starts; written under the shard's lock.
    cursor: AtomicUsize,
    /// Entries changed places since the last pass; written under the shard's lock.
    moved: AtomicBool,
    /// The most entries that there were of late, for [`Store::shrink`].
    peak: AtomicUsize,
    zones: Zones,
    counters: Counters,
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
            map,
            shards: (0..shards).map(|_| Shard::default()).collect(),
            reserved: capacity.div_ceil(shards),
            journal: Arc::new(Journal::new()),
            max_keys: usize::MAX,
            keys: AtomicUsize::new(0),
            unhashed: AtomicUsize::new(0),
        }
    }

    pub(crate) fn journal(&self) -> &Arc<Journal<K, V>> {
        &self.journal
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Resident entries.
    pub(crate) fn len(&self) -> usize {
        self.map.shards().iter().map(|shard| shard.read().len()).sum()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.shards.iter().for_each(|shard| sum.add(&shard.counters));
        sum
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
        self.place_of(self.map.hasher().hash_one(key))
    }

    /// Where a key of this hash is, if it is anywhere.
    #[inline]
    pub(crate) fn place_of(&self, hash: u64) -> Location {
        Location { hash, index: self.map.determine_shard(hash as usize) }
    }

    /// Counts a read that is about to be; returns how many there were in that shard.
    #[inline]
    pub(crate) fn count_read(&self, place: Location) -> u64 {
        self.shards[place.index].counters.count_read()
    }

    /// The read was counted too early.
    #[cold]
    pub(crate) fn uncount_read(&self, place: Location) {
        self.shards[place.index].counters.uncount_read();
    }

    /// A clone of the live value. A dead one is expired on the way. The read has been counted.
    #[inline]
    pub(crate) fn get<Q>(&self, place: Location, key: &Q, now: &impl Now) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let found = self.read(place, key, now, |entry| entry.value.clone());
        self.count_outcome(place, found.is_some());
        found
    }

    /// The live entry's deadline. A dead one is expired on the way.
    pub(crate) fn deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<Deadline>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.read(self.place(key), key, now, |entry| entry.deadline)
    }

    /// A clone of the live value, which gets a new deadline. A dead one is expired on the way.
    pub(crate) fn get_ex<Q>(
        &self,
        key: &Q,
        now: &impl Now,
        deadline: impl FnOnce(&V) -> Deadline,
    ) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let place = self.place(key);
        self.count_read(place);
        let found = self.change(place, key, now, |entry| {
            // In this order, so that what panics leaves nothing to be dropped under the lock.
            let deadline = deadline(&entry.value);
            let value = entry.value.clone();
            entry.deadline = deadline;
            value
        });
        self.count_outcome(place, found.is_some());
        found
    }

    /// Puts `value` at `key`; its deadline follows from that of the live value there, if any.
    /// Returns the live value that it replaced.
    pub(crate) fn set(
        &self,
        key: K,
        value: V,
        now: &impl Now,
        deadline: impl FnOnce(Option<Deadline>) -> Deadline,
    ) -> Option<V>
    where
        V: Clone,
    {
        let Location { hash, index } = self.place(&key);
        let mut table = self.map.shards()[index].write();
        let buckets = table.buckets();
        // Looked for first: most writes replace, and whoever inserts may have to grow the table.
        let Some((bucket, entry)) = window::find(&mut table, hash, |k| *k == key) else {
            let entry = Entry::new(value, deadline(None));
            self.insert(&mut table, hash, index, key, entry);
            return None;
        };
        let shard = &self.shards[index];
        if now.is_dead(entry.deadline) {
            // A dead value is none: the new one gets what a new key gets, and the old one leaves as expired before
            // anybody hears of the new.
            let fresh = deadline(None);
            shard.zones.note(buckets, bucket, fresh);
            let old = entry.replace(value, fresh);
            self.expired(table, index, old.depart(key, Cause::Expired, now.tick()));
            return None;
        }
        // Cloned first: a clone that panics then changes nothing.
        let copy = self.journal.wants(Cause::Replaced).then(|| entry.value.clone());
        let fresh = deadline(Some(entry.deadline));
        shard.zones.note(buckets, bucket, fresh);
        let old = entry.replace(value, fresh);
        bump(&shard.counters.replaced, 1);
        match copy {
            // The key that is in the map stays, and the caller's goes: it is theirs to drop, so after the lock.
            None => {
                drop(table);
                drop(key);
            }
            Some(copy) => {
                let copy = Entry::new(copy, old.deadline);
                let unwanted =
                    self.journal.record(index, copy.depart(key, Cause::Replaced, now.tick()));
                drop(table);
                drop(unwanted);
            }
        }
        Some(old.value)
    }

    /// Puts `value` at `key` where no live value is; tells whether it did.
    pub(crate) fn set_nx(&self, key: K, value: V, now: &impl Now, deadline: Deadline) -> bool {
        let Location { hash, index } = self.place(&key);
        let mut table = self.map.shards()[index].write();
        let buckets = table.buckets();
        let Some((bucket, entry)) = window::find(&mut table, hash, |k| *k == key) else {
            self.insert(&mut table, hash, index, key, Entry::new(value, deadline));
            return true;
        };
        // Unlocked by hand: `key` and `value` are dropped at the end of this call.
        if !now.is_dead(entry.deadline) {
            drop(table);
            return false;
        }
        self.shards[index].zones.note(buckets, bucket, deadline);
        let old = entry.replace(value, deadline);
        self.expired(table, index, old.depart(key, Cause::Expired, now.tick()));
        true
    }

    /// Calls `change` with the live entry, under its shard's lock. A dead one is expired on the way.
    pub(crate) fn update<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut Entry<V>) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.change(self.place(key), key, now, change)
    }

    /// Takes the live value out. A dead one is expired on the way.
    pub(crate) fn remove<Q>(&self, key: &Q, now: &impl Now, cause: Cause) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let Location { hash, index } = self.place(key);
        let mut table = self.map.shards()[index].write();
        let (bucket, entry) = window::find(&mut table, hash, |k| k.borrow() == key)?;
        if now.is_dead(entry.deadline) {
            self.expire_found(table, index, bucket, now);
            return None;
        }
        // Cloned first: a clone that panics then changes nothing.
        let copy = self.journal.wants(cause).then(|| entry.value.clone());
        let (key, entry) = window::take_at(&mut table, bucket);
        self.give_room(1);
        let at = now.tick();
        // What `expire_now` ends has its deadline now.
        let deadline = if cause == Cause::Expired { at.into() } else { entry.deadline };
        let rest = match copy {
            Some(value) => {
                Err(self.journal.record(index, Departure { key, value, cause, deadline, at }))
            }
            None => Ok(key),
        };
        let shard = &self.shards[index];
        bump(
            if cause == Cause::Expired { &shard.counters.expired } else { &shard.counters.removed },
            1,
        );
        drop(table);
        drop(rest);
        Some(entry.value)
    }

    #[inline]
    fn count_outcome(&self, place: Location, hit: bool) {
        if !hit {
            self.shards[place.index].counters.count_miss();
        }
    }

    fn change<Q, R>(
        &self,
        Location { hash, index }: Location,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut Entry<V>) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut table = self.map.shards()[index].write();
        let buckets = table.buckets();
        let (bucket, entry) = window::find(&mut table, hash, |k| k.borrow() == key)?;
        if !now.is_dead(entry.deadline) {
            let changed = change(entry);
            self.shards[index].zones.note(buckets, bucket, entry.deadline);
            return Some(changed);
        }
        self.expire_found(table, index, bucket, now);
        None
    }

    #[inline]
    fn read<Q, R>(
        &self,
        Location { hash, index }: Location,
        key: &Q,
        now: &impl Now,
        what: impl FnOnce(&Entry<V>) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // Not `window::find`: that wants the lock for writing, and tells a bucket that no reader needs.
        let table = self.map.shards()[index].read();
        let (_, entry) = table.get(hash, |(k, _)| k.borrow() == key)?;
        let entry = entry.get();
        if !now.is_dead(entry.deadline) {
            return Some(what(entry));
        }
        drop(table);
        self.expire_dead(hash, index, key, now);
        None
    }

    /// Expires what a reader found dead, unless a writer was there first.
    #[cold]
    fn expire_dead<Q>(&self, hash: u64, index: usize, key: &Q, now: &impl Now)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut table = self.map.shards()[index].write();
        // Looked for again: between the two locks somebody may have written a new value, which lives.
        let found = window::find(&mut table, hash, |k| k.borrow() == key);
        let dead = found.filter(|(_, entry)| now.is_dead(entry.deadline));
        if let Some((bucket, _)) = dead {
            self.expire_found(table, index, bucket, now);
        }
    }

    #[cold]
    fn expire_found(
        &self,
        mut table: RwLockWriteGuard<'_, Table<K, V>>,
        index: usize,
        bucket: usize,
        now: &impl Now,
    ) {
        let (key, entry) = window::take_at(&mut table, bucket);
        self.give_room(1);
        self.expired(table, index, entry.depart(key, Cause::Expired, now.tick()));
    }

    /// Records and counts what was taken from a shard because it was dead, and unlocks the shard.
    fn expired(
        &self,
        table: RwLockWriteGuard<'_, Table<K, V>>,
        index: usize,
        departure: Departure<K, V>,
    ) {
        let unwanted = self.journal.record(index, departure);
        bump(&self.shards[index].counters.expired, 1);
        drop(table);
        drop(unwanted);
    }

    fn insert(&self, table: &mut Table<K, V>, hash: u64, index: usize, key: K, entry: Entry<V>) {
        if table.capacity() == table.len() {
            // Grown here and not within `insert`, so that it is known when entries change places.
            table.reserve(1, |(key, _)| self.rehash(key));
            self.mark_moved(index, table);
        }
        let deadline = entry.deadline;
        let bucket = window::insert(table, hash, key, entry, |key| self.rehash(key));
        self.shards[index].zones.note(table.buckets(), bucket, deadline);
    }

    pub(super) fn mark_moved(&self, index: usize, table: &Table<K, V>) {
        let shard = &self.shards[index];
        shard.moved.store(true, Relaxed);
        shard.zones.forget(table.buckets());
    }

    /// The hash of a key that moves. One that panics would cost other entries their place, so such a key
    /// gets any hash: nobody finds it again, and the sweep lets it leave when its time comes.
    fn rehash(&self, key: &K) -> u64 {
        catch_unwind(AssertUnwindSafe(|| self.map.hasher().hash_one(key))).unwrap_or_else(|_| {
            self.unhashed.fetch_add(1, Relaxed);
            0
        })
    }
}
