//! Usage of a key: peeks, resets, refunds and plans.

use std::time::Duration;

use fleeting::{Limit, LimiterStats, Permit, RateLimiter, Standing, Window};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, advance, sleep};

use crate::limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS, limiter, limiter_of, take};

// Peeks, resets, refunds.

#[tokio::test(start_paused = true)]
async fn peek_equals_the_next_check_and_creates_no_entry() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4).named("steady"));
        for _ in 0..10 {
            let state = limiter.peek("ada").await;
            assert_eq!((state.remaining(), state.retry_after()), (4, Duration::ZERO));
            let standing = &state.standings()[0];
            assert_eq!(standing.limit(), &Limit::per_minute(4).named("steady"));
            assert_eq!((standing.remaining(), standing.more_after()), (4, None));
        }
        assert_eq!(limiter.stats(), LimiterStats::default(), "a peek created an entry");
        take(&limiter, "ada", 3).await;
        let state = limiter.peek("ada").await;
        assert_eq!((state.remaining(), state.retry_after()), (1, Duration::ZERO));
        take(&limiter, "ada", 1).await;
        let state = limiter.peek("ada").await;
        let limited = limiter.check("ada").await.unwrap_err();
        assert_eq!(state.remaining(), 0);
        assert_eq!(state.retry_after(), limited.retry_after());
        assert_eq!(state.standings()[0].more_after(), Some(limited.retry_after()));
        advance(limited.retry_after()).await;
        assert_eq!(state.retry_after(), Duration::ZERO, "retry_after counts down");
    }
}

#[tokio::test(start_paused = true)]
async fn peek_returns_the_standing_of_each_limit_in_order() {
    let limiter: RateLimiter<u32> = RateLimiter::builder()
        .limit(Limit::per_hour(10).named("hourly"))
        .limit(Limit::per_second(2).named("burst"))
        .build();
    limiter.check_n(&1, 2).await.unwrap();
    let state = limiter.peek(&1).await;
    let summary = |standing: &Standing| {
        (standing.limit().name().unwrap().to_owned(), standing.remaining(), standing.more_after())
    };
    let summaries: Vec<_> = state.standings().iter().map(summary).collect();
    let hourly = ("hourly".to_owned(), 8, Some(60 * MINUTE));
    assert_eq!(summaries, [hourly, ("burst".to_owned(), 0, Some(SECOND))]);
    assert_eq!((state.remaining(), state.retry_after()), (0, SECOND));
}

#[tokio::test(start_paused = true)]
async fn more_units_pass_at_more_after_of_a_peek() {
    let limiter = limiter(Limit::per_minute(3));
    take(&limiter, "ada", 1).await;
    advance(10 * SECOND).await;
    take(&limiter, "ada", 2).await;
    for (remaining, after) in [(0, 50), (1, 10)] {
        let state = limiter.peek("ada").await;
        let more_after = state.standings()[0].more_after();
        assert_eq!((state.remaining(), more_after), (remaining, Some(after * SECOND)));
        advance(after * SECOND).await;
    }
    let state = limiter.peek("ada").await;
    assert_eq!((state.remaining(), state.standings()[0].more_after()), (3, None));
}

/// Usage may be above the quota of a smaller plan: the first charges that leave free nothing yet.
#[tokio::test(start_paused = true)]
async fn more_units_pass_at_more_after_of_a_peek_by_a_smaller_plan() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::new(4, 40 * SECOND));
        for _ in 0..4 {
            take(&limiter, "ada", 1).await;
            advance(SECOND).await;
        }
        let smaller = [Limit::new(2, 40 * SECOND)];
        let remaining = async || limiter.peek_with("ada", &smaller).await.remaining();
        let state = limiter.peek_with("ada", &smaller).await;
        assert_eq!(state.remaining(), 0);
        let after = state.standings()[0].more_after().expect("something is in use");
        assert_eq!(after, state.retry_after(), "{window:?}");
        advance(after - NANOSECOND).await;
        assert_eq!(remaining().await, 0, "{window:?}");
        advance(NANOSECOND).await;
        assert!(remaining().await > 0, "no more units after {after:?}: {window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reset_forgets_usage_and_returns_whether_there_was_any() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(2));
        assert!(!limiter.reset("ada").await, "reset of an unknown key returned true");
        take(&limiter, "ada", 2).await;
        take(&limiter, "bob", 1).await;
        assert!(limiter.reset("ada").await);
        assert!(!limiter.reset("ada").await, "a second reset returned true");
        assert_eq!(limiter.stats().keys, 1);
        take(&limiter, "ada", 2).await;
        assert_eq!(limiter.peek("bob").await.remaining(), 1, "the reset changed another key");
        advance(5 * SECOND).await;
        assert!(!limiter.reset("ada").await, "reset of an idle key returned true");
    }
}

