//! What changes the entry of one key.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{
    Location, ShardState, Store,
    counters::bump,
    entry::{Cause, Departure, Entry},
    tags::TagSet,
    window::{self, ShardWriteGuard},
};
use crate::engine::clock::{Deadline, Now};

/// What is to become of a key, decided under the lock of its shard.
pub(crate) enum Decision<V> {
    /// All stays as it is.
    Leave,
    /// This value, which may live until then.
    Put(V, Deadline),
    Remove,
}

/// What came of it.
pub(crate) enum Written<V> {
    Unchanged,
    /// The value is there, in place of this live one; or, where it does not stay, has left again at once.
    Put {
        replaced: Option<V>,
        resident: bool,
    },
    /// This was live.
    Removed(Option<V>),
}

impl<V> Written<V> {
    /// Whether a value was put that has left again at once.
    pub(crate) fn was_discarded(&self) -> bool {
        matches!(self, Written::Put { resident: false, .. })
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// A clone of the live value, which gets a new deadline. A dead one is expired on the way.
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
        // In this order, so that what panics leaves nothing to be dropped under the lock.
        let found = self.update(key, now, |value, _| {
            let deadline = deadline(value);
            (value.clone(), Some(deadline))
        });
        self.reads.count(found.is_some());
        found
    }

    /// Puts `value` at `key`; its deadline follows from that of the live value there, if any.
    /// Returns the live value that it replaced.
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

    /// Puts `value` at `key` where no live value is; tells whether it did.
    pub(crate) fn set_nx(&self, key: K, value: V, now: &impl Now, deadline: Deadline) -> bool
    where
        V: Clone,
    {
        let decide = |live: Option<Deadline>| live.is_none().then_some(deadline);
        matches!(self.put(key, value, None, now, decide), Written::Put { .. })
    }

