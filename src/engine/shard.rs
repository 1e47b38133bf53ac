//! A shard that is locked for writing, and the removal of entries from it.
//!
//! [`Shard::remove`] and its two variants are the only way out of the store for a single entry. Each of them takes the
//! entry out of the table and the side tables, adds up its weight, counts its cause, attaches the tasks that wait for
//! its departure, and passes it to the journal, or to the caller to be dropped after the unlock. The weight is
//! subtracted from the bound at the latest when the shard is unlocked, so no path can forget it.

pub(crate) mod clear;
pub(crate) mod context;
pub(crate) mod drop_queue;
pub(crate) mod entry;
mod evict;
mod expiry_index;
mod gate;
mod rehash;
pub(crate) mod side_tables;
pub(crate) mod state;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod table_cursor;
pub(crate) mod tags;

use std::{
    hash::{BuildHasher, Hash},
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use self::{
    context::ShardContext, drop_queue::DropQueue, entry::Entry, state::ShardState,
    table::ShardWriteGuard, tags::TagSet,
};
use crate::engine::{
    clock::{Deadline, Now, Tick},
    counters::bump,
    event::departure::{Cause, Departure},
    waiters::{DepartureWaiters, Waiters, departure_signal::DepartureSignal},
};

/// A shard that is locked for writing.
pub(crate) struct Shard<'a, K, V, S> {
    context: &'a ShardContext<K, V, S>,
    guard: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    /// Weight of removed entries that was not yet subtracted from the bound.
    freed: u64,
}

/// The entry of a key that is to be written.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) bucket: usize,
    pub(crate) is_expired: bool,
}

