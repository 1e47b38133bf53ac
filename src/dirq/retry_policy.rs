//! The retry policy of a queue: its validation, and the jitter of its backoff.

use std::time::Duration;

use super::{Error, Name};
use crate::engine::{retries::Retries, split_mix::unit_fraction};

/// Returns an error if no element could be delivered with this policy, or its backoff could not grow.
pub(super) fn check(retries: &Retries) -> Result<(), Error> {
    let Retries { first, max, max_attempts } = retries;
    if first > max {
        let reason = format!("the first backoff {first:?} is longer than the maximum {max:?}");
        return Err(Error::InvalidOption { option: "backoff", reason });
    }
    if *max_attempts == 0 {
        let reason = "must be at least 1, got 0".to_owned();
        return Err(Error::InvalidOption { option: "max_attempts", reason });
    }
    Ok(())
}

/// Returns the backoff after `attempts` failures of an element.
pub(super) fn backoff(retries: &Retries, attempts: u32, name: &Name) -> Duration {
    // Numbers of elements have 56 bits, so each attempt of each element has a jitter of its own.
    retries.backoff(attempts, unit_fraction(name.element ^ u64::from(attempts) << 56))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_failed_together_have_different_backoffs() {
        for attempts in 1..10_u32 {
            let names = (0..1_000).map(|micros| Name {
                directory: 0,
                element: 0x5f3c_1aa1_0000_0000 + (micros << 4),
            });
            let mut backoffs: Vec<_> =
                names.map(|name| backoff(&Retries::DEFAULT, attempts, &name)).collect();
            backoffs.sort_unstable();
            let nominal = Duration::from_secs(1 << (attempts - 1)).min(Retries::DEFAULT.max);
            assert!(backoffs[0] < nominal * 6 / 10, "{attempts}: {:?}", backoffs[0]);
            assert!(backoffs[999] > nominal * 14 / 10, "{attempts}: {:?}", backoffs[999]);
            backoffs.dedup();
            assert!(backoffs.len() > 990, "{attempts}: {}", backoffs.len());
        }
    }
}
