//! `set_limits` on a running limiter, with charges and waiters from before.

use std::{sync::Arc, time::Duration};

use fleeting::{Limit, RateLimiter, Window};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep},
};

use crate::limits::{MILLISECOND, MINUTE, SECOND, WINDOWS, limiter, limiter_of, take};

#[tokio::test(start_paused = true)]
async fn charges_stay_charged_after_set_limits() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10).named("before"));
        limiter.check_n("ada", 6).await.unwrap();
        let clone = limiter.clone();
        limiter.set_limits([Limit::per_minute(20).named("after")]);
        assert_eq!(*clone.limits(), [Limit::per_minute(20).named("after")]);
        assert_eq!(clone.peek("ada").await.remaining(), 14, "{window:?}");
        limiter.set_limits([Limit::per_minute(4)]);
        assert_eq!(clone.peek("ada").await.remaining(), 0, "{window:?}");
        let limited = clone.check("ada").await.unwrap_err();
        assert_eq!(limited.limit().quota(), 4);
        assert!(limiter.check_n("bob", 4).await.is_ok());
        assert!(limiter.check_n("eve", 5).await.unwrap_err().ready_at().is_none());
        advance(limited.retry_after()).await;
        assert!(clone.check("ada").await.is_ok(), "{window:?}");
    }
}

/// Both quotas are so large that less than a nanosecond passes per unit.
#[tokio::test(start_paused = true)]
async fn usage_is_at_most_the_new_quota_after_a_change_of_a_very_large_one() {
    let limiter = limiter_of(Window::Gcra, Limit::per_second(4_000_000_000));
    limiter.check_n("ada", 3_000_000_000).await.unwrap();
    limiter.set_limits([Limit::per_second(2_000_000_000)]);
    advance(SECOND / 4).await;
    assert_eq!(limiter.peek("ada").await.remaining(), 500_000_000);
}

/// Even if the new window is longer than the old one, after which the key would have been removed.
#[tokio::test(start_paused = true)]
async fn usage_is_kept_as_long_as_the_new_limits_say() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(10));
        limiter.check_n("ada", 10).await.unwrap();
        limiter.set_limits([Limit::per_hour(10)]);
        sleep(MINUTE).await;
        assert_eq!(limiter.stats().keys, 1, "the key was removed: {window:?}");
        assert!(limiter.check("ada").await.is_err(), "{window:?}");
        let hour = if window == Window::Gcra { 60 } else { 67 };
        sleep(hour * MINUTE).await;
        assert_eq!(limiter.stats().keys, 0, "{window:?}");
        assert!(limiter.check_n("ada", 10).await.is_ok());
    }
}

/// The debt of a removed key is recorded by the hash of the key.
#[tokio::test(start_paused = true)]
async fn debt_is_kept_as_long_as_the_new_limits_say() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(4));
        let permit = limiter.check("ada").await.unwrap();
        sleep(10 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0, "the key is still in memory");
        permit.settle(9).await;
        limiter.set_limits([Limit::per_minute(4)]);
        sleep(30 * SECOND).await;
        assert!(limiter.check("ada").await.is_err(), "{window:?}");
        sleep(100 * SECOND).await;
        assert!(limiter.check("ada").await.is_ok(), "{window:?}");
    }
}

/// Even if the call was checked by earlier limits.
#[tokio::test(start_paused = true)]
async fn debt_is_counted_by_the_current_limits() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(10));
        let permit = limiter.check("ada").await.unwrap();
        limiter.set_limits([Limit::per_hour(100)]);
        permit.settle(51).await;
        assert_eq!(limiter.peek("ada").await.remaining(), 49, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn shorter_window_frees_charges_that_have_left_it() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(10));
        limiter.check_n("ada", 10).await.unwrap();
        advance(2 * MINUTE).await;
        limiter.set_limits([Limit::per_second(10)]);
        advance(2 * SECOND).await;
        assert!(limiter.check_n("ada", 10).await.is_ok(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn limits_can_be_added_and_removed_by_set_limits() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        take(&limiter, "ada", 2).await;
        limiter.set_limits([Limit::per_minute(10), Limit::per_hour(2)]);
        take(&limiter, "ada", 2).await;
        assert_eq!(limiter.check("ada").await.unwrap_err().limit(), &Limit::per_hour(2));
        limiter.set_limits([Limit::per_minute(10)]);
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 5, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_is_removed_and_added_again_knows_its_calls() {
    let (minute, daily) = (Limit::per_minute(10), Limit::new(1, 1_440 * MINUTE));
    for window in WINDOWS {
        let limiter = limiter_of(window, minute.clone());
        limiter.set_limits([minute.clone(), daily.clone()]);
        let permit = limiter.check("ada").await.unwrap();
        for other in [Limit::per_second(1_000_000), Limit::per_second(1)] {
            limiter.set_limits([minute.clone()]);
            limiter.set_limits([minute.clone(), other.clone()]);
            let left = limiter.peek("ada").await.standings()[1].remaining();
            // The call has left the second window.
            let used = u32::from(other.quota() > 1);
            assert_eq!(left, other.quota() - used, "{window:?} {other}");
            advance(2 * SECOND).await;
            limiter.set_limits([minute.clone(), daily.clone()]);
            let limited = limiter.check("ada").await.unwrap_err();
            assert_eq!(limited.limit(), &daily, "{window:?} {other}");
        }
        let limited = limiter.check("ada").await.unwrap_err();
        assert_eq!(limited.retry_after(), daily.per() - 4 * SECOND, "{window:?}");
        permit.refund().await;
        assert!(limiter.check("ada").await.is_ok(), "{window:?}");
    }
}

/// By usage, a limit is a number of units, which no change of other limits may increase.
#[tokio::test(start_paused = true)]
async fn changed_limits_lock_no_key_out() {
    let daily = Limit::new(1, 1_440 * MINUTE);
    for window in WINDOWS {
        let limiter = limiter_of(window, daily.clone());
        take(&limiter, "ada", 1).await;
        for limit in
            [Limit::per_second(1_000_000), daily.clone(), Limit::per_second(1), daily.clone()]
        {
            limiter.set_limits([limit]);
        }
        let wait = limiter.check("ada").await.unwrap_err().retry_after();
        assert!(wait <= daily.per(), "{window:?}: {wait:?}");
    }
}

/// A plan's usage is not converted when only the default changes.
#[tokio::test(start_paused = true)]
async fn changed_default_leaves_the_usage_of_a_plan_unchanged() {
    let plan = [Limit::new(100, 1_440 * MINUTE)];
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1_000));
        for _ in 0..90 {
            limiter.check_with("ada", &plan).await.unwrap();
        }
        limiter.set_limits([Limit::per_second(100)]);
        assert_eq!(limiter.peek_with("ada", &plan).await.remaining(), 10, "{window:?}");
        for _ in 0..10 {
            assert!(limiter.check_with("ada", &plan).await.is_ok(), "{window:?}");
        }
        let wait = limiter.check_with("ada", &plan).await.unwrap_err().retry_after();
        assert!(wait <= plan[0].per(), "{window:?}: {wait:?}");
    }
}

