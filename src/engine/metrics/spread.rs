//! How often something took how long, to a fifth.

use std::time::Duration;

/// Four to each doubling, from a microsecond to half an hour.
const BUCKETS: usize = 120;

/// How many bits of a number of microseconds tell its bucket, beside the first.
const BITS: u32 = 2;

/// How often something took how long. Each time is rounded up, by a quarter at most. Takes memory with the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread(Option<Box<[u64; BUCKETS]>>);

impl Spread {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        self.buckets()[bucket(micros)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Spread) {
        let Some(others) = &other.0 else { return };
        self.buckets().iter_mut().zip(&others[..]).for_each(|(count, more)| *count += more);
    }

    /// In seconds, each that occurs here more often than in `before`, and how much more often.
    pub(super) fn since(&self, before: &Spread) -> impl Iterator<Item = (f64, u64)> {
        let count = |spread: &Spread, bucket: usize| spread.0.as_ref().map_or(0, |all| all[bucket]);
        let more = |bucket| count(self, bucket).saturating_sub(count(before, bucket));
        let more: Vec<_> = (0..BUCKETS).map(|bucket| (most(bucket), more(bucket))).collect();
        more.into_iter()
            .filter(|(_, more)| *more > 0)
            .map(|(micros, more)| (micros as f64 / 1e6, more))
    }

    fn buckets(&mut self) -> &mut [u64; BUCKETS] {
        self.0.get_or_insert_with(|| Box::new([0; BUCKETS]))
    }
}

/// Where so many microseconds are counted.
fn bucket(micros: u64) -> usize {
    if micros < 1 << BITS {
        return micros as usize;
    }
    let octave = micros.ilog2() - BITS;
    let within = (micros >> octave) as usize;
    (((octave as usize) << BITS) + within).min(BUCKETS - 1)
}

/// The most microseconds that are counted there.
fn most(bucket: usize) -> u64 {
    if bucket < 2 << BITS {
        return bucket as u64;
    }
    let octave = (bucket >> BITS) - 1;
    let within = bucket - (octave << BITS);
    ((within as u64 + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_by_little() {
        let mut last = 0;
        for micros in (0..5_000).chain((5_000..1 << 30).step_by(99_991)) {
            let bucket = bucket(micros);
            assert!(bucket == last || bucket == last + 1 || micros >= 5_000, "{micros}");
            last = bucket;
            let most = most(bucket);
            assert!(most >= micros && most <= micros + micros / 4, "{micros} is told as {most}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn only_what_came_since_is_told() {
        let mut before = Spread::new();
        before.record(Duration::from_micros(1));
        let mut now = before.clone();
        now.record(Duration::from_nanos(1));
        now.record(Duration::ZERO);
        let told: Vec<_> = now.since(&before).collect();
        assert_eq!(told, [(0.0, 1), (1e-6, 1)]);
        assert_eq!(now.since(&now).count(), 0);
        now.add(&before);
        assert_eq!(now.since(&Spread::new()).map(|(_, count)| count).sum::<u64>(), 4);
    }
}
