//! Members ordered by score: the data structure of [`SortedSet`](crate::SortedSet) and
//! [`ExpiringSet`](crate::ExpiringSet), without locks.
//!
//! 1. Each member has a slot, and the slot is in the index.
//! 2. The slot of a removed member is stale: it stays in the index for a time, but its key is not in the order. Taking
//!    a slot out of the index waits for memory; if many are taken out together, their waits overlap.
//! 3. There are at most three times as many slots as members, plus [`SLOT_SLACK`].
//! 4. `Eq` of members, and `Ord` and `Clone` of scores, may be user code and panic. They are called before a change.
//!    Removal goes by rank and calls none of them.
//! 5. This may be behind a lock, so nothing of the user's types is dropped here. Removed values are put in a
//!    [`Drained`], returned, or put in the drop queue, to be dropped by the caller after unlock.

use std::{
    hash::{BuildHasher, Hash},
    mem::{self, needs_drop},
    ops::{Bound, Range, RangeBounds},
};

use equivalent::Equivalent;
use smallvec::SmallVec;

use crate::{
    engine::{
        panics::drop_all,
        slot_index::{Slot, SlotIndex},
    },
    sets::rank_tree::{Leaf, RankTree},
};

/// Number of stale slots that are taken out of the index together.
const STALE_BATCH: usize = 32;

/// Number of slots in excess of three per member that is tolerated: fewer are not worth a rebuild.
const SLOT_SLACK: usize = 16;

/// Number of members that are removed one by one before a removal allocates.
pub(crate) const INLINE_DRAINED: usize = 4;

/// Members in the order of their scores, each once; equal scores in the order of insertion.
pub(crate) struct Scores<S, T> {
    members: RankTree<OrderKey<S>, Member<T>>,
    /// The key of each member, by slot. A stale slot keeps its key if dropping it runs no code, as writing `None` would
    /// wait for memory.
    slots: Vec<Option<OrderKey<S>>>,
    /// Slots by the hash of their members. It has no references to members, as those move within the tree.
    index: SlotIndex,
    /// Slots of removed members that are still in the index.
    stale: Vec<Slot>,
    /// Slots that are not in the index and can be reused.
    free: Vec<u32>,
    /// Sequence number of the next insertion.
    next_sequence: u64,
}

/// A score, and a sequence number that orders equal scores.
pub(crate) type OrderKey<S> = (S, u64);

struct Member<T> {
    member: T,
    slot: Slot,
}

/// Removed members. Created before the lock is taken, and dropped after unlock.
pub(crate) struct Drained<S, T> {
    inline: SmallVec<[(S, T); INLINE_DRAINED]>,
    leaves: Vec<Leaf<OrderKey<S>, Member<T>>>,
    /// Replaced tables, as freeing much memory takes long, too.
    old_slots: Option<OldSlots<S>>,
}

type OldSlots<S> = (Vec<Option<OrderKey<S>>>, SlotIndex);

/// Returns the hash under which a member is stored.
#[inline]
pub(crate) fn hash_of<Q: Hash + ?Sized>(hasher: &impl BuildHasher, member: &Q) -> u32 {
    Slot::fold(hasher.hash_one(member))
}

