//! A limiter uses the clock of its own runtime, regardless of the runtime on which a caller waits. The real clock is
//! the
//! subject.

use std::{
    sync::atomic::AtomicUsize,
    thread::sleep,
    time::{Duration, Instant},
};

use fleeting::{Limit, Window};
use tokio::time::advance;

use crate::{
    limits::{MILLISECOND, SECOND, WINDOWS, limiter_of},
    two_clocks::{assert_waited, counted, paused, real},
};

const HALF: Duration = Duration::from_millis(500);

#[test]
fn limiter_with_a_real_clock_is_awaited_on_a_paused_runtime() {
    let (real, paused) = (real(), paused());
    for window in WINDOWS {
        let limiter = real.block_on(async { limiter_of(window, Limit::new(1, HALF)) });
        let polls = AtomicUsize::new(0);
        paused.block_on(async {
            let start = Instant::now();
            limiter.until_ready("ada").await;
            counted(&polls, limiter.until_ready("ada")).await;
            assert!(start.elapsed() >= HALF, "{window:?}");
        });
        assert_waited(&polls);
    }
}

#[test]
fn limiter_with_a_paused_clock_is_awaited_on_a_real_runtime() {
    static POLLS: AtomicUsize = AtomicUsize::new(0);
    let (real, paused) = (real(), paused());
    let limiter = paused.block_on(async { limiter_of(Window::Log, Limit::new(1, MILLISECOND)) });
    let waiter = limiter.clone();
    real.block_on(limiter.until_ready("ada"));
    let waits = real.spawn(async move { counted(&POLLS, waiter.until_ready("ada")).await });
    sleep(HALF);
    assert!(!waits.is_finished(), "the wait ended although the limiter's clock was paused");
    assert_waited(&POLLS);
    paused.block_on(advance(MILLISECOND));
    real.block_on(waits).unwrap();
}

/// The maximum wait is measured by the limiter's clock as well.
#[test]
fn max_wait_is_measured_by_the_clock_of_the_limiter() {
    let (real, paused) = (real(), paused());
    let limiter = real.block_on(async { limiter_of(Window::Log, Limit::new(2, 1_000 * SECOND)) });
    paused.block_on(async {
        limiter.check_n("ada", 2).await.unwrap();
        let mut first = tokio_test::task::spawn(limiter.until_ready("ada"));
        assert!(first.poll().is_pending());
        // So that the second call is not denied immediately; the head continues to sleep.
        limiter.reset("ada").await;
        let start = Instant::now();
        let behind = limiter.until_ready_within("ada", HALF / 5).await;
        behind.expect_err("the second call never becomes the head");
        assert!(start.elapsed() >= HALF / 5);
    });
}
