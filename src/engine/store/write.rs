//! Writes to single keys: set, compute and remove; and what becomes of the old value if the new one is not kept.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{Location, Store};
use crate::engine::{
    clock::{Deadline, Now},
    event::departure::Cause,
    shard::{
        Shard,
        entry::Entry,
        remove::{DropQueue, ExistingEntry},
        tags::TagSet,
    },
};

const VALUE_IS_GIVEN: &str = "whoever decides to write a value gives it";

/// What to do with a key, decided under the lock of its shard.
pub(crate) enum WriteDecision {
    /// Leaves the entry unchanged.
    Leave,
    /// Writes the new value with this hard deadline.
    Put(Deadline),
    /// Removes the live value.
    Remove,
}

/// The effect of a [`WriteDecision`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// Nothing was changed.
    Unchanged,
    /// The value was written, and the live value that it replaced is in the [`NewEntry`]. If it is not `resident`, it
    /// was discarded again before the lock was released: it was too heavy, or expired already.
    Put { resident: bool },
    /// The live value, if there was one, was removed, and is in the [`NewEntry`].
    Removed,
}

/// An entry that may be written to a key. Fields that are not written are dropped with it, after the unlock.
///
/// It is filled in and emptied where it lies. If it were passed on by value, each move would wait for the stores of
/// its fields: a fifth of the time of a `set`. And each move of a large value takes its size on the stack.
pub(crate) struct NewEntry<K, V> {
    location: Location,
    /// `None` once it was written.
    key: Option<K>,
    /// `None` until the value is known, at the latest when the decision is [`WriteDecision::Put`]. Once it was written,
    /// this is the live value that was replaced or removed, if there was one.
    pub(crate) value: Option<V>,
    /// `None` if the weigher was not called for the value.
    weight: Option<u32>,
    pub(crate) tags: Option<TagSet>,
    /// Clone of the live value that is replaced, if a subscriber or a waiter needs it.
    copy: Option<V>,
    deadline: Deadline,
    hard_deadline: Deadline,
}

/// The effect of a write on its shard.
struct WriteEffect {
    /// Bucket of the written entry; `None` if it was discarded.
    bucket: Option<usize>,
    /// Weight to be evicted for it.
    to_evict: u64,
}

impl<K, V> NewEntry<K, V> {
    #[inline]
    fn key(&self) -> &K {
        self.key.as_ref().expect("the key is taken last")
    }

    #[inline]
    fn weight(&self) -> u32 {
        self.weight.unwrap_or(1)
    }

    /// Takes the key, to write the entry.
    #[inline]
    fn take_key(&mut self) -> K {
        self.key.take().expect("an entry is written once")
    }

    /// Takes the value, to write it.
    #[inline]
    fn take_value(&mut self) -> V {
        self.value.take().expect(VALUE_IS_GIVEN)
    }

    /// Returns the value, to exchange it for the one that it replaces.
    #[inline]
    fn value_mut(&mut self) -> &mut V {
        self.value.as_mut().expect(VALUE_IS_GIVEN)
    }
}

impl From<Option<Deadline>> for WriteDecision {
    fn from(deadline: Option<Deadline>) -> Self {
        deadline.map_or(WriteDecision::Leave, WriteDecision::Put)
    }
}

impl Written {
    /// Returns whether the written value was discarded before the lock was released.
    pub(crate) fn was_discarded(self) -> bool {
        self == Written::Put { resident: false }
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Writes `value` to `key`, with a deadline computed from that of the live value, if any. Returns the live value
    /// that was replaced.
    #[inline]
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
        let mut new = self.new_entry_with(key, value);
        self.decide(&mut new, now, |live, _| {
            WriteDecision::Put(deadline(live.map(|(_, until)| until)))
        });
        new.value
    }

    /// Writes `value` to `key` if it has no live value. Returns whether it was written.
    pub(crate) fn set_nx(&self, key: K, value: V, now: &impl Now, deadline: Deadline) -> bool
    where
        V: Clone,
    {
        // Looked up first: the weigher is called once per written value, and may panic for one that is not written.
        if self.has_weigher() == Some(true) && self.deadline(&key, now).is_some() {
            return false;
        }
        let mut new = self.new_entry_with(key, value);
        let written = self.decide(&mut new, now, |live, _| match live {
            Some(_) => WriteDecision::Leave,
            None => WriteDecision::Put(deadline),
        });
        written != Written::Unchanged
    }

    /// Returns an entry for `key` that has no value yet.
    #[inline]
    pub(crate) fn new_entry(&self, key: K) -> NewEntry<K, V> {
        NewEntry {
            location: self.locate(&key),
            key: Some(key),
            value: None,
            weight: None,
            tags: None,
            copy: None,
            deadline: Deadline::PERSISTENT,
            hard_deadline: Deadline::PERSISTENT,
        }
    }

