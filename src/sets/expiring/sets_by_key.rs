//! Shard of `ExpiringSets`: some of the sets, indexed by key and ordered by their next expiry.
//!
//! 1. No set is empty.
//! 2. Each set is in `expiry_queue` once, at a score that is at most the lowest of its members. A change moves a set in
//!    the queue only if it must expire earlier; if a sweep finds it there too early, the sweep moves it to its lowest
//!    score. So most pushes and pops, which are frequent, do not touch the queue.
//! 3. The table of the keys gives memory back when few of its places are in use: see `shrink`.

use equivalent::Equivalent;
use hashbrown::{HashTable, hash_table::OccupiedEntry};

use super::{
    change::Change,
    members::{Members, Prehashed},
    shard::SWEEP_BATCH,
    shard::{SetShard, SweepProgress},
};
use crate::{
    engine::{clock::Tick, event::Cause},
    sets::rank_tree::RankTree,
};

/// Capacity up to which a table is not shrunk: that would free too little memory.
const MIN_TABLE_CAPACITY: usize = 64;

/// Some of the sets, indexed by key.
pub(super) struct KeyedMembers<K, T> {
    /// Boxed, because a set is large and a table moves its items when it grows.
    sets: HashTable<Box<KeyedSet<K, T>>>,
    /// The value is the hash of the set's key, by which the set is found in the table.
    expiry_queue: ExpiryQueue,
    next_id: u64,
}

struct KeyedSet<K, T> {
    key: K,
    hash: u64,
    /// Its position in the expiry queue.
    expiry: SetExpiry,
    members: Members<T>,
}

/// More members are expired than one change removes: the caller must release the lock and call again.
pub(super) struct MoreExpired;

type ExpiryQueue = RankTree<SetExpiry, u64>;

/// A score and the id of a set. The id breaks ties, as keys have no order.
type SetExpiry = (Tick, u64);

type KeyChange<'a, K, T> = Change<'a, K, T, T>;

