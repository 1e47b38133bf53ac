//! Ranks of entries that are compared for an eviction, also of those that are worth the same. The lowest goes first.

use std::array;

/// Number of ranks that are kept: of the victims of one sample, and of their runners-up.
pub(super) const KEPT: usize = 6;

/// Bit of a rank above all others, which is set for read entries as long as unread ones are to be evicted first.
const PROTECTED: u64 = 1 << 63;

/// Position of the worth in a rank.
const WORTH_SHIFT: u32 = u8::BITS + u32::BITS;

/// Number of low bits of a worth that do not fit into a rank.
const DROPPED_WORTH_BITS: u32 = 8;

/// Difference between two ranks of which one is worth about an eighth more, of the bits of their `f32`.
const NEAR_TIE: u64 = 1 << (20 - DROPPED_WORTH_BITS + WORTH_SHIFT);

/// Rank of an entry. From the highest bit: [`PROTECTED`], the worth, the time since the last access, and the bucket. So
/// the order of two entries, the least worth first and of equals the oldest, takes one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank(u64);

/// The lowest ranks of a sample, in order.
pub(super) struct Ranks([u64; KEPT]);

impl Rank {
    #[inline]
    pub(super) fn new(is_protected: bool, worth: u32, elapsed: u8, bucket: usize) -> Self {
        let protected = if is_protected { PROTECTED } else { 0 };
        Self(
            protected
                | u64::from(worth >> DROPPED_WORTH_BITS) << WORTH_SHIFT
                | u64::from(u8::MAX - elapsed) << u32::BITS
                | bucket as u64,
        )
    }

    pub(super) fn is_protected(self) -> bool {
        self.0 >= PROTECTED
    }

    pub(super) fn bucket(self) -> usize {
        self.0 as u32 as usize
    }
}

impl Ranks {
    /// Stands for no rank.
    const NONE: u64 = u64::MAX;

    pub(super) fn new() -> Self {
        Self([Self::NONE; KEPT])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0[0] == Self::NONE
    }

    /// Returns the rank at a position, if there are so many.
    pub(super) fn get(&self, position: usize) -> Option<Rank> {
        let rank = *self.0.get(position)?;
        (rank != Self::NONE).then_some(Rank(rank))
    }

    /// Inserts a rank in order; the last one drops out. Without a branch, which no predictor could learn.
    #[inline]
    pub(super) fn put(&mut self, Rank(mut rank): Rank) {
        for better in &mut self.0 {
            (*better, rank) = ((*better).min(rank), (*better).max(rank));
        }
    }

    /// Returns the number of ranks that are worth at most an eighth more than the first one.
    pub(super) fn near_first(&self) -> usize {
        let near = self.0[0].saturating_add(NEAR_TIE) >> WORTH_SHIFT;
        let is_near = |rank: &&u64| **rank != Self::NONE && **rank >> WORTH_SHIFT <= near;
        self.0.iter().take_while(is_near).count()
    }

    /// Returns the buckets of the `N` ranks from a position on; `none` for those that are missing.
    pub(super) fn buckets_from<const N: usize>(&self, position: usize, none: usize) -> [usize; N] {
        array::from_fn(|after| self.get(position + after).map_or(none, Rank::bucket))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_order_and_the_last_drops_out() {
        let mut ranks = Ranks::new();
        assert!(ranks.is_empty() && ranks.get(0).is_none() && ranks.near_first() == 0);
        let one = 1.0_f32.to_bits();
        for bucket in [3, 7, 1, 5, 0, 6, 2, 4] {
            ranks.put(Rank::new(false, one, 0, bucket));
        }
        assert_eq!(ranks.buckets_from::<KEPT>(0, 99), [0, 1, 2, 3, 4, 5]);
        assert_eq!(ranks.buckets_from::<2>(5, 99), [5, 99]);
    }

    #[test]
    fn least_worth_comes_first_then_the_oldest_and_protected_ones_last() {
        let (little, much) = (0.5_f32.to_bits(), 2.0_f32.to_bits());
        let mut ranks = Ranks::new();
        ranks.put(Rank::new(true, little, 9, 0));
        ranks.put(Rank::new(false, much, 9, 1));
        ranks.put(Rank::new(false, little, 2, 2));
        ranks.put(Rank::new(false, little, 3, 3));
        assert_eq!(ranks.buckets_from::<4>(0, 99), [3, 2, 1, 0]);
        assert_eq!(ranks.near_first(), 2);
        let protected = (0..4).map(|at| ranks.get(at).is_some_and(Rank::is_protected));
        assert!(protected.eq([false, false, false, true]));
    }

    #[test]
    fn rank_is_near_if_it_is_worth_an_eighth_more() {
        for (worth, near) in [(1.0_f32, 2), (1.124, 2), (1.126, 1)] {
            let mut ranks = Ranks::new();
            ranks.put(Rank::new(false, 1.0_f32.to_bits(), 0, 0));
            ranks.put(Rank::new(false, worth.to_bits(), 0, 1));
            assert_eq!(ranks.near_first(), near, "{worth}");
        }
    }
}
