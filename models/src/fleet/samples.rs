//! Samples of a run: quantiles of times in nanoseconds.

/// Collected times.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<u64>);

impl Samples {
    /// Adds a time.
    pub fn add(&mut self, nanoseconds: u64) {
        self.0.push(nanoseconds);
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the time that a share of the samples does not exceed, in milliseconds; 0 without samples.
    pub fn quantile_ms(&mut self, share: f64) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        let at = ((self.0.len() - 1) as f64 * share) as usize;
        let (_, found, _) = self.0.select_nth_unstable(at);
        *found as f64 / 1e6
    }
}
