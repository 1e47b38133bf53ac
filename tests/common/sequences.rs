//! How many random sequences the model tests try, and which.

use proptest::{prelude::ProptestConfig, test_runner::RngSeed};

/// As `PROPTEST_CASES` and `FLEETING_SEED` say, else as given. The failing sequence is printed, not kept.
pub(crate) fn config(cases: u32, seed: u64) -> ProptestConfig {
    let number = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().expect("a number"));
    let cases = number("PROPTEST_CASES").unwrap_or(cases.into());
    let seed = number("FLEETING_SEED").unwrap_or(seed);
    println!("{cases} cases from seed {seed}");
    ProptestConfig {
        cases: cases as u32,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
