//! Those who wait for the same key, under one lock: that of a shard, or of whoever else keeps them.
//!
//! Who comes is counted, and who goes: under the same lock, so that the last one to go takes the key along, whoever
//! else goes at the same time.

use std::sync::Arc;

use equivalent::Equivalent;
use hashbrown::HashTable;

/// By key, what all who wait for it share. Where it does no harm that keys of one hash meet, a key is `()`.
pub(crate) struct Meetings<K, T>(HashTable<Meeting<K, T>>);

struct Meeting<K, T> {
    hash: u64,
    key: K,
    shared: Arc<T>,
    members: usize,
}

impl<K, T> Meeting<K, T> {
    fn is_of<Q>(&self, hash: u64, key: &Q) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.hash == hash && key.equivalent(&self.key)
    }
}

impl<K, T> Meetings<K, T> {
    pub(crate) fn new() -> Self {
        Self(HashTable::new())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Arc<T>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.0.find(hash, |met| met.is_of(hash, key)).map(|met| &met.shared)
    }

    /// One more waits for this key. `is_over` tells of what there is whether a new one takes its place.
    pub(crate) fn join<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        owned: impl FnOnce() -> K,
        is_over: impl FnOnce(&T) -> bool,
        new: impl FnOnce() -> T,
    ) -> Joined<T>
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some(met) = self.0.find_mut(hash, |met| met.is_of(hash, key)) {
            if !is_over(&met.shared) {
                met.members += 1;
                return Joined { shared: met.shared.clone(), is_first: false };
            }
            // Those who are still here hold what was shared by them.
            (met.shared, met.members) = (Arc::new(new()), 1);
            return Joined { shared: met.shared.clone(), is_first: true };
        }
        let met = Meeting { hash, key: owned(), shared: Arc::new(new()), members: 1 };
        let shared = met.shared.clone();
        self.0.insert_unique(hash, met, |met| met.hash);
        Joined { shared, is_first: true }
    }

    /// One of them has gone. Returns the key where it was the last, to be dropped after the lock.
    pub(crate) fn leave(&mut self, hash: u64, shared: &Arc<T>) -> Option<K> {
        let is_it = |met: &Meeting<K, T>| Arc::ptr_eq(&met.shared, shared);
        let mut found = self.0.find_entry(hash, is_it).ok()?;
        let met = found.get_mut();
        met.members -= 1;
        if met.members > 0 {
            return None;
        }
        let (met, _) = found.remove();
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(2 * self.0.len(), |met| met.hash);
        }
        Some(met.key)
    }

    /// What those share who wait for this key: they don't any more.
    pub(crate) fn take(&mut self, hash: u64, key: &K) -> Option<(Arc<T>, K)>
    where
        K: Eq,
    {
        let found = self.0.find_entry(hash, |met| met.is_of(hash, key)).ok()?;
        let (met, _) = found.remove();
        Some((met.shared, met.key))
    }

    pub(crate) fn each(&self, mut each: impl FnMut(&T)) {
        self.0.iter().for_each(|met| each(&met.shared));
    }
}

pub(crate) struct Joined<T> {
    pub(crate) shared: Arc<T>,
    /// Whether nobody else was there.
    pub(crate) is_first: bool,
}
