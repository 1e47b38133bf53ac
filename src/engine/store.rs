//! The sharded store of entries: all reads and changes of a cache's map, each under the lock of one shard.
//!
//! Invariants:
//!
//! 1. **The store never judges expiry by a clock of its own.** Every method takes `now` and evaluates it under the
//!    shard's lock. So an entry that one caller has seen as expired is never returned to a later caller, and the times
//!    of a key's departures never decrease.
//! 2. **One shard lock at a time.** No method waits for the lock of a shard while it holds that of another. Under a
//!    shard lock only the mutexes of the journal, of a flight's state and of the hit model (by `try_lock`) are taken;
//!    no lock is taken under those.
//! 3. **User values are only moved under a lock**, and dropped by the caller after the unlock, since `Drop` is user
//!    code. The store calls no waker under a lock and sends nothing.
//! 4. **A departure is recorded in the [`Journal`] under the lock of its shard**, before a new value of the key can be
//!    read. So the events of a key are in the order in which the departures happened.
//! 5. **User code that has to run under a lock** (`Hash`, `Eq` and `Clone` of keys and values, the closures of
//!    [`Store::decide`], [`Store::update`], [`Store::change`] and [`Store::remove_if`], and the weigher after a change)
//!    may panic. It runs before the first change to the table. If it has to run later (hashing a moved key, finding
//!    waiters), a panic is caught.
//! 6. **Entries change buckets only if a table grows ([`Shard::insert`]), shrinks ([`Store::shrink`]) or is cleared
//!    ([`Store::clear_windows`])**. Each of these calls [`ShardState::entries_moved`], which restarts the next pass at
//!    the first bucket and invalidates every [`TableCursor`]. So no entry moves behind a cursor without being examined.
//! 7. **Every lower bound on expiry times may be too early, never too late**: of a window, of a group of windows and of
//!    a shard.

mod batch;
mod change;
mod clear;
#[cfg(feature = "serde")]
mod copy;
mod evicting;
mod lifetime;
mod raw_entry;
mod read;
mod scan;
mod shrink;
mod sweep;
mod tag_removal;
mod waiting;
mod write;