#[tokio::test(start_paused = true)]
async fn refund_takes_back_exactly_the_charge() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        let permit = limiter.check_n("ada", 3).await.unwrap();
        let other = limiter.check_n("ada", 5).await.unwrap();
        let bobs = limiter.check_n("bob", 10).await.unwrap();
        permit.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 5, "{window:?}");
        other.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 10, "{window:?}");
        assert_eq!(limiter.peek("bob").await.remaining(), 0, "the refund changed another key");
        bobs.refund().await;
        assert_eq!(limiter.peek("bob").await.remaining(), 10);
        assert_eq!(limiter.stats().refunded, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn refund_takes_back_the_charge_of_all_limits() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_second(2))
            .limit(Limit::per_minute(3))
            .build();
        let permit = limiter.check_n(&1, 2).await.unwrap();
        permit.refund().await;
        let state = limiter.peek(&1).await;
        assert_eq!([state.standings()[0].remaining(), state.standings()[1].remaining()], [2, 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn refund_takes_back_nothing_that_has_left_the_window() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = limiter_of(window, Limit::per_second(4));
        let permit = limiter.check_n("ada", 4).await.unwrap();
        // The key was removed as well.
        sleep(5 * SECOND).await;
        take(&limiter, "ada", 3).await;
        permit.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 1, "{window:?}");

        let early = limiter.check("ada").await.unwrap();
        advance(800 * MILLISECOND).await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0);
        advance(700 * MILLISECOND).await;
        // The charge has left the window, but the key is still in use.
        take(&limiter, "ada", 4).await;
        early.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "{window:?}");
    }
}

/// Only the part that has not leaked is taken back.
#[tokio::test(start_paused = true)]
async fn refund_of_gcra_takes_back_nothing_that_has_leaked() {
    let limiter = limiter_of(Window::Gcra, Limit::new(2, 20 * SECOND));
    let full_in = async || limiter.peek("ada").await.standings()[0].more_after();
    let permit = limiter.check("ada").await.unwrap();
    advance(4 * SECOND).await;
    permit.refund().await;
    assert_eq!(full_in().await, None, "the last 6 s of the charge were not taken back");
    let permit = limiter.check("ada").await.unwrap();
    advance(11 * SECOND).await;
    take(&limiter, "ada", 1).await;
    permit.refund().await;
    assert_eq!(full_in().await, Some(10 * SECOND), "a refund took back a charge that had leaked");
}

/// A layer that charges only failures refunds most charges, in any order.
#[tokio::test(start_paused = true)]
async fn refunds_in_any_order_never_admit_more_than_the_window() {
    for window in WINDOWS {
        let most = if window == Window::Gcra { 2 * 10 - 1 } else { 10 };
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let limiter = limiter_of(window, Limit::new(10, 10 * SECOND));
            let mut kept: Vec<(Instant, Permit)> = Vec::new();
            for _ in 0..200 {
                match random.random_range(0..100) {
                    0..55 => {
                        let permit = limiter.check("ada").await;
                        kept.extend(permit.map(|permit| (Instant::now(), permit)));
                    }
                    55..85 if !kept.is_empty() => {
                        let any = random.random_range(0..kept.len());
                        let which = if random.random() { any } else { 0 };
                        kept.remove(which).1.refund().await;
                    }
                    _ => advance(random.random_range(1..10) * 100 * MILLISECOND).await,
                }
            }
            for (index, (start, _)) in kept.iter().enumerate() {
                let in_window = |(at, _): &&(Instant, Permit)| *at - *start < 10 * SECOND;
                let count = kept[index..].iter().take_while(in_window).count();
                assert!(count <= most, "{count} calls in 10 s: {window:?}, seed {seed}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refund_takes_back_nothing_after_a_reset() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4));
        let permit = limiter.check_n("ada", 3).await.unwrap();
        limiter.reset("ada").await;
        take(&limiter, "ada", 4).await;
        permit.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refund_does_nothing_after_its_limiter_was_dropped() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4));
        let (permit, other) =
            (limiter.check("ada").await.unwrap(), self::limiter(Limit::per_hour(9)));
        take(&other, "ada", 9).await;
        drop(limiter);
        permit.refund().await;
        assert_eq!(other.peek("ada").await.remaining(), 0, "the refund changed another limiter");
    }
}

