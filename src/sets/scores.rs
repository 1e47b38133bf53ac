//! Members ordered by score: the plain data below [`SortedSet`](crate::SortedSet) and
//! [`ExpiringSet`](crate::ExpiringSet).
//!
//! 1. Each member has a slot, and its slot is in the table.
//! 2. A slot whose member has left is stale: it stays in the table for a while, but its key is not in the
//!    order any more. To take it out costs a wait for memory; of many at once, the waits fall together.
//! 3. There are no more slots than three times the members, and a few.
//! 4. `Eq` of members, and `Ord` and `Clone` of scores, may be somebody's code, and panic. They are called
//!    before a change. Taking out, which goes by rank, calls none of them.
//! 5. All this may be behind a lock, so nothing of the user's is dropped here. What leaves is left in a
//!    [`Drained`], in what is returned, or in the garbage, for whoever drops it after unlocking.

mod slot_table;

use std::{
    hash::{BuildHasher, Hash},
    mem::{self, needs_drop},
    ops::{Bound, Range, RangeBounds},
};

use equivalent::Equivalent;
use smallvec::SmallVec;

use self::slot_table::SlotTable;
use crate::{
    engine::panics::drop_all,
    sets::rank_tree::{Leaf, RankTree},
};

/// How many stale slots are taken out of the table at once.
const BATCH: usize = 32;

/// So many slots are not worth giving back.
const SMALL: usize = 16;

/// As many are taken out one by one before memory is taken for them.
pub(crate) const FEW: usize = 4;

/// Each member once, in the order of the scores; equal scores in the order of coming.
pub(crate) struct Scores<S, T> {
    members: RankTree<OrderKey<S>, Member<T>>,
    /// The key of each member, by slot. Of a stale slot it stays, as `None` would cost a wait for memory.
    slots: Vec<Option<OrderKey<S>>>,
    /// Slots, by the hashes of their members. Not the members themselves, as those move in the tree.
    table: SlotTable,
    /// Slots whose members have left, and that are still in the table.
    stale: Vec<Slot>,
    /// Slots that are not in the table.
    free: Vec<u32>,
    /// Of the next to come.
    next_sequence: u64,
}

/// A score, and a number that tells equal ones apart.
pub(crate) type OrderKey<S> = (S, u64);

struct Member<T> {
    member: T,
    slot: Slot,
}

/// Where a member's key is, and the hash by which that is found.
#[derive(Clone, Copy)]
struct Slot {
    number: u32,
    hash: u32,
}

/// Members that were taken out. Made before the lock, and dropped after it.
pub(crate) struct Drained<S, T> {
    few: SmallVec<[(S, T); FEW]>,
    leaves: Vec<Leaf<OrderKey<S>, Member<T>>>,
    /// Memory that is given back, as to free much of it takes long, too.
    old: Option<OldSlots<S>>,
}

type OldSlots<S> = (Vec<Option<OrderKey<S>>>, SlotTable);

/// The hash by which a member is found.
#[inline]
pub(crate) fn hash_of<Q: Hash + ?Sized>(hasher: &impl BuildHasher, member: &Q) -> u32 {
    let hash = hasher.hash_one(member);
    (hash ^ (hash >> 32)) as u32
}