#[tokio::test]
#[should_panic(expected = "a rate limiter needs at least one limit, got none")]
async fn set_limits_without_limits_panics() {
    limiter(Limit::per_minute(1)).set_limits([]);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_admitted_by_the_new_limits() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(1));
        take(&limiter, "ada", 1).await;
        let start = Instant::now();
        let wait = |cost| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                (limiter.until_ready_n("ada", cost).await.map(drop), start.elapsed())
            })
        };
        let (one, other) = (wait(1), wait(1));
        sleep(MINUTE).await;
        limiter.set_limits([Limit::per_hour(3)]);
        for waiter in [one, other] {
            let (outcome, after) = waiter.await.unwrap();
            assert!(outcome.is_ok() && after == MINUTE, "{after:?} {window:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_for_more_than_the_new_quota_are_denied_immediately() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(5));
        take(&limiter, "ada", 5).await;
        let wait = |cost| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.until_ready_n("ada", cost).await.map(drop) })
        };
        // The head, one behind it, and one that may still pass.
        let (head, behind, small) = (wait(5), wait(4), wait(1));
        sleep(MINUTE).await;
        let start = Instant::now();
        limiter.set_limits([Limit::per_hour(3)]);
        for waiter in [head, behind] {
            let limited = waiter.await.unwrap().unwrap_err();
            assert_eq!((limited.ready_at(), limited.limit()), (None, &Limit::per_hour(3)));
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(small.await.unwrap().is_ok(), "{window:?}");
    }
}

/// At random limits and times, no admission exceeds the current limits.
#[tokio::test(start_paused = true)]
async fn admissions_never_exceed_the_current_limits() {
    for window in [Window::Log, Window::Buckets(10)] {
        for seed in 0..60 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut limit = Limit::new(5, 10 * SECOND);
            let limiter = limiter_of(window, limit.clone());
            let mut passed: Vec<Instant> = Vec::new();
            // Charges before this time had left an earlier window, so the limiter may have forgotten them.
            let mut longest_known = Instant::now();
            for _ in 0..150 {
                let now = Instant::now();
                match random.random_range(0..10) {
                    0 => {
                        longest_known = longest_known.max(
                            now - limit.per().min(now - passed.first().copied().unwrap_or(now)),
                        );
                        let per = random.random_range(1..30) * SECOND;
                        limit = Limit::new(random.random_range(1..12), per);
                        limiter.set_limits([limit.clone()]);
                    }
                    1..6 => {
                        let outcome = limiter.check("ada").await;
                        let counts =
                            |at: &&Instant| now - **at < limit.per() && **at > longest_known;
                        let used = passed.iter().filter(counts).count();
                        if outcome.is_ok() {
                            assert!(
                                used < limit.quota() as usize,
                                "{used} in {limit}, seed {seed}"
                            );
                            passed.push(now);
                        }
                    }
                    _ => sleep(random.random_range(1..5_000) * MILLISECOND).await,
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_checks_and_set_limits_admit_exactly_the_quota() {
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().limit(Limit::per_hour(100)).shards(2).build();
    let limiter = Arc::new(limiter);
    let changes = {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            for round in 0..200 {
                limiter.set_limits([Limit::new(100, (1 + round % 3) * 60 * MINUTE)]);
                yield_now().await;
            }
        })
    };
    let check = |_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut passed = 0;
            for call in 0..2_000 {
                passed += u32::from(limiter.check(&(call % 4)).await.is_ok());
            }
            passed
        })
    };
    let tasks: Vec<_> = (0..4).map(check).collect();
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    changes.await.unwrap();
    assert_eq!(passed, 400, "not one quota for each of four keys");
}