    /// Returns an entry for `key` with `value`, and its weight.
    #[inline]
    pub(crate) fn new_entry_with(&self, key: K, value: V) -> NewEntry<K, V> {
        let mut new = self.new_entry(key);
        self.weigh_new(&mut new, &value);
        new.value = Some(value);
        new
    }

    /// Calls the weigher for the value that `new` will get. Called before any lock, since the weigher is user code.
    #[inline]
    pub(crate) fn weigh_new(&self, new: &mut NewEntry<K, V>, value: &V) {
        new.weight = self.weigh(new.key(), value);
    }

    /// Carries out what `decide` returns for the live value and its deadline, under the lock. `decide` may put the new
    /// value into the slot that it is given; the weigher is then called for it under the lock. Expires the entry if its
    /// deadline has passed.
    #[inline]
    pub(crate) fn decide(
        &self,
        new: &mut NewEntry<K, V>,
        now: &impl Now,
        decide: impl FnOnce(Option<(&V, Deadline)>, &mut Option<V>) -> WriteDecision,
    ) -> Written
    where
        V: Clone,
    {
        let location @ Location { hash, .. } = new.location;
        if let Some(room) = self.make_room() {
            room.before_write(u64::from(new.weight()), now);
        }
        let locked = self.lock_key(location, new.key(), now);
        // Searched before anything is reserved: most writes replace a value, and an insert may have to grow the table.
        let entry = locked.find_shared(hash, new.key());
        let entry = entry.map(|(bucket, entry)| (bucket, now.is_expired(entry.deadline()), entry));
        let found = entry.map(|(bucket, is_expired, _)| ExistingEntry { bucket, is_expired });
        let live = entry.filter(|(_, is_expired, _)| !is_expired);
        let live =
            live.map(|(bucket, _, entry)| (&entry.value, locked.hard_deadline(bucket, entry)));
        match decide(live, &mut new.value) {
            WriteDecision::Put(hard_deadline) => {
                new.hard_deadline = hard_deadline;
                new.deadline = self.deadline_after_write(hard_deadline, now);
                self.put_found(new, locked, found, now)
            }
            WriteDecision::Remove => {
                locked.bump_write_version(hash, new.key());
                if let Some(ExistingEntry { bucket, .. }) = found {
                    new.value = self.remove_found(locked, bucket, now, Cause::Removed);
                    return Written::Removed;
                }
                drop(locked);
                Written::Unchanged
            }
            WriteDecision::Leave => {
                drop(locked);
                Written::Unchanged
            }
        }
    }

    /// Writes a value to a key whose entry was looked up in its locked shard, and unlocks the shard.
    #[inline]
    fn put_found(
        &self,
        new: &mut NewEntry<K, V>,
        mut locked: Shard<'_, K, V, S>,
        found: Option<ExistingEntry>,
        now: &impl Now,
    ) -> Written
    where
        V: Clone,
    {
        let location @ Location { hash, .. } = new.location;
        // User code (the weigher, `Clone`, `Eq`) runs before the first change: if it panics, nothing has changed.
        if new.weight.is_none()
            && let Some(value) = &new.value
        {
            new.weight = self.weigh(new.key(), value);
        }
        if let Some(ExistingEntry { bucket, is_expired: false }) = found {
            new.copy = locked.copy_for_subscribers(bucket, hash, new.key());
        }
        locked.bump_write_version(hash, new.key());
        let insert_waiters = locked.insert_waiters(hash);
        let mut drop_queue = DropQueue::new();
        let stored = match found {
            Some(found) if self.fits_in_place(&locked, found, new, now) => {
                self.overwrite(&mut locked, found, new, now, &mut drop_queue)
            }
            Some(found) => {
                let replaced = locked.remove_previous(found, &mut new.copy, now, &mut drop_queue);
                let stored = self.insert_or_discard(&mut locked, new, now, &mut drop_queue);
                new.value = replaced;
                stored
            }
            None => self.insert_or_discard(&mut locked, new, now, &mut drop_queue),
        };
        match (stored.bucket, self.make_room()) {
            (Some(bucket), Some(room)) => {
                let written = (location, bucket);
                room.after_write(locked, written, stored.to_evict, now, &mut drop_queue);
            }
            _ => drop(locked),
        }
        drop_queue.drop_all();
        if stored.bucket.is_some() {
            notify_insert_waiters(insert_waiters);
        }
        Written::Put { resident: stored.bucket.is_some() }
    }

