//! A shard of `ExpiringSets`: some of the sets, by their keys and in the order in which they expire.
//!
//! 1. No set is empty.
//! 2. Each set is in `expiry_queue` once, at a score that none of its members is below. A change leaves it
//!    there unless it must come sooner; the sweep that finds it there too early moves it on. So to push and
//!    to pop, which are many, mostly leave the queue alone.

use equivalent::Equivalent;
use hashbrown::{HashTable, hash_table::OccupiedEntry};

use super::{
    change::Change,
    members::{Members, Prehashed},
    shard::{SWEEP_BATCH, Shard, SweepProgress},
};
use crate::{
    engine::{clock::Tick, event::Cause},
    sets::rank_tree::RankTree,
};

/// A table for this many is not worth giving back.
const SMALL: usize = 64;

/// Some of the sets, by their keys.
pub(super) struct KeyedMembers<K, T> {
    /// Boxed: a set is large, and a table moves what is in it when it grows.
    sets: HashTable<Box<KeyedSet<K, T>>>,
    /// With the hash of each set's key.
    expiry_queue: ExpiryQueue,
    next_id: u64,
}

struct KeyedSet<K, T> {
    key: K,
    hash: u64,
    /// Where it is in the expiry queue.
    expiry: Expiry,
    members: Members<T>,
}

type ExpiryQueue = RankTree<Expiry, u64>;

/// A score, and the id of a set. By the id, as keys have no order.
type Expiry = (Tick, u64);

type ChangeOf<'a, K, T> = Change<'a, K, T, T>;

impl<K, T> KeyedMembers<K, T> {
    pub(super) fn new() -> Self {
        Self { sets: HashTable::new(), expiry_queue: RankTree::new(), next_id: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Adds clones of the keys.
    pub(super) fn copy_keys(&self, copies: &mut Vec<K>)
    where
        K: Clone,
    {
        copies.reserve(self.sets.len());
        self.sets.iter().for_each(|set| copies.push(set.key.clone()));
    }

    /// Takes a set out that has become empty.
    fn remove(
        found: OccupiedEntry<'_, Box<KeyedSet<K, T>>>,
        expiry_queue: &mut ExpiryQueue,
        change: &mut ChangeOf<'_, K, T>,
    ) {
        let (set, _) = found.remove();
        unschedule(&set.expiry, expiry_queue);
        change.garbage.keys.push(set.key);
    }

    fn shrink(&mut self) {
        let (len, capacity) = (self.sets.len(), self.sets.capacity());
        if len < capacity / 4 && capacity > SMALL {
            self.sets.shrink_to(2 * len, |set| set.hash);
        }
    }
}

impl<K, T> KeyedMembers<K, T>
where
    K: Eq + Clone + Send + Sync + 'static,
    T: Eq + Send + Sync + 'static,
{
    /// Lets all that is dead leave.
    pub(super) fn expire(&mut self, change: &mut ChangeOf<'_, K, T>) {
        while !matches!(self.sweep(usize::MAX, change), SweepProgress::Done) {}
    }

    /// Calls `op` with the set of a key, if anything in it lives.
    pub(super) fn change<Q, R>(
        &mut self,
        hash: u64,
        key: &Q,
        change: &mut ChangeOf<'_, K, T>,
        op: impl FnOnce(&mut Members<T>, &K, &mut ChangeOf<'_, K, T>) -> R,
    ) -> Option<R>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let found = self.sets.find_entry(hash, |set| set.hash == hash && key.equivalent(&set.key));
        let mut found = found.ok()?;
        let set = &mut **found.get_mut();
        set.members.expire(&set.key, change);
        let outcome = (set.members.len() > 0).then(|| op(&mut set.members, &set.key, change));
        if set.members.len() == 0 {
            Self::remove(found, &mut self.expiry_queue, change);
            self.shrink();
        }
        outcome
    }

    /// Moves members in, at one score; their set is made where there is none.
    pub(super) fn push(
        &mut self,
        hash: u64,
        key: &mut Option<K>,
        score: Tick,
        mut coming: &mut [Prehashed<T>],
        alone: bool,
        change: &mut ChangeOf<'_, K, T>,
    ) {
        let known = self.sets.find(hash, |set| set.hash == hash && Some(&set.key) == key.as_ref());
        let id = match known {
            Some(set) => set.expiry.1,
            None => {
                let Some((first, others)) = coming.split_first_mut() else { return };
                if change.is_dead(score) {
                    return;
                }
                coming = others;
                self.insert_set(hash, key.take().expect("it is given"), score, first, change)
            }
        };
        // By the id: the `Eq` of keys, which may panic, was asked once.
        let found = self.sets.find_entry(hash, |set| set.expiry.1 == id);
        let mut found = found.ok().expect("it was just there");
        let set = &mut **found.get_mut();
        if score < set.expiry.0 && !change.is_dead(score) {
            // Before the members come, so that the second invariant holds whatever panics.
            unschedule(&set.expiry, &mut self.expiry_queue);
            set.expiry.0 = score;
            self.expiry_queue.insert(set.expiry, || hash);
        }
        set.members.expire(&set.key, change);
        for coming in coming {
            set.members.push(score, alone, coming, &set.key, change);
        }
        if set.members.len() == 0 {
            Self::remove(found, &mut self.expiry_queue, change);
            self.shrink();
        }
    }

    /// Makes a set of one live member. That meets nobody's `Eq`, so nothing panics.
    fn insert_set(
        &mut self,
        hash: u64,
        key: K,
        score: Tick,
        first: &mut Prehashed<T>,
        change: &mut ChangeOf<'_, K, T>,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let expiry = (score, id);
        let mut members = Members::new();
        members.push(score, false, first, &key, change);
        let set = Box::new(KeyedSet { key, hash, expiry, members });
        self.sets.insert_unique(hash, set, |set| set.hash);
        self.expiry_queue.insert(expiry, || hash);
        id
    }
}

impl<K, T> Shard for KeyedMembers<K, T>
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

    fn sweep(&mut self, mut room: usize, change: &mut ChangeOf<'_, K, T>) -> SweepProgress {
        let mut batch = SWEEP_BATCH;
        while let Some(&(expiry, hash)) = self.expiry_queue.first()
            && change.is_dead(expiry.0)
        {
            let found = self.sets.find_entry(hash, |set| set.expiry.1 == expiry.1);
            let mut found = found.ok().expect("each set that expires is there");
            let set = &mut **found.get_mut();
            let dead = set.members.dead(change);
            let leaves = dead.min(room).min(batch);
            set.members.remove_ranks(0..leaves, Cause::Expired, &set.key, change);
            room -= leaves;
            batch -= leaves;
            if leaves < dead {
                return if room == 0 { SweepProgress::HeldBack } else { SweepProgress::More };
            }
            match set.members.lowest() {
                None => Self::remove(found, &mut self.expiry_queue, change),
                Some(lowest) => {
                    unschedule(&set.expiry, &mut self.expiry_queue);
                    set.expiry.0 = lowest;
                    self.expiry_queue.insert(set.expiry, || hash);
                }
            }
            // To look at a set is work, too: many that are here too early must not hold the lock for long.
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

fn unschedule(expiry: &Expiry, expiry_queue: &mut ExpiryQueue) {
    let (rank, _) = expiry_queue.find(expiry).expect("each set is in the queue");
    expiry_queue.remove_at(rank);
}
