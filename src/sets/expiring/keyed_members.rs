use std::{borrow::Borrow, iter::repeat_with};

use hashbrown::{HashTable, hash_table::OccupiedEntry};

use super::{
    members::{FAIR, Hashed, Members, Owner},
    state::{Change, Part, Swept},
};
use crate::{
    engine::{clock::Tick, event::Cause},
    sets::rank_tree::Ordered,
};

/// A table for this many is not worth giving back.
const SMALL: usize = 64;

/// Some of the sets, by their keys.
///
/// 1. No set is empty.
/// 2. Each set is in `deaths` once, at a score that none of its members is below. A change leaves it there
///    unless it must come sooner; the sweep that finds it there too early moves it on.
pub(super) struct Sets<K, T> {
    sets: HashTable<Box<Keyed<K, T>>>,
    /// With the hash of each set's key.
    deaths: Ordered<Death, u64>,
    /// The number of the next set.
    next: u64,
}

struct Keyed<K, T> {
    key: K,
    hash: u64,
    death: Death,
    members: Members<T>,
}

/// A score, and the number of a set.
type Death = (Tick, u64);

type ChangeOf<'a, K, T> = Change<'a, K, T, T>;

impl<K, T> Sets<K, T> {
    pub(super) fn new() -> Self {
        Self { sets: HashTable::new(), deaths: Ordered::new(), next: 0 }
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
        found: OccupiedEntry<'_, Box<Keyed<K, T>>>,
        deaths: &mut Ordered<Death, u64>,
        change: &mut ChangeOf<'_, K, T>,
    ) {
        let (set, _) = found.remove();
        take(&set.death, deaths);
        change.left.keys.push(set.key);
    }

    fn shrink(&mut self) {
        let (len, capacity) = (self.sets.len(), self.sets.capacity());
        if len < capacity / 4 && capacity > SMALL {
            self.sets.shrink_to(2 * len, |set| set.hash);
        }
    }
}

impl<K, T> Sets<K, T>
where
    K: Eq + Clone + Send + Sync + 'static,
    T: Eq + Send + Sync + 'static,
{
    /// Lets all that is dead leave.
    pub(super) fn expire(&mut self, change: &mut ChangeOf<'_, K, T>) {
        while !matches!(self.sweep(usize::MAX, change), Swept::All) {}
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
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let found = self.sets.find_entry(hash, |set| set.hash == hash && set.key.borrow() == key);
        let mut found = found.ok()?;
        let set = &mut **found.get_mut();
        set.members.expire(&set.key, change);
        let outcome = (set.members.len() > 0).then(|| op(&mut set.members, &set.key, change));
        if set.members.len() == 0 {
            Self::remove(found, &mut self.deaths, change);
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
        mut coming: &mut [Hashed<T>],
        alone: bool,
        change: &mut ChangeOf<'_, K, T>,
    ) {
        let known = self.sets.find(hash, |set| set.hash == hash && Some(&set.key) == key.as_ref());
        let number = match known {
            Some(set) => set.death.1,
            None => {
                let Some((first, others)) = coming.split_first_mut() else { return };
                if change.is_dead(score) {
                    return;
                }
                coming = others;
                self.begin(hash, key.take().expect("it is given"), score, first, change)
            }
        };
        let found = self.sets.find_entry(hash, |set| set.death.1 == number);
        let mut found = found.ok().expect("it was just there");
        let set = &mut **found.get_mut();
        if score < set.death.0 && !change.is_dead(score) {
            // Before the members come, so that it holds whatever panics.
            take(&set.death, &mut self.deaths);
            set.death.0 = score;
            self.deaths.insert(set.death, || hash);
        }
        set.members.expire(&set.key, change);
        for coming in coming {
            set.members.push(score, alone, coming, &set.key, change);
        }
        if set.members.len() == 0 {
            Self::remove(found, &mut self.deaths, change);
            self.shrink();
        }
    }

    /// Makes a set of one live member. That meets nobody's `Eq`, so nothing panics.
    fn begin(
        &mut self,
        hash: u64,
        key: K,
        score: Tick,
        first: &mut Hashed<T>,
        change: &mut ChangeOf<'_, K, T>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let death = (score, number);
        let mut members = Members::new();
        members.push(score, false, first, &key, change);
        self.sets.insert_unique(hash, Box::new(Keyed { key, hash, death, members }), |s| s.hash);
        self.deaths.insert(death, || hash);
        number
    }
}

impl<K, T> Part for Sets<K, T>
where
    K: Eq + Clone + Send + Sync + 'static,
    T: Eq + Send + Sync + 'static,
{
    type Key = K;
    type Value = T;
    type Member = T;

    fn sweep(&mut self, mut room: usize, change: &mut ChangeOf<'_, K, T>) -> Swept {
        let mut fair = FAIR;
        while let Some(&(death, hash)) = self.deaths.first()
            && change.is_dead(death.0)
        {
            let found = self.sets.find_entry(hash, |set| set.death.1 == death.1);
            let mut found = found.ok().expect("each set that dies is there");
            let set = &mut **found.get_mut();
            let dead = set.members.dead(change);
            let leaves = dead.min(room).min(fair);
            set.members.leave(0..leaves, Cause::Expired, &set.key, change);
            room -= leaves;
            fair -= leaves;
            if leaves < dead {
                return if room == 0 { Swept::NoRoom } else { Swept::Some };
            }
            match set.members.lowest() {
                None => Self::remove(found, &mut self.deaths, change),
                Some(lowest) => {
                    take(&set.death, &mut self.deaths);
                    set.death.0 = lowest;
                    self.deaths.insert(set.death, || hash);
                }
            }
            // To look at a set is work, too.
            fair = fair.saturating_sub(1);
            if fair == 0 {
                self.shrink();
                return Swept::Some;
            }
        }
        self.shrink();
        Swept::All
    }

    fn lowest(&self) -> Option<Tick> {
        self.deaths.first().map(|((score, _), _)| *score)
    }
}

impl<K: Clone, T> Owner<T> for &K {
    type Key = K;
    type Value = T;

    fn prepare(self, count: usize, keys: &mut Vec<K>) {
        keys.extend(repeat_with(|| self.clone()).take(count));
    }

    fn event(keys: &mut Vec<K>, member: T) -> (K, T) {
        (keys.pop().expect("there is one for each event"), member)
    }
}

/// Takes a set out of the order of deaths.
fn take(death: &Death, deaths: &mut Ordered<Death, u64>) {
    let (rank, _) = deaths.find(death).expect("each set is in the order");
    deaths.remove_at(rank);
}
