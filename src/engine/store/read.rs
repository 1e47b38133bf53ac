//! What looks a key up, and lets it leave where it is dead.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
    iter,
};

use super::{
    Beside, Location, Store,
    entry::Entry,
    window::{self, Reading, Table},
};
use crate::engine::clock::{Deadline, Now};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// A clone of the live value. A dead one is expired on the way.
    #[inline]
    pub(crate) fn get<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        if self.evicting_bound().is_some() {
            return self.get_bounded(key, now);
        }
        let found = self.read(key, now, |entry| entry.value.clone());
        self.reads.count(found.is_some());
        found
    }

    /// As [`get`](Self::get); and who is read is worth keeping.
    #[inline]
    fn get_bounded<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let place @ Location { hash, index } = self.place(key);
        let shard = self.shards.read(index);
        let Some(room) = &shard.beside().room else { unreachable!("entries make room here") };
        let found = shard.find_bucket(hash, key);
        let value = match found {
            Some((bucket, entry)) if !now.is_dead(entry.deadline) => {
                if let Some(bucket) = bucket {
                    room.touch(bucket);
                }
                Some(entry.value.clone())
            }
            Some(_) => None,
            None => {
                if room.was_evicted_lately(hash) {
                    self.reads.count_evicted();
                }
                None
            }
        };
        let is_dead = found.is_some() && value.is_none();
        drop(shard);
        if is_dead {
            self.expire_dead(place, key, now);
        }
        self.reads.count(value.is_some());
        value
    }

    /// The live entry's deadline. A dead one is expired on the way.
    pub(crate) fn deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<Deadline>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.read(key, now, |entry| entry.deadline)
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
}

impl<K, V> Reading<'_, K, V, Beside<K, V>> {
    /// How many entries there are.
    pub(super) fn resident(&self) -> usize {
        self.tables().map(Table::len).sum()
    }

    /// The tables that hold entries: one, or two while entries move from one to the other.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table<K, V>> {
        let old = self.beside().old.as_ref();
        iter::once(&**self).chain(old.map(|old| &old.table))
    }

    #[inline]
    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<V>>
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

    /// As [`find`](Self::find), with the bucket; none where it has not come to the present table yet.
    #[inline]
    fn find_bucket<Q>(&self, hash: u64, key: &Q) -> Option<(Option<usize>, &Entry<V>)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if let Some((bucket, entry)) = window::find_shared(self, hash, |k| k.borrow() == key) {
            return Some((Some(bucket), entry));
        }
        let old = self.beside().old.as_ref()?;
        let (_, entry) = window::find_shared(&old.table, hash, |k| k.borrow() == key)?;
        Some((None, entry))
    }
}
