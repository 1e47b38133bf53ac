//! Many keys: the bound, what those beyond it share, and how idle ones leave.

use std::time::Duration;

use fleeting::{Limit, RateLimiter, Sweep, Window};
use tokio::time::{Instant, advance, sleep};

use crate::borrowed::Borrowed;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

#[tokio::test(start_paused = true)]
async fn the_bound_of_keys_is_hard() {
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
async fn a_limited_key_stays_limited_at_the_bound() {
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
        // By now others may be in its place; when they are gone, it comes again.
        sleep(2 * MINUTE).await;
        assert!(limiter.check_n(&0, 3).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn keys_beyond_the_bound_share_one_window() {
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
        assert!(!limiter.reset(&13).await, "what they share is nobody's");
        assert!(limiter.check(&13).await.is_err());
        assert_eq!((limiter.stats().overflowed, limiter.stats().keys), (5, 2));
        let waited = limiter.until_ready_within(&15, SECOND).await;
        assert!(waited.is_err(), "who waits is beyond the bound, too");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_a_key_beyond_the_bound_can_be_given_back() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(1).build();
        limiter.check(&0).await.unwrap();
        let permit = limiter.check_n(&1, 2).await.unwrap();
        limiter.check(&2).await.unwrap();
        assert!(limiter.check(&3).await.is_err());
        permit.refund().await;
        assert_eq!(limiter.peek(&4).await.remaining(), 2, "{window:?}");
        assert_eq!(limiter.peek(&0).await.remaining(), 2, "the key within is not touched");
        assert!(limiter.check_n(&4, 2).await.is_ok());
        assert!(limiter.check(&5).await.is_err());
        assert_eq!(limiter.stats().refunded, 1);
    }
}

/// No task need come by: a new key looks for one that is idle.
#[tokio::test(start_paused = true)]
async fn an_idle_key_makes_room_for_a_new_one_at_once() {
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
        // By Buckets a little later than after per.
        advance(2 * SECOND).await;
        for key in 2_000..2_100 {
            assert!(limiter.check(&key).await.is_ok(), "{key} finds no room: {window:?}");
            assert!(limiter.check(&key).await.is_err(), "and has a window of its own");
        }
        let stats = limiter.stats();
        assert!(stats.keys <= 100, "{stats:?}");
        assert_eq!(stats.overflowed, 2, "{window:?}");
    }
}

/// One that was limited together with others is not let off as soon as there is room for it.
#[tokio::test(start_paused = true)]
async fn a_key_beyond_the_bound_stays_limited_when_there_is_room() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(1).build();
        limiter.check(&0).await.unwrap();
        advance(50 * SECOND).await;
        limiter.check_n(&1, 3).await.unwrap();
        let limited = limiter.check_n(&1, 3).await.unwrap_err();
        // The first key is idle by then, and leaves.
        sleep(20 * SECOND).await;
        assert!(limiter.peek(&1).await.remaining() < 3, "{window:?}");
        let passed = limiter.check_n(&1, 3).await.is_ok();
        assert!(!passed, "a key had 6 units in 20 s, by 3 a minute: {window:?}");
        advance(limited.retry_after()).await;
        assert!(limiter.check_n(&1, 3).await.is_ok(), "it came when it was told to: {window:?}");
    }
}

/// What others did beyond the bound is not charged to a client that comes when there is room again.
#[tokio::test(start_paused = true)]
async fn a_flood_beyond_the_bound_keeps_no_new_key_out_once_there_is_room() {
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
        // The first ten are idle by then, and leave.
        sleep(13 * SECOND).await;
        for key in 2_000..2_005 {
            assert_eq!(limiter.check_n(&key, 3).await.map(drop).ok(), Some(()), "{window:?}");
        }
        let stats = limiter.stats();
        assert!(limiter.check_n(&1_000, 3).await.is_err(), "it had a part of what was shared");
        assert_eq!(limiter.stats().keys, stats.keys, "who is denied needs no place: {window:?}");
    }
}

/// Beyond the bound so many are known by name; of more, new keys share until those are idle, and nobody gets off.
#[tokio::test(start_paused = true)]
async fn more_beyond_the_bound_than_are_known_share_on_when_there_is_room() {
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
        // The first ten are idle by then, and have left.
        sleep(17 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0, "{window:?}");
        let left = limiter.peek(&9_000).await.remaining();
        let leaked = if window == Window::Gcra { 17 * 4_000 / 60 + 1 } else { 0 };
        assert!(left <= 1_000 + leaked, "{left} by {window:?}");
        assert!(limiter.check_n(&9_000, 3_000).await.is_err(), "{window:?}");
        assert!(limiter.check_n(&3_999, 3_000).await.is_err(), "{window:?}");
        sleep(60 * SECOND).await;
        assert!(limiter.check_n(&9_000, 4_000).await.is_ok(), "{window:?}");
        assert_eq!(limiter.stats().keys, 1, "it has a window of its own again");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_keys_leave_by_themselves() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(2)).build();
        for key in 0..10_000 {
            limiter.check(&key).await.unwrap();
        }
        sleep(25 * SECOND).await;
        assert_eq!(limiter.stats().keys, 10_000, "they are in use: {window:?}");
        for key in 0..100 {
            limiter.check(&key).await.unwrap();
        }
        // A tenth of the window late by Buckets, and a second by the sweep.
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

/// Also where nothing was left in use by a refund, or a denial came last.
#[tokio::test(start_paused = true)]
async fn refunded_and_denied_keys_leave_by_themselves() {
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
async fn keys_are_found_by_what_they_can_be_made_of() {
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
        // Both stand in one line, in the order of asking.
        let (first, second) = (limiter.until_ready_n(&whole, 9), limiter.until_ready(&parts));
        let order = std::sync::Mutex::new(Vec::new());
        tokio::join!(async { (first.await.unwrap(), order.lock().unwrap().push(1)) }, async {
            (second.await, order.lock().unwrap().push(2))
        },);
        assert_eq!(*order.lock().unwrap(), [1, 2], "{window:?}");
        assert!(limiter.reset(&parts).await && !limiter.reset(&whole).await);
    }
}
