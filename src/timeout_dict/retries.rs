//! Retry policy: backoff, number of attempts, and reasons of failed ones.

use std::time::Duration;

use rand::{RngExt, rngs::SmallRng};

/// Retry policy: backoff and number of attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    /// Backoff after the first failure; it doubles with each further one.
    pub(crate) first: Duration,
    pub(crate) max: Duration,
    pub(crate) max_attempts: u32,
}

/// Maximum length in bytes of the reason of a failed attempt.
const MAX_REASON_LEN: usize = 1_024;

/// Returns a reason, cut to its maximum length at the boundary of a character.
pub(crate) fn cut_reason(mut reason: String) -> Box<str> {
    if reason.len() > MAX_REASON_LEN {
        let boundary = (0..=MAX_REASON_LEN).rev().find(|&at| reason.is_char_boundary(at));
        reason.truncate(boundary.unwrap_or_default());
    }
    reason.into_boxed_str()
}

impl Retries {
    pub(crate) const DEFAULT: Self = Self {
        first: Duration::from_secs(1),
        max: Duration::from_secs(60),
        max_attempts: u32::MAX,
    };

    /// Returns whether an entry is dead after this number of failed attempts.
    pub(super) fn is_exhausted(&self, attempts: u32) -> bool {
        // `u32::MAX`, the default, means no maximum, also for attempts that have saturated at it.
        attempts >= self.max_attempts && self.max_attempts < u32::MAX
    }

    /// Returns the backoff after this number of failed attempts, jittered between 0.5 and 1.5 times its
    /// value, so that entries that failed together are not delivered again together.
    pub(crate) fn backoff(&self, attempts: u32, rng: &mut SmallRng) -> Duration {
        // A shift by 32 would overflow the factor.
        let doublings = attempts.saturating_sub(1).min(31);
        let backoff = self.first.saturating_mul(1 << doublings).min(self.max);
        let jitter = rng.random_range(0.5..1.5);
        // A backoff that overflows never ends.
        Duration::try_from_secs_f64(backoff.as_secs_f64() * jitter).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn backoff_doubles_to_its_maximum_with_jitter() {
        let retries = Retries::DEFAULT;
        let mut rng = SmallRng::seed_from_u64(9);
        for attempts in 0..100_u32 {
            let nominal = 2_u32.saturating_pow(attempts.saturating_sub(1)).min(60);
            let nominal = Duration::from_secs(nominal.into());
            let backoffs: Vec<_> =
                (0..1_000).map(|_| retries.backoff(attempts, &mut rng)).collect();
            let (least, most) = (backoffs.iter().min().unwrap(), backoffs.iter().max().unwrap());
            assert!((nominal / 2..nominal * 6 / 10).contains(least), "{attempts}: {least:?}");
            assert!((nominal * 14 / 10..nominal * 2).contains(most), "{attempts}: {most:?}");
        }
    }

    #[test]
    fn backoff_that_overflows_never_ends_and_zero_backoff_is_zero() {
        let mut rng = SmallRng::seed_from_u64(9);
        let backoff = |first, rng: &mut SmallRng| {
            Retries { first, max: Duration::MAX, ..Retries::DEFAULT }.backoff(u32::MAX, rng)
        };
        assert_eq!(backoff(Duration::ZERO, &mut rng), Duration::ZERO);
        assert!(backoff(Duration::MAX, &mut rng) > Duration::MAX / 4);
    }
}
