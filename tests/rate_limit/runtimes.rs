//! A limiter keeps one time, whatever the clock of the runtime on which somebody waits for it. The real clock is the
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
fn a_real_quota_is_waited_for_under_a_paused_clock() {
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
fn a_paused_quota_is_waited_for_in_real_time() {
    static POLLS: AtomicUsize = AtomicUsize::new(0);
    let (real, paused) = (real(), paused());
    let limiter = paused.block_on(async { limiter_of(Window::Log, Limit::new(1, MILLISECOND)) });
    let waiter = limiter.clone();
    real.block_on(limiter.until_ready("ada"));
    let waits = real.spawn(async move { counted(&POLLS, waiter.until_ready("ada")).await });
    sleep(HALF);
    assert!(!waits.is_finished(), "the time of the limiter stands still");
    assert_waited(&POLLS);
    paused.block_on(advance(MILLISECOND));
    real.block_on(waits).unwrap();
}

/// How long somebody is willing to wait is by the limiter's time, too.
#[test]
fn the_longest_wait_is_by_the_clock_of_the_limiter() {
    let (real, paused) = (real(), paused());
    let limiter = real.block_on(async { limiter_of(Window::Log, Limit::new(1, 1_000 * SECOND)) });
    paused.block_on(async {
        limiter.until_ready("ada").await;
        let mut first = tokio_test::task::spawn(limiter.until_ready("ada"));
        assert!(first.poll().is_pending());
        // So that it is not clear at once; who is at the head sleeps on.
        limiter.reset("ada").await;
        let start = Instant::now();
        let behind = limiter.until_ready_within("ada", HALF / 5).await;
        behind.expect_err("it is never at the head of the line");
        assert!(start.elapsed() >= HALF / 5);
    });
}