// Plans.

#[tokio::test(start_paused = true)]
async fn check_with_uses_the_given_limits() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = limiter_of(window, Limit::per_minute(1));
        let paid = [Limit::per_minute(100)];
        take(&limiter, "ada", 1).await;
        assert!(limiter.check("ada").await.is_err());
        assert_eq!(limiter.check_with("ada", &paid).await.unwrap().remaining(), 98, "{window:?}");
        assert_eq!(limiter.check_n_with("ada", 8, &paid).await.unwrap().remaining(), 90);
        assert_eq!(limiter.peek_with("ada", &paid).await.remaining(), 90);
        assert_eq!(
            limiter.peek("ada").await.remaining(),
            0,
            "usage is above the limiter's own limit"
        );
        assert!(limiter.check("ada").await.is_err());
        let limited = limiter.check_n_with("ada", 101, &paid).await.unwrap_err();
        assert_eq!((limited.limit(), limited.ready_at()), (&paid[0], None));
    }
}

/// The usage by GCRA is a time, not a number of units.
#[tokio::test(start_paused = true)]
async fn usage_of_gcra_is_the_same_number_of_units_by_another_plan() {
    let limiter = limiter_of(Window::Gcra, Limit::per_minute(1));
    let paid = [Limit::per_minute(100)];
    take(&limiter, "ada", 1).await;
    let limited = limiter.check_n_with("ada", 100, &paid).await.unwrap_err();
    assert_eq!(limited.retry_after(), 600 * MILLISECOND);
    advance(300 * MILLISECOND).await;
    assert_eq!(limiter.check_n_with("ada", 2, &paid).await.unwrap().remaining(), 97);
    assert_eq!(limiter.check("ada").await.unwrap_err().retry_after(), 150 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn check_with_no_limits_passes_and_charges_nothing() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(2));
        take(&limiter, "ada", 1).await;
        for _ in 0..10 {
            assert!(limiter.check_n_with("ada", 1_000, &[]).await.is_ok());
        }
        let state = limiter.peek_with("ada", &[]).await;
        assert_eq!((state.remaining(), state.standings().len()), (u32::MAX, 0));
        assert_eq!(state.retry_after(), Duration::ZERO);
        assert_eq!(limiter.peek("ada").await.remaining(), 1);
    }
}

/// A plan with fewer limits keeps the usage of the others.
#[tokio::test(start_paused = true)]
async fn limits_are_identified_by_their_position() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(5));
        let two = [Limit::per_minute(5), Limit::per_hour(1)];
        assert!(limiter.check_with("ada", &two).await.is_ok());
        assert!(limiter.check_with("ada", &two).await.is_err());
        take(&limiter, "ada", 4).await;
        assert!(limiter.check("ada").await.is_err());
        sleep(2 * MINUTE).await;
        assert!(limiter.check("ada").await.is_ok());
        let limited = limiter.check_with("ada", &two).await.unwrap_err();
        assert_eq!(limited.limit(), &two[1], "{window:?}");
    }
}

/// A page may show the quota of another plan without granting it.
#[tokio::test(start_paused = true)]
async fn peek_with_another_plan_changes_nothing() {
    for window in WINDOWS {
        for other in [Limit::per_second(1), Limit::per_second(1_000), Limit::per_hour(10_000)] {
            let limiter = limiter_of(window, Limit::per_minute(10));
            take(&limiter, "ada", 10).await;
            advance(30 * SECOND).await;
            let before = limiter.check_n("ada", 10).await.unwrap_err().ready_at();
            limiter.peek_with("ada", std::slice::from_ref(&other)).await;
            let after = limiter.check_n("ada", 10).await.map(drop).map_err(|l| l.ready_at());
            assert_eq!(after, Err(before), "a peek by {other}: {window:?}");
        }
    }
}
