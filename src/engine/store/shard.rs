//! A shard that is locked for writing, and the removal of entries from it.
//!
//! [`Shard::remove`] and its two variants are the only way out of the store for a single entry. Each of them takes the
//! entry out of the table and the side tables, adds up its weight, counts its cause, attaches the tasks that wait for
//! its departure, and passes it to the journal, or to the caller to be dropped after the unlock. The weight is
//! subtracted from the bound at the latest when the shard is unlocked, so no path can forget it.

use std::{
    hash::{BuildHasher, Hash},
    mem,
    ops::{Deref, DerefMut},
};

use equivalent::Equivalent;

use super::{
    Location, ShardState, Store,
    counters::bump,
    entry::{Cause, Departure, Entry},
    window::{self, ShardWriteGuard},
};
use crate::engine::{
    clock::{Deadline, Now, Tick},
    panics,
};

/// A shard that is locked for writing, and the store that it belongs to.
pub(super) struct Shard<'a, K, V, S> {
    store: &'a Store<K, V, S>,
    guard: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    /// Weight of removed entries that was not yet subtracted from the bound.
    freed: u64,
}

/// The entry of a key that is to be written.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) bucket: usize,
    pub(super) is_expired: bool,
}

/// Removed entries that are dropped after the lock is released. Holds one entry without an allocation, which is the
/// usual case.
pub(super) struct DropQueue<K, V> {
    first: Option<(K, V)>,
    more: Vec<(K, V)>,
    /// The caller's key, if the map already had an equal one.
    key: Option<K>,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Locks a shard for writing.
    #[inline]
    pub(super) fn lock_shard(&self, index: usize) -> Shard<'_, K, V, S> {
        Shard::new(self, self.shards.write(index))
    }

    /// Locks the shard of a key for an operation on its entry. If the entry exists, it is then in the current table and
    /// has no removed tag.
    #[inline]
    pub(super) fn lock_key<Q>(
        &self,
        location: Location,
        key: &Q,
        now: &impl Now,
    ) -> Shard<'_, K, V, S>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.purge_if_tag_removed(location, key, now);
        Shard::new(self, self.write(location, |k, _| key.equivalent(k)))
    }

    /// Removes the expired entry in `bucket` and unlocks the shard.
    #[cold]
    pub(super) fn expire_found(
        &self,
        mut locked: Shard<'_, K, V, S>,
        bucket: usize,
        now: &impl Now,
    ) {
        let mut drop_queue = DropQueue::new();
        locked.remove(bucket, Cause::Expired, now, &mut drop_queue);
        drop(locked);
        drop_queue.drop_all();
    }
}

