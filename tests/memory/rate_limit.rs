//! Memory of a rate limiter: bounded by `max_keys` regardless of an attacker's keys, and freed for idle keys.

use std::{fmt::Write, time::Duration};

use fleeting::{Limit, RateLimiter, Sweep, Window};
use futures::future::join_all;
use tokio::time::{advance, sleep};

use super::{MEMORY, allocated_since, run_paused, wait_for_turn};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const MAX_KEYS: usize = 10_000;

/// Maximum memory per key: the key, its charges, and its share of a table of which up to half is free.
const BYTES_PER_KEY: usize = 320;

/// Memory that an empty limiter may use in addition to a new one: queues and tables of minimum size.
const SLACK: usize = 32_768;

#[test]
fn rate_limiter_memory_is_bounded() {
    wait_for_turn();
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        run_paused(memory_of_a_flood_of_keys_is_bounded_by_max_keys(window));
    }
    run_paused(log_window_keeps_only_charges_within_the_window());
    run_paused(refunded_calls_use_no_memory());
    for window in [Window::Log, Window::Buckets(10)] {
        run_paused(memory_is_freed_immediately_if_few_keys_remain(window));
        run_paused(table_with_many_remaining_keys_shrinks_only_after_the_recent_peak_has_faded(
            window,
        ));
    }
    run_paused(finished_waiters_use_no_memory());
    run_paused(flood_of_new_keys_at_max_keys_uses_bounded_memory());
    run_paused(log_window_shrinks_while_its_key_is_in_use());
}

async fn memory_of_a_flood_of_keys_is_bounded_by_max_keys(window: Window) {
    let limiter: RateLimiter<String> = RateLimiter::builder()
        .window(window)
        .limit(Limit::new(3, HOUR))
        .max_keys(MAX_KEYS)
        .shards(4)
        .build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for _ in 0..3 {
        limiter.check("victim").await.expect("the quota is not used up");
    }
    let ready = limiter.check("victim").await.expect_err("the key is limited").ready_at();
    let mut passed = 0;
    let mut key = String::new();
    for attacker in 0..20 * MAX_KEYS {
        key.clear();
        write!(key, "attacker {attacker:09}").expect("writing to a String succeeds");
        passed += usize::from(limiter.check(&key).await.is_ok());
        if attacker % 1_000 == 0 {
            advance(SECOND / 10).await;
            let limited = limiter.check("victim").await.expect_err("the key stays limited");
            assert_eq!(limited.ready_at(), ready);
            assert!(limiter.stats().keys <= MAX_KEYS);
            let used = allocated_since(empty);
            assert!(
                used < MAX_KEYS * BYTES_PER_KEY,
                "{used} bytes for {MAX_KEYS} keys: {window:?}"
            );
        }
    }
    // The known keys and the shared allowance of all others have passed.
    assert_eq!(passed, MAX_KEYS - 1 + 3, "{window:?}");
    println!("{window:?}: {} bytes per key", allocated_since(empty) / MAX_KEYS);
    sleep(2 * HOUR).await;
    assert_eq!(limiter.stats().keys, 0);
    let remaining = allocated_since(empty);
    assert!(remaining < SLACK, "{remaining} bytes remain of an empty limiter: {window:?}");
    limiter.check("victim").await.expect("the earlier charges have left the window");
}

/// A key in permanent use: 12 bytes per charge in its window, of which up to half are free, and as many
/// charges may just have left it.
async fn log_window_keeps_only_charges_within_the_window() {
    let limiter: RateLimiter<u32> = RateLimiter::builder().limit(Limit::per_second(1_000)).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for call in 0..100_000 {
        limiter.check(&1).await.expect("the quota is not used up");
        advance(SECOND / 1_000).await;
        let used = allocated_since(empty);
        assert!(
            used < SLACK + 4 * 12 * 1_000,
            "{used} bytes after {call} calls, with at most 1,000 charges in the window"
        );
    }
}

/// Overlapping requests, each of which is refunded, as most are with `charge_failures`.
async fn refunded_calls_use_no_memory() {
    let limiter: RateLimiter<u32> = RateLimiter::builder().limit(Limit::new(10, HOUR)).build();
    let mut last = limiter.check(&1).await.expect("the quota is not used up");
    sleep(SECOND).await;
    let before = MEMORY.allocated();
    for _ in 0..100_000 {
        advance(Duration::from_millis(1)).await;
        let next = limiter.check(&1).await.expect("the quota is not used up");
        last.refund().await;
        last = next;
    }
    assert_eq!(limiter.peek(&1).await.remaining(), 9);
    let used = allocated_since(before);
    assert!(used < SLACK, "{used} bytes for one call");
}

