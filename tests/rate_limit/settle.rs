//! `Permit::settle`: refunds of the difference, debts, and that no debt is lost.

use std::time::Duration;

use fleeting::{Limit, Permit, RateLimiter, Sweep, Window};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, advance, sleep};

use crate::limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS, limiter, limiter_of, take};

#[tokio::test(start_paused = true)]
async fn settle_charges_or_gives_back_the_difference() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        let remaining = async || limiter.peek("ada").await.remaining();
        limiter.check_n("ada", 3).await.unwrap().settle(5).await;
        assert_eq!(remaining().await, 5, "{window:?}");
        limiter.check_n("ada", 4).await.unwrap().settle(1).await;
        assert_eq!(remaining().await, 4, "{window:?}");
        limiter.check_n("ada", 2).await.unwrap().settle(2).await;
        assert_eq!(remaining().await, 2, "{window:?}");
        limiter.check_n("ada", 2).await.unwrap().settle(0).await;
        assert_eq!(remaining().await, 2, "{window:?}");
        assert_eq!(limiter.stats().refunded, 0, "settle was counted as a refund");
    }
}

#[tokio::test(start_paused = true)]
async fn debt_leaves_the_window_as_a_whole_after_per() {
    let limiter = limiter(Limit::per_minute(10));
    let permit = limiter.check("ada").await.unwrap();
    advance(20 * SECOND).await;
    permit.settle(1_000).await;
    let limited = limiter.check("ada").await.unwrap_err();
    assert_eq!(limited.retry_after(), MINUTE);
    assert_eq!(limiter.peek("ada").await.remaining(), 0);
    // The charge from before has left by then, and only the debt remains.
    advance(MINUTE - NANOSECOND).await;
    assert!(limiter.check("ada").await.is_err());
    advance(NANOSECOND).await;
    assert!(limiter.check_n("ada", 10).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn debt_in_buckets_leaves_up_to_a_bucket_late_and_leaks_by_gcra() {
    for (window, longest) in [(Window::Buckets(10), 66 * SECOND), (Window::Gcra, 66 * SECOND)] {
        let limiter = limiter_of(window, Limit::per_minute(10));
        // 11 units at 6 s each, of which the bucket holds 10.
        limiter.check("ada").await.unwrap().settle(11).await;
        let limited = limiter.check_n("ada", 10).await.unwrap_err();
        assert!((MINUTE..=longest).contains(&limited.retry_after()), "{limited}");
        advance(limited.retry_after()).await;
        assert!(limiter.check_n("ada", 10).await.is_ok(), "{window:?}");
    }
}

/// A call may take longer than the window; its key has been removed by then.
#[tokio::test(start_paused = true)]
async fn debt_is_charged_after_its_key_was_removed() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(10));
        let permit = limiter.check("ada").await.unwrap();
        let uncharged = limiter.check_n("bob", 0).await.unwrap();
        sleep(5 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0);
        permit.settle(11).await;
        uncharged.settle(10).await;
        for key in ["ada", "bob"] {
            let wait = limiter.peek(key).await.retry_after();
            assert!(!wait.is_zero(), "the debt of {key} was lost: {window:?}");
            let limited = limiter.check(key).await.unwrap_err();
            assert_eq!(limited.retry_after(), wait);
        }
        assert_eq!(
            limiter.peek("eve").await.remaining(),
            10,
            "the debt was charged to another key"
        );
        assert_eq!(limiter.stats().keys, 0, "a denied key got an entry");
        advance(2 * SECOND).await;
        for key in ["ada", "bob"] {
            assert!(limiter.check_n(key, 9).await.is_ok(), "{key} {window:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn debt_is_charged_to_the_present_state_of_the_key() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(10));
        let permit = limiter.check("ada").await.unwrap();
        sleep(5 * SECOND).await;
        take(&limiter, "ada", 2).await;
        permit.settle(4).await;
        assert_eq!(limiter.peek("ada").await.remaining(), 5, "{window:?}");

        let permit = limiter.check("ada").await.unwrap();
        assert!(limiter.reset("ada").await);
        permit.settle(4).await;
        assert_eq!(
            limiter.peek("ada").await.remaining(),
            7,
            "the debt was not charged to the new state: {window:?}"
        );
        assert!(limiter.reset("ada").await, "{window:?}");
        assert_eq!(limiter.peek("ada").await.remaining(), 10);
    }
}

#[tokio::test(start_paused = true)]
async fn settle_of_a_free_permit_charges_the_actual_cost() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        limiter.check_n("ada", 0).await.unwrap().settle(7).await;
        assert_eq!(limiter.peek("ada").await.remaining(), 3, "{window:?}");
        assert_eq!(limiter.check_n("ada", 3).await.unwrap().remaining(), 0);
        assert!(limiter.check("ada").await.is_err());
        limiter.check_with("bob", &[]).await.unwrap().settle(7).await;
        assert_eq!(limiter.peek("bob").await.remaining(), 10, "a permit of no limits was charged");
    }
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_plan_is_settled_by_the_plan() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        let plan = [Limit::per_hour(1_000), Limit::per_hour(500)];
        limiter.check_n_with("ada", 100, &plan).await.unwrap().settle(400).await;
        let state = limiter.peek_with("ada", &plan).await;
        let left: Vec<_> = state.standings().iter().map(|standing| standing.remaining()).collect();
        assert_eq!(left, [600, 100], "{window:?}");
        limiter.check_n_with("ada", 100, &plan).await.unwrap().settle(40).await;
        let state = limiter.peek_with("ada", &plan).await;
        let left: Vec<_> = state.standings().iter().map(|standing| standing.remaining()).collect();
        assert_eq!(left, [560, 60], "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn debt_beyond_max_keys_is_shared_and_stays_with_its_key() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(9)).max_keys(1).build();
        limiter.check_n(&0, 9).await.unwrap();
        advance(40 * SECOND).await;
        limiter.check(&1).await.unwrap().settle(100).await;
        assert!(
            limiter.check(&2).await.is_err(),
            "keys beyond the bound are not limited together: {window:?}"
        );
        // The first key is removed, so new keys get an entry.
        sleep(27 * SECOND).await;
        assert!(limiter.check(&1).await.is_err(), "the debt was lost: {window:?}");
        assert!(limiter.check(&3).await.is_ok(), "the debt was charged to another key: {window:?}");
    }
}

