//! What changes the entry of one key.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
};

use super::{
    Location, Store,
    counters::bump,
    entry::{Cause, Departure, Entry},
    window,
    write_bounded::IfLive,
};
use crate::engine::clock::{Deadline, Now};

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
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let found = self.update(key, now, |entry| {
            // In this order, so that what panics leaves nothing to be dropped under the lock.
            let deadline = deadline(&entry.value);
            let value = entry.value.clone();
            entry.deadline = deadline;
            value
        });
        self.reads.count(found.is_some());
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
        if let Some(bound) = self.evicting_bound() {
            let written = self.write_bounded(bound, key, value, now, deadline, IfLive::Replace);
            return written.flatten();
        }
        let place @ Location { hash, index } = self.place(&key);
        let mut locked = self.write(place, |k, _| *k == key);
        let (table, beside) = locked.parts();
        // Looked for first: most writes replace, and whoever inserts may have to grow the table.
        let Some((bucket, entry)) = window::find(table, hash, |k| *k == key) else {
            self.insert(&mut locked, place, key, Entry::new(value, deadline(None)));
            return None;
        };
        if now.is_dead(entry.deadline) {
            // A dead value is none: the new one gets what a new key gets, and the old one leaves as expired before
            // anybody hears of the new.
            let fresh = deadline(None);
            let old = entry.replace(value, fresh);
            self.note(beside, index, bucket, fresh);
            self.expired(locked, index, old.depart(key, Cause::Expired, now.tick()));
            return None;
        }
        // Cloned first: a clone that panics then changes nothing.
        let copy = self.journal.wants(Cause::Replaced).then(|| entry.value.clone());
        let fresh = deadline(Some(entry.deadline));
        let old = entry.replace(value, fresh);
        self.note(beside, index, bucket, fresh);
        bump(&self.notes[index].departures.replaced, 1);
        match copy {
            // The key that is in the map stays, and the caller's goes: it is theirs to drop, so after the lock.
            None => {
                drop(locked);
                drop(key);
            }
            Some(copy) => {
                let copy = Entry::new(copy, old.deadline);
                let unwanted =
                    self.journal.record(index, copy.depart(key, Cause::Replaced, now.tick()));
                drop(locked);
                drop(unwanted);
            }
        }
        Some(old.value)
    }

    /// Puts `value` at `key` where no live value is; tells whether it did.
    pub(crate) fn set_nx(&self, key: K, value: V, now: &impl Now, deadline: Deadline) -> bool
    where
        V: Clone,
    {
        if let Some(bound) = self.evicting_bound() {
            let leave = IfLive::Leave;
            return self.write_bounded(bound, key, value, now, |_| deadline, leave).is_some();
        }
        let place @ Location { hash, index } = self.place(&key);
        let mut locked = self.write(place, |k, _| *k == key);
        let (table, beside) = locked.parts();
        let Some((bucket, entry)) = window::find(table, hash, |k| *k == key) else {
            self.insert(&mut locked, place, key, Entry::new(value, deadline));
            return true;
        };
        // Unlocked by hand: `key` and `value` are dropped at the end of this call.
        if !now.is_dead(entry.deadline) {
            drop(locked);
            return false;
        }
        let old = entry.replace(value, deadline);
        self.note(beside, index, bucket, deadline);
        self.expired(locked, index, old.depart(key, Cause::Expired, now.tick()));
        true
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
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.evicting_bound() {
            Some(bound) => self.change_bounded(bound, key, now, change),
            None => self.update(key, now, |entry| change(&mut entry.value)),
        }
    }

    /// Calls `change` with the live entry but for its value, under its shard's lock. A dead one is expired on the way.
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
        let place @ Location { hash, index } = self.place(key);
        let mut locked = self.write(place, |k, _| k.borrow() == key);
        let (table, beside) = locked.parts();
        let (bucket, entry) = window::find(table, hash, |k| k.borrow() == key)?;
        if !now.is_dead(entry.deadline) {
            let changed = change(entry);
            let deadline = entry.deadline;
            if let Some(room) = &beside.room {
                room.touch(bucket);
            }
            self.note(beside, index, bucket, deadline);
            return Some(changed);
        }
        self.expire_found(locked, index, bucket, now);
        None
    }

    /// Takes the live value out. A dead one is expired on the way.
    pub(crate) fn remove<Q>(&self, key: &Q, now: &impl Now, cause: Cause) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let place @ Location { hash, index } = self.place(key);
        let mut locked = self.write(place, |k, _| k.borrow() == key);
        let (table, _) = locked.parts();
        let (bucket, entry) = window::find(table, hash, |k| k.borrow() == key)?;
        if now.is_dead(entry.deadline) {
            self.expire_found(locked, index, bucket, now);
            return None;
        }
        // Cloned first: a clone that panics then changes nothing.
        let copy = self.journal.wants(cause).then(|| entry.value.clone());
        let (key, entry) = self.take_out(&mut locked, bucket);
        let rest = match copy {
            Some(value) => {
                let at = now.tick();
                // What `expire_now` ends has its deadline now.
                let deadline = if cause == Cause::Expired { at.into() } else { entry.deadline };
                Err(self.journal.record(index, Departure { key, value, cause, deadline, at }))
            }
            None => Ok(key),
        };
        let departures = &self.notes[index].departures;
        bump(if cause == Cause::Expired { &departures.expired } else { &departures.removed }, 1);
        drop(locked);
        drop(rest);
        Some(entry.value)
    }
}