use std::{
    hash::{BuildHasher, Hash},
    mem::needs_drop,
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

#[cfg(feature = "serde")]
pub(crate) use self::copy::EntryCopy;
pub(crate) use self::{
    batch::PART,
    raw_entry::VacantEntry,
    sweep::{LockWait, StepLimits},
    tag_removal::{PurgeRest, TagPurge, TagSweep},
    waiting::Seen,
    write::WriteDecision,
};
#[cfg(feature = "serde")]
pub(crate) use crate::engine::shard::tags::Tag;
#[cfg(feature = "redis")]
pub(crate) use crate::engine::waiters::wait_map::{JoinedWait, WaitMap};
pub(crate) use crate::engine::{
    bound::limit::Weigher,
    counters::bump,
    event::{
        departure::{Cause, Departure},
        journal::Journal,
    },
    shard::{entry::Entry, sweep::ShardPass, table_cursor::TableCursor},
    waiters::{
        DepartureWaiters, FlightMember, KeyTurn,
        flight::{Flight, LoadFailure, Lookup, Preceding},
    },
};
use crate::engine::{
    clock::Now,
    counters::{CounterSums, ReadCounters},
    panics,
    shard::{
        Shard, context::ShardContext, remove::DropQueue, shard_state::ShardState, table::Shards,
        tags::TagNames,
    },
    sync::Mutex,
    waiters::tagged_loads::TaggedLoads,
};

/// The entries of a cache, in shards that are locked one by one.
pub(crate) struct Store<K, V, S> {
    shards: Shards<K, V, ShardState<K, V>>,
    context: ShardContext<K, V, S>,
    reads: ReadCounters,
    /// Capacity per shard below which no table is shrunk: the initial capacity that the user configured.
    reserved: usize,
    /// Time without a read after which an entry expires.
    time_to_idle: Option<Duration>,
    /// Time for which an expired entry stays readable by loaders, in nanoseconds.
    stale_window: u64,
    tags: TagNames,
    pub(crate) tagged_loads: TaggedLoads,
    /// Progress of the purge in which writers at the bound remove values with removed tags; `None` while one of them
    /// continues it. Never held together with another lock.
    tag_purge: Mutex<Option<TagPurge>>,
    /// [`Store::drain`]. `Drop` calls it by this pointer, because it cannot require the bounds of `K` and `S`.
    drain: fn(&mut Self),
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
        Self {
            shards: Shards::new(shards, capacity, ShardState::new),
            context: ShardContext::new(shards, hasher),
            reads: ReadCounters::new(),
            reserved: capacity.div_ceil(shards),
            time_to_idle: None,
            stale_window: 0,
            tags: TagNames::new(),
            tagged_loads: TaggedLoads::new(),
            tag_purge: Mutex::new(None),
            drain: Self::drain,
        }
    }

    /// Drops all entries one by one. If the tables were dropped as a whole, a panic in the `Drop` of an entry would
    /// leak the rest of its shard, and a second one in another shard would abort the process.
    fn drain(&mut self) {
        if !needs_drop::<(K, V)>() {
            return;
        }
        for index in 0..self.shard_count() {
            self.shards.write(index).drain(|key, entry| {
                // Separately: the second of two panics in one drop would abort the process, too.
                panics::drop_all([key]);
                panics::drop_all([entry]);
            });
        }
    }

    pub(crate) fn journal(&self) -> &Arc<Journal<K, V>> {
        &self.context.journal
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.count()
    }

    /// Returns the number of resident entries.
    pub(crate) fn len(&self) -> usize {
        (0..self.shard_count()).map(|index| self.shards.read(index).resident()).sum()
    }

    pub(crate) fn counts(&self) -> CounterSums {
        let mut counts = CounterSums::default();
        self.reads.add_to(&mut counts);
        self.context.meta.iter().for_each(|meta| meta.departures.add_to(&mut counts));
        counts
    }

    /// Returns and resets the number of keys whose `Hash` panicked.
    pub(crate) fn take_unhashed(&self) -> usize {
        self.context.take_unhashed()
    }

    /// Returns the location of `key`, present or not.
    #[inline]
    pub(crate) fn locate<Q>(&self, key: &Q) -> Location
    where
        Q: Hash + ?Sized,
    {
        self.locate_hash(self.context.hasher.hash_one(key))
    }

    /// Returns the location of keys with this hash.
    #[inline]
    pub(crate) fn locate_hash(&self, hash: u64) -> Location {
        Location { hash, index: self.shards.index_of(hash) }
    }

    /// Returns the data that all shards share.
    #[inline]
    pub(in crate::engine) fn context(&self) -> &ShardContext<K, V, S> {
        &self.context
    }

    /// Locks a shard for writing.
    #[inline]
    pub(in crate::engine) fn lock_shard(&self, index: usize) -> Shard<'_, K, V, S> {
        Shard::new(&self.context, self.shards.write(index))
    }

    /// Locks a shard for writing, unless it is locked.
    pub(in crate::engine) fn try_lock_shard(&self, index: usize) -> Option<Shard<'_, K, V, S>> {
        self.shards.try_write(index).map(|locked| Shard::new(&self.context, locked))
    }

    /// Locks the shard of a key for writing. The key's entry is then in the current table if it exists: a writer need
    /// not search the old one.
    #[inline]
    fn lock_entry<Q>(&self, Location { hash, index }: Location, key: &Q) -> Shard<'_, K, V, S>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.lock_shard(index);
        locked.ensure_moved(hash, key);
        locked
    }

    /// Locks the shard of a key for an operation on its entry, as [`lock_entry`](Self::lock_entry) does. If a tag of
    /// the entry was removed, removes the entry first.
    ///
    /// This is decided under the lock. If it were decided before, another caller could remove the tag in between and
    /// act on it, for example by `remove_if`, and then the operation would still read the value.
    #[inline]
    fn lock_key<Q>(&self, location: Location, key: &Q, now: &impl Now) -> Shard<'_, K, V, S>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let locked = self.lock_entry(location, key);
        match self.has_tag_removals() {
            true => self.remove_tag_removed(locked, location, key, now),
            false => locked,
        }
    }

    /// Removes the expired entry in `bucket` and unlocks the shard.
    #[cold]
    fn expire_found(&self, mut locked: Shard<'_, K, V, S>, bucket: usize, now: &impl Now) {
        let mut drop_queue = DropQueue::new();
        locked.remove(bucket, Cause::Expired, now, &mut drop_queue);
        drop(locked);
        drop_queue.drop_all();
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_shrinking(&self, shard: usize) -> bool {
        self.shards.read(shard).is_shrinking()
    }

    /// Returns the number of buckets of a shard, and its capacity.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn table_size(&self, shard: usize) -> (usize, usize) {
        let shard = self.shards.read(shard);
        (shard.buckets(), shard.capacity())
    }
}

impl<K, V, S> Drop for Store<K, V, S> {
    fn drop(&mut self) {
        (self.drain)(self);
    }
}