impl<S, T> Scores<S, T> {
    pub(crate) fn new() -> Self {
        Self {
            members: RankTree::new(),
            slots: Vec::new(),
            table: SlotTable::default(),
            stale: Vec::new(),
            free: Vec::new(),
            next_sequence: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<(&S, &T)> {
        self.members.first().map(|((score, _), member)| (score, &member.member))
    }

    pub(crate) fn at(&self, rank: usize) -> Option<(&S, &T)> {
        self.members.at(rank).map(|((score, _), member)| (score, &member.member))
    }

    /// How many scores are `before` something; they must come before all others. O(log n).
    pub(crate) fn rank_where(&self, before: impl Fn(&S) -> bool) -> usize {
        self.members.rank_where(|(score, _)| before(score))
    }

    /// Calls `each` with the members of these ranks, in order. O(log n + m).
    pub(crate) fn for_each(&self, ranks: Range<usize>, mut each: impl FnMut(&S, &T)) {
        self.members.for_each(ranks, |(score, _), member| each(score, &member.member));
    }

    /// Takes out the member of a rank, which must be there. O(log n).
    #[inline]
    pub(crate) fn remove_at(&mut self, rank: usize) -> (S, T) {
        let ((score, _), Member { member, slot }) = self.members.remove_at(rank);
        self.forget_key(slot);
        self.stale.push(slot);
        if self.has_too_many_slots() {
            drop(self.rebuild());
        }
        (score, member)
    }

    /// Takes out the members of these ranks, in order. O(log n + m).
    #[inline]
    pub(crate) fn drain(&mut self, ranks: Range<usize>, drained: &mut Drained<S, T>) {
        // What dies in a steady flow is one at a time, and takes no memory for it.
        if ranks.len() == 1 && drained.few.len() < FEW && drained.leaves.is_empty() {
            drained.few.push(self.remove_at(ranks.start));
        } else {
            self.drain_leaves(ranks, drained);
        }
    }

    /// Scores that are of no more use, to be dropped after unlocking.
    pub(crate) fn take_garbage(&mut self) -> Vec<OrderKey<S>> {
        self.members.take_garbage()
    }

    fn drain_leaves(&mut self, ranks: Range<usize>, drained: &mut Drained<S, T>) {
        let before = drained.leaves.len();
        self.members.drain(ranks, &mut drained.leaves);
        if self.has_too_many_slots() {
            drained.old = Some(self.rebuild());
            return;
        }
        for (_, member) in drained.leaves[before..].iter().flatten() {
            self.forget_key(member.slot);
            self.stale.push(member.slot);
        }
    }

    /// A key whose drop is somebody's code goes to the garbage in time.
    #[inline]
    fn forget_key(&mut self, slot: Slot) {
        if needs_drop::<S>()
            && let Some(key) = self.slots[slot.number as usize].take()
        {
            self.members.discard(key);
        }
    }

    #[inline]
    fn has_too_many_slots(&self) -> bool {
        self.slots.len() > 3 * self.members.len() + SMALL
    }

    /// Gives each member a new slot, and so all memory back that is not needed. O(n), but members are few
    /// where there are too many slots.
    #[cold]
    fn rebuild(&mut self) -> OldSlots<S> {
        let len = self.members.len();
        let mut slots = Vec::with_capacity(len);
        let mut table = SlotTable::with_capacity(len);
        self.members.for_each_mut(|_, Member { slot, .. }| {
            let key = self.slots[slot.number as usize].take();
            slot.number = slots.len() as u32;
            slots.push(key);
            table.insert(slot.hash, slot.number);
        });
        if needs_drop::<S>() {
            let keys = self.slots.iter_mut().filter_map(Option::take);
            keys.for_each(|key| self.members.discard(key));
        }
        self.stale = Vec::new();
        self.free = Vec::new();
        (mem::replace(&mut self.slots, slots), mem::replace(&mut self.table, table))
    }

    /// Makes room in the table: a larger one, or one without the stale slots.
    #[cold]
    fn grow(&mut self) {
        let mut table = SlotTable::with_capacity((self.members.len() + 1) * 5 / 4);
        self.members.for_each(0..self.members.len(), |_, Member { slot, .. }| {
            table.insert(slot.hash, slot.number);
        });
        self.table = table;
        self.free.extend(self.stale.drain(..).map(|slot| slot.number));
    }

    /// Takes the youngest of the stale slots out of the table.
    #[cold]
    fn free_slots(&mut self) {
        // None of these waits for another: the processor fetches what it needs of many at once.
        for Slot { number, hash } in self.stale.drain(self.stale.len() - BATCH..) {
            self.table.remove(hash, number);
            self.free.push(number);
        }
    }
}

impl<S: Ord + Clone, T> Scores<S, T> {
    /// Moves in a member at its score, behind those of the same score. Where it was there already, `member`
    /// is then what was there, and its score is returned. O(log n).
    #[inline]
    pub(crate) fn insert(&mut self, score: S, hash: u32, member: &mut Option<T>) -> Option<S>
    where
        T: Eq,
    {
        let coming = member.as_ref().expect("there is one to come");
        match self.find_slot(hash, coming) {
            None => {
                self.insert_new(score, hash, member);
                None
            }
            Some((rank, number)) => Some(self.move_to(score, rank, Slot { number, hash }, member)),
        }
    }

    /// How many are before a member, and its score. O(log n).
    pub(crate) fn find<Q>(&self, hash: u32, member: &Q) -> Option<(usize, &S)>
    where
        Q: Equivalent<T> + ?Sized,
    {
        let (rank, slot) = self.find_slot(hash, member)?;
        let (score, _) = self.slots[slot as usize].as_ref()?;
        Some((rank, score))
    }

    /// The ranks of these scores; none where the range is empty or the wrong way round. O(log n).
    pub(crate) fn ranks(&self, scores: &impl RangeBounds<S>) -> Range<usize> {
        let start = match scores.start_bound() {
            Bound::Unbounded => 0,
            Bound::Included(score) => self.rank_where(|s| s < score),
            Bound::Excluded(score) => self.rank_where(|s| s <= score),
        };
        let end = match scores.end_bound() {
            Bound::Unbounded => self.len(),
            Bound::Included(score) => self.rank_where(|s| s <= score),
            Bound::Excluded(score) => self.rank_where(|s| s < score),
        };
        start..end.max(start)
    }

    #[inline]
    fn insert_new(&mut self, score: S, hash: u32, member: &mut Option<T>) {
        if self.table.is_full() {
            self.grow();
        }
        if self.free.is_empty() && self.stale.len() >= BATCH {
            self.free_slots();
        }
        let unused = || u32::try_from(self.slots.len()).expect("there are at most 2^32 slots");
        let number = self.free.last().copied().unwrap_or_else(unused);
        let key = (score.clone(), self.next_sequence);
        let slot = Slot { number, hash };
        self.members.insert((score, self.next_sequence), || Member { member: take(member), slot });
        self.next_sequence += 1;
        match self.free.pop() {
            Some(_) => self.slots[number as usize] = Some(key),
            None => self.slots.push(Some(key)),
        }
        self.table.insert(hash, number);
    }

    fn move_to(&mut self, score: S, rank: usize, slot: Slot, member: &mut Option<T>) -> S {
        let key = (score.clone(), self.next_sequence);
        // It is put in before it is taken out, as only that may panic (`Ord`, `Clone`): a member is lost never,
        // and twice only for the moment in between.
        let old = self.slots[slot.number as usize].as_ref();
        let rank = rank + usize::from(key < *old.expect("it was found by its key"));
        self.members.insert((score, self.next_sequence), || Member { member: take(member), slot });
        self.next_sequence += 1;
        let ((score, _), old) = self.members.remove_at(rank);
        *member = Some(old.member);
        if let Some(old) = self.slots[slot.number as usize].replace(key) {
            self.members.discard(old);
        }
        score
    }

    #[inline]
    fn find_slot<Q>(&self, hash: u32, member: &Q) -> Option<(usize, u32)>
    where
        Q: Equivalent<T> + ?Sized,
    {
        let mut rank = 0;
        let found = self.table.find(hash, |slot| {
            // The key of a stale slot is not in the order.
            let key = self.slots[slot as usize].as_ref();
            let found = key.and_then(|key| self.members.find(key));
            found.is_some_and(|(at, found)| {
                rank = at;
                member.equivalent(&found.member)
            })
        });
        found.map(|slot| (rank, slot))
    }
}

impl<S, T> Drained<S, T> {
    /// What was taken out, in order.
    pub(crate) fn into_members(self) -> impl Iterator<Item = (S, T)> {
        let leaves = self.leaves.into_iter().flatten();
        self.few.into_iter().chain(leaves.map(|((score, _), member)| (score, member.member)))
    }

    /// Drops all, one by one; tells how many panicked.
    #[inline]
    pub(crate) fn drop_all(self) -> usize {
        drop_all(self.few) + drop_all(self.leaves.into_iter().flatten())
    }
}

impl<S, T> Default for Drained<S, T> {
    fn default() -> Self {
        Self { few: SmallVec::new(), leaves: Vec::new(), old: None }
    }
}

fn take<T>(member: &mut Option<T>) -> T {
    member.take().expect("there is one to come")
}

#[cfg(test)]
mod tests;
