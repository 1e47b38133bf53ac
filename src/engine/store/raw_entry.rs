//! Entries whatever their deadline, within a bound: for those who decide themselves what dead means.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{
    Location, ShardState, Store,
    bound::Bound,
    entry::Entry,
    window::{self, ShardWriteGuard},
};

/// A key that is nowhere, and the lock of its shard.
pub(crate) struct VacantEntry<'a, K, V> {
    locked: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    location: Location,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Never more than so many entries by [`put_fresh`](Store::put_fresh).
    pub(crate) fn bounded(mut self, max_keys: usize) -> Self {
        self.bound = Some(Box::new(Bound::new(max_keys as u64, None, false)));
        self
    }

    /// Calls `change` with the entry of `key`, dead or alive, under its shard's lock. Its deadline may only
    /// move away. Where there is none, gives back what [`put_fresh`](Store::put_fresh) needs.
    #[inline(always)]
    pub(crate) fn change_any<Q, R>(
        &self,
        location: Location,
        key: &Q,
        change: impl FnOnce(&mut Entry<V>) -> R,
    ) -> Result<R, VacantEntry<'_, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        match window::find(locked.parts().0, location.hash, |k| key.equivalent(k)) {
            // What is known of its window stays true.
            Some((_, entry)) => Ok(change(entry)),
            None => Err(VacantEntry { locked, location }),
        }
    }

    /// Puts the entry that `fresh` makes where none is, unless the store is full.
    pub(crate) fn put_fresh<R>(
        &self,
        VacantEntry { mut locked, location }: VacantEntry<'_, K, V>,
        key: impl FnOnce() -> K,
        fresh: impl FnOnce() -> (Entry<V>, R),
    ) -> Option<R> {
        if self.is_full() {
            return None;
        }
        // Owned before room is taken: a clone that panics then changes nothing.
        let key = key();
        if !self.try_reserve() {
            drop(locked);
            return None;
        }
        let (entry, made) = fresh();
        self.insert(&mut locked, location, key, entry);
        Some(made)
    }

    /// Calls `look` with the entry of `key`, dead or alive, under its shard's lock.
    pub(crate) fn inspect<Q, R>(
        &self,
        Location { hash, index }: Location,
        key: &Q,
        inspect: impl FnOnce(Option<&Entry<V>>) -> R,
    ) -> R
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        inspect(self.shards.read(index).find(hash, key))
    }

    /// Calls `change` with the entry at `place` that is `it`, dead or alive, under its shard's lock. Its deadline may
    /// only move away.
    pub(crate) fn change_where<R>(
        &self,
        location: Location,
        matches: impl Fn(&K, &V) -> bool,
        change: impl FnOnce(&mut Entry<V>) -> R,
    ) -> Option<R> {
        let matches = |key: &K, entry: &Entry<V>| matches(key, &entry.value);
        let mut locked = self.write(location, matches);
        let (_, entry) = window::find_where(locked.parts().0, location.hash, matches)?;
        Some(change(entry))
    }

    /// Whether there is no room for another key.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.used() >= bound.limit())
    }

    fn try_reserve(&self) -> bool {
        self.bound.as_ref().is_none_or(|bound| bound.try_reserve_one())
    }
}