impl<'a, K, V, S> Shard<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    #[inline]
    pub(super) fn new(
        store: &'a Store<K, V, S>,
        guard: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    ) -> Self {
        Self { store, guard, freed: 0 }
    }

    /// Removes the entry in `bucket` and records its departure. Returns the cause, which is [`Cause::Removed`] in place
    /// of `cause` if a tag removed the entry earlier.
    #[inline]
    pub(super) fn remove(
        &mut self,
        bucket: usize,
        cause: Cause,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> Cause {
        let cause = self.cause_of(bucket, cause);
        let (key, entry) = self.take(bucket, cause);
        self.depart(key, entry, cause, now, drop_queue);
        cause
    }

    /// Removes the entry in `bucket` as [`remove`](Self::remove) does, but collects the departure. The caller
    /// [records](Self::record) all of them before the unlock.
    #[inline]
    pub(super) fn remove_into(
        &mut self,
        bucket: usize,
        cause: Cause,
        at: Tick,
        departures: &mut Vec<Departure<K, V>>,
    ) {
        let cause = self.cause_of(bucket, cause);
        let (key, entry) = self.take(bucket, cause);
        self.count(cause);
        let mut departure = entry.depart(key, cause, at);
        self.attach_waiters(&mut departure);
        departures.push(departure);
    }

    /// Removes the live entry in `bucket` and returns its value. A departure with a clone of the value is recorded if
    /// any subscriber or waiter needs it.
    pub(super) fn remove_value(
        &mut self,
        bucket: usize,
        cause: Cause,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> V
    where
        V: Clone,
    {
        let (table, state) = self.guard.parts();
        let found = window::entry_at(table, bucket);
        let (key, entry) = found.expect("the bucket that was just found is full");
        // Cloned before the entry is removed: if the clone panics, nothing has changed.
        let has_subscriber = self.store.journal.has_subscriber(cause)
            || state.waiters.is_some()
                && state.has_departure_waiters(self.store.hash_or_zero(key), key);
        let copy = has_subscriber.then(|| entry.value.clone());
        let (key, entry) = self.take(bucket, cause);
        let Some(value) = copy else {
            self.count(cause);
            drop_queue.push_key(key);
            return entry.value;
        };
        let at = now.tick();
        // The deadline of an entry that `expire_now` expires is the time of the call.
        let deadline = if cause == Cause::Expired { at.into() } else { entry.deadline() };
        self.depart(key, Entry::new(value, deadline), cause, &at, drop_queue);
        entry.value
    }

    /// Counts the replacement of a value, and records it if a clone was made for its subscribers. The map keeps its own
    /// equal key; the caller's key departs with the clone, or is dropped after the unlock.
    pub(super) fn record_replaced(
        &mut self,
        key: K,
        copy: Option<V>,
        deadline: Deadline,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        match copy {
            Some(copy) => {
                self.depart(key, Entry::new(copy, deadline), Cause::Replaced, now, drop_queue);
            }
            None => {
                self.count(Cause::Replaced);
                drop_queue.push_key(key);
            }
        }
    }

    /// Removes the entry of a key whose new value is not written to the same bucket. Returns the value if it is live.
    pub(super) fn remove_previous(
        &mut self,
        Found { bucket, is_expired }: Found,
        copy: &mut Option<V>,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> Option<V> {
        let replaced = if is_expired {
            self.remove(bucket, Cause::Expired, now, drop_queue);
            None
        } else {
            let (key, entry) = self.take(bucket, Cause::Replaced);
            self.record_replaced(key, copy.take(), entry.deadline(), now, drop_queue);
            Some(entry.value)
        };
        self.release();
        replaced
    }

    /// Returns a clone of the live value in `bucket` if a subscriber or a waiter receives it when it is replaced.
    #[inline]
    pub(super) fn copy_for_subscribers(&self, bucket: usize, hash: u64, key: &K) -> Option<V>
    where
        V: Clone,
    {
        let is_needed = self.store.journal.has_subscriber(Cause::Replaced)
            || self.state().has_departure_waiters(hash, key);
        if !is_needed {
            return None;
        }
        window::entry_at(&self.guard, bucket).map(|(_, entry)| entry.value.clone())
    }

    /// Counts and records the departure of an entry that is in the table no more, or never was.
    pub(super) fn depart(
        &mut self,
        key: K,
        entry: Entry<V>,
        cause: Cause,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        self.count(cause);
        // Without subscribers the departure is not built, since that would read the clock.
        if self.store.journal.has_subscriber(cause) || self.state().waiters.is_some() {
            let mut departure = entry.depart(key, cause, now.tick());
            self.attach_waiters(&mut departure);
            drop_queue.push_departure(self.store.journal.record(self.index(), departure));
        } else {
            drop_queue.push(key, entry.value);
        }
    }

    /// Counts the departure of an entry.
    #[inline]
    fn count(&self, cause: Cause) {
        let departures = &self.store.meta[self.index()].departures;
        let count = match cause {
            Cause::Expired => &departures.expired,
            Cause::Evicted => &departures.evicted,
            Cause::Removed => &departures.removed,
            Cause::Replaced => &departures.replaced,
        };
        bump(count, 1);
    }

    /// Records collected departures. Those without subscribers and waiters stay in the vector, to be dropped after the
    /// unlock.
    ///
    /// Under the lock: otherwise a new value of one of these keys could be written, and its departure recorded, first.
    pub(super) fn record(&self, departures: &mut Vec<Departure<K, V>>) {
        let (journal, index) = (&self.store.journal, self.index());
        let Some(cause) = departures.first().map(|first| first.cause) else { return };
        match departures.iter().all(|departure| departure.cause == cause) {
            true => journal.record_all(index, cause, departures),
            false => journal.record_subscribed(index, departures),
        }
    }

    /// Returns the weight of the removed entries that was not yet subtracted from the bound.
    #[inline]
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns the weight of the removed entries; the caller subtracts it from the bound.
    #[inline]
    pub(super) fn take_freed(&mut self) -> u64 {
        mem::take(&mut self.freed)
    }

    /// Adds the weight of entries that were removed with their table.
    pub(super) fn add_freed(&mut self, weight: u64) {
        self.freed += weight;
    }

    /// Returns the cause of removing the entry in `bucket`. An entry that a tag removed before its deadline departs as
    /// [`Cause::Removed`], no matter which path finds it, and even if its deadline has passed since.
    #[inline]
    fn cause_of(&self, bucket: usize, cause: Cause) -> Cause {
        let is_removed = self.store.has_tag_removals()
            && window::entry_at(&self.guard, bucket).is_some_and(|(_, entry)| {
                self.state().side_tables.is_removed(bucket, entry.deadline())
            });
        if is_removed { Cause::Removed } else { cause }
    }

    /// Takes the entry in `bucket` out of the table and the side tables. An evicted key is remembered as a ghost.
    #[inline]
    fn take(&mut self, bucket: usize, cause: Cause) -> (K, Entry<V>) {
        let (table, state) = self.guard.parts();
        let (key, entry) = window::take_at(table, bucket);
        self.freed += match cause {
            Cause::Evicted => {
                let hash = self.store.hash_or_zero(&key);
                state.side_tables.evicted(bucket, hash, table.len())
            }
            _ => state.side_tables.departed(bucket),
        };
        (key, entry)
    }

    /// Attaches the key's departure waiters to the departure; the publisher notifies them after the unlock.
    #[inline]
    fn attach_waiters(&mut self, departure: &mut Departure<K, V>) {
        if let Some(waiters) = &mut self.guard.parts().1.waiters {
            let hash = |key: &K| self.store.hash_or_zero(key);
            departure.waiters = waiters.take_departure_waiters(&departure.key, hash);
        }
    }
}

impl<K, V, S> Shard<'_, K, V, S> {
    /// Subtracts the weight of the removed entries from the bound.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.freed > 0
            && let Some(bound) = &self.store.bound
        {
            bound.release(mem::take(&mut self.freed));
        }
    }
}