/// Creates a limiter of which 20,000 keys have expired and `kept` later ones stay for 48 more seconds.
/// Returns it with the allocated memory at the start and the growth at the peak.
async fn limiter_after_most_keys_expired(
    window: Window,
    kept: u64,
) -> (RateLimiter<u64>, usize, usize) {
    let limiter: RateLimiter<u64> = RateLimiter::builder()
        .window(window)
        .limit(Limit::new(1, 100 * SECOND))
        .shards(2)
        .sweep(Sweep::default().every(SECOND).sample(1.0).seed(1))
        .build();
    sleep(10 * SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..20_000 {
        limiter.check(&key).await.expect("the quota is not used up");
    }
    let full = allocated_since(empty);
    sleep(50 * SECOND).await;
    for key in 0..kept {
        limiter.check(&(1_000_000 + key)).await.expect("the quota is not used up");
    }
    sleep(52 * SECOND).await;
    assert_eq!(limiter.stats().keys, kept as usize, "the others have expired: {window:?}");
    (limiter, empty, full)
}

/// Few remaining entries are moved under the lock immediately, as that takes a microsecond or two.
async fn memory_is_freed_immediately_if_few_keys_remain(window: Window) {
    let (limiter, empty, full) = limiter_after_most_keys_expired(window, 60).await;
    sleep(2 * SECOND).await;
    let remaining = allocated_since(empty);
    assert!(remaining < full / 20, "{remaining} bytes of {full} for 60 keys of 20,000: {window:?}");
    assert_all_limited(&limiter, 60).await;
}

/// A shard with some hundred remaining keys is not shrunk while it is being emptied, but after it has been
/// sparse for some time. No charge is lost by that.
async fn table_with_many_remaining_keys_shrinks_only_after_the_recent_peak_has_faded(
    window: Window,
) {
    let (limiter, empty, full) = limiter_after_most_keys_expired(window, 600).await;
    sleep(8 * SECOND).await;
    let remaining = allocated_since(empty);
    assert!(
        remaining > full / 10 * 9,
        "{remaining} bytes of {full}, so the table was shrunk immediately: {window:?}"
    );
    sleep(30 * SECOND).await;
    let remaining = allocated_since(empty);
    assert!(
        remaining < full / 10,
        "{remaining} bytes of {full} for 600 keys of 20,000: {window:?}"
    );
    assert_all_limited(&limiter, 600).await;
}

async fn assert_all_limited(limiter: &RateLimiter<u64>, keys: u64) {
    for key in 0..keys {
        assert!(
            limiter.check(&(1_000_000 + key)).await.is_err(),
            "the charge of key {key} is lost"
        );
    }
}

async fn finished_waiters_use_no_memory() {
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().limit(Limit::new(1, 10 * SECOND)).shards(4).build();
    // Tokio keeps the memory that it needs to wake so many tasks, so allocate it first.
    join_all((0..20_000).map(|_| sleep(SECOND))).await;
    let empty = MEMORY.allocated();
    for key in 0..20_000 {
        limiter.check(&key).await.expect("the quota is not used up");
    }
    let waits = (0..20_000).map(|key| {
        let limiter = &limiter;
        async move { limiter.until_ready_within(&key, 20 * SECOND).await.is_ok() }
    });
    assert!(join_all(waits).await.iter().all(|passed| *passed), "each waiter is admitted");
    sleep(60 * SECOND).await;
    assert_eq!(limiter.stats().keys, 0);
    let remaining = allocated_since(empty);
    assert!(remaining < SLACK, "{remaining} bytes remain of finished waiters");
}

/// New keys at the bound, while known keys expire and the shared allowance is in use.
async fn flood_of_new_keys_at_max_keys_uses_bounded_memory() {
    const KEYS: usize = 4_000;

    let limiter: RateLimiter<u32> = RateLimiter::builder()
        .limit(Limit::new(2_000, 100 * SECOND))
        .max_keys(KEYS)
        .shards(4)
        .build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..150_000 {
        // Each at a different time, as a log window stores each time once.
        advance(Duration::from_millis(2)).await;
        let _ = limiter.check(&key).await;
        let used = allocated_since(empty);
        assert!(used < KEYS * 400, "{used} bytes for {KEYS} keys after {key}");
    }
    assert!(limiter.stats().overflowed > 0, "there were more keys than max_keys");
}

/// One burst, then few charges at a time.
async fn log_window_shrinks_while_its_key_is_in_use() {
    let limiter: RateLimiter<u32> = RateLimiter::builder().limit(Limit::new(20_000, HOUR)).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for _ in 0..10_000 {
        limiter.check(&1).await.expect("the quota is not used up");
        advance(Duration::from_millis(1)).await;
    }
    advance(HOUR).await;
    for _ in 0..60 {
        limiter.check(&1).await.expect("the quota is not used up");
        advance(SECOND).await;
    }
    let used = allocated_since(empty);
    assert!(used < SLACK, "{used} bytes for 60 calls");
    assert_eq!(limiter.peek(&1).await.remaining(), 20_000 - 60);
}
