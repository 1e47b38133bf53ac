//! Hash table of slot numbers: a lookup, or an insertion of an absent number, reads one cache line. The table
//! of hashbrown has its tags and its items on two cache lines; docs/sets.md has the cost of the second.
//!
//! 1. A number is in the chunk that its hash selects or, if that was full, in one of the next chunks.
//! 2. Each chunk counts the numbers that probed past it because it was full. So a search ends at the first
//!    chunk that counts none, and a removal leaves no tombstone.
//! 3. At least one chunk is not full.

/// Numbers per chunk: 40 bytes, which share a cache line with 16 bytes of tags and 4 of the count.
const LANES: usize = 10;

/// Hash bits stored per number, so that a lookup of an absent number rarely compares members. The most that fit into
/// 128 bits for all lanes.
const TAG_BITS: usize = 12;

/// Maximum average of numbers per chunk; the table is full at that load. Above it, more chunks would overflow, and each
/// search past a chunk reads another cache line.
const MAX_LOAD: usize = 7;

#[derive(Default)]
pub(super) struct SlotTable {
    /// Empty, or a power of two.
    chunks: Vec<Chunk>,
    len: usize,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chunk {
    /// Tags by lane; zero if the lane is empty.
    tags: u128,
    numbers: [u32; LANES],
    /// Count of numbers that probed past this chunk.
    overflowed: u32,
}

/// Set of lanes, as the highest bits of their tags.
#[derive(Clone, Copy)]
struct Lanes(u128);

/// Mask of one lane.
const TAG_MASK: u128 = (1 << TAG_BITS) - 1;

/// The value 1 in each lane.
const ONE_PER_LANE: u128 = {
    let (mut each, mut lane) = (0, 0);
    while lane < LANES {
        each |= 1 << (lane * TAG_BITS);
        lane += 1;
    }
    each
};

/// The highest bit of each lane, and all lower bits of each lane.
const HIGH_BITS: u128 = ONE_PER_LANE << (TAG_BITS - 1);
const LOW_BITS: u128 = HIGH_BITS - ONE_PER_LANE;

impl SlotTable {
    pub(super) fn with_capacity(numbers: usize) -> Self {
        if numbers == 0 {
            return Self::default();
        }
        let empty = Chunk { tags: 0, numbers: [0; LANES], overflowed: 0 };
        Self { chunks: vec![empty; numbers.div_ceil(MAX_LOAD).next_power_of_two()], len: 0 }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.chunks.len() * MAX_LOAD
    }

    /// Returns a number with this hash that `matches`.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.chunks.len().checked_sub(1)?;
        let mut index = hash as usize & mask;
        // At most one round: it is possible that every chunk has a count.
        for _ in 0..=mask {
            let chunk = &self.chunks[index];
            for lane in chunk.lanes(tag(hash)) {
                let number = chunk.numbers[lane];
                if matches(number) {
                    return Some(number);
                }
            }
            if chunk.overflowed == 0 {
                break;
            }
            index = (index + 1) & mask;
        }
        None
    }

    /// Inserts a number that is not present; the table must not be full.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, number: u32) {
        let mask = self.chunks.len() - 1;
        let mut index = hash as usize & mask;
        loop {
            let chunk = &mut self.chunks[index];
            // Ends: the caller replaces a full table first, so at least one chunk has a free lane.
            if let Some(lane) = chunk.lanes(0).next() {
                chunk.tags |= tag(hash) << (TAG_BITS * lane);
                chunk.numbers[lane] = number;
                break;
            }
            chunk.overflowed += 1;
            index = (index + 1) & mask;
        }
        self.len += 1;
    }

    /// Removes a number that is present. Nothing moves and no tombstone is left, so that a steady flow of
    /// insertions and removals never requires a rebuild.
    #[inline]
    pub(super) fn remove(&mut self, hash: u32, number: u32) {
        let mask = self.chunks.len() - 1;
        let mut index = hash as usize & mask;
        loop {
            let chunk = &mut self.chunks[index];
            if let Some(lane) = chunk.lanes(tag(hash)).find(|&lane| chunk.numbers[lane] == number) {
                chunk.tags &= !(TAG_MASK << (TAG_BITS * lane));
                break;
            }
            chunk.overflowed =
                chunk.overflowed.checked_sub(1).expect("the number to remove is present");
            index = (index + 1) & mask;
        }
        self.len -= 1;
    }
}

impl Chunk {
    /// Returns the lanes with this tag.
    #[inline]
    fn lanes(&self, tag: u128) -> Lanes {
        let differ = self.tags ^ (tag * ONE_PER_LANE);
        // The highest bit of each lane, set if any of its bits differs.
        let any = ((differ & LOW_BITS) + LOW_BITS) | differ;
        Lanes(!any & HIGH_BITS)
    }
}

impl Iterator for Lanes {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let lane = self.0.trailing_zeros() as usize / TAG_BITS;
        self.0 &= self.0.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    }
}

/// Returns the tag of a hash; never zero, which marks an empty lane.
#[inline]
fn tag(hash: u32) -> u128 {
    u128::from(hash >> (32 - TAG_BITS)).max(1)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::HashMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn chunk_fills_one_cache_line() {
        assert_eq!(size_of::<Chunk>(), 64);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Few hashes, so that chunks overflow; some differ only in their tags.
        #[test]
        fn slot_table_agrees_with_a_map(ops in vec((any::<bool>(), 0..40_u32, 0..4_u32), 1..400)) {
            let mut table = SlotTable::with_capacity(60);
            let mut map = HashMap::new();
            for (number, (inserts, home, tag)) in (0..).zip(ops) {
                let hash = (tag << 30) | (home * home % 7);
                if inserts && !table.is_full() {
                    table.insert(hash, number);
                    map.insert(number, hash);
                } else if let Some(&number) = map.keys().min_by_key(|n| n.wrapping_mul(2_654_435_761)) {
                    let hash = map.remove(&number).expect("the number was found above");
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
            prop_assert!(table.chunks.iter().all(|chunk| chunk.tags == 0 && chunk.overflowed == 0));
        }
    }
}
