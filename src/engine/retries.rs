//! Retry policy of all kinds of queues: backoff, number of attempts, and reasons of failed ones.

use std::time::Duration;

use super::text::prefix;

/// Retry policy: backoff and number of attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    /// Backoff after the first failure; it doubles with each further one.
    pub(crate) first: Duration,
    pub(crate) max: Duration,
    /// `u32::MAX` if the number is not limited.
    pub(crate) max_attempts: u32,
}

/// Maximum length in bytes of the reason of a failed attempt.
pub(crate) const MAX_REASON_LEN: usize = 1_024;

/// Returns a reason, cut to its maximum length at the boundary of a character.
pub(crate) fn cut_reason(mut reason: String) -> Box<str> {
    reason.truncate(prefix(&reason, MAX_REASON_LEN).len());
    reason.into_boxed_str()
}

impl Retries {
    pub(crate) const DEFAULT: Self = Self {
        first: Duration::from_secs(1),
        max: Duration::from_secs(60),
        max_attempts: u32::MAX,
    };

    /// Sets the backoff of a builder.
    ///
    /// # Panics
    ///
    /// Panics if `first` is longer than `max`.
    pub(crate) fn set_backoff(&mut self, first: Duration, max: Duration) {
        assert!(
            first <= max,
            "backoff: first must not be longer than max, got {first:?} and {max:?}"
        );
        (self.first, self.max) = (first, max);
    }

    /// Sets the number of attempts of a builder.
    ///
    /// # Panics
    ///
    /// Panics if `attempts` is 0.
    pub(crate) fn set_max_attempts(&mut self, attempts: u32) {
        assert!(attempts > 0, "max_attempts must be at least 1, got 0");
        self.max_attempts = attempts;
    }

    /// Returns whether an entry is dead after this number of failed attempts.
    pub(crate) fn is_exhausted(&self, attempts: u32) -> bool {
        // `u32::MAX`, the default, means no maximum, also for attempts that have saturated at it.
        attempts >= self.max_attempts && self.max_attempts < u32::MAX
    }

    /// Returns the backoff after this number of failed attempts, times 0.5 to 1.5 for a `jitter` of 0 to 1.
    /// Without jitter, entries that failed together would be delivered again together.
    pub(crate) fn backoff(&self, attempts: u32, jitter: f64) -> Duration {
        // A shift by 32 would overflow the factor.
        let doublings = attempts.saturating_sub(1).min(31);
        let backoff = self.first.saturating_mul(1 << doublings).min(self.max);
        // A backoff that overflows never ends.
        Duration::try_from_secs_f64(backoff.as_secs_f64() * (0.5 + jitter)).unwrap_or(Duration::MAX)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_maximum_with_jitter() {
        let retries = Retries::DEFAULT;
        for attempts in 0..100_u32 {
            let nominal = 2_u32.saturating_pow(attempts.saturating_sub(1)).min(60);
            let nominal = Duration::from_secs(nominal.into());
            assert_eq!(retries.backoff(attempts, 0.0), nominal / 2, "{attempts}");
            assert_eq!(retries.backoff(attempts, 1.0), nominal * 3 / 2, "{attempts}");
        }
    }

    #[test]
    fn backoff_that_overflows_never_ends_and_zero_backoff_is_zero() {
        let backoff = |first| {
            Retries { first, max: Duration::MAX, ..Retries::DEFAULT }.backoff(u32::MAX, 0.9)
        };
        assert_eq!(backoff(Duration::ZERO), Duration::ZERO);
        assert_eq!(backoff(Duration::MAX), Duration::MAX);
    }
}
