//! Time limit of tests for servers, threads and other processes.

use std::{sync::LazyLock, time::Duration};

/// Returns the time after which a test gives up waiting for an effect that has no deadline of its own: two minutes,
/// because machines are busy, times `FLEETING_TEST_PATIENCE`.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(120).mul_f64(stretch())
}

/// Returns `FLEETING_TEST_PATIENCE`, or 1.
pub(crate) fn stretch() -> f64 {
    static STRETCH: LazyLock<f64> = LazyLock::new(|| {
        let Ok(scale) = std::env::var("FLEETING_TEST_PATIENCE") else { return 1.0 };
        match scale.parse() {
            Ok(scale) if (0.01..=1_000.0).contains(&scale) => scale,
            _ => panic!("FLEETING_TEST_PATIENCE is {scale:?}, expected a factor such as 4"),
        }
    });
    *STRETCH
}
