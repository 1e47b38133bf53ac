//! `max_keys`: the bound, the window that keys beyond it share, and the removal of idle keys.

use std::time::Duration;

use fleeting::{Limit, RateLimiter, Sweep, Window};
use tokio::time::{Instant, advance, sleep, timeout};

use crate::borrowed::Borrowed;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

#[tokio::test(start_paused = true)]
async fn max_keys_is_never_exceeded() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_second(2)).max_keys(10).build();
        for key in 0..2_000 {
            let _ = limiter.check(&key).await;
            assert!(limiter.stats().keys <= 10);
            advance(7 * MILLISECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limited_key_stays_limited_at_max_keys() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(10).build();
        for key in 0..10 {
            limiter.check_n(&key, 3).await.unwrap();
        }
        let ready = limiter.check_n(&0, 3).await.unwrap_err().ready_at().unwrap();
        let mut key = 10;
        while Instant::now() < ready {
            for _ in 0..20 {
                let _ = limiter.check(&key).await;
                key += 1;
            }
            let limited = limiter.check_n(&0, 3).await.unwrap_err();
            assert_eq!(limited.ready_at(), Some(ready), "{window:?}");
            advance((ready - Instant::now()).min(100 * MILLISECOND)).await;
        }
        // Other keys may have its place now; it is checked again when they have been removed.
        sleep(2 * MINUTE).await;
        assert!(limiter.check_n(&0, 3).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn keys_beyond_max_keys_share_one_window() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(2).build();
        limiter.check_n(&0, 3).await.unwrap();
        limiter.check_n(&1, 3).await.unwrap();
        for (key, remaining) in (10..13).zip([2, 1, 0]) {
            assert_eq!(limiter.peek(&key).await.remaining(), remaining + 1);
            assert_eq!(limiter.check(&key).await.unwrap().remaining(), remaining);
        }
        let limited = limiter.check(&13).await.unwrap_err();
        let state = limiter.peek(&14).await;
        assert_eq!((state.remaining(), state.retry_after()), (0, limited.retry_after()));
        assert!(!limiter.reset(&13).await, "the shared window was reset by one key");
        assert!(limiter.check(&13).await.is_err());
        assert_eq!((limiter.stats().overflowed, limiter.stats().keys), (5, 2));
        let waited = limiter.until_ready_within(&15, SECOND).await;
        assert!(waited.is_err(), "a waiter beyond the bound passed");
    }
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_key_beyond_max_keys_can_be_refunded() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(1).build();
        limiter.check(&0).await.unwrap();
        let permit = limiter.check_n(&1, 2).await.unwrap();
        limiter.check(&2).await.unwrap();
        assert!(limiter.check(&3).await.is_err());
        permit.refund().await;
        assert_eq!(limiter.peek(&4).await.remaining(), 2, "{window:?}");
        assert_eq!(
            limiter.peek(&0).await.remaining(),
            2,
            "the refund changed a key within the bound"
        );
        assert!(limiter.check_n(&4, 2).await.is_ok());
        assert!(limiter.check(&5).await.is_err());
        assert_eq!(limiter.stats().refunded, 1);
    }
}

/// No sweeper is needed: a new key searches for an idle one.
#[tokio::test(start_paused = true)]
async fn idle_key_is_evicted_for_a_new_key_immediately() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_second(1))
            .max_keys(100)
            .sweep(Sweep::manual())
            .build();
        for key in 0..100 {
            limiter.check(&key).await.unwrap();
        }
        assert!(limiter.check(&1_000).await.is_ok(), "beyond the bound");
        assert!(limiter.check(&1_001).await.is_err(), "beyond the bound");
        // `Buckets` are idle a little later than `per`.
        advance(2 * SECOND).await;
        for key in 2_000..2_100 {
            assert!(
                limiter.check(&key).await.is_ok(),
                "no idle key was evicted for {key}: {window:?}"
            );
            assert!(limiter.check(&key).await.is_err(), "{key} has no window of its own");
        }
        let stats = limiter.stats();
        assert!(stats.keys <= 100, "{stats:?}");
        assert_eq!(stats.overflowed, 2, "{window:?}");
    }
}

/// The charges of a key to the shared window count for it when it gets an entry.
#[tokio::test(start_paused = true)]
async fn key_beyond_max_keys_stays_limited_when_it_gets_an_entry() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(1).build();
        limiter.check(&0).await.unwrap();
        advance(50 * SECOND).await;
        limiter.check_n(&1, 3).await.unwrap();
        let limited = limiter.check_n(&1, 3).await.unwrap_err();
        // The first key is idle by then, and is removed.
        sleep(20 * SECOND).await;
        assert!(limiter.peek(&1).await.remaining() < 3, "{window:?}");
        let passed = limiter.check_n(&1, 3).await.is_ok();
        assert!(!passed, "a key had 6 units in 20 s, by 3 a minute: {window:?}");
        advance(limited.retry_after()).await;
        assert!(limiter.check_n(&1, 3).await.is_ok(), "denied at the promised time: {window:?}");
    }
}