impl<S, T> Scores<S, T> {
    pub(crate) fn new() -> Self {
        Self {
            members: RankTree::new(),
            slots: Vec::new(),
            index: SlotIndex::default(),
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

    /// Returns the number of scores for which `before` is true; they must precede all others. O(log n).
    pub(crate) fn rank_where(&self, before: impl Fn(&S) -> bool) -> usize {
        self.members.rank_where(|(score, _)| before(score))
    }

    /// Calls `each` with the members of these ranks, in order. O(log n + m).
    pub(crate) fn for_each(&self, ranks: Range<usize>, mut each: impl FnMut(&S, &T)) {
        self.members.for_each(ranks, |(score, _), member| each(score, &member.member));
    }

    /// Removes and returns the member with this rank, which must exist. O(log n).
    #[inline]
    pub(crate) fn remove_at(&mut self, rank: usize) -> (S, T) {
        let ((score, _), Member { member, slot }) = self.members.remove_at(rank);
        self.discard_key(slot);
        self.stale.push(slot);
        if self.has_too_many_slots() {
            // Contains no value of the user: the rebuild has moved or discarded all keys.
            drop(self.rebuild());
        }
        (score, member)
    }

    /// Removes the members with these ranks, in order. O(log n + m).
    #[inline]
    pub(crate) fn drain(&mut self, ranks: Range<usize>, drained: &mut Drained<S, T>) {
        // In a steady flow, members expire one at a time; that needs no allocation.
        if ranks.len() == 1 && drained.inline.len() < INLINE_DRAINED && drained.leaves.is_empty() {
            drained.inline.push(self.remove_at(ranks.start));
        } else {
            self.drain_leaves(ranks, drained);
        }
    }

    /// Returns the scores that are no longer needed, to be dropped after unlock.
    pub(crate) fn take_drop_queue(&mut self) -> Vec<OrderKey<S>> {
        self.members.take_drop_queue()
    }

    fn drain_leaves(&mut self, ranks: Range<usize>, drained: &mut Drained<S, T>) {
        let before = drained.leaves.len();
        self.members.drain(ranks, &mut drained.leaves);
        if self.has_too_many_slots() {
            // Returned, because the old slots may be large and are freed after unlock. Removed members have none any
            // more.
            drained.old_slots = Some(self.rebuild());
            return;
        }
        for (_, member) in drained.leaves[before..].iter().flatten() {
            self.discard_key(member.slot);
            self.stale.push(member.slot);
        }
    }

    /// Queues the key of a removed member to be dropped, unless scores have no drop code.
    #[inline]
    fn discard_key(&mut self, slot: Slot) {
        if needs_drop::<S>()
            && let Some(key) = self.slots[slot.number as usize].take()
        {
            self.members.discard(key);
        }
    }

    #[inline]
    fn has_too_many_slots(&self) -> bool {
        self.slots.len() > 3 * self.members.len() + SLOT_SLACK
    }

    /// Assigns new slots to all members, and so frees unused memory. O(n), but there are few members if there are too
    /// many slots.
    #[cold]
    fn rebuild(&mut self) -> OldSlots<S> {
        let len = self.members.len();
        let mut slots = Vec::with_capacity(len);
        let mut index = SlotIndex::with_capacity(len);
        self.members.for_each_mut(|_, Member { slot, .. }| {
            let key = self.slots[slot.number as usize].take();
            slot.number = slots.len() as u32;
            slots.push(key);
            index.insert(*slot);
        });
        if needs_drop::<S>() {
            let keys = self.slots.iter_mut().filter_map(Option::take);
            keys.for_each(|key| self.members.discard(key));
        }
        self.stale = Vec::new();
        self.free = Vec::new();
        (mem::replace(&mut self.slots, slots), mem::replace(&mut self.index, index))
    }

    /// Takes the most recent stale slots out of the index.
    #[cold]
    fn free_stale_slots(&mut self) {
        // The iterations are independent, so that the processor loads memory for many of them at once.
        for slot in self.stale.drain(self.stale.len() - STALE_BATCH..) {
            self.index.remove(slot);
            self.free.push(slot.number);
        }
    }
}

impl<S: Ord + Clone, T> Scores<S, T> {
    /// Inserts a member behind those with the same score, or moves it there. If it was present, `member` then holds the
    /// previous equal one, and its previous score is returned. O(log n).
    #[inline]
    pub(crate) fn insert(&mut self, score: S, hash: u32, member: &mut Option<T>) -> Option<S>
    where
        T: Eq,
    {
        let new_member = member.as_ref().expect("the caller passes a member");
        match self.find_slot(hash, new_member) {
            None => {
                self.insert_new(score, hash, member);
                None
            }
            Some((rank, slot)) => Some(self.move_to(score, rank, slot, member)),
        }
    }

    /// Returns the rank of a member and its score. O(log n).
    pub(crate) fn find<Q>(&self, hash: u32, member: &Q) -> Option<(usize, &S)>
    where
        Q: Equivalent<T> + ?Sized,
    {
        let (rank, slot) = self.find_slot(hash, member)?;
        let (score, _) = self.slots[slot.number as usize].as_ref()?;
        Some((rank, score))
    }

    /// Returns the ranks of the members with scores in this range; an empty range if it is empty or inverted. O(log n).
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
        if self.free.is_empty() && self.stale.len() >= STALE_BATCH {
            self.free_stale_slots();
        }
        let unused = || u32::try_from(self.slots.len()).expect("there are at most 2^32 slots");
        let number = self.free.last().copied().unwrap_or_else(unused);
        let key = (score.clone(), self.next_sequence);
        let slot = Slot { number, hash };
        self.members.insert((score, self.next_sequence), || Member { member: take(member), slot });
        self.next_sequence += 1;
        // Taken only after the insertion into the order, which may panic.
        match self.free.pop() {
            Some(_) => self.slots[number as usize] = Some(key),
            None => self.slots.push(Some(key)),
        }
        self.index.insert(slot);
    }

    fn move_to(&mut self, score: S, rank: usize, slot: Slot, member: &mut Option<T>) -> S {
        let key = (score.clone(), self.next_sequence);
        // Inserted before the old item is removed, because only the insertion may panic (`Ord`, `Clone`). So a member
        // is never lost, and is present twice only between these two steps.
        let old = self.slots[slot.number as usize].as_ref();
        let rank = rank + usize::from(key < *old.expect("the member was found by its key"));
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
    fn find_slot<Q>(&self, hash: u32, member: &Q) -> Option<(usize, Slot)>
    where
        Q: Equivalent<T> + ?Sized,
    {
        let mut rank = 0;
        let found = self.index.find(hash, |slot| {
            // The key of a stale slot is not in the order, so that `find` skips it.
            let key = self.slots[slot.number as usize].as_ref();
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
    /// Returns the removed members, in order.
    pub(crate) fn into_members(self) -> impl Iterator<Item = (S, T)> {
        let leaves = self.leaves.into_iter().flatten();
        self.inline.into_iter().chain(leaves.map(|((score, _), member)| (score, member.member)))
    }

    /// Drops the members one by one and returns the number of drops that panicked.
    #[inline]
    pub(crate) fn drop_all(self) -> usize {
        drop_all(self.inline) + drop_all(self.leaves.into_iter().flatten())
    }
}

impl<S, T> Default for Drained<S, T> {
    fn default() -> Self {
        Self { inline: SmallVec::new(), leaves: Vec::new(), old_slots: None }
    }
}

fn take<T>(member: &mut Option<T>) -> T {
    member.take().expect("the caller passes a member")
}

#[cfg(all(test, not(shuttle)))]
mod tests;
