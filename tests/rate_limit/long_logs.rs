//! Logs of very many calls: no call walks them under the lock. The duration is the subject, compared with a short log.

use std::{cell::Cell, hint::black_box, time::Duration};

use fleeting::{Limit, RateLimiter, Window};
use tokio::time::{Instant, sleep};

use crate::{
    clock::{in_time, ms},
    limits::MINUTE,
};

const FEW: u32 = 10;
const MANY: u32 = 300_000;
const QUOTA: u32 = 2 * MANY;

/// A walk over half of the calls takes thousands of times as long as a search.
const MAX_RATIO: u32 = 300;

/// Returns a limiter with half of the calls of both keys before an instant and half after it, and that instant.
async fn filled() -> (RateLimiter<u32>, Instant) {
    let limiter =
        RateLimiter::builder().window(Window::Log).limit(Limit::new(QUOTA, 60 * MINUTE)).build();
    let call_half = async || {
        for calls in [FEW, MANY] {
            for _ in 0..calls / 2 {
                limiter.check(&calls).await.unwrap();
            }
        }
    };
    call_half().await;
    sleep(ms(1)).await;
    // Between the halves, and not too near to either.
    let middle = Instant::now();
    sleep(ms(1)).await;
    call_half().await;
    (limiter, middle)
}

async fn assert_similar(call: impl AsyncFn(u32)) {
    let fastest = async |calls| {
        let mut fastest = Duration::MAX;
        for _ in 0..100 {
            let start = Instant::now();
            call(calls).await;
            fastest = fastest.min(start.elapsed());
        }
        fastest
    };
    let (few, many) = (fastest(FEW).await, fastest(MANY).await);
    let most = MAX_RATIO * few.max(Duration::from_nanos(100));
    assert!(many < most, "{many:?} with {MANY} calls, {few:?} with {FEW}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn peek_at_many_calls_of_which_half_have_left_the_window_takes_no_walk() {
    in_time(async || {
        let (limiter, middle) = filled().await;
        let exact = Cell::new(0);
        assert_similar(async |calls| {
            let limits = [Limit::new(QUOTA, middle.elapsed())];
            let state = limiter.peek_with(&calls, &limits).await;
            // If the thread is suspended between the two readings of the clock, more than half of them have left, or
            // all.
            let left = black_box(state).remaining() + calls - QUOTA;
            assert!((calls / 2..=calls).contains(&left), "{left} of {calls} calls have left");
            exact.set(exact.get() + u32::from(left == calls / 2));
        })
        .await;
        assert!(exact.get() > 100, "only {} of 200 peeks were exact", exact.get());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn denial_of_a_cost_for_which_many_calls_have_to_leave_takes_no_walk() {
    in_time(async || {
        let (limiter, middle) = filled().await;
        assert_similar(async |calls| {
            let limited = limiter.check_n(&calls, QUOTA - calls / 2 + 1).await.unwrap_err();
            // The first call after the middle has to leave, too.
            assert!(limited.ready_at().unwrap() >= middle + 60 * MINUTE);
        })
        .await;
    })
    .await;
}
