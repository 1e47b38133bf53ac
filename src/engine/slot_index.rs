//! Hash index of a set's members and of a dictionary's entries, from keys to slots: open addressing with one word per
//! place, so that a lookup or a change accesses one place in memory and never the entries of other keys. The table of
//! hashbrown accesses two, and its removals leave tombstones until it is rebuilt; docs/sets.md and docs/timeout-dict.md
//! have the cost.
//!
//! 1. There is no free place between the home of a word and the place that holds it.
//! 2. At most two thirds of the places are taken. After a removal at least one eighth is, or there are
//!    [`MIN_PLACES`].

use std::{hint::black_box, mem};

/// Minimum number of places in an index that is not empty: a cache line. A power of two, as `after` requires.
const MIN_PLACES: usize = 8;

#[derive(Default)]
pub(crate) struct SlotIndex {
    /// Empty, or a power of two.
    words: Box<[Slot]>,
    len: usize,
}

/// Number of an entry's slot and hash of its key. With the hash, the index moves and finds a word without reading the
/// entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    pub(crate) hash: u32,
}

/// Marks a free place; no slot has the number `u32::MAX`.
const FREE: Slot = Slot { number: u32::MAX, hash: 0 };

impl SlotIndex {
    /// Creates an index that grows only beyond `len` slots.
    pub(crate) fn with_capacity(len: usize) -> Self {
        let places = (3 * len).div_ceil(2).next_power_of_two().max(MIN_PLACES);
        Self { words: vec![FREE; places].into(), len: 0 }
    }

    /// Returns the slot with this hash that `matches`.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut matches: impl FnMut(Slot) -> bool) -> Option<Slot> {
        if self.len == 0 {
            return None;
        }
        let mut place = self.home(hash);
        loop {
            let word = self.words[place];
            if word == FREE {
                return None;
            }
            if word.hash == hash && matches(word) {
                return Some(word);
            }
            place = self.after(place);
        }
    }

    /// Adds a slot that is not present.
    #[inline]
    pub(crate) fn insert(&mut self, slot: Slot) {
        if 3 * (self.len + 1) > 2 * self.words.len() {
            self.resize((2 * self.words.len()).max(MIN_PLACES));
        }
        self.len += 1;
        self.put(slot);
    }

    /// Removes a slot that is present.
    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        let mut hole = self.home(slot.hash);
        while self.words[hole].number != slot.number {
            hole = self.after(hole);
        }
        // Moves later words up, so that there is no gap between them and their homes. A tombstone would be
        // cheaper here, but would slow down every later search, and entries are inserted and removed all the
        // time.
        let mut place = self.after(hole);
        while self.words[place] != FREE {
            let word = self.words[place];
            if self.distance(self.home(word.hash), place) >= self.distance(hole, place) {
                self.words[hole] = word;
                hole = place;
            }
            place = self.after(place);
        }
        self.words[hole] = FREE;
        self.len -= 1;
        if 8 * self.len < self.words.len() && self.words.len() > MIN_PLACES {
            self.resize(self.words.len() / 2);
        }
    }

    /// Loads the home of `slot` into the CPU cache.
    pub(crate) fn prefetch(&self, slot: Slot) {
        black_box(self.words[self.home(slot.hash)].number);
    }

    fn resize(&mut self, places: usize) {
        let old = mem::replace(&mut self.words, vec![FREE; places].into());
        old.into_iter().filter(|word| *word != FREE).for_each(|word| self.put(word));
    }

    fn put(&mut self, slot: Slot) {
        let mut place = self.home(slot.hash);
        while self.words[place] != FREE {
            place = self.after(place);
        }
        self.words[place] = slot;
    }

    /// Uses the upper bits of the hash, so that a resize traverses both tables in order.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.words.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        // The number of places is a power of two: it begins at `MIN_PLACES`, and is doubled or halved.
        (place + 1) & (self.words.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.words.len() - 1)
    }
}

impl Slot {
    /// Folds both halves of a hash into one, mixed so that weak hash functions are spread, too.
    pub(crate) fn fold(hash: u64) -> u32 {
        // Multiplied, so that all bits affect the upper ones, by which `home` selects a place.
        ((hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few hashes, so that they collide; the highest ones, so that runs wrap around the end.
    fn hash() -> impl Strategy<Value = u32> {
        prop_oneof![0..8_u32, u32::MAX - 8..=u32::MAX, any::<u32>()]
    }

    proptest! {
        #[test]
        fn slot_index_finds_inserted_and_not_removed_slots(
            ops in proptest::collection::vec((hash(), proptest::option::of(any::<prop::sample::Index>())), 1..300)
        ) {
            let mut index = SlotIndex::default();
            let mut inserted: Vec<Slot> = Vec::new();
            for (number, (hash, removal)) in (0..).zip(ops) {
                match removal {
                    Some(which) if !inserted.is_empty() => {
                        index.remove(inserted.swap_remove(which.index(inserted.len())));
                    }
                    _ => {
                        inserted.push(Slot { number, hash });
                        index.insert(Slot { number, hash });
                    }
                }
                for slot in &inserted {
                    prop_assert_eq!(index.find(slot.hash, |other| other == *slot), Some(*slot));
                }
                prop_assert_eq!(index.find(hash, |slot| !inserted.contains(&slot)), None);
                prop_assert_eq!(index.len, inserted.len());
                prop_assert!(3 * inserted.len() <= 2 * index.words.len());
            }
        }
    }

    #[test]
    fn slot_index_with_capacity_grows_only_beyond_it() {
        for len in [0, 1, 5, 6, 85, 86, 1_000] {
            let mut index = SlotIndex::with_capacity(len as usize);
            let places = index.words.len();
            (0..len).for_each(|number| index.insert(Slot { number, hash: number << 20 }));
            assert_eq!(index.words.len(), places, "{len} slots");
        }
    }

    #[test]
    fn slot_index_frees_memory_after_removals() {
        let slot = |number| Slot { number, hash: Slot::fold(u64::from(number)) };
        let mut index = SlotIndex::default();
        (0..100_000).for_each(|number| index.insert(slot(number)));
        (0..99_999).for_each(|number| index.remove(slot(number)));
        assert_eq!(index.words.len(), MIN_PLACES);
        assert_eq!(index.find(slot(99_999).hash, |_| true), Some(slot(99_999)));
    }
}