/// Under the lock, so that the weight in use never lacks an entry that another caller can see.
impl<K, V, S> Drop for Shard<'_, K, V, S> {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

impl<'a, K, V, S> Deref for Shard<'a, K, V, S> {
    type Target = ShardWriteGuard<'a, K, V, ShardState<K, V>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

impl<K, V, S> DerefMut for Shard<'_, K, V, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

impl<K, V> DropQueue<K, V> {
    pub(super) fn new() -> Self {
        Self { first: None, more: Vec::new(), key: None }
    }

    /// Reserves capacity for `count` entries; called before the lock, so that nothing is allocated under it.
    pub(super) fn reserve(&mut self, count: usize) {
        self.more.reserve(count.saturating_sub(1));
    }

    pub(super) fn push_key(&mut self, key: K) {
        self.key = Some(key);
    }

    /// Drops the entries one by one. A panic of a `Drop` is caught: it must not affect the caller, who only wrote
    /// another key.
    pub(super) fn drop_all(mut self) {
        self.drop_entries();
        drop(self.key);
    }

    /// Drops the entries but keeps the capacity.
    pub(super) fn drop_entries(&mut self) {
        panics::drop_all(self.first.take());
        panics::drop_all(self.more.drain(..));
    }

    fn push(&mut self, key: K, value: V) {
        match self.first {
            None => self.first = Some((key, value)),
            Some(_) => self.more.push((key, value)),
        }
    }

    fn push_departure(&mut self, departure: Option<Departure<K, V>>) {
        if let Some(Departure { key, value, .. }) = departure {
            self.push(key, value);
        }
    }
}
