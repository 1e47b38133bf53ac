//! When what failed comes again, and how often.

use std::time::Duration;

use rand::{RngExt, rngs::SmallRng};

/// When what failed comes again, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    /// After the first failure. It doubles with each.
    pub(crate) first: Duration,
    pub(crate) max: Duration,
    pub(crate) max_attempts: u32,
}

impl Retries {
    pub(crate) const DEFAULT: Self = Self {
        first: Duration::from_secs(1),
        max: Duration::from_secs(60),
        max_attempts: u32::MAX,
    };

    /// Whether what has failed so often is dead.
    pub(super) fn are_over(&self, attempts: u32) -> bool {
        attempts >= self.max_attempts && self.max_attempts < u32::MAX
    }

    /// How long to wait after so many failures: half to three halves of the backoff, so that what failed together does
    /// not come again together.
    pub(crate) fn backoff(&self, attempts: u32, random: &mut SmallRng) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let backoff = self.first.saturating_mul(1 << doublings).min(self.max);
        let jitter = random.random_range(0.5..1.5);
        // A backoff that overflows is never over.
        Duration::try_from_secs_f64(backoff.as_secs_f64() * jitter).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_backoff_doubles_to_its_maximum_and_is_jittered() {
        let retries = Retries::DEFAULT;
        let mut random = SmallRng::seed_from_u64(9);
        for attempts in 0..100_u32 {
            let nominal = 2_u32.saturating_pow(attempts.saturating_sub(1)).min(60);
            let nominal = Duration::from_secs(nominal.into());
            let backoffs: Vec<_> =
                (0..1_000).map(|_| retries.backoff(attempts, &mut random)).collect();
            let (least, most) = (backoffs.iter().min().unwrap(), backoffs.iter().max().unwrap());
            assert!((nominal / 2..nominal * 6 / 10).contains(least), "{attempts}: {least:?}");
            assert!((nominal * 14 / 10..nominal * 2).contains(most), "{attempts}: {most:?}");
        }
    }

    #[test]
    fn what_overflows_never_comes_and_zero_comes_at_once() {
        let mut random = SmallRng::seed_from_u64(9);
        let backoff = |first, random: &mut SmallRng| {
            Retries { first, max: Duration::MAX, ..Retries::DEFAULT }.backoff(u32::MAX, random)
        };
        assert_eq!(backoff(Duration::ZERO, &mut random), Duration::ZERO);
        assert!(backoff(Duration::MAX, &mut random) > Duration::MAX / 4);
    }
}
