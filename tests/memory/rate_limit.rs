//! What a rate limiter keeps: bounded by its keys whatever attackers send, and nothing of those that are idle.

use std::{fmt::Write, time::Duration};

use fleeting::{Limit, RateLimiter, Sweep, Window};
use futures::future::join_all;
use tokio::time::{advance, sleep};

use super::{MEMORY, alone, grown, take_turns};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const MAX_KEYS: usize = 10_000;

/// For each key at most: itself, what it has in use, and its share of a table of which up to half is free.
const BYTES_A_KEY: usize = 320;

/// What an empty limiter may have more than a new one: queues and tables of a smallest size.
const SLACK: usize = 32_768;

#[test]
fn what_stays_in_memory() {
    take_turns();
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        alone(a_million_keys_take_no_more_than_their_bound(window));
    }
    alone(a_log_keeps_no_more_than_its_window());
    alone(calls_that_were_taken_back_take_no_memory());
    for window in [Window::Log, Window::Buckets(10)] {
        alone(memory_comes_back_at_once_where_next_to_nothing_is_left(window));
        alone(many_that_are_left_are_not_moved_before_the_peak_has_faded(window));
    }
    alone(those_who_waited_leave_nothing());
    alone(a_flood_at_the_bound_takes_little_for_each_key());
    alone(a_log_shrinks_while_its_key_is_in_use());
}

async fn a_million_keys_take_no_more_than_their_bound(window: Window) {
    let limiter: RateLimiter<String> = RateLimiter::builder()
        .window(window)
        .limit(Limit::new(3, HOUR))
        .max_keys(MAX_KEYS)
        .shards(4)
        .build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for _ in 0..3 {
        limiter.check("victim").await.expect("there is room");
    }
    let ready = limiter.check("victim").await.expect_err("it is limited").ready_at();
    let mut passed = 0;
    let mut key = String::new();
    for attacker in 0..1_000_000 {
        key.clear();
        write!(key, "attacker {attacker:09}").expect("a String takes all");
        passed += usize::from(limiter.check(&key).await.is_ok());
        if attacker % 1_000 == 0 {
            advance(SECOND / 10).await;
            let limited = limiter.check("victim").await.expect_err("it stays limited");
            assert_eq!(limited.ready_at(), ready);
            assert!(limiter.stats().keys <= MAX_KEYS);
            let used = grown(empty);
            assert!(used < MAX_KEYS * BYTES_A_KEY, "{used} bytes for {MAX_KEYS} keys: {window:?}");
        }
    }
    // As many as are known, and what all others share.
    assert_eq!(passed, MAX_KEYS - 1 + 3, "{window:?}");
    println!("{window:?}: {} bytes a key", grown(empty) / MAX_KEYS);
    sleep(2 * HOUR).await;
    assert_eq!(limiter.stats().keys, 0);
    let left = grown(empty);
    assert!(left < SLACK, "{left} bytes are left of nothing: {window:?}");
    limiter.check("victim").await.expect("its time is over");
}

/// A key that is in use for ever: 12 bytes for each time in its window, of which up to half are free and
/// as many have just left.
async fn a_log_keeps_no_more_than_its_window() {
    let limiter: RateLimiter<u32> = RateLimiter::builder().limit(Limit::per_second(1_000)).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for call in 0..100_000 {
        limiter.check(&1).await.expect("there is room");
        advance(SECOND / 1_000).await;
        let used = grown(empty);
        assert!(used < SLACK + 4 * 12 * 1_000, "{used} bytes after {call} calls, of 1,000 at most");
    }
}

/// Requests that overlap, each of which is taken back: most of those who charge failures only.
async fn calls_that_were_taken_back_take_no_memory() {
    let limiter: RateLimiter<u32> = RateLimiter::builder().limit(Limit::new(10, HOUR)).build();
    let mut last = limiter.check(&1).await.expect("there is room");
    sleep(SECOND).await;
    let before = MEMORY.allocated();
    for _ in 0..100_000 {
        advance(Duration::from_millis(1)).await;
        let next = limiter.check(&1).await.expect("there is room");
        last.refund().await;
        last = next;
    }
    assert_eq!(limiter.peek(&1).await.remaining(), 9);
    let used = grown(before);
    assert!(used < SLACK, "{used} bytes for one call");
}

