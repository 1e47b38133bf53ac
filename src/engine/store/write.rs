//! Writes to single keys: set, update and remove.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{
    Location, Store,
    entry::{Cause, Entry},
    shard::{DropQueue, Shard},
    tags::TagSet,
    window,
};
use crate::engine::clock::{Deadline, Now};

/// What to do with a key, decided under the lock of its shard.
pub(crate) enum Decision<V> {
    /// Leaves the entry unchanged.
    Leave,
    /// Writes this value with this hard deadline.
    Put(V, Deadline),
    /// Removes the live value.
    Remove,
}

/// The effect of a [`Decision`].
pub(crate) enum Written<V> {
    /// Nothing was changed.
    Unchanged,
    /// The value was written and replaced the live value `replaced`. If it is not `resident`, it was discarded again
    /// before the lock was released: it was too heavy, or expired already.
    Put { replaced: Option<V>, resident: bool },
    /// This live value was removed; `None` if the entry had expired.
    Removed(Option<V>),
}

impl<V> Written<V> {
    /// Returns whether the written value was discarded before the lock was released.
    pub(crate) fn was_discarded(&self) -> bool {
        matches!(self, Written::Put { resident: false, .. })
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns a clone of the live value and sets its deadline. Expires the entry if its deadline has passed.
    pub(crate) fn get_ex<Q>(
        &self,
        key: &Q,
        now: &impl Now,
        deadline: impl FnOnce(&V) -> Deadline,
    ) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        // In this order: if the clone or `deadline` panics, no value has to be dropped under the lock.
        let found = self.update(key, now, |value, _| {
            let deadline = deadline(value);
            (value.clone(), Some(deadline))
        });
        self.reads.count(found.is_some());
        found
    }

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
        match self.put(key, value, None, now, |live| Some(deadline(live))) {
            Written::Put { replaced, .. } => replaced,
            Written::Unchanged | Written::Removed(_) => unreachable!("a deadline was given"),
        }
    }

    /// Writes `value` to `key` if it has no live value. Returns whether it was written.
    pub(crate) fn set_nx(&self, key: K, value: V, now: &impl Now, deadline: Deadline) -> bool
    where
        V: Clone,
    {
        let decide = |live: Option<Deadline>| live.is_none().then_some(deadline);
        matches!(self.put(key, value, None, now, decide), Written::Put { .. })
    }

    /// Writes `value` with `tags` to `key`. `decide` is called under the lock with the deadline of the live value, if
    /// any, and returns the new hard deadline, or `None` to leave the entry unchanged.
    #[inline]
    pub(crate) fn put(
        &self,
        key: K,
        value: V,
        tags: Option<TagSet>,
        now: &impl Now,
        decide: impl FnOnce(Option<Deadline>) -> Option<Deadline>,
    ) -> Written<V>
    where
        V: Clone,
    {
        // Before any lock: the weigher is user code.
        let weight = self.weigh(&key, &value);
        // Declared outside of the closure: if the value is not written, it is dropped after the unlock.
        let mut value = Some(value);
        self.decide(key, weight, tags, now, |live| {
            let until = decide(live.map(|(_, deadline)| deadline));
            match until.and_then(|until| Some((value.take()?, until))) {
                Some((value, until)) => Decision::Put(value, until),
                None => Decision::Leave,
            }
        })
    }

    /// Carries out what `decide` returns for the live value and its deadline, under the lock. The new value weighs
    /// `weight`; if that is `None`, the weigher is called under the lock. Expires the entry if its deadline has passed.
    #[inline]
    pub(crate) fn decide(
        &self,
        key: K,
        weight: Option<u32>,
        tags: Option<TagSet>,
        now: &impl Now,
        decide: impl FnOnce(Option<(&V, Deadline)>) -> Decision<V>,
    ) -> Written<V>
    where
        V: Clone,
    {
        if let Some(bound) = self.evicting_bound() {
            return self.decide_bounded(bound, key, weight, tags, now, decide);
        }
        let location @ Location { hash, index } = self.place(&key);
        // Declared before `locked`, so that they are dropped after the unlock if user code panics.
        let (value, hard_deadline);
        let mut drop_queue = DropQueue::new();
        let mut locked = self.lock_key(location, &key, now);
        let (table, state) = locked.parts();
        // Searched before anything is reserved: most writes replace a value, and an insert may have to grow the table.
        let Some((bucket, entry)) = window::find(table, hash, |k| *k == key) else {
            match decide(None) {
                Decision::Put(new, until) => (value, hard_deadline) = (new, until),
                decision => {
                    if let Decision::Remove = decision {
                        state.bump_write_version(hash, &key);
                    }
                    // Unlocked explicitly: `key` is a parameter, but dropping it is user code that must not run under
                    // the lock.
                    drop(locked);
                    return Written::Unchanged;
                }
            }
            state.bump_write_version(hash, &key);
            let insert_waiters = state.insert_waiters(hash);
            let entry = Entry::new(value, self.deadline_after_write(hard_deadline, now));
            let bucket = self.insert(&mut locked, location, key, entry);
            self.write_side_tables(locked.parts().1, bucket, hard_deadline, tags);
            drop(locked);
            notify_insert_waiters(insert_waiters);
            return Written::Put { replaced: None, resident: true };
        };
        let is_expired = now.is_expired(entry.deadline());
        let live = || {
            (
                &entry.value,
                state.side_tables.hard_deadline(bucket).unwrap_or_else(|| entry.deadline()),
            )
        };
        match decide((!is_expired).then(live)) {
            Decision::Put(new, until) => (value, hard_deadline) = (new, until),
            Decision::Remove => {
                state.bump_write_version(hash, &key);
                let removed = self.remove_found(locked, bucket, now, Cause::Removed);
                return Written::Removed(removed);
            }
            Decision::Leave => {
                drop(locked);
                return Written::Unchanged;
            }
        }
        let entry_deadline = self.deadline_after_write(hard_deadline, now);
        let insert_waiters = state.insert_waiters(hash);
        let has_subscriber =
            self.journal.has_subscriber(Cause::Replaced) || state.has_departure_waiters(hash, &key);
        // User code (`Eq`, `Clone`) runs before the first change to the entry: if it panics, nothing has changed.
        state.bump_write_version(hash, &key);
        let copy = (!is_expired && has_subscriber).then(|| entry.value.clone());
        let old = entry.replace(value, entry_deadline);
        self.note_deadline(state, index, bucket, entry_deadline);
        self.write_side_tables(state, bucket, hard_deadline, tags);
        if is_expired {
            // The expired value was not replaced: its departure is recorded as `Expired`, before the new value can be
            // read.
            locked.depart(key, old, Cause::Expired, now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
            notify_insert_waiters(insert_waiters);
            return Written::Put { replaced: None, resident: true };
        }
        locked.record_replaced(key, copy, old.deadline(), now, &mut drop_queue);
        drop(locked);
        drop_queue.drop_all();
        notify_insert_waiters(insert_waiters);
        Written::Put { replaced: Some(old.value), resident: true }
    }

    /// Calls `change` with the live value under its shard's lock, and the weigher after it if the store is bounded.
    /// Counts as a write. Expires the entry if its deadline has passed.
    pub(crate) fn change<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        match self.evicting_bound() {
            Some(bound) => self.change_bounded(bound, key, now, change),
            None => self.update_live(key, now, true, |value, _| (change(value), None)),
        }
    }

    /// Calls `change` with the live value and its hard deadline, under its shard's lock. `change` may return a new
    /// deadline. Does not count as a write. Expires the entry if its deadline has passed.
    pub(crate) fn update<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut V, Deadline) -> (R, Option<Deadline>),
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.update_live(key, now, false, change)
    }

    /// Does the work of [`change`](Self::change) and [`update`](Self::update). If `is_write`, a load of the key that is
    /// under way will not be stored.
    #[inline]
    fn update_live<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        is_write: bool,
        change: impl FnOnce(&mut V, Deadline) -> (R, Option<Deadline>),
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let location @ Location { hash, index } = self.place(key);
        let mut locked = self.lock_key(location, key, now);
        let (table, state) = locked.parts();
        let (bucket, entry) = window::find(table, hash, |k| key.equivalent(k))?;
        if now.is_expired(entry.deadline()) {
            if self.is_past_stale_window(entry.deadline(), now) {
                self.expire_found(locked, bucket, now);
            }
            return None;
        }
        if is_write {
            state.bump_write_version(hash, key);
        }
        let hard_deadline =
            state.side_tables.hard_deadline(bucket).unwrap_or_else(|| entry.deadline());
        let (changed, deadline) = change(&mut entry.value, hard_deadline);
        state.side_tables.touch(bucket);
        // Without a new deadline the old one stays: in contrast to a read, an update does not extend an idle deadline.
        if let Some(deadline) = deadline {
            let entry_deadline = self.deadline_after_write(deadline, now);
            entry.set_deadline(entry_deadline);
            state.side_tables.set_hard_deadline(bucket, deadline);
            self.note_deadline(state, index, bucket, entry_deadline);
        }
        Some(changed)
    }

    /// Removes and returns the live value. Expires the entry if its deadline has passed.
    pub(crate) fn remove<Q>(&self, key: &Q, now: &impl Now, cause: Cause) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let location @ Location { hash, .. } = self.place(key);
        let mut locked = self.lock_key(location, key, now);
        let (table, state) = locked.parts();
        state.bump_write_version(hash, key);
        let (bucket, _) = window::find(table, hash, |k| key.equivalent(k))?;
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
        let (_, entry) =
            window::entry_at(&locked, bucket).expect("the bucket that was just found is full");
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
