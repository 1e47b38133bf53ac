//! Removal of entries from a shard.
//!
//! [`Shard::remove`] and its two variants are the only way out of the store for a single entry. Each of them takes the
//! entry out of the table and the side tables, adds up its weight, counts its cause, attaches the tasks that wait for
//! its departure, and passes it to the journal, or to the caller to be dropped after the unlock. The weight is
//! subtracted from the bound at the latest when the shard is unlocked, so no path can forget it.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use super::{Shard, entry::Entry};
use crate::engine::{
    clock::{Deadline, Now, Tick},
    counters::bump,
    event::departure::{Cause, Departure},
    panics,
};

/// The entry of a key that is to be written.
#[derive(Clone, Copy)]
pub(crate) struct ExistingEntry {
    pub(crate) bucket: usize,
    pub(crate) is_expired: bool,
}

/// Removed entries that are dropped after the lock is released. Holds one entry without an allocation, which is the
/// usual case.
pub(crate) struct DropQueue<K, V> {
    /// `None` only if `more` is empty.
    first: Option<(K, V)>,
    more: Vec<(K, V)>,
    /// The caller's key, if the map already had an equal one.
    key: Option<K>,
}

impl<K, V, S> Shard<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
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
    #[inline]
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
        ExistingEntry { bucket, is_expired }: ExistingEntry,
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
    pub(crate) fn cause_of(&self, bucket: usize, cause: Cause) -> Cause {
        if self.is_tag_removed(bucket) { Cause::Removed } else { cause }
    }

    /// Returns whether a tag of the entry in `bucket` was removed before its deadline.
    #[inline]
    pub(crate) fn is_tag_removed(&self, bucket: usize) -> bool {
        self.context.tag_removals.is_pending()
            && self.guard.entry_at(bucket).is_some_and(|(_, entry)| {
                self.state().side_tables.is_removed(bucket, entry.deadline())
            })
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

impl<K, V> DropQueue<K, V> {
    pub(crate) fn new() -> Self {
        Self { first: None, more: Vec::new(), key: None }
    }

    /// Reserves capacity for `count` entries; called before the lock, so that nothing is allocated under it.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.more.reserve(count.saturating_sub(1));
    }

    pub(crate) fn push_key(&mut self, key: K) {
        self.key = Some(key);
    }

    /// Drops the entries one by one. A panic of a `Drop` is caught: it must not affect the caller, who only wrote
    /// another key.
    #[inline]
    pub(crate) fn drop_all(mut self) {
        // The usual case of a write is an empty queue.
        if self.first.is_some() {
            self.drop_entries();
        }
        drop(self.key);
    }

    /// Drops the entries but keeps the capacity.
    pub(crate) fn drop_entries(&mut self) {
        panics::drop_all(self.first.take());
        panics::drop_all(self.more.drain(..));
    }

    pub(crate) fn push(&mut self, key: K, value: V) {
        match self.first {
            None => self.first = Some((key, value)),
            Some(_) => self.more.push((key, value)),
        }
    }

    pub(crate) fn push_departure(&mut self, departure: Option<Departure<K, V>>) {
        if let Some(Departure { key, value, .. }) = departure {
            self.push(key, value);
        }
    }
}
