//! Credit of one shard: number of read entries that may be evicted in place of entries that were never read.
//!
//! A key that is read for the first time shows that new entries are worth their space, so it earns credit. A scan earns
//! none, however long it is, because its keys are never read.

/// Credit that the first read of a key earns. More than one, because few of them are seen in a loop that is larger than
/// the shard: a key that returns after its eviction is recognized only while it is a ghost.
const EARNED: f32 = 8.0;

/// Greatest credit, as a share of the shard's entries. A scan evicts at most so many of the read entries.
const GREATEST_SHARE: f32 = 1.0 / 8.0;

/// Share of the credit that is left after a unit of the insert clock. A scan evicts the unread entries first, and by
/// then the credit for earlier reads has expired.
const LEFT: f32 = 7.0 / 8.0;

/// Least trace of an earlier returning key, as of one about as many inserts ago as the shard has entries.
const LEAST_TRACE: f32 = 1.0 / 8.0;

#[derive(Default)]
pub(super) struct Credit {
    credit: f32,
    /// Number of keys that returned, of which the earlier ones count less and less.
    returned: f32,
}

impl Credit {
    /// Records that a key was read for the first time, in a shard of `len` entries.
    pub(super) fn earn(&mut self, len: usize) {
        // A small shard needs credit for one entry, or it could never evict a read entry.
        let greatest = (len as f32 * GREATEST_SHARE).max(1.0);
        self.credit = (self.credit + EARNED).min(greatest);
    }

    /// Records that a key seems to have returned after its eviction. The first one in a while earns nothing, because it
    /// may not be one: its ghost has 16 bits of its hash, so one new key in 16,000 is mistaken for it.
    pub(super) fn earn_by_return(&mut self, len: usize) {
        if self.returned >= LEAST_TRACE {
            self.earn(len);
        }
        self.returned += 1.0;
    }

    /// Returns whether a read entry may be evicted in place of an unread one.
    #[inline]
    pub(super) fn is_enough(&self) -> bool {
        self.credit >= 1.0
    }

    /// Records that a read entry was evicted.
    pub(super) fn spend(&mut self) {
        self.credit -= 1.0;
    }

    /// Records that a unit of the insert clock has passed.
    pub(super) fn expire(&mut self) {
        self.credit *= LEFT;
        self.returned *= LEFT;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn credit_is_at_most_an_eighth_of_the_entries_and_at_least_one() {
        for (len, greatest) in [(1, 1), (8, 1), (80, 10), (800, 100)] {
            let mut credit = Credit::default();
            assert!(!credit.is_enough());
            (0..1_000).for_each(|_| credit.earn(len));
            let spent = std::iter::from_fn(|| credit.is_enough().then(|| credit.spend())).count();
            assert_eq!(spent, greatest, "{len} entries");
        }
    }

    #[test]
    fn first_return_in_a_while_earns_nothing() {
        let mut credit = Credit::default();
        for returns in [1, 2, 1] {
            (0..returns).for_each(|_| credit.earn_by_return(800));
            assert_eq!(credit.is_enough(), returns == 2);
            (0..40).for_each(|_| credit.expire());
        }
    }

    #[test]
    fn credit_expires() {
        let mut credit = Credit::default();
        (0..100).for_each(|_| credit.earn(800));
        (0..35).for_each(|_| credit.expire());
        assert!(!credit.is_enough());
    }
}
