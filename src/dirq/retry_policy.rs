//! The retry policy: when a failed element is delivered again, and how often. Pure computation, without clock and
//! files.

use std::time::Duration;

use super::Error;

/// Backoff and maximum number of attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    /// Backoff after the first failure. It doubles after each further failure.
    pub(super) first: Duration,
    pub(super) max: Duration,
    /// `None` if the number is not limited.
    pub(super) max_attempts: Option<u32>,
}

impl RetryPolicy {
    pub(super) const DEFAULT: Self =
        Self { first: Duration::from_secs(1), max: Duration::from_secs(60), max_attempts: None };

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { first, max, max_attempts } = self;
        if first > max {
            let reason = format!("the first backoff {first:?} is longer than the maximum {max:?}");
            return Err(Error::InvalidOption { option: "backoff", reason });
        }
        if *max_attempts == Some(0) {
            let reason = "must be at least 1, got 0".to_owned();
            return Err(Error::InvalidOption { option: "max_attempts", reason });
        }
        Ok(())
    }

    /// Returns whether an element is dead after this number of attempts.
    pub(super) fn is_exhausted(&self, attempts: u32) -> bool {
        self.max_attempts.is_some_and(|max| attempts >= max)
    }

    /// Returns the backoff after `attempts` failures of an element. Jitter (half to one and a half times) prevents
    /// elements that failed together from being delivered together.
    pub(super) fn backoff(&self, attempts: u32, element: u64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let backoff = self.first.saturating_mul(1 << doublings).min(self.max);
        // Numbers of elements have 56 bits, so each attempt of each element has a jitter of its own.
        let jitter = 0.5 + unit_fraction(element ^ u64::from(attempts) << 56);
        // A backoff that overflows never ends.
        Duration::try_from_secs_f64(backoff.as_secs_f64() * jitter).unwrap_or(Duration::MAX)
    }
}

/// Returns a number in `0..1`. Consecutive inputs, such as the numbers of elements, give unrelated results: this is the
/// last step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn unit_fraction(number: u64) -> f64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_maximum_and_has_jitter() {
        for attempts in 0..100_u32 {
            let nominal = 2_u32.saturating_pow(attempts.saturating_sub(1)).min(60);
            let nominal = Duration::from_secs(nominal.into());
            let elements = (0..1_000).map(|micros| 0x5f3c_1aa1_0000_0000 + (micros << 4));
            let backoffs: Vec<_> =
                elements.map(|element| RetryPolicy::DEFAULT.backoff(attempts, element)).collect();
            let (shortest, longest) =
                (backoffs.iter().min().unwrap(), backoffs.iter().max().unwrap());
            assert!((nominal / 2..nominal * 6 / 10).contains(shortest), "{attempts}: {shortest:?}");
            assert!((nominal * 14 / 10..nominal * 2).contains(longest), "{attempts}: {longest:?}");
        }
    }

    #[test]
    fn overflowing_backoff_never_ends_and_zero_backoff_ends_at_once() {
        let backoff = |first| {
            RetryPolicy { first, max: Duration::MAX, ..RetryPolicy::DEFAULT }.backoff(u32::MAX, 7)
        };
        assert_eq!(backoff(Duration::ZERO), Duration::ZERO);
        assert!(backoff(Duration::MAX) > Duration::MAX / 4);
    }
}
