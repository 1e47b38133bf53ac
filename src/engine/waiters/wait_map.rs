//! Waiters by key, guarded by one lock: that of a shard, or of another owner of the map.
//!
//! Members join and leave under that lock and are counted under it. So the last one to leave removes the key,
//! regardless of which others leave at the same time.

use std::sync::Arc;

use equivalent::Equivalent;
use hashbrown::HashTable;

/// For each key, a value that is shared by all members that wait for it. `K` may be `()` if keys with equal hashes may
/// share.
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

    /// Adds a member for this key. If `is_finished` returns true for the shared value, a new one takes its place.
    pub(crate) fn join<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        owned: impl FnOnce() -> K,
        is_finished: impl FnOnce(&T) -> bool,
        new: impl FnOnce() -> T,
    ) -> JoinedWait<T>
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some(entry) = self.0.find_mut(hash, |entry| entry.is_of(hash, key)) {
            if !is_finished(&entry.shared) {
                entry.members += 1;
                return JoinedWait { shared: entry.shared.clone(), is_first: false };
            }
            // Members of the finished value hold their own references to it. `leave` ignores them, since it compares
            // the values.
            (entry.shared, entry.members) = (Arc::new(new()), 1);
            return JoinedWait { shared: entry.shared.clone(), is_first: true };
        }
        let entry = WaitEntry { hash, key: owned(), shared: Arc::new(new()), members: 1 };
        let shared = entry.shared.clone();
        self.0.insert_unique(hash, entry, |entry| entry.hash);
        JoinedWait { shared, is_first: true }
    }

    /// Removes a member. Returns the key if it was the last one, to be dropped after the unlock.
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

    /// Removes the key and returns what its members share. Their later calls of [`leave`](Self::leave) have no effect.
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

/// The result of joining a key.
pub(crate) struct JoinedWait<T> {
    pub(crate) shared: Arc<T>,
    /// True if there was no other member.
    pub(crate) is_first: bool,
}