impl<'a, K, V, S> Shard<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    #[inline]
    pub(crate) fn new(
        context: &'a ShardContext<K, V, S>,
        guard: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    ) -> Self {
        Self { context, guard, freed: 0 }
    }

    /// Returns the entry of a key and its bucket. Searches only the current table: see
    /// [`ensure_moved`](Self::ensure_moved).
    #[inline]
    pub(crate) fn find(
        &mut self,
        hash: u64,
        mut eq: impl FnMut(&K) -> bool,
    ) -> Option<(usize, &mut Entry<V>)> {
        self.guard.parts().0.find_mut(hash, |key, _| eq(key))
    }

    /// Returns the entry of this hash for which `matches` returns true, as [`find`](Self::find) does.
    pub(crate) fn find_where(
        &mut self,
        hash: u64,
        matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) -> Option<(usize, &mut Entry<V>)> {
        self.guard.parts().0.find_mut(hash, matches)
    }

    /// As [`find`](Self::find), without exclusive access.
    #[inline]
    pub(crate) fn find_shared(
        &self,
        hash: u64,
        eq: impl FnMut(&K) -> bool,
    ) -> Option<(usize, &Entry<V>)> {
        self.guard.find(hash, eq)
    }

    /// Returns the key and the entry in `bucket`, if it holds one.
    #[inline]
    pub(crate) fn entry_at(&self, bucket: usize) -> Option<(&K, &Entry<V>)> {
        self.guard.entry_at(bucket)
    }

    /// Returns the hard deadline of `entry` in `bucket`: its own, unless entries have idle deadlines.
    #[inline]
    pub(crate) fn hard_deadline(&self, bucket: usize, entry: &Entry<V>) -> Deadline {
        let hard_deadline = self.guard.state().side_tables.hard_deadline(bucket);
        hard_deadline.unwrap_or_else(|| entry.deadline())
    }

    /// Stores hard deadlines from now on, because entries get idle deadlines too.
    pub(crate) fn track_hard_deadlines(&mut self) {
        let (table, state) = self.guard.parts();
        state.side_tables.track_hard_deadlines(table.buckets());
    }

    /// Returns the weight of the entry in `bucket`.
    #[inline]
    pub(crate) fn weight(&self, bucket: usize) -> u32 {
        self.guard.state().side_tables.weight(bucket)
    }

    /// Returns whether a tag of the entry in `bucket` was removed before its deadline.
    pub(crate) fn is_tag_removed(&self, bucket: usize, entry: &Entry<V>) -> bool {
        self.guard.state().side_tables.is_removed(bucket, entry.deadline())
    }

    /// Sets the deadlines of the entry in `bucket`: the one that applies now, and the hard one.
    pub(crate) fn set_deadlines(&mut self, bucket: usize, deadline: Deadline, hard: Deadline) {
        self.entry_at_mut(bucket).set_deadline(deadline);
        self.guard.parts().1.side_tables.set_hard_deadline(bucket, hard);
        self.note_deadline(bucket, deadline);
    }

    /// Increments the write version of a key's flight. Every write calls this.
    #[inline]
    pub(crate) fn bump_write_version<Q>(&self, hash: u64, key: &Q)
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.guard.state().bump_write_version(hash, key);
    }

    /// Returns the insert waiters for this hash, to be notified after the unlock.
    #[inline]
    pub(crate) fn insert_waiters(&self, hash: u64) -> Option<Arc<Notify>> {
        self.guard.state().insert_waiters(hash)
    }

    /// Records a hit of the entry in `bucket`.
    #[inline]
    pub(crate) fn touch(&self, bucket: usize) {
        self.guard.state().side_tables.touch(bucket);
    }

    /// Returns the waiters, to add one.
    pub(crate) fn waiters_mut(&mut self) -> &mut Waiters<K, V> {
        self.guard.parts().1.waiters_mut()
    }

    /// Joins the tasks that wait for the departure of the entry in `bucket`, which is that of `key`.
    pub(crate) fn await_departure<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        bucket: usize,
    ) -> Arc<DepartureWaiters<K, V>>
    where
        Q: Equivalent<K> + ?Sized,
        K: Clone,
    {
        let (table, state) = self.guard.parts();
        let owned = || {
            let found = table.entry_at(bucket);
            found.expect("the bucket that was just found is full").0.clone()
        };
        let waiters = &mut state.waiters_mut().departure_waiters;
        waiters.join(hash, key, owned, |_| false, DepartureSignal::new).shared
    }

    /// Removes a waiter by `leave`, and the shard's waiters with the last one. The caller drops the result after the
    /// unlock.
    pub(crate) fn leave_waiters(
        &mut self,
        leave: impl FnOnce(&mut Waiters<K, V>) -> Option<K>,
    ) -> (Option<K>, Option<Box<Waiters<K, V>>>) {
        let waiters = &mut self.guard.parts().1.waiters;
        let key = waiters.as_mut().and_then(|waiters| leave(waiters));
        (key, waiters.take_if(|waiters| waiters.is_empty()))
    }

    /// Returns the entry in `bucket`, which must be full.
    #[inline]
    pub(crate) fn entry_at_mut(&mut self, bucket: usize) -> &mut Entry<V> {
        self.guard.parts().0.entry_at_mut(bucket)
    }

    /// Records that the entry in `bucket` expires at `deadline`, in all lower bounds that this may lower.
    #[inline]
    pub(crate) fn note_deadline(&mut self, bucket: usize, deadline: Deadline) {
        let shard = self.guard.index();
        if let Some(earliest) = self.guard.parts().1.index.note_deadline(bucket, deadline) {
            self.context.note_earliest_expiry(shard, earliest);
        }
        // After the shard's own earliest expiry: see `Store::expire_to_fit`.
        if let Some(bound) = self.context.evicting_bound() {
            bound.note_deadline(deadline);
        }
    }

    /// Writes the side tables for a value that was written to `bucket`.
    #[inline]
    pub(crate) fn write_side_tables(
        &mut self,
        bucket: usize,
        hard_deadline: Deadline,
        tags: Option<TagSet>,
    ) {
        let side_tables = &mut self.guard.parts().1.side_tables;
        if tags.is_none() && !side_tables.is_active() {
            return;
        }
        let is_tagged = tags.is_some();
        side_tables.write(bucket, hard_deadline, tags);
        if is_tagged && side_tables.is_removed(bucket, Deadline::PERSISTENT) {
            // The tag was removed after the caller had looked it up and before the value was written.
            self.context.tag_removals.note();
        }
    }

    /// Passes the entry of a new key to the eviction policy.
    #[inline]
    pub(crate) fn note_inserted(&mut self, bucket: usize, hash: u64, weight: u32) {
        let (table, state) = self.guard.parts();
        let len = table.len();
        if let Some(eviction) = &mut state.side_tables.eviction {
            eviction.inserted(bucket, hash, weight, len);
        }
    }

    /// Records an overwritten entry's access and new weight. Returns how much the weight grew beyond the bound, which
    /// the caller must evict.
    #[inline]
    pub(crate) fn update_weight(&mut self, bucket: usize, weight: u32) -> u64 {
        let Some(bound) = self.context.evicting_bound() else { return 0 };
        let Some(eviction) = &mut self.guard.parts().1.side_tables.eviction else { return 0 };
        eviction.touch(bucket);
        if !bound.has_weigher() {
            return 0;
        }
        bound.adjust(u64::from(weight), eviction.set_weight(bucket, weight))
    }

    /// Removes the entry in `bucket` and records its departure. Returns the cause, which is [`Cause::Removed`] in place
    /// of `cause` if a tag removed the entry earlier.
    #[inline]
    pub(crate) fn remove(
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
    pub(crate) fn remove_into(
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
    pub(crate) fn remove_value(
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
        let found = table.entry_at(bucket);
        let (key, entry) = found.expect("the bucket that was just found is full");
        // Cloned before the entry is removed: if the clone panics, nothing has changed.
        let has_subscriber = self.context.journal.has_subscriber(cause)
            || state.waiters.is_some()
                && state.has_departure_waiters(self.context.hash_or_zero(key), key);
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
    pub(crate) fn record_replaced(
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
    pub(crate) fn remove_previous(
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
    pub(crate) fn copy_for_subscribers(&self, bucket: usize, hash: u64, key: &K) -> Option<V>
    where
        V: Clone,
    {
        let is_needed = self.context.journal.has_subscriber(Cause::Replaced)
            || self.state().has_departure_waiters(hash, key);
        if !is_needed {
            return None;
        }
        self.guard.entry_at(bucket).map(|(_, entry)| entry.value.clone())
    }

    /// Counts and records the departure of an entry that is in the table no more, or never was.
    pub(crate) fn depart(
        &mut self,
        key: K,
        entry: Entry<V>,
        cause: Cause,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        self.count(cause);
        // Without subscribers the departure is not built, since that would read the clock.
        if self.context.journal.has_subscriber(cause) || self.state().waiters.is_some() {
            let mut departure = entry.depart(key, cause, now.tick());
            self.attach_waiters(&mut departure);
            drop_queue.push_departure(self.context.journal.record(self.index(), departure));
        } else {
            drop_queue.push(key, entry.value);
        }
    }

    /// Counts the departure of an entry.
    #[inline]
    fn count(&self, cause: Cause) {
        self.count_many(cause, 1);
    }

    /// Counts the departures of entries. Under the lock: the counters are incremented by a load and a store.
    #[inline]
    pub(crate) fn count_many(&self, cause: Cause, departed: u64) {
        let departures = &self.context.meta[self.index()].departures;
        let count = match cause {
            Cause::Expired => &departures.expired,
            Cause::Evicted => &departures.evicted,
            Cause::Removed => &departures.removed,
            Cause::Replaced => &departures.replaced,
        };
        bump(count, departed);
    }

    /// Records collected departures. Those without subscribers and waiters stay in the vector, to be dropped after the
    /// unlock.
    ///
    /// Under the lock: otherwise a new value of one of these keys could be written, and its departure recorded, first.
    pub(crate) fn record(&self, departures: &mut Vec<Departure<K, V>>) {
        let (journal, index) = (&self.context.journal, self.index());
        let Some(cause) = departures.first().map(|first| first.cause) else { return };
        match departures.iter().all(|departure| departure.cause == cause) {
            true => journal.record_all(index, cause, departures),
            false => journal.record_subscribed(index, departures),
        }
    }

    /// Returns the weight of the removed entries that was not yet subtracted from the bound.
    #[inline]
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns the weight of the removed entries; the caller subtracts it from the bound.
    #[inline]
    pub(crate) fn take_freed(&mut self) -> u64 {
        mem::take(&mut self.freed)
    }

    /// Adds the weight of entries that were removed with their table.
    pub(crate) fn add_freed(&mut self, weight: u64) {
        self.freed += weight;
    }

    /// Returns the cause of removing the entry in `bucket`. An entry that a tag removed before its deadline departs as
    /// [`Cause::Removed`], no matter which path finds it, and even if its deadline has passed since.
    #[inline]
    fn cause_of(&self, bucket: usize, cause: Cause) -> Cause {
        let is_removed = self.context.tag_removals.is_pending()
            && self.guard.entry_at(bucket).is_some_and(|(_, entry)| {
                self.state().side_tables.is_removed(bucket, entry.deadline())
            });
        if is_removed { Cause::Removed } else { cause }
    }

    /// Takes the entry in `bucket` out of the table and the side tables. An evicted key is remembered as a ghost.
    #[inline]
    fn take(&mut self, bucket: usize, cause: Cause) -> (K, Entry<V>) {
        let (table, state) = self.guard.parts();
        let (key, entry) = table.take_at(bucket);
        self.freed += match cause {
            Cause::Evicted => {
                let hash = self.context.hash_or_zero(&key);
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
            let hash = |key: &K| self.context.hash_or_zero(key);
            departure.waiters = waiters.take_departure_waiters(&departure.key, hash);
        }
    }
}

impl<'a, K, V, S> Shard<'a, K, V, S> {
    /// Returns the data that all shards share.
    #[inline]
    pub(crate) fn context(&self) -> &'a ShardContext<K, V, S> {
        self.context
    }

    /// Subtracts the weight of the removed entries from the bound.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.freed > 0
            && let Some(bound) = &self.context.bound
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