    /// Puts `value` at `key`, with these tags. `decide` says under the lock, by the deadline of the live value there,
    /// until when it may live; or, where it says nothing, all is left as it is.
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
        // Before any lock: it is the user's.
        let weight = self.weigh(&key, &value);
        // Out here, so that what is not put is dropped after the lock.
        let mut value = Some(value);
        self.decide(key, weight, tags, now, |live| {
            let until = decide(live.map(|(_, deadline)| deadline));
            match until.and_then(|until| Some((value.take()?, until))) {
                Some((value, until)) => Decision::Put(value, until),
                None => Decision::Leave,
            }
        })
    }

    /// Does what `decide` says of the live value and its deadline, under the lock. A new value weighs `weight`, where
    /// that is known before; else it is weighed there. A dead one is expired on the way.
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
        self.purge_if_tag_removed(location, &key, now);
        // Out here, so that it is dropped after the lock where something of the user's panics.
        let (value, hard_deadline);
        let mut locked = self.write(location, |k, _| *k == key);
        let (table, state) = locked.parts();
        // Looked for first: most writes replace, and whoever inserts may have to grow the table.
        let Some((bucket, entry)) = window::find(table, hash, |k| *k == key) else {
            match decide(None) {
                Decision::Put(new, until) => (value, hard_deadline) = (new, until),
                decision => {
                    if let Decision::Remove = decision {
                        state.bump_write_version(hash, &key);
                    }
                    // Unlocked by hand: `key` is dropped at the end of this call.
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
        let is_dead = now.is_dead(entry.deadline());
        let live = || {
            (
                &entry.value,
                state.side_tables.hard_deadline(bucket).unwrap_or_else(|| entry.deadline()),
            )
        };
        match decide((!is_dead).then(live)) {
            Decision::Put(new, until) => (value, hard_deadline) = (new, until),
            Decision::Remove => {
                state.bump_write_version(hash, &key);
                let removed = self.remove_found(locked, index, bucket, now, Cause::Removed);
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
        // What is the user's comes first: where it panics, nothing is changed.
        state.bump_write_version(hash, &key);
        let copy = (!is_dead && has_subscriber).then(|| entry.value.clone());
        let old = entry.replace(value, entry_deadline);
        self.note_deadline(state, index, bucket, entry_deadline);
        self.write_side_tables(state, bucket, hard_deadline, tags);
        if is_dead {
            // A dead value is none: the old one leaves as expired before anybody hears of the new.
            self.record_expired(locked, index, old.depart(key, Cause::Expired, now.tick()));
            notify_insert_waiters(insert_waiters);
            return Written::Put { replaced: None, resident: true };
        }
        bump(&self.meta[index].departures.replaced, 1);
        match copy {
            // The key that is in the map stays, and the caller's goes: it is theirs to drop, so after the lock.
            None => {
                drop(locked);
                drop(key);
            }
            Some(copy) => {
                let copy = Entry::new(copy, old.deadline());
                let mut departure = copy.depart(key, Cause::Replaced, now.tick());
                self.attach_waiters(locked.parts().1, &mut departure);
                let unrecorded = self.journal.record(index, departure);
                drop(locked);
                drop(unrecorded);
            }
        }
        notify_insert_waiters(insert_waiters);
        Written::Put { replaced: Some(old.value), resident: true }
    }

    /// Calls `change` with the live value, under its shard's lock, as does what weighs it then. A dead one is expired on
    /// the way.
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

    /// Calls `change` with the live value and its deadline, under its shard's lock; it may give another one, or the same
    /// anew. A dead one is expired on the way.
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

    /// As [`update`](Self::update); it may be a write, which wins over what is being loaded.
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
        self.purge_if_tag_removed(location, key, now);
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let (table, state) = locked.parts();
        let (bucket, entry) = window::find(table, hash, |k| key.equivalent(k))?;
        if now.is_dead(entry.deadline()) {
            if self.is_past_stale_window(entry.deadline(), now) {
                self.expire_found(locked, index, bucket, now);
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
        // What was given no deadline does not live longer for that.
        if let Some(deadline) = deadline {
            let entry_deadline = self.deadline_after_write(deadline, now);
            entry.set_deadline(entry_deadline);
            state.side_tables.set_hard_deadline(bucket, deadline);
            self.note_deadline(state, index, bucket, entry_deadline);
        }
        Some(changed)
    }

    /// Takes the live value out. A dead one is expired on the way.
    pub(crate) fn remove<Q>(&self, key: &Q, now: &impl Now, cause: Cause) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let location @ Location { hash, index } = self.place(key);
        self.purge_if_tag_removed(location, key, now);
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let (table, state) = locked.parts();
        state.bump_write_version(hash, key);
        let (bucket, _) = window::find(table, hash, |k| key.equivalent(k))?;
        self.remove_found(locked, index, bucket, now, cause)
    }

    /// Takes out what was found in this bucket, which is its live value; a dead one is expired.
    pub(super) fn remove_found(
        &self,
        mut locked: ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        index: usize,
        bucket: usize,
        now: &impl Now,
        cause: Cause,
    ) -> Option<V>
    where
        V: Clone,
    {
        let (table, state) = locked.parts();
        let found = window::entry_at(table, bucket);
        let (key, entry) = found.expect("what was just found is there");
        if now.is_dead(entry.deadline()) {
            self.expire_found(locked, index, bucket, now);
            return None;
        }
        // Cloned first: a clone that panics then changes nothing.
        let has_subscriber = self.journal.has_subscriber(cause)
            || state.waiters.is_some() && state.has_departure_waiters(self.hash_or_zero(key), key);
        let copy = has_subscriber.then(|| entry.value.clone());
        let (key, entry) = self.take_out(&mut locked, bucket);
        let to_drop = match copy {
            Some(value) => {
                let at = now.tick();
                // What `expire_now` ends has its deadline now.
                let deadline = if cause == Cause::Expired { at.into() } else { entry.deadline() };
                let mut departure = Departure { key, value, cause, deadline, at, waiters: None };
                self.attach_waiters(locked.parts().1, &mut departure);
                Err(self.journal.record(index, departure))
            }
            None => Ok(key),
        };
        let departures = &self.meta[index].departures;
        bump(if cause == Cause::Expired { &departures.expired } else { &departures.removed }, 1);
        drop(locked);
        drop(to_drop);
        Some(entry.value)
    }
}

/// There is a value now. Out of the lock: a waker is somebody's code.
#[inline]
pub(super) fn notify_insert_waiters(insert_waiters: Option<Arc<Notify>>) {
    if let Some(insert_waiters) = insert_waiters {
        insert_waiters.notify_waiters();
    }
}
