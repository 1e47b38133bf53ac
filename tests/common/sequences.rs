//! Configuration of the model tests: number and seed of the random sequences.

use proptest::{prelude::ProptestConfig, test_runner::RngSeed};

/// Returns a configuration with `cases` and `seed`, unless overridden by the environment variables `PROPTEST_CASES` and
/// `FLEETING_SEED`. A failing sequence is printed, not stored.
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
