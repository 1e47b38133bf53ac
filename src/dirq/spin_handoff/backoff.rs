//! When not to spin: a backoff that counts calls instead of time.

/// Suspends spinning after it has failed.
#[derive(Default)]
pub(super) struct SpinBackoff {
    /// Number of calls that do not spin.
    calls_to_skip: u32,
    /// Consecutive failures, which reset after [`RESET_AFTER`](Self::RESET_AFTER) successes in a row.
    failures: u32,
    /// Consecutive successes.
    successes: u32,
}

impl SpinBackoff {
    /// Number of calls to skip after the first failure. It doubles with each further failure, up to 1,024.
    const FIRST_SKIP: u32 = 8;
    const MAX_DOUBLINGS: u32 = 7;
    /// Number of consecutive successes after which the backoff starts again from the first step.
    const RESET_AFTER: u32 = 8;

    /// Counts a call. Returns whether it must not spin.
    pub(super) fn skips_call(&mut self) -> bool {
        let skips = self.calls_to_skip > 0;
        self.calls_to_skip = self.calls_to_skip.saturating_sub(1);
        skips
    }

    /// No work arrived while the thread was spinning. No caller lost time, so the backoff does not grow.
    pub(super) fn worker_idled(&mut self) {
        self.calls_to_skip = self.calls_to_skip.max(Self::FIRST_SKIP);
    }

    /// A caller spun without receiving its result.
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
    fn backoff_doubles_while_the_spin_is_useless_and_ends_when_it_pays() {
        let mut backoff = SpinBackoff::default();
        let skipped_calls =
            |backoff: &mut SpinBackoff| (0..).take_while(|_| backoff.skips_call()).count();
        assert_eq!(skipped_calls(&mut backoff), 0);
        for expected in [8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            // Too few successes for a reset.
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
