//! Random numbers of the simulation: reproducible in all versions of all dependencies, since they are computed here.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a sequence that depends on the seed only.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Returns a number from 0 to 1, without 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the time until the next of events that occur independently, `rate` per second, in nanoseconds.
    pub fn until_next(&mut self, rate: f64) -> u64 {
        (-(1.0 - self.share()).ln() / rate * 1e9) as u64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// Returns a hash of a number: the output function of SplitMix64.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Zipf distribution: key `k`, counted from 0, is chosen in proportion to `1 / (k + 1)^s`.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Share of all keys up to each.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// Creates the distribution of `keys` keys. With an exponent of 0, all keys are equally frequent.
    pub fn new(keys: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut add = |key: usize| {
            sum += (key as f64).powf(-exponent);
            sum
        };
        let cumulative: Vec<f64> = (1..=keys).map(&mut add).collect();
        let total = sum;
        Self { cumulative: cumulative.into_iter().map(|upto| upto / total).collect() }
    }

    /// Returns a random key.
    pub fn key(&self, random: &mut Random) -> u32 {
        let share = random.share();
        let key = self.cumulative.partition_point(|upto| *upto <= share);
        key.min(self.cumulative.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_key_of_zipf_has_its_share() {
        let (zipf, mut random) = (Zipf::new(1_000, 1.0), Random::new(1));
        let firsts = (0..100_000).filter(|_| zipf.key(&mut random) == 0).count();
        // 1 / (the 1,000th harmonic number).
        assert!((firsts as f64 / 100_000.0 - 0.1336).abs() < 0.005, "{firsts}");
    }

    #[test]
    fn mean_of_pauses_is_the_inverse_of_the_rate() {
        let mut random = Random::new(1);
        let total: u64 = (0..100_000).map(|_| random.until_next(1_000.0)).sum();
        assert!((total as f64 / 1e11 - 1.0).abs() < 0.02, "{total}");
    }
}
