//! SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): random numbers from a counter, or from any other number.

/// The increment of a counter whose values are mixed.
pub(crate) const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes all bits of a number, so that consecutive numbers give unrelated results.
#[inline]
pub(crate) fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Returns a number from 0 to below 1.
#[inline]
pub(crate) fn unit_fraction(bits: u64) -> f64 {
    (mix(bits) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// The first numbers of the published generator with seed 0.
    #[test]
    fn mixed_multiples_of_gamma_are_those_of_split_mix_64() {
        let numbers = [1, 2, 3].map(|n: u64| mix(n.wrapping_mul(GAMMA)));
        assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn consecutive_numbers_give_fractions_that_are_spread_evenly() {
        let mut counts = [0; 10];
        for number in 0..10_000_u64 {
            counts[(unit_fraction(number.wrapping_mul(GAMMA)) * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }
}