/// A debt may have the largest value of its type.
#[tokio::test(start_paused = true)]
async fn debt_of_u32_max_does_not_overflow() {
    for window in WINDOWS {
        for quota in [1, 65_535, 65_536, u32::MAX] {
            let limiter: RateLimiter<u32> = RateLimiter::builder()
                .window(window)
                .limit(Limit::new(quota, SECOND))
                .sweep(Sweep::manual())
                .build();
            let permits = [
                limiter.check(&1).await.unwrap(),
                limiter.check_n(&1, 0).await.unwrap(),
                limiter.check_n(&1, 0).await.unwrap(),
            ];
            for permit in permits {
                permit.settle(u32::MAX).await;
                advance(500 * MILLISECOND).await;
            }
            let limited = limiter.check(&1).await.unwrap_err();
            assert_eq!(limiter.peek(&1).await.remaining(), 0);
            if window == Window::Log {
                // The last debt was charged half a second ago.
                let expected = if quota < u32::MAX { 500 } else { 0 };
                assert!(limited.retry_after() >= expected * MILLISECOND, "{limited}");
                advance(limited.retry_after()).await;
                assert!(limiter.check(&1).await.is_ok());
                advance(SECOND).await;
                assert!(limiter.check_n(&1, quota).await.is_ok(), "all debts have left the window");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn settle_does_nothing_after_its_limiter_was_dropped() {
    let limiter = limiter(Limit::per_minute(4));
    let permit = limiter.check("ada").await.unwrap();
    drop(limiter);
    permit.settle(100).await;
}

/// Concurrent settles on keys that are created and removed: each unit is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_settles_count_each_unit_once() {
    const TASKS: u32 = 8;
    const CALLS: u32 = 500;

    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_hour(u32::MAX))
            .shards(2)
            .build();
        let settle = |task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut random = SmallRng::seed_from_u64(task);
                let mut actual = 0;
                for _ in 0..CALLS {
                    let key = random.random_range(0..4);
                    let cost = random.random_range(0..4);
                    let permit = limiter.check_n(&key, cost).await.unwrap();
                    let more = random.random_range(0..8);
                    actual += u64::from(more);
                    tokio::task::yield_now().await;
                    permit.settle(more).await;
                }
                actual
            })
        };
        let tasks: Vec<_> = (0..u64::from(TASKS)).map(settle).collect();
        let mut actual = 0;
        for task in tasks {
            actual += task.await.unwrap();
        }
        let mut used = 0;
        for key in 0..4 {
            used += u64::from(u32::MAX - limiter.peek(&key).await.remaining());
        }
        // A unit of GCRA leaks in less than a microsecond.
        let is_right = if window == Window::Gcra { used <= actual } else { used == actual };
        assert!(is_right, "{used} units in use, {actual} were settled: {window:?}");
    }
}

