//! What is known of an entry, in 16 bits: from the lowest, the gap before a hit that nobody has learnt from yet, its
//! class, and when it was last asked for. All are zero where there is no entry.
//!
//! Ages and gaps are logarithmic, two steps to each doubling.

/// The clock goes on by one when so many parts of the shard's entries have come.
pub(super) const CLOCK_PARTS: usize = 16;

pub(super) const AGES: usize = 15;

/// How many parts of the clock each age lasts. The last has no end; it is taken to be short, so that after a long scan
/// those who were popular before it are still worth more than what was scanned.
pub(super) const WIDTHS: [u8; AGES] = [1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64];

/// How entries were asked for before: never; once, by the gap; more often, by the mean of the gaps.
pub(super) const CLASSES: usize = 1 + 2 * GAP_LEVELS as usize;

/// So many sizes of gaps are told apart in a class: two ages each.
const GAP_LEVELS: u8 = 7;

/// What is older counts as this old, so that the clock can go round without making it young.
pub(super) const MAX_ELAPSED: u8 = 224;

/// Of an entry. Its class is kept as one more than it is, so that it is not zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessWord(pub(super) u16);

impl AccessWord {
    /// Of a key that nobody knows.
    pub(super) fn fresh(clock: u8) -> Self {
        Self::new(clock, 0)
    }

    pub(super) fn new(last_access: u8, class: u8) -> Self {
        Self(u16::from(last_access) << 8 | u16::from(class + 1) << 4)
    }

    #[inline]
    pub(super) fn class(self) -> u8 {
        ((self.0 >> 4 & 15) as u8).saturating_sub(1)
    }

    #[inline]
    pub(super) fn last_access(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// In parts of the clock.
    #[inline]
    pub(super) fn elapsed(self, clock: u8) -> u8 {
        clock.wrapping_sub(self.last_access())
    }

    #[inline]
    pub(super) fn age(self, clock: u8) -> u8 {
        AGE_OF[usize::from(self.elapsed(clock))]
    }

    /// How long before its last hits it had not been asked for; none where there was no hit since this was learnt.
    #[inline]
    pub(super) fn gap(self) -> Option<u8> {
        (self.0 as u8 & 15).checked_sub(1)
    }

    /// Asked for, now. Of many hits before the next look the gap of the first counts: those of a burst say nothing new.
    #[inline]
    pub(super) fn touched(self, clock: u8) -> Self {
        // Most hits: this part of time has seen another one.
        if self.last_access() == clock && self.0 & 15 != 0 {
            return self;
        }
        let gap = match self.0 & 15 {
            0 => u16::from(self.age(clock)) + 1,
            gap => gap,
        };
        Self(u16::from(clock) << 8 | self.0 & 0xf0 | gap)
    }

    /// In the class that it has after the hit. What falls between two levels goes up where `up` is 1.
    pub(super) fn settled(self, up: u8) -> Self {
        let Some(gap) = self.gap() else { return self };
        let level = (gap / 2).min(GAP_LEVELS - 1);
        let class = match self.class() {
            0 => 1 + level,
            class => 1 + GAP_LEVELS + ((class - 1) % GAP_LEVELS + level + up) / 2,
        };
        Self::new(self.last_access(), class)
    }

    pub(super) fn clamped(self, clock: u8) -> Self {
        if self.elapsed(clock) <= MAX_ELAPSED {
            return self;
        }
        Self(u16::from(clock.wrapping_sub(MAX_ELAPSED)) << 8 | self.0 & 0xff)
    }
}

/// [`age`] of each time that may have passed.
static AGE_OF: [u8; 256] = {
    let mut ages = [0; 256];
    let mut elapsed = 0;
    while elapsed < 256 {
        ages[elapsed] = age(elapsed as u8);
        elapsed += 1;
    }
    ages
};

const fn age(elapsed: u8) -> u8 {
    if elapsed < 4 {
        return elapsed;
    }
    let doublings = elapsed.ilog2() as u8;
    let upper_half = elapsed >> (doublings - 1) & 1;
    let age = 2 * doublings + upper_half;
    if age < AGES as u8 { age } else { AGES as u8 - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_wide_as_told() {
        for (age, width) in WIDTHS.iter().enumerate().take(AGES - 1) {
            let elapsed = (0..=u8::MAX).filter(|elapsed| usize::from(super::age(*elapsed)) == age);
            assert_eq!(elapsed.count(), usize::from(*width), "{age}");
        }
        assert!((1..=u8::MAX).all(|elapsed| age(elapsed - 1) <= age(elapsed)));
    }

    #[test]
    fn a_word_holds_each_class_gap_and_time() {
        for class in 0..CLASSES as u8 {
            for (last_access, clock) in [(0, 0), (0, 3), (250, 7), (7, 100)] {
                let access_word = AccessWord::new(last_access, class);
                assert_eq!(
                    (access_word.class(), access_word.last_access(), access_word.gap()),
                    (class, last_access, None)
                );
                let hit = access_word.touched(clock);
                assert_eq!((hit.class(), hit.last_access()), (class, clock));
                assert_eq!(hit.gap(), Some(access_word.age(clock)));
                // A burst.
                assert_eq!(hit.touched(clock).0, hit.0);
                assert_eq!(hit.touched(clock.wrapping_add(1)).gap(), hit.gap());
                let settled = hit.settled(1);
                assert_eq!((settled.last_access(), settled.gap()), (clock, None));
                assert!(settled.class() > 0 && usize::from(settled.class()) < CLASSES);
            }
        }
    }

    #[test]
    fn what_is_old_stays_old() {
        let mut access_word = AccessWord::fresh(0);
        for clock in (0..10_000).map(|clock| clock as u8) {
            access_word = access_word.clamped(clock);
            assert!(access_word.elapsed(clock) <= MAX_ELAPSED);
        }
        assert_eq!(access_word.elapsed(9_999_u32 as u8), MAX_ELAPSED);
    }
}
