//! Those who wait for the same key, under one lock: that of a shard, or of whoever else keeps them.
//!
//! Who comes is counted, and who goes: under the same lock, so that the last one to go takes the key along, whoever
//! else goes at the same time.

use std::sync::Arc;

use equivalent::Equivalent;
use hashbrown::HashTable;

/// By key, what all who wait for it share. Where it does no harm that keys of one hash meet, a key is `()`.
pub(crate) struct WaitMap<K, T>(HashTable<WaitEntry<K, T>>);

struct WaitEntry<K, T> {
    hash: u64,
    key: K,
    shared: Arc<T>,
    members: usize,
}

impl<K, T> WaitEntry<K, T> {
    fn is_of<Q>(&self, hash: u64, key: &Q) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.hash == hash && key.equivalent(&self.key)
    }
}

impl<K, T> WaitMap<K, T> {
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
        self.0.find(hash, |entry| entry.is_of(hash, key)).map(|entry| &entry.shared)
    }

    /// One more waits for this key. `is_finished` tells of what there is whether a new one takes its place.
    pub(crate) fn join<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        owned: impl FnOnce() -> K,
        is_finished: impl FnOnce(&T) -> bool,
        new: impl FnOnce() -> T,
    ) -> Joined<T>
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some(entry) = self.0.find_mut(hash, |entry| entry.is_of(hash, key)) {
            if !is_finished(&entry.shared) {
                entry.members += 1;
                return Joined { shared: entry.shared.clone(), is_first: false };
            }
            // Those who are still here hold what was shared by them.
            (entry.shared, entry.members) = (Arc::new(new()), 1);
            return Joined { shared: entry.shared.clone(), is_first: true };
        }
        let entry = WaitEntry { hash, key: owned(), shared: Arc::new(new()), members: 1 };
        let shared = entry.shared.clone();
        self.0.insert_unique(hash, entry, |entry| entry.hash);
        Joined { shared, is_first: true }
    }

    /// One of them has gone. Returns the key where it was the last, to be dropped after the lock.
    pub(crate) fn leave(&mut self, hash: u64, shared: &Arc<T>) -> Option<K> {
        let is_it = |entry: &WaitEntry<K, T>| Arc::ptr_eq(&entry.shared, shared);
        let mut found = self.0.find_entry(hash, is_it).ok()?;
        let entry = found.get_mut();
        entry.members -= 1;
        if entry.members > 0 {
            return None;
        }
        let (entry, _) = found.remove();
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(2 * self.0.len(), |entry| entry.hash);
        }
        Some(entry.key)
    }

    /// What those share who wait for this key: they don't any more.
    pub(crate) fn take(&mut self, hash: u64, key: &K) -> Option<(Arc<T>, K)>
    where
        K: Eq,
    {
        let found = self.0.find_entry(hash, |entry| entry.is_of(hash, key)).ok()?;
        let (entry, _) = found.remove();
        Some((entry.shared, entry.key))
    }

    pub(crate) fn each(&self, mut each: impl FnMut(&T)) {
        self.0.iter().for_each(|entry| each(&entry.shared));
    }
}

pub(crate) struct Joined<T> {
    pub(crate) shared: Arc<T>,
    /// Whether nobody else was there.
    pub(crate) is_first: bool,
}
