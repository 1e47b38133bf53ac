//! Raw access to entries regardless of their deadlines, with a hard bound on their number. Used by the rate limiter,
//! which decides itself which entries have expired.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{Location, Store};
use crate::engine::{
    bound::limit::Bound,
    shard::{Shard, entry::Entry},
};

/// A key without an entry, and the write lock of its shard.
pub(crate) struct VacantEntry<'a, K, V, S> {
    locked: Shard<'a, K, V, S>,
    location: Location,
    /// Key of a refused entry. After the lock, so that it is dropped after the unlock: its `Drop` is user code.
    refused_key: Option<K>,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Limits the number of entries that [`put_fresh`](Store::put_fresh) inserts. Nothing is evicted: at the bound, new
    /// keys are refused.
    pub(crate) fn bounded(mut self, max_keys: usize) -> Self {
        self.context.bound = Some(Box::new(Bound::new(max_keys as u64, None, false)));
        self
    }

    /// Calls `change` with the entry of `key`, live or expired, under its shard's lock. `change` may only move the
    /// deadline later. If there is no entry, returns the locked vacant entry for [`put_fresh`](Store::put_fresh).
    #[inline(always)]
    pub(crate) fn change_any<Q, R>(
        &self,
        location: Location,
        key: &Q,
        change: impl FnOnce(&mut Entry<V>) -> R,
    ) -> Result<R, VacantEntry<'_, K, V, S>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut locked = self.lock_entry(location, key);
        match locked.find(location.hash, key) {
            // The expiry index needs no update: a bound on a deadline that moves later is still a lower bound.
            Some((_, entry)) => Ok(change(entry)),
            None => Err(VacantEntry { locked, location, refused_key: None }),
        }
    }

    /// Inserts the entry that `fresh` makes, or returns the vacant entry, still locked, if the store is full. The lock
    /// has been held since the look-up, so no other caller has inserted the key.
    pub(crate) fn put_fresh<'a, R>(
        &self,
        mut vacant: VacantEntry<'a, K, V, S>,
        key: impl FnOnce() -> K,
        fresh: impl FnOnce() -> (Entry<V>, R),
    ) -> Result<R, VacantEntry<'a, K, V, S>> {
        if self.is_full() {
            return Err(vacant);
        }
        // The key is made before its place is reserved: if `to_owned` panics, nothing has changed.
        let key = key();
        if !self.try_reserve() {
            vacant.refused_key = Some(key);
            return Err(vacant);
        }
        let (entry, made) = fresh();
        vacant.locked.insert(vacant.location.hash, key, entry);
        Ok(made)
    }

    /// Calls `inspect` with the entry of `key`, live or expired, under its shard's read lock.
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

    /// Calls `change` with the entry at `location` for which `matches` returns true, live or expired, or with `None` if
    /// there is none, under its shard's lock. If `change` may move the deadline earlier, the caller flushes the
    /// publisher, which may have to wake the sweeper. `matches` is also called with entries of other hashes, because
    /// the table compares only seven bits.
    pub(crate) fn change_where<R>(
        &self,
        location: Location,
        matches: impl Fn(&K, &V) -> bool,
        change: impl FnOnce(Option<&mut Entry<V>>) -> R,
    ) -> R {
        let matches = |key: &K, entry: &Entry<V>| matches(key, &entry.value);
        let mut locked = self.lock_shard(location.index);
        locked.ensure_moved_where(location.hash, matches);
        let Some((bucket, entry)) = locked.find_where(location.hash, matches) else {
            return change(None);
        };
        let before = entry.deadline();
        let changed = change(Some(entry));
        let deadline = locked.entry_at_mut(bucket).deadline();
        if before.is_later_than(deadline) {
            locked.note_deadline(bucket, deadline);
        }
        changed
    }

    /// Returns whether a new key would be refused.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.context.bound.as_ref().is_some_and(|bound| bound.used() >= bound.limit())
    }

    fn try_reserve(&self) -> bool {
        self.context.bound.as_ref().is_none_or(|bound| bound.try_reserve_one())
    }
}
