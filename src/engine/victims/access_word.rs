//! Access word: what the policy knows of an entry, in 16 bits, and what an access changes of that. Ages and gaps are
//! logarithmic, with two steps per doubling, up to a greatest age.
//!
//! From the lowest bit: the gap before a hit that was not learnt from yet, the class, and the time of the last access.
//! Zero for an empty bucket.

pub(crate) const AGES: usize = 15;

/// Width of each age in units of the clock. The last age is unbounded but is taken to be short. So after a long scan,
/// entries that were popular before it are still worth more than scanned ones. It is not taken to be shorter, since old
/// entries that are never hit again would then seem worth more than those of keys that return.
pub(crate) const WIDTHS: [u8; AGES] = [1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 128];

/// Number of classes of past accesses: none; one gap; the mean of several gaps.
pub(crate) const CLASSES: usize = 1 + 2 * GAP_LEVELS as usize;

/// Number of gap sizes that are distinguished within a class: two ages each.
const GAP_LEVELS: u8 = 7;

/// Greatest time since the last access that is stored, so that an old entry does not look young when the clock wraps.
pub(crate) const MAX_ELAPSED: u8 = 224;

/// The access word of an entry. The class is stored plus one, so that the word of a full bucket is not zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessWord(pub(crate) u16);

impl AccessWord {
    /// Returns the word of a key without a history.
    pub(crate) fn fresh(clock: u8) -> Self {
        Self::new(clock, 0)
    }

    pub(crate) fn new(last_access: u8, class: u8) -> Self {
        Self(u16::from(last_access) << 8 | u16::from(class + 1) << 4)
    }

    /// Returns the class of past accesses.
    #[inline]
    pub(crate) fn class(self) -> u8 {
        self.stored_class().saturating_sub(1)
    }

    /// Returns the class as it is stored: plus one, and zero for an empty bucket. Takes fewer instructions.
    #[inline]
    pub(crate) fn stored_class(self) -> u8 {
        (self.0 >> 4 & 15) as u8
    }

    /// Returns whether the class is that of a key with a known hit.
    #[inline]
    pub(crate) fn is_read(self) -> bool {
        self.0 & 0xe0 != 0
    }

    /// Returns the time of the last access, as the clock's value then.
    #[inline]
    pub(crate) fn last_access(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Returns the time since the last access, in units of the clock.
    #[inline]
    pub(crate) fn elapsed(self, clock: u8) -> u8 {
        clock.wrapping_sub(self.last_access())
    }

    /// Returns the age: the time since the last access on a logarithmic scale.
    #[inline]
    pub(crate) fn age(self, clock: u8) -> u8 {
        AGE_OF[usize::from(self.elapsed(clock))]
    }

    /// Returns the age at which the entry was hit; `None` if it was not hit since that was last learnt from.
    #[inline]
    pub(crate) fn gap(self) -> Option<u8> {
        (self.0 as u8 & 15).checked_sub(1)
    }

    /// Returns the word after a hit now. Several hits in one unit of time count as one, since the later ones of a burst
    /// add nothing. If an earlier hit was not learnt from, the class includes it and only its observation is lost:
    /// before the first eviction nothing is learnt, and entries with many hits must differ from those with one.
    #[inline]
    pub(crate) fn touched(self, clock: u8) -> Self {
        // The usual case: there was a hit in the same unit of time.
        if self.last_access() == clock && self.0 & 15 != 0 {
            return self;
        }
        let class = self.settled(clock & 1).0 & 0xf0;
        Self(u16::from(clock) << 8 | class | (u16::from(self.age(clock)) + 1))
    }

    /// Returns the word with the class after its hit. A mean between two levels is rounded up if `up` is 1.
    pub(crate) fn settled(self, up: u8) -> Self {
        let Some(gap) = self.gap() else { return self };
        let level = (gap / 2).min(GAP_LEVELS - 1);
        let class = match self.class() {
            0 => 1 + level,
            class => 1 + GAP_LEVELS + ((class - 1) % GAP_LEVELS + level + up) / 2,
        };
        Self::new(self.last_access(), class)
    }

    /// Returns the word with its last access at most [`MAX_ELAPSED`] ago.
    pub(crate) fn clamped(self, clock: u8) -> Self {
        if self.elapsed(clock) <= MAX_ELAPSED {
            return self;
        }
        Self(u16::from(clock.wrapping_sub(MAX_ELAPSED)) << 8 | self.0 & 0xff)
    }
}

/// The [`age`] of each elapsed time.
static AGE_OF: [u8; 256] = {
    let mut ages = [0; 256];
    let mut elapsed = 0;
    while elapsed < 256 {
        ages[elapsed] = age(elapsed as u8);
        elapsed += 1;
    }
    ages
};

/// Returns the age of an entry that was last accessed this long ago.
const fn age(elapsed: u8) -> u8 {
    if elapsed < 4 {
        return elapsed;
    }
    let doublings = elapsed.ilog2() as u8;
    let upper_half = elapsed >> (doublings - 1) & 1;
    let age = 2 * doublings + upper_half;
    if age < AGES as u8 { age } else { AGES as u8 - 1 }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_wide_as_widths_states() {
        for (age, width) in WIDTHS.iter().enumerate().take(AGES - 1) {
            let elapsed = (0..=u8::MAX).filter(|elapsed| usize::from(super::age(*elapsed)) == age);
            assert_eq!(elapsed.count(), usize::from(*width), "{age}");
        }
        assert!((1..=u8::MAX).all(|elapsed| age(elapsed - 1) <= age(elapsed)));
    }

    #[test]
    fn access_word_holds_each_class_gap_and_time() {
        for class in 0..CLASSES as u8 {
            for (last_access, clock) in [(0, 0), (0, 3), (250, 7), (7, 100)] {
                let access_word = AccessWord::new(last_access, class);
                assert_eq!(
                    (access_word.class(), access_word.last_access(), access_word.gap()),
                    (class, last_access, None)
                );
                assert_eq!(
                    (access_word.stored_class(), access_word.is_read()),
                    (class + 1, class > 0)
                );
                let hit = access_word.touched(clock);
                assert_eq!((hit.class(), hit.last_access()), (class, clock));
                assert_eq!(hit.gap(), Some(access_word.age(clock)));
                // A burst.
                assert_eq!(hit.touched(clock).0, hit.0);
                let next = hit.touched(clock.wrapping_add(1));
                assert_eq!(
                    (next.class(), next.gap()),
                    (hit.settled(clock & 1 ^ 1).class(), Some(1))
                );
                let settled = hit.settled(1);
                assert_eq!((settled.last_access(), settled.gap()), (clock, None));
                assert!(settled.class() > 0 && usize::from(settled.class()) < CLASSES);
            }
        }
    }

    #[test]
    fn class_after_equal_gaps_has_their_level() {
        for level in 0..GAP_LEVELS {
            for hits in 1..10 {
                let hit = |word: AccessWord, n: u8| word.touched(n << level);
                let hit = (1..=hits).fold(AccessWord::fresh(0), hit);
                let mean = if hits == 1 { 0 } else { GAP_LEVELS };
                assert_eq!(hit.settled(0).class(), 1 + mean + level, "{hits} hits");
            }
        }
    }

    #[test]
    fn old_entry_stays_old_when_the_clock_wraps() {
        let mut access_word = AccessWord::fresh(0);
        for clock in (0..10_000).map(|clock| clock as u8) {
            access_word = access_word.clamped(clock);
            assert!(access_word.elapsed(clock) <= MAX_ELAPSED);
        }
        assert_eq!(access_word.elapsed(9_999_u32 as u8), MAX_ELAPSED);
    }
}
