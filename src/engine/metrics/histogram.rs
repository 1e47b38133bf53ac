//! Histogram of durations, accurate to a quarter.

use std::time::Duration;

/// Number of buckets: four per doubling, from a microsecond to half an hour.
const BUCKETS: u8 = 120;

/// Number of bits of a number of microseconds, after the first one, that select its bucket.
const BITS: u32 = 2;

/// Histogram of durations. Each duration is rounded up, by at most a quarter. Only buckets with counts take memory, and
/// they are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram(Vec<(u8, u64)>);

impl Histogram {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        self.count(bucket(micros), 1);
    }

    pub(crate) fn add(&mut self, other: &Histogram) {
        other.0.iter().for_each(|&(bucket, count)| self.count(bucket, count));
    }

    /// Returns each duration, in seconds, that was recorded more often than in `before`, and the increase of its count.
    pub(crate) fn since(&self, before: &Histogram) -> impl Iterator<Item = (f64, u64)> {
        let before = |bucket| before.find(bucket).map_or(0, |index| before.0[index].1);
        let more = self.0.iter().map(move |&(bucket, count)| {
            (most(bucket) as f64 / 1e6, count.saturating_sub(before(bucket)))
        });
        more.filter(|(_, more)| *more > 0)
    }

    fn count(&mut self, bucket: u8, times: u64) {
        match self.find(bucket) {
            Ok(index) => self.0[index].1 += times,
            Err(index) => self.0.insert(index, (bucket, times)),
        }
    }

    fn find(&self, bucket: u8) -> Result<usize, usize> {
        self.0.binary_search_by_key(&bucket, |(bucket, _)| *bucket)
    }
}

/// Returns the bucket of a number of microseconds.
fn bucket(micros: u64) -> u8 {
    if micros < 1 << BITS {
        return micros as u8;
    }
    let octave = micros.ilog2() - BITS;
    // 4 to 7, so the first octave's buckets follow the exact ones without a gap, and each octave follows the last.
    let within = (micros >> octave) as u8;
    (((octave as u8) << BITS) + within).min(BUCKETS - 1)
}

/// Returns the largest number of microseconds of a bucket.
fn most(bucket: u8) -> u64 {
    if bucket < 2 << BITS {
        return u64::from(bucket);
    }
    let octave = (bucket >> BITS) - 1;
    let within = bucket - (octave << BITS);
    ((u64::from(within) + 1) << octave) - 1
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_by_at_most_a_quarter() {
        let mut last = 0;
        for micros in (0..5_000).chain((5_000..1 << 30).step_by(99_991)) {
            let bucket = bucket(micros);
            assert!(bucket == last || bucket == last + 1 || micros >= 5_000, "{micros}");
            last = bucket;
            let most = most(bucket);
            assert!(most >= micros && most <= micros + micros / 4, "{micros} is counted as {most}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn since_returns_only_the_increase() {
        let mut before = Histogram::new();
        before.record(Duration::from_micros(1));
        let mut now = before.clone();
        now.record(Duration::from_nanos(1));
        now.record(Duration::ZERO);
        let reported: Vec<_> = now.since(&before).collect();
        assert_eq!(reported, [(0.0, 1), (1e-6, 1)]);
        assert_eq!(now.since(&now).count(), 0);
        now.add(&before);
        assert_eq!(now.since(&Histogram::new()).map(|(_, count)| count).sum::<u64>(), 4);
    }
}