/// Keys become idle, are removed, return and get debts, concurrently: in the end nothing is in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn debts_of_keys_that_are_removed_and_return_end() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::new(20, 2 * MILLISECOND))
            .max_keys(8)
            .shards(2)
            .sweep(Sweep::default().every(MILLISECOND))
            .build();
        let settle = |task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut random = SmallRng::seed_from_u64(task);
                for _ in 0..60 {
                    let key = random.random_range(0..16);
                    let Ok(permit) = limiter.check_n(&key, random.random_range(0..20)).await else {
                        continue;
                    };
                    if random.random() {
                        sleep(random.random_range(0..4) * MILLISECOND).await;
                    }
                    permit.settle(random.random_range(0..40)).await;
                    if random.random_ratio(1, 10) {
                        limiter.reset(&key).await;
                    }
                }
            })
        };
        let tasks: Vec<_> = (0..8).map(settle).collect();
        for task in tasks {
            task.await.unwrap();
        }
        // GCRA takes this long to leak ten debts of twice the quota.
        sleep(200 * MILLISECOND).await;
        for key in 0..16 {
            assert_eq!(limiter.peek(&key).await.remaining(), 20, "{key} {window:?}");
        }
    }
}

/// With settles at random times, admitted calls fit in addition to all costs known so far.
#[tokio::test(start_paused = true)]
async fn admitted_calls_fit_in_addition_to_settled_costs() {
    for window in [Window::Log, Window::Buckets(10)] {
        for seed in 0..60 {
            let mut random = SmallRng::seed_from_u64(seed);
            let (quota, per) = (random.random_range(1..20), 10 * SECOND);
            let limiter = limiter_of(window, Limit::new(quota, per));
            let mut open: Vec<(usize, Permit)> = Vec::new();
            // Times and units of charges: of checks, and of the additional cost that was settled.
            let mut charged: Vec<(Instant, u64)> = Vec::new();
            for _ in 0..150 {
                match random.random_range(0..10) {
                    0..4 => {
                        let cost = random.random_range(0..4);
                        let now = Instant::now();
                        let in_window = charged.iter().filter(|(at, _)| now - *at < per);
                        let used: u64 = in_window.map(|(_, units)| *units).sum();
                        let outcome = limiter.check_n("ada", cost).await;
                        let has_room = used + u64::from(cost) <= u64::from(quota);
                        match outcome {
                            Ok(permit) => {
                                assert!(has_room || cost == 0, "{used} of {quota}, seed {seed}");
                                open.push((charged.len(), permit));
                                charged.push((now, cost.into()));
                            }
                            Err(_) if cost > quota => {}
                            Err(_) => assert!(!has_room || window != Window::Log, "seed {seed}"),
                        }
                    }
                    4..7 if !open.is_empty() => {
                        let any = random.random_range(0..open.len());
                        let (call, permit) = open.swap_remove(any);
                        let actual = random.random_range(0..30);
                        permit.settle(actual).await;
                        let (_, cost) = charged[call];
                        let less = u64::from(actual).min(cost);
                        charged[call].1 = less;
                        charged.push((Instant::now(), u64::from(actual) - less));
                    }
                    _ => sleep(random.random_range(1..4_000) * MILLISECOND).await,
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn settle_that_is_dropped_before_it_is_polled_changes_nothing() {
    let limiter = limiter(Limit::per_minute(10));
    let permit = limiter.check_n("ada", 4).await.unwrap();
    drop(permit.settle(9));
    assert_eq!(limiter.peek("ada").await.remaining(), 6);
    assert_eq!(limiter.peek("ada").await.retry_after(), Duration::ZERO);
}