/// Charges of other keys to the shared window do not count for a key that gets an entry.
#[tokio::test(start_paused = true)]
async fn flood_beyond_max_keys_does_not_lock_new_keys_out_afterwards() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(10).build();
        for key in 0..10 {
            limiter.check_n(&key, 3).await.unwrap();
        }
        advance(55 * SECOND).await;
        for key in 1_000..2_000 {
            let _ = limiter.check(&key).await;
        }
        // The first ten keys are idle by then, and are removed.
        sleep(13 * SECOND).await;
        for key in 2_000..2_005 {
            assert_eq!(limiter.check_n(&key, 3).await.map(drop).ok(), Some(()), "{window:?}");
        }
        let stats = limiter.stats();
        assert!(
            limiter.check_n(&1_000, 3).await.is_err(),
            "a key of the flood has its whole quota again"
        );
        assert_eq!(limiter.stats().keys, stats.keys, "a denied key got an entry: {window:?}");
    }
}

/// The usage of a limited number of keys beyond the bound is recorded. If there are more, new keys share the window
/// until those are idle.
#[tokio::test(start_paused = true)]
async fn new_keys_share_the_window_while_more_untracked_keys_than_recorded_are_in_use() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_minute(4_000))
            .max_keys(10)
            .build();
        for key in 0..10 {
            limiter.check_n(&key, 4_000).await.unwrap();
        }
        advance(50 * SECOND).await;
        for key in 1_000..4_000 {
            assert_eq!(limiter.check(&key).await.unwrap().remaining(), 4_999 - key, "{window:?}");
        }
        // The first ten keys are idle by then, and were removed.
        sleep(17 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0, "{window:?}");
        let left = limiter.peek(&9_000).await.remaining();
        let leaked = if window == Window::Gcra { 17 * 4_000 / 60 + 1 } else { 0 };
        assert!(left <= 1_000 + leaked, "{left} units left: {window:?}");
        assert!(limiter.check_n(&9_000, 3_000).await.is_err(), "{window:?}");
        assert!(limiter.check_n(&3_999, 3_000).await.is_err(), "{window:?}");
        sleep(60 * SECOND).await;
        assert!(limiter.check_n(&9_000, 4_000).await.is_ok(), "{window:?}");
        assert_eq!(limiter.stats().keys, 1, "the new key got no entry");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_keys_are_removed_automatically() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(2)).build();
        for key in 0..10_000 {
            limiter.check(&key).await.unwrap();
        }
        sleep(25 * SECOND).await;
        assert_eq!(limiter.stats().keys, 10_000, "keys in use were removed: {window:?}");
        for key in 0..100 {
            limiter.check(&key).await.unwrap();
        }
        // `Buckets` are idle a tenth of the window late, and the sweeper comes within a second.
        sleep(42 * SECOND).await;
        assert_eq!(
            limiter.stats().keys,
            if window == Window::Gcra { 0 } else { 100 },
            "{window:?}"
        );
        sleep(30 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0, "{window:?}");
    }
}

