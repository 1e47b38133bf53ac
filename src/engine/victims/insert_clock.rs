//! Clock of one shard: counts time in inserts, in units of a part of the shard's size.

/// The clock advances by one when this fraction of the shard's entries has been inserted.
const CLOCK_PARTS: usize = 16;

#[derive(Default)]
pub(crate) struct InsertClock {
    /// The present time, in units of a fraction of the shard's size.
    now: u8,
    /// Number of keys that were inserted in this unit.
    inserts: usize,
}

impl InsertClock {
    #[inline]
    pub(crate) fn now(&self) -> u8 {
        self.now
    }

    /// Records the insert of a key, as one of `len` entries. Returns whether a unit ends with it.
    #[inline]
    pub(crate) fn inserted(&mut self, len: usize) -> bool {
        self.inserts += 1;
        let is_end = self.inserts * CLOCK_PARTS >= len;
        if is_end {
            self.inserts = 0;
            self.now = self.now.wrapping_add(1);
        }
        is_end
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn clock_advances_with_a_share_of_the_inserts() {
        const LEN: usize = 160;
        let mut clock = InsertClock::default();
        let ends = (0..5 * LEN).filter(|_| clock.inserted(LEN)).count();
        assert_eq!((ends, usize::from(clock.now())), (5 * CLOCK_PARTS, 5 * CLOCK_PARTS));
    }
}
