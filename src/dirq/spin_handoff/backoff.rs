//! When nobody is to be awake for anybody: a count of calls, without a clock.

/// Whether it is in vain to be awake for somebody else.
#[derive(Default)]
pub(super) struct Doubt {
    /// For so many calls nobody is.
    calls: u32,
    /// How often it was of late.
    right: u32,
    /// How often it was not, one after another.
    wrong: u32,
}

impl Doubt {
    /// For so many calls the first time, and for twice as many each time that follows, up to 1,024.
    const CALLS: u32 = 8;
    const MAX_DOUBLINGS: u32 = 7;
    /// So often wrong, it begins anew.
    const ENOUGH: u32 = 8;

    /// Counts a call; true where it is one of those for which nobody is to be awake.
    pub(super) fn covers_call(&mut self) -> bool {
        let covers = self.calls > 0;
        self.calls = self.calls.saturating_sub(1);
        covers
    }

    /// Nobody came in time, which cost nobody any time.
    pub(super) fn pauses(&mut self) {
        self.calls = self.calls.max(Self::CALLS);
    }

    /// Somebody looked out in vain.
    pub(super) fn was_right(&mut self) {
        self.calls = Self::CALLS << self.right;
        self.right = (self.right + 1).min(Self::MAX_DOUBLINGS);
        self.wrong = 0;
    }

    pub(super) fn was_wrong(&mut self) {
        self.wrong += 1;
        if self.wrong >= Self::ENOUGH {
            (self.right, self.wrong) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_grows_where_it_is_right_and_ends_where_it_is_wrong() {
        let mut doubt = Doubt::default();
        let calls = |doubt: &mut Doubt| (0..).take_while(|_| doubt.covers_call()).count();
        assert_eq!(calls(&mut doubt), 0);
        for expected in [8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            // Too few to be convinced.
            for _ in 1..Doubt::ENOUGH {
                doubt.was_wrong();
            }
            doubt.was_right();
            assert_eq!(calls(&mut doubt), expected);
        }
        for _ in 0..Doubt::ENOUGH {
            doubt.was_wrong();
        }
        doubt.was_right();
        assert_eq!(calls(&mut doubt), 8);
    }
}