/// Even if a refund ended the usage, or the last check was denied.
#[tokio::test(start_paused = true)]
async fn refunded_and_denied_keys_are_removed_automatically() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_second(2)).build();
        for key in 0..100 {
            let permit = limiter.check_n(&key, 2).await.unwrap();
            let _ = limiter.check(&key).await;
            limiter.peek(&(key + 1_000)).await;
            if key % 2 == 0 {
                permit.refund().await;
            }
        }
        assert_eq!(limiter.stats().keys, 100);
        sleep(3 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_found_by_any_type_that_implements_to_key() {
    for window in WINDOWS {
        let limit = Limit::per_minute(9);
        let limiter: RateLimiter<(String, u32)> =
            RateLimiter::builder().window(window).limit(limit.clone()).build();
        let (parts, whole) = (Borrowed("ada", 7), ("ada".to_owned(), 7));
        let plan = [limit];
        limiter.check(&parts).await.unwrap();
        limiter.check_n(&whole, 2).await.unwrap();
        limiter.check_with(&parts, &plan).await.unwrap();
        limiter.check_n_with(&parts, 2, &plan).await.unwrap();
        limiter.until_ready(&parts).await;
        limiter.until_ready_n(&parts, 1).await.unwrap();
        limiter.until_ready_within(&parts, SECOND).await.unwrap();
        assert_eq!(limiter.peek(&whole).await.remaining(), 0);
        assert_eq!(limiter.peek(&parts).await.remaining(), 0);
        assert_eq!(limiter.peek_with(&parts, &plan).await.remaining(), 0);
        assert_eq!(
            (limiter.stats().keys, limiter.check(&Borrowed("bob", 7)).await.is_ok()),
            (1, true)
        );
        // Both wait in one queue, in the order in which they joined.
        let (first, second) = (limiter.until_ready_n(&whole, 9), limiter.until_ready(&parts));
        let order = std::sync::Mutex::new(Vec::new());
        tokio::join!(async { (first.await.unwrap(), order.lock().unwrap().push(1)) }, async {
            (second.await, order.lock().unwrap().push(2))
        },);
        assert_eq!(*order.lock().unwrap(), [1, 2], "{window:?}");
        assert!(limiter.reset(&parts).await && !limiter.reset(&whole).await);
    }
}

#[tokio::test(start_paused = true)]
async fn refund_beyond_max_keys_wakes_all_waiters_that_share_the_quota() {
    let builder = RateLimiter::<u32>::builder().limit(Limit::per_hour(1));
    let limiter = builder.max_keys(1).build();
    limiter.check(&0).await.expect("it takes the only place");
    let permit = limiter.check(&1).await.expect("it takes the shared quota");
    let waiter = limiter.clone();
    let wait = tokio::spawn(async move { waiter.until_ready(&2).await });
    sleep(SECOND).await;
    permit.refund().await;
    timeout(SECOND, wait).await.expect("the shared quota is free again").unwrap();
}

#[tokio::test(start_paused = true)]
async fn key_without_usage_after_refunds_gives_its_place_to_a_new_key() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_hour(2)).max_keys(1).build();
        let permits = [limiter.check(&0).await.unwrap(), limiter.check(&0).await.unwrap()];
        for (permit, keys) in permits.into_iter().zip([1, 0]) {
            permit.refund().await;
            // Ten sweeps.
            sleep(SECOND).await;
            assert_eq!(limiter.stats().keys, keys, "{window:?}");
        }
        assert!(limiter.check(&1).await.is_ok());
        assert!(limiter.check_n(&2, 2).await.is_ok(), "nothing shared is in use: {window:?}");
        assert_eq!(limiter.stats().overflowed, 1, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn key_without_usage_after_refunds_gives_its_place_before_it_is_swept() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_hour(1))
            .max_keys(1)
            .sweep(Sweep::manual())
            .build();
        limiter.check(&0).await.unwrap().refund().await;
        assert!(limiter.check(&1).await.is_ok());
        assert!(limiter.check(&1).await.is_err(), "{window:?}");
        assert_eq!(limiter.stats().overflowed, 0, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refund_by_one_plan_keeps_a_key_that_another_plan_uses() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_second(2)).build();
        let daily = [Limit::per_second(9), Limit::per_hour(1)];
        limiter.check_with(&0, &daily).await.unwrap();
        limiter.check(&0).await.unwrap().refund().await;
        sleep(MINUTE).await;
        assert!(limiter.check_with(&0, &daily).await.is_err(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn remaining_units_of_a_key_beyond_max_keys_pass() {
    let limits = [Limit::per_minute(9), Limit::per_hour(20)];
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(limits[0].clone())
            .limit(limits[1].clone())
            .max_keys(1)
            .build();
        limiter.check(&0).await.unwrap();
        // A debt of the key itself, which is not charged to the shared window.
        limiter.check_n(&1, 0).await.unwrap().settle(5).await;
        limiter.check_n(&2, 2).await.unwrap();
        let peeked = limiter.peek(&1).await;
        let remaining = peeked.standings().iter().map(|standing| standing.remaining());
        assert_eq!(remaining.collect::<Vec<_>>(), [4, 15], "{window:?}");
        let permit = limiter.check(&1).await.unwrap();
        assert_eq!(permit.remaining(), 3, "{window:?}");
        assert!(limiter.check_n(&1, 3).await.is_ok(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn denial_by_a_longer_limit_counts_usage_without_an_entry_as_long_as_it_says() {
    let (short, long) = ([Limit::new(20, SECOND / 10)], [Limit::new(1, SECOND)]);
    for (window, max_keys) in [Window::Log, Window::Buckets(4), Window::Gcra]
        .into_iter()
        .flat_map(|window| [(window, 1), (window, 100)])
    {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .limit(short[0].clone())
            .window(window)
            .max_keys(max_keys)
            .build();
        if max_keys == 1 {
            // Another key has the only place.
            limiter.check_with(&0, &[Limit::new(1, 100 * SECOND)]).await.unwrap();
            limiter.check_n_with(&1, 5, &short).await.unwrap();
        } else {
            let permit = limiter.check(&1).await.unwrap();
            sleep(5 * SECOND).await;
            assert_eq!(limiter.stats().keys, 0, "the key was swept");
            permit.settle(6).await;
        }
        let wait = limiter.check_with(&1, &long).await.unwrap_err().retry_after();
        assert!(wait >= SECOND * 9 / 10, "{window:?}, {max_keys} keys: {wait:?}");
        advance(wait - MILLISECOND).await;
        assert!(limiter.check_with(&1, &long).await.is_err(), "{window:?}, {max_keys} keys");
        advance(MILLISECOND).await;
        assert!(limiter.check_with(&1, &long).await.is_ok(), "{window:?}, {max_keys} keys");
    }
}
