//! How a sweeper works: what the user sets, its defaults, and what follows from them.

use std::time::Duration;

/// How the sweeper works: sampling, repeated on a ratio.
///
/// A sweep looks at a random sample of the resident entries, without replacement: each pass goes on
/// where the last one stopped, so every entry is looked at within `ceil(1 / sample)` passes. Staleness
/// (how long a dead value stays in memory) is therefore at most `every * ceil(1 / sample)` plus the
/// sweep's own time, whatever the population. Where the share of expired among looked-at entries reaches
/// `repeat_at`, the sweep repeats at once, as long as its budget lasts. This is the scheme of Redis'
/// active expire cycle and of Python's TimedDict, with a bound.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Cache, Sweep};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // At most 50 ms until a dead value has left.
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
    /// No task: only [`Cache::sweep`](crate::Cache::sweep) and calls that meet a dead value expire.
    pub fn manual() -> Self {
        Self { every: None, ..Self::default() }
    }

    /// The pause between sweeps (TimedDict: `1 / checks_per_second`). Defaults to 100 ms.
    ///
    /// # Panics
    ///
    /// Where `every` is zero.
    pub fn every(mut self, every: Duration) -> Self {
        assert!(!every.is_zero(), "every must be longer than zero, got {every:?}");
        self.every = Some(every);
        self
    }

    /// The share of resident entries that a pass looks at, above 0 and at most 1 (TimedDict:
    /// `sample_probability`). Rounded up to whole runs of 64 neighbours in each shard. Defaults to 1.
    ///
    /// # Panics
    ///
    /// Where `sample` is NaN, not above 0 or above 1.
    pub fn sample(mut self, sample: f64) -> Self {
        self.sample = share("sample", sample);
        self
    }

    /// Repeat the pass at once where expired / looked-at reaches this, above 0 and at most 1 (TimedDict:
    /// `expired_keys_ratio`). Defaults to 0.1.
    ///
    /// # Panics
    ///
    /// Where `ratio` is NaN, not above 0 or above 1.
    pub fn repeat_at(mut self, ratio: f64) -> Self {
        self.repeat_at = share("repeat_at", ratio);
        self
    }

    /// The share of wall time that the sweeper may use, above 0 and at most 1: a sweep that has used its
    /// share of `every` repeats no more. Its first pass is always finished (the staleness bound comes
    /// before the budget), and with 1 it repeats as long as the ratio asks for it. Either way it yields
    /// to the runtime about every 100 µs. Defaults to 1: a million values that die at one instant are
    /// then gone in a quarter of a second.
    ///
    /// # Panics
    ///
    /// Where `budget` is NaN, not above 0 or above 1.
    pub fn budget(mut self, budget: f64) -> Self {
        self.budget = share("budget", budget);
        self
    }

    /// Makes the sweeper's random choices repeatable. Defaults to a seed of the system's.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How many of a shard's `buckets` a pass looks at: so many that `ceil(1 / sample)` passes see all.
    pub(crate) fn share_of(&self, buckets: usize) -> usize {
        let passes = (1.0 / self.sample).ceil();
        let sampled = (self.sample * buckets as f64).ceil();
        (sampled as usize).max((buckets as f64 / passes).ceil() as usize)
    }

    /// What a sweep may spend on repeats; `None` where nothing limits it.
    pub(crate) fn allowance(&self) -> Option<Duration> {
        let every = self.every.filter(|_| self.budget < 1.0)?;
        Some(every.mul_f64(self.budget))
    }
}

impl Default for Sweep {
    /// Every 100 ms all entries of which some may be dead, repeated at once where a tenth of them had expired: at
    /// most 100 ms of staleness.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passes_of_a_rotation_see_every_bucket() {
        for sample in [1.0, 0.9, 0.5, 1.0 / 3.0, 0.3, 0.25, 0.1, 0.07, 0.001, f64::MIN_POSITIVE] {
            for buckets in [1, 4, 8, 1_024, 1 << 20] {
                let passes = (1.0 / sample).ceil().min(1e9) as usize;
                let share = Sweep::default().sample(sample).share_of(buckets);
                assert!(share >= 1, "sample {sample} of {buckets} buckets looks at nothing");
                assert!(share.saturating_mul(passes) >= buckets, "{sample} of {buckets}");
            }
        }
    }
}
