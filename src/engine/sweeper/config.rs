//! Settings of the sweeper, their defaults, and what follows from them: the share of a pass, and the limits of a sweep.

use std::time::Duration;

/// Settings of the sweeper, the background task that removes expired entries.
///
/// A sweep consists of one or more passes. Each pass covers a share of the entries ([`sample`](Sweep::sample)) and
/// continues where the previous pass stopped, so `ceil(1 / sample)` passes cover all entries. (Keys are hashed, so the
/// share is a random sample.) Groups of adjacent buckets without expired entries are skipped. An expired entry
/// therefore stays in memory for at most `every * ceil(1 / sample)` plus the duration of the sweep, for any number of
/// entries. If the share of expired among examined entries reaches [`repeat_at`](Sweep::repeat_at), another pass begins
/// immediately, as long as the [`budget`](Sweep::budget) is not exhausted. Redis' active expire cycle and Python's
/// TimedDict work in the same way, but do not bound the delay.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Cache, Sweep};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // Expired entries are removed within 50 ms plus the duration of the sweep.
/// let sweep = Sweep::default().every(Duration::from_millis(50));
/// let cache: Cache<String, u32> = Cache::builder().sweep(sweep).build();
/// # cache.set("a".into(), 1).await;
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Sweep {
    pub(crate) every: Option<Duration>,
    pub(crate) sample: f64,
    pub(crate) repeat_at: f64,
    pub(crate) budget: f64,
    pub(crate) seed: Option<u64>,
}

impl Sweep {
    /// Returns settings without a background task: expired entries are removed only by
    /// [`Cache::sweep`](crate::Cache::sweep) and by calls that find them.
    pub fn manual() -> Self {
        Self { every: None, ..Self::default() }
    }

    /// Sets the interval between sweeps (TimedDict: `checks_per_second`, which is a pause in seconds despite its name).
    /// Defaults to 100 ms.
    ///
    /// # Panics
    ///
    /// Panics if `every` is zero.
    pub fn every(mut self, every: Duration) -> Self {
        assert!(!every.is_zero(), "every must be longer than zero, got {every:?}");
        self.every = Some(every);
        self
    }

    /// Sets the share of the entries that a pass covers, above 0 and at most 1 (TimedDict: `sample_probability`). The
    /// number of buckets is rounded up to a multiple of 32 in each shard. Defaults to 1.
    ///
    /// # Panics
    ///
    /// Panics if `sample` is NaN, not above 0 or above 1.
    pub fn sample(mut self, sample: f64) -> Self {
        self.sample = share("sample", sample);
        self
    }

    /// Sets the ratio of expired to examined entries from which another pass begins immediately, above 0 and at most 1
    /// (TimedDict: `expired_keys_ratio`). Defaults to 0.1.
    ///
    /// # Panics
    ///
    /// Panics if `ratio` is NaN, not above 0 or above 1.
    pub fn repeat_at(mut self, ratio: f64) -> Self {
        self.repeat_at = share("repeat_at", ratio);
        self
    }

    /// Sets the share of wall time that the sweeper may use, above 0 and at most 1. A sweep that has used this share of
    /// `every` begins no further pass.
    ///
    /// The first pass is always completed, even if it exceeds the budget, so that the maximum delay of a removal holds.
    /// With 1, passes are repeated as long as the ratio is reached. The sweeper always yields to the runtime about
    /// every 100 µs. Defaults to 1: a million entries that expire at the same instant are then removed in about 0.3 s
    /// ([measured](crate::guide::measured::sweep)).
    ///
    /// # Panics
    ///
    /// Panics if `budget` is NaN, not above 0 or above 1.
    pub fn budget(mut self, budget: f64) -> Self {
        self.budget = share("budget", budget);
        self
    }

    /// Seeds the random choices of the sweeper, of evictions and of [`jitter`](crate::Builder::jitter), so that they
    /// are repeatable. Defaults to a seed from the operating system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Returns the number of a shard's `buckets` that a pass examines, large enough that `ceil(1 / sample)` passes
    /// cover all of them.
    pub(crate) fn share_of(&self, buckets: usize) -> usize {
        let passes = (1.0 / self.sample).ceil();
        let sampled = (self.sample * buckets as f64).ceil();
        (sampled as usize).max((buckets as f64 / passes).ceil() as usize)
    }

    /// Returns the time in which sweeps examine all entries, without the duration of a sweep; `None` without a task.
    #[cfg(feature = "metrics")]
    pub(crate) fn bound(&self) -> Option<Duration> {
        let passes = (1.0 / self.sample).ceil().min(f64::from(u32::MAX));
        self.every.map(|every| every.saturating_mul(passes as u32))
    }

    /// Returns the time that a sweep may spend before it stops repeating; `None` if it is unlimited.
    pub(crate) fn allowance(&self) -> Option<Duration> {
        let every = self.every.filter(|_| self.budget < 1.0)?;
        Some(every.mul_f64(self.budget))
    }
}

impl Default for Sweep {
    /// Sweeps all entries every 100 ms, so an expired entry stays in memory for at most 100 ms plus the duration of the
    /// sweep. Another pass begins immediately if a tenth of the examined entries had expired.
    fn default() -> Self {
        Self {
            every: Some(Duration::from_millis(100)),
            sample: 1.0,
            repeat_at: 0.1,
            budget: 1.0,
            seed: None,
        }
    }
}

fn share(name: &str, value: f64) -> f64 {
    assert!(value > 0.0 && value <= 1.0, "{name} must be above 0 and at most 1, got {value}");
    value
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn passes_of_one_rotation_cover_every_bucket() {
        for sample in [1.0, 0.9, 0.5, 1.0 / 3.0, 0.3, 0.25, 0.1, 0.07, 0.001, f64::MIN_POSITIVE] {
            for buckets in [1, 4, 8, 1_024, 1 << 20] {
                let passes = (1.0 / sample).ceil().min(1e9) as usize;
                let share = Sweep::default().sample(sample).share_of(buckets);
                assert!(share >= 1, "sample {sample} of {buckets} buckets examines nothing");
                assert!(share.saturating_mul(passes) >= buckets, "{sample} of {buckets}");
            }
        }
    }
}
