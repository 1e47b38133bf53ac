//! When nobody is to be awake for anybody: a count of calls, without a clock.

/// Whether it is in vain to be awake for somebody else.
#[derive(Default)]
pub(super) struct SpinBackoff {
    /// For so many calls nobody is.
    calls_to_skip: u32,
    /// How often it was of late.
    failures: u32,
    /// How often it was not, one after another.
    successes: u32,
}

impl SpinBackoff {
    /// For so many calls the first time, and for twice as many each time that follows, up to 1,024.
    const FIRST_SKIP: u32 = 8;
    const MAX_DOUBLINGS: u32 = 7;
    /// So often wrong, it begins anew.
    const RESET_AFTER: u32 = 8;

    /// QueueMetrics a call; true where it is one of those for which nobody is to be awake.
    pub(super) fn skips_call(&mut self) -> bool {
        let skips = self.calls_to_skip > 0;
        self.calls_to_skip = self.calls_to_skip.saturating_sub(1);
        skips
    }

    /// Nobody came in time, which cost nobody any time.
    pub(super) fn worker_idled(&mut self) {
        self.calls_to_skip = self.calls_to_skip.max(Self::FIRST_SKIP);
    }

    /// Somebody looked out in vain.
    pub(super) fn spin_failed(&mut self) {
        self.calls_to_skip = Self::FIRST_SKIP << self.failures;
        self.failures = (self.failures + 1).min(Self::MAX_DOUBLINGS);
        self.successes = 0;
    }

    pub(super) fn spin_succeeded(&mut self) {
        self.successes += 1;
        if self.successes >= Self::RESET_AFTER {
            (self.failures, self.successes) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_grows_where_it_is_right_and_ends_where_it_is_wrong() {
        let mut backoff = SpinBackoff::default();
        let skipped_calls =
            |backoff: &mut SpinBackoff| (0..).take_while(|_| backoff.skips_call()).count();
        assert_eq!(skipped_calls(&mut backoff), 0);
        for expected in [8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            // Too few to be convinced.
            for _ in 1..SpinBackoff::RESET_AFTER {
                backoff.spin_succeeded();
            }
            backoff.spin_failed();
            assert_eq!(skipped_calls(&mut backoff), expected);
        }
        for _ in 0..SpinBackoff::RESET_AFTER {
            backoff.spin_succeeded();
        }
        backoff.spin_failed();
        assert_eq!(skipped_calls(&mut backoff), 8);
    }
}
