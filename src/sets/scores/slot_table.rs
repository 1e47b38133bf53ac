//! Slot numbers by hashes: what is looked for, and the room for what is not there, is on one cache line.
//! hashbrown's table has its tags and its items on two: docs/sets.md has what the second one costs.
//!
//! 1. A number is in the chunk that its hash points to, or where that was full in one of the next.
//! 2. Each chunk counts the numbers that would be in it, or before it, were there room, and are behind it. So
//!    a search ends at the first chunk that counts none, and what is taken out leaves no trace.
//! 3. One chunk at least is not full.

/// Numbers in a chunk.
const LANES: usize = 10;

/// Bits of a hash that a chunk has of each: what is not there is hardly ever mistaken for it.
const BITS: usize = 12;

/// How many a chunk has on average when the table is full.
const LOAD: usize = 7;

#[derive(Default)]
pub(super) struct SlotTable {
    /// None, or a power of two.
    chunks: Vec<Chunk>,
    len: usize,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chunk {
    /// Zero where a lane is empty.
    tags: u128,
    numbers: [u32; LANES],
    /// How many are further on.
    further: u32,
}

/// Lanes of a chunk, as the highest bits of their tags.
#[derive(Clone, Copy)]
struct Lanes(u128);

/// The bits of one lane.
const TAG: u128 = (1 << BITS) - 1;

/// One in each lane.
const EACH: u128 = {
    let (mut each, mut lane) = (0, 0);
    while lane < LANES {
        each |= 1 << (lane * BITS);
        lane += 1;
    }
    each
};

/// The highest bit of each lane, and the others.
const HIGH: u128 = EACH << (BITS - 1);
const LOW: u128 = HIGH - EACH;

impl SlotTable {
    pub(super) fn with_capacity(numbers: usize) -> Self {
        if numbers == 0 {
            return Self::default();
        }
        let empty = Chunk { tags: 0, numbers: [0; LANES], further: 0 };
        Self { chunks: vec![empty; numbers.div_ceil(LOAD).next_power_of_two()], len: 0 }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.chunks.len() * LOAD
    }

    /// The number of a hash that `is_it`.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.chunks.len().checked_sub(1)?;
        let mut index = hash as usize & mask;
        // No more than all of them: it might be that each counts some.
        for _ in 0..=mask {
            let chunk = &self.chunks[index];
            for lane in chunk.lanes(tag(hash)) {
                let number = chunk.numbers[lane];
                if is_it(number) {
                    return Some(number);
                }
            }
            if chunk.further == 0 {
                break;
            }
            index = (index + 1) & mask;
        }
        None
    }

    /// Puts in a number that is not there yet; the table must not be full.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, number: u32) {
        let mask = self.chunks.len() - 1;
        let mut index = hash as usize & mask;
        loop {
            let chunk = &mut self.chunks[index];
            if let Some(lane) = chunk.lanes(0).next() {
                chunk.tags |= tag(hash) << (BITS * lane);
                chunk.numbers[lane] = number;
                break;
            }
            chunk.further += 1;
            index = (index + 1) & mask;
        }
        self.len += 1;
    }

    /// Takes out a number that is there. Nothing moves, and no mark is left: a steady flow never asks for a
    /// rebuild.
    #[inline]
    pub(super) fn remove(&mut self, hash: u32, number: u32) {
        let mask = self.chunks.len() - 1;
        let mut index = hash as usize & mask;
        loop {
            let chunk = &mut self.chunks[index];
            if let Some(lane) = chunk.lanes(tag(hash)).find(|&lane| chunk.numbers[lane] == number) {
                chunk.tags &= !(TAG << (BITS * lane));
                break;
            }
            chunk.further = chunk.further.checked_sub(1).expect("what is taken out is there");
            index = (index + 1) & mask;
        }
        self.len -= 1;
    }
}

impl Chunk {
    /// The lanes with this tag.
    #[inline]
    fn lanes(&self, tag: u128) -> Lanes {
        let differ = self.tags ^ (tag * EACH);
        // The highest bit of each lane, set where any of its bits is.
        let any = ((differ & LOW) + LOW) | differ;
        Lanes(!any & HIGH)
    }
}

impl Iterator for Lanes {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let lane = self.0.trailing_zeros() as usize / BITS;
        self.0 &= self.0.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    }
}

/// Never zero, which stands for an empty lane.
#[inline]
fn tag(hash: u32) -> u128 {
    u128::from(hash >> (32 - BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_chunk_is_a_cache_line() {
        assert_eq!(size_of::<Chunk>(), 64);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Few hashes, so that chunks overflow, and some that differ in their tags only.
        #[test]
        fn agrees_with_a_map(ops in vec((any::<bool>(), 0..40_u32, 0..4_u32), 1..400)) {
            let mut table = SlotTable::with_capacity(60);
            let mut map = HashMap::new();
            for (number, (comes, home, tag)) in (0..).zip(ops) {
                let hash = (tag << 30) | (home * home % 7);
                if comes && !table.is_full() {
                    table.insert(hash, number);
                    map.insert(number, hash);
                } else if let Some(&number) = map.keys().min_by_key(|n| n.wrapping_mul(2_654_435_761)) {
                    let hash = map.remove(&number).expect("it was just there");
                    table.remove(hash, number);
                    prop_assert_eq!(table.find(hash, |n| n == number), None);
                }
                for (number, hash) in &map {
                    prop_assert_eq!(table.find(*hash, |n| n == *number), Some(*number));
                }
                prop_assert_eq!(table.len, map.len());
            }
            for (number, hash) in map {
                table.remove(hash, number);
            }
            prop_assert!(table.chunks.iter().all(|chunk| chunk.tags == 0 && chunk.further == 0));
        }
    }
}