impl<K, T> KeyedMembers<K, T> {
    pub(super) fn new() -> Self {
        Self { sets: HashTable::new(), expiry_queue: RankTree::new(), next_id: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Appends clones of the keys.
    pub(super) fn copy_keys(&self, copies: &mut Vec<K>)
    where
        K: Clone,
    {
        copies.reserve(self.sets.len());
        self.sets.iter().for_each(|set| copies.push(set.key.clone()));
    }

    /// Removes a set that has become empty.
    fn remove(
        found: OccupiedEntry<'_, Box<KeyedSet<K, T>>>,
        expiry_queue: &mut ExpiryQueue,
        change: &mut KeyChange<'_, K, T>,
    ) {
        let (set, _) = found.remove();
        unschedule(&set.expiry, expiry_queue);
        change.drop_queue.keys.push(set.key);
    }

    fn shrink(&mut self) {
        let (len, capacity) = (self.sets.len(), self.sets.capacity());
        // Below a quarter, and down to twice the length: far apart, so that few removals shrink the table.
        if len < capacity / 4 && capacity > MIN_TABLE_CAPACITY {
            self.sets.shrink_to(2 * len, |set| set.hash);
        }
    }
}

impl<K, T> KeyedMembers<K, T>
where
    K: Eq + Clone + Send + Sync + 'static,
    T: Eq + Send + Sync + 'static,
{
    /// Removes a bounded number of expired members. Returns whether none is left.
    pub(super) fn expire_some(&mut self, change: &mut KeyChange<'_, K, T>) -> bool {
        matches!(self.sweep(usize::MAX, change), SweepProgress::Done)
    }

    /// Removes the expired members of a set, then calls `op` with the set if it still has members. Removes a bounded
    /// number, and returns [`MoreExpired`] instead of the call if others are left.
    pub(super) fn change<Q, R>(
        &mut self,
        hash: u64,
        key: &Q,
        change: &mut KeyChange<'_, K, T>,
        op: impl FnOnce(&mut Members<T>, &K, &mut KeyChange<'_, K, T>) -> R,
    ) -> Result<Option<R>, MoreExpired>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Hashes are compared first, so that `Eq` of keys, which is user code, runs for other keys only rarely.
        let found = self.sets.find_entry(hash, |set| set.hash == hash && key.equivalent(&set.key));
        let Ok(mut found) = found else { return Ok(None) };
        let set = &mut **found.get_mut();
        if set.members.expire_some(&set.key, change) > 0 {
            return Err(MoreExpired);
        }
        let outcome = (set.members.len() > 0).then(|| op(&mut set.members, &set.key, change));
        if set.members.len() == 0 {
            Self::remove(found, &mut self.expiry_queue, change);
            self.shrink();
        }
        Ok(outcome)
    }

    /// Adds members with the same score; creates the set if there is none. Adds none if more members of the set are
    /// expired than one change removes.
    pub(super) fn push(
        &mut self,
        hash: u64,
        key: &mut Option<K>,
        score: Tick,
        mut new_members: &mut [Prehashed<T>],
        unique: bool,
        change: &mut KeyChange<'_, K, T>,
    ) -> Result<(), MoreExpired> {
        let existing =
            self.sets.find(hash, |set| set.hash == hash && Some(&set.key) == key.as_ref());
        let id = match existing {
            Some(set) => set.expiry.1,
            None => {
                let Some((first, others)) = new_members.split_first_mut() else { return Ok(()) };
                if change.is_expired(score) {
                    return Ok(());
                }
                new_members = others;
                self.insert_set(
                    hash,
                    key.take().expect("the caller passes a key"),
                    score,
                    first,
                    change,
                )
            }
        };
        // Found by its id, so that `Eq` of keys, which may panic, is called only once.
        let found = self.sets.find_entry(hash, |set| set.expiry.1 == id);
        let mut found = found.ok().expect("the set was found or inserted above");
        let set = &mut **found.get_mut();
        if score < set.expiry.0 && !change.is_expired(score) {
            // Before the members are added, so that the second invariant holds even if user code panics.
            unschedule(&set.expiry, &mut self.expiry_queue);
            set.expiry.0 = score;
            self.expiry_queue.insert(set.expiry, || hash);
        }
        if set.members.expire_some(&set.key, change) > 0 {
            return Err(MoreExpired);
        }
        for member in new_members {
            set.members.push(score, unique, member, &set.key, change);
        }
        if set.members.len() == 0 {
            Self::remove(found, &mut self.expiry_queue, change);
            self.shrink();
        }
        Ok(())
    }

    /// Creates a set with one live member. A new set has no members to compare with, so no user code runs that could
    /// panic.
    fn insert_set(
        &mut self,
        hash: u64,
        key: K,
        score: Tick,
        first: &mut Prehashed<T>,
        change: &mut KeyChange<'_, K, T>,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let expiry = (score, id);
        let mut members = Members::new();
        // Before the set is in the table, so that no empty set stays there if user code panics.
        members.push(score, false, first, &key, change);
        let set = Box::new(KeyedSet { key, hash, expiry, members });
        self.sets.insert_unique(hash, set, |set| set.hash);
        self.expiry_queue.insert(expiry, || hash);
        id
    }
}

impl<K, T> SetShard for KeyedMembers<K, T>
where
    K: Eq + Clone + Send + Sync + 'static,
    T: Eq + Send + Sync + 'static,
{
    type Key = K;
    type Value = T;
    type Member = T;

    #[cfg(feature = "metrics")]
    fn len(&self) -> usize {
        self.len()
    }

    fn sweep(&mut self, mut room: usize, change: &mut KeyChange<'_, K, T>) -> SweepProgress {
        let mut batch = SWEEP_BATCH;
        while let Some(&(expiry, hash)) = self.expiry_queue.first()
            && change.is_expired(expiry.0)
        {
            // By its id: the sweeper has no key to compare.
            let found = self.sets.find_entry(hash, |set| set.expiry.1 == expiry.1);
            let mut found = found.ok().expect("each queued set is in the table");
            let set = &mut **found.get_mut();
            let expired = set.members.expired_count(change);
            let removed = expired.min(room).min(batch);
            set.members.remove_ranks(0..removed, Cause::Expired, &set.key, change);
            room -= removed;
            batch -= removed;
            if removed < expired {
                return if room == 0 { SweepProgress::Blocked } else { SweepProgress::More };
            }
            match set.members.lowest() {
                None => Self::remove(found, &mut self.expiry_queue, change),
                Some(lowest) => {
                    unschedule(&set.expiry, &mut self.expiry_queue);
                    set.expiry.0 = lowest;
                    self.expiry_queue.insert(set.expiry, || hash);
                }
            }
            // Examining a set counts as work, too: many sets that are in the queue too early must not prolong the lock.
            batch = batch.saturating_sub(1);
            if batch == 0 {
                self.shrink();
                return SweepProgress::More;
            }
        }
        self.shrink();
        SweepProgress::Done
    }

    fn lowest(&self) -> Option<Tick> {
        self.expiry_queue.first().map(|((score, _), _)| *score)
    }
}

fn unschedule(expiry: &SetExpiry, expiry_queue: &mut ExpiryQueue) {
    let (rank, _) = expiry_queue.find(expiry).expect("each set is in the queue");
    expiry_queue.remove_at(rank);
}