    /// Returns whether the value of an entry can be overwritten. In a store that evicts, this is not the case if the
    /// entry has expired, since the new value is then a new entry to the eviction policy, or if the new value must be
    /// discarded: it is too heavy, or has expired and there is no free capacity for it. Nor is it the case if the new
    /// value expires at once.
    #[inline]
    fn fits_in_place(
        &self,
        locked: &Shard<'_, K, V, S>,
        found: ExistingEntry,
        new: &NewEntry<K, V>,
        now: &impl Now,
    ) -> bool {
        if self.expires_at_once(|| new.deadline, now) {
            return false;
        }
        let Some(room) = self.make_room() else { return true };
        let more = new.weight().saturating_sub(locked.weight(found.bucket));
        !found.is_expired && room.refuse(new.weight(), more, new.deadline, now).is_none()
    }

    /// Overwrites the value of an entry. An expired value was not replaced: its departure is recorded as `Expired`,
    /// before the new value can be read.
    #[inline]
    fn overwrite(
        &self,
        locked: &mut Shard<'_, K, V, S>,
        ExistingEntry { bucket, is_expired }: ExistingEntry,
        new: &mut NewEntry<K, V>,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> WriteEffect {
        let deadline = new.deadline;
        let before = locked.entry_at_mut(bucket).swap(new.value_mut(), deadline);
        locked.note_deadline(bucket, new.deadline);
        locked.write_side_tables(bucket, new.hard_deadline, new.tags.take());
        let to_evict = locked.update_weight(bucket, new.weight());
        if is_expired {
            let old = Entry::new(new.take_value(), before);
            locked.depart(new.take_key(), old, Cause::Expired, now, drop_queue);
        } else {
            locked.record_replaced(new.take_key(), new.copy.take(), before, now, drop_queue);
        }
        WriteEffect { bucket: Some(bucket), to_evict }
    }

    /// Inserts an entry whose key is not in the shard. In a store that evicts, evicts entries of the same shard for it
    /// first, or discards the new entry: if it is too heavy, or has expired and there is no free capacity for it. Also
    /// discards one that expires at once.
    #[inline]
    fn insert_or_discard(
        &self,
        locked: &mut Shard<'_, K, V, S>,
        new: &mut NewEntry<K, V>,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> WriteEffect {
        let (hash, weight) = (new.location.hash, new.weight());
        let entry = Entry::new(new.take_value(), new.deadline);
        let room = self.make_room();
        let refused = room.as_ref().and_then(|room| room.refuse(weight, weight, new.deadline, now));
        let expired = || self.expires_at_once(|| new.deadline, now).then_some(Cause::Expired);
        if let Some(cause) = refused.or_else(expired) {
            locked.depart(new.take_key(), entry, cause, now, drop_queue);
            return WriteEffect { bucket: None, to_evict: 0 };
        }
        if let Some(room) = room {
            room.before_insert(locked, (hash, weight), now, drop_queue);
        }
        let bucket = locked.insert(hash, new.take_key(), entry);
        let to_evict = locked.note_inserted(bucket, hash, weight);
        locked.write_side_tables(bucket, new.hard_deadline, new.tags.take());
        WriteEffect { bucket: Some(bucket), to_evict }
    }

    /// Removes and returns the live value. Expires the entry if its deadline has passed.
    pub(crate) fn remove<Q>(&self, key: &Q, now: &impl Now, cause: Cause) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let location @ Location { hash, .. } = self.locate(key);
        let locked = self.lock_key(location, key, now);
        locked.bump_write_version(hash, key);
        let (bucket, _) = locked.find_shared(hash, key)?;
        self.remove_found(locked, bucket, now, cause)
    }

    /// Removes the entry in `bucket`, unlocks the shard and returns the value. If the entry has expired, expires it and
    /// returns `None`.
    pub(super) fn remove_found(
        &self,
        mut locked: Shard<'_, K, V, S>,
        bucket: usize,
        now: &impl Now,
        cause: Cause,
    ) -> Option<V>
    where
        V: Clone,
    {
        let (_, entry) = locked.entry_at(bucket).expect("the bucket that was just found is full");
        if now.is_expired(entry.deadline()) {
            self.expire_found(locked, bucket, now);
            return None;
        }
        let mut drop_queue = DropQueue::new();
        let value = locked.remove_value(bucket, cause, now, &mut drop_queue);
        drop(locked);
        drop_queue.drop_all();
        Some(value)
    }
}

/// Wakes the tasks that wait for a value of a key. Called after the unlock, since a waker may be user code.
#[inline]
pub(super) fn notify_insert_waiters(insert_waiters: Option<Arc<Notify>>) {
    if let Some(insert_waiters) = insert_waiters {
        insert_waiters.notify_waiters();
    }
}