/// 20,000 keys that leave, and `kept` that came later and stay for 48 seconds more. Gives the limiter, what was taken
/// in memory before there were any, and what was when there were most.
async fn crowd_that_left(window: Window, kept: u64) -> (RateLimiter<u64>, usize, usize) {
    let limiter: RateLimiter<u64> = RateLimiter::builder()
        .window(window)
        .limit(Limit::new(1, 100 * SECOND))
        .shards(2)
        .sweep(Sweep::default().every(SECOND).sample(1.0).seed(1))
        .build();
    sleep(10 * SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..20_000 {
        limiter.check(&key).await.expect("there is room");
    }
    let full = grown(empty);
    sleep(50 * SECOND).await;
    for key in 0..kept {
        limiter.check(&(1_000_000 + key)).await.expect("there is room");
    }
    sleep(52 * SECOND).await;
    assert_eq!(limiter.stats().keys, kept as usize, "the others have left: {window:?}");
    (limiter, empty, full)
}

/// What is left would be moved under the lock: of so few in a millionth of a second or two.
async fn memory_comes_back_at_once_where_next_to_nothing_is_left(window: Window) {
    let (limiter, empty, full) = crowd_that_left(window, 60).await;
    sleep(2 * SECOND).await;
    let left = grown(empty);
    assert!(left < full / 20, "{left} bytes of {full} for 60 keys of 20,000: {window:?}");
    all_are_limited(&limiter, 60).await;
}

/// A shard of which some hundred keys are left is not moved while it is being emptied; when it has been as
/// sparse for a while, it is, and nobody gets off.
async fn many_that_are_left_are_not_moved_before_the_peak_has_faded(window: Window) {
    let (limiter, empty, full) = crowd_that_left(window, 600).await;
    sleep(8 * SECOND).await;
    let left = grown(empty);
    assert!(left > full / 10 * 9, "{left} bytes of {full}, so it was moved at once: {window:?}");
    sleep(30 * SECOND).await;
    let left = grown(empty);
    assert!(left < full / 10, "{left} bytes of {full} for 600 keys of 20,000: {window:?}");
    all_are_limited(&limiter, 600).await;
}

async fn all_are_limited(limiter: &RateLimiter<u64>, keys: u64) {
    for key in 0..keys {
        assert!(limiter.check(&(1_000_000 + key)).await.is_err(), "{key} got off");
    }
}

async fn those_who_waited_leave_nothing() {
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().limit(Limit::new(1, 10 * SECOND)).shards(4).build();
    // Tokio keeps the memory in which it wakes so many at once.
    join_all((0..20_000).map(|_| sleep(SECOND))).await;
    let empty = MEMORY.allocated();
    for key in 0..20_000 {
        limiter.check(&key).await.expect("there is room");
    }
    let waits = (0..20_000).map(|key| {
        let limiter = &limiter;
        async move { limiter.until_ready_within(&key, 20 * SECOND).await.is_ok() }
    });
    assert!(join_all(waits).await.iter().all(|passed| *passed), "each has its turn");
    sleep(60 * SECOND).await;
    assert_eq!(limiter.stats().keys, 0);
    let left = grown(empty);
    assert!(left < SLACK, "{left} bytes are left of nobody");
}

/// New keys, while some that are known leave and what all others share is in use.
async fn a_flood_at_the_bound_takes_little_for_each_key() {
    const KEYS: usize = 4_000;

    let limiter: RateLimiter<u32> = RateLimiter::builder()
        .limit(Limit::new(2_000, 100 * SECOND))
        .max_keys(KEYS)
        .shards(4)
        .build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..150_000 {
        // Each at a time of its own, as a log keeps it.
        advance(Duration::from_millis(2)).await;
        let _ = limiter.check(&key).await;
        let used = grown(empty);
        assert!(used < KEYS * 400, "{used} bytes for {KEYS} keys after {key}");
    }
    assert!(limiter.stats().overflowed > 0, "there were more than it holds");
}

/// One burst, and then little for ever.
async fn a_log_shrinks_while_its_key_is_in_use() {
    let limiter: RateLimiter<u32> = RateLimiter::builder().limit(Limit::new(20_000, HOUR)).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for _ in 0..10_000 {
        limiter.check(&1).await.expect("there is room");
        advance(Duration::from_millis(1)).await;
    }
    advance(HOUR).await;
    for _ in 0..60 {
        limiter.check(&1).await.expect("there is room");
        advance(SECOND).await;
    }
    let used = grown(empty);
    assert!(used < SLACK, "{used} bytes for 60 calls");
    assert_eq!(limiter.peek(&1).await.remaining(), 20_000 - 60);
}
