//! Where the entry of a key is: open addressing on one word each, so that a look or a change goes to one
//! place in memory, and never to the entries of other keys. hashbrown's table goes to two, and what is taken
//! out of it leaves a mark until it is rebuilt: docs/timeout-dict.md has what that costs.
//!
//! 1. From the home of each word to its place, all places are taken.
//! 2. At most two thirds of the places are taken; and after a removal at least an eighth, but for [`LEAST`].

use std::{hint::black_box, mem};

/// Places where there are any.
const LEAST: usize = 16;

pub(super) struct KeyIndex {
    /// None, or a power of two.
    words: Box<[Location]>,
    len: usize,
}

/// Where an entry is: its slot, and the hash of its key. With the hash, the index moves and finds it without
/// a look at the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) slot: u32,
    pub(super) hash: u32,
}

/// No entry: the slot after the last there can be.
const FREE: Location = Location { slot: u32::MAX, hash: 0 };

impl KeyIndex {
    pub(super) fn new() -> Self {
        Self { words: Box::default(), len: 0 }
    }

    /// The entry with this hash that `is_it`.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(Location) -> bool) -> Option<Location> {
        if self.len == 0 {
            return None;
        }
        let mut place = self.home(hash);
        loop {
            let word = self.words[place];
            if word == FREE {
                return None;
            }
            if word.hash == hash && is_it(word) {
                return Some(word);
            }
            place = self.after(place);
        }
    }

    /// Adds one that is not there.
    #[inline]
    pub(super) fn insert(&mut self, location: Location) {
        if 3 * (self.len + 1) > 2 * self.words.len() {
            self.resize((2 * self.words.len()).max(LEAST));
        }
        self.len += 1;
        self.put(location);
    }

    /// Removes one that is there.
    #[inline]
    pub(super) fn remove(&mut self, location: Location) {
        let mut hole = self.home(location.hash);
        while self.words[hole].slot != location.slot {
            hole = self.after(hole);
        }
        // Those behind move up, so that there is no gap between them and their homes. A mark in the hole would
        // be cheaper now, and cost every later search; entries come and go here all the time.
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
        if 8 * self.len < self.words.len() && self.words.len() > LEAST {
            self.resize(self.words.len() / 2);
        }
    }

    /// Fetches from memory where `location` is.
    pub(super) fn fetch(&self, location: Location) {
        black_box(self.words[self.home(location.hash)].slot);
    }

    fn resize(&mut self, places: usize) {
        let old = mem::replace(&mut self.words, vec![FREE; places].into());
        old.into_iter().filter(|word| *word != FREE).for_each(|word| self.put(word));
    }

    fn put(&mut self, location: Location) {
        let mut place = self.home(location.hash);
        while self.words[place] != FREE {
            place = self.after(place);
        }
        self.words[place] = location;
    }

    /// By the upper bits of the hash: so a resize goes through both tables in order.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.words.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.words.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.words.len() - 1)
    }
}

impl Location {
    /// Both halves of a hash in one, so mixed that a weak hash gets along.
    pub(super) fn fold(hash: u64) -> u32 {
        ((hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few hashes, so that they meet; the last, so that runs go over the end.
    fn hash() -> impl Strategy<Value = u32> {
        prop_oneof![0..8_u32, u32::MAX - 8..=u32::MAX, any::<u32>()]
    }

    proptest! {
        #[test]
        fn knows_what_was_put_in_and_not_taken_out(
            ops in proptest::collection::vec((hash(), proptest::option::of(any::<prop::sample::Index>())), 1..300)
        ) {
            let mut index = KeyIndex::new();
            let mut known: Vec<Location> = Vec::new();
            for (slot, (hash, removal)) in (0..).zip(ops) {
                match removal {
                    Some(which) if !known.is_empty() => {
                        index.remove(known.swap_remove(which.index(known.len())));
                    }
                    _ => {
                        known.push(Location { slot, hash });
                        index.insert(Location { slot, hash });
                    }
                }
                for location in &known {
                    prop_assert_eq!(index.find(location.hash, |other| other == *location), Some(*location));
                }
                prop_assert_eq!(index.find(hash, |location| !known.contains(&location)), None);
                prop_assert_eq!(index.len, known.len());
                prop_assert!(3 * known.len() <= 2 * index.words.len());
            }
        }
    }

    #[test]
    fn gives_memory_back() {
        let location = |slot| Location { slot, hash: Location::fold(u64::from(slot)) };
        let mut index = KeyIndex::new();
        (0..100_000).for_each(|slot| index.insert(location(slot)));
        (0..99_999).for_each(|slot| index.remove(location(slot)));
        assert_eq!(index.words.len(), LEAST);
        assert_eq!(index.find(location(99_999).hash, |_| true), Some(location(99_999)));
    }
}
