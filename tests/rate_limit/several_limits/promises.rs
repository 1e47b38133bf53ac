//! Promises of several limits for one key that were broken, each with the input that broke it.

use std::time::Duration;

use fleeting::{Limit, Permit, RateLimiter, Window};
use tokio::time::{Instant, advance};

use super::Embedded;
use crate::{
    limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS, limiter_of, take},
    oracle::cases,
};

const DAY: Duration = Duration::from_secs(86_400);

/// The windows, with few and many buckets.
const ALL_WINDOWS: [Window; 6] = [
    Window::Log,
    Window::Buckets(1),
    Window::Buckets(3),
    Window::Buckets(10),
    Window::Buckets(100),
    Window::Gcra,
];

/// Longest time for which a charge counts.
fn longest(window: Window, limit: &Limit) -> Duration {
    match window {
        Window::Buckets(n) => limit.per() + limit.per().div_f64(n as f64) + NANOSECOND,
        _ => limit.per(),
    }
}

#[tokio::test(start_paused = true)]
async fn calls_by_a_short_limit_do_not_free_the_quota_of_a_long_one() {
    let (logins, others) = (Limit::per_hour(5), Limit::per_second(100));
    for window in ALL_WINDOWS {
        let limiter = limiter_of(window, others.clone());
        let mut admitted = Vec::new();
        let begin = Instant::now();
        // Half an hour, in which GCRA gives back two and a half logins.
        while begin.elapsed() < 30 * MINUTE {
            let checked = limiter.check_with("ada", std::slice::from_ref(&logins)).await;
            admitted.extend(checked.ok().map(|_| begin.elapsed()));
            let other = limiter.check("ada").await;
            assert!(other.is_ok(), "{window:?}: {other:?}");
            advance(2 * SECOND).await;
        }
        let most = if window == Window::Gcra { 7 } else { 5 };
        assert!(admitted.len() <= most, "{window:?}: {} logins: {admitted:?}", admitted.len());
        // The other calls count by the long limit, too, so it also admits fewer.
        assert!(!admitted.is_empty(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_by_a_short_limit_does_not_free_the_quota_of_a_long_one() {
    for window in ALL_WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(5));
        take(&limiter, "ada", 5).await;
        advance(2 * SECOND).await;
        assert!(limiter.check_with("ada", &[Limit::per_second(100)]).await.is_ok(), "{window:?}");
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "{window:?}");
        assert!(limiter.check("ada").await.is_err(), "{window:?}");
    }
}

/// The long limit is not checked for longer than its window. Calls by other limits count by it all the same.
#[tokio::test(start_paused = true)]
async fn calls_by_short_limits_count_by_a_long_one_that_is_seldom_checked() {
    for window in ALL_WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(100));
        take(&limiter, "ada", 1).await;
        for call in 0..12 {
            advance(20 * MINUTE).await;
            let other = if call % 2 == 0 { Limit::per_second(10) } else { Limit::per_minute(10) };
            assert!(limiter.check_with("ada", &[other]).await.is_ok(), "{window:?}");
        }
        let used = 100 - limiter.peek("ada").await.remaining();
        // The calls of the last hour: now, and 20 and 40 minutes ago. GCRA has given the earlier ones back.
        let expected = match window {
            Window::Gcra => 1..=1,
            Window::Log => 3..=3,
            _ => 3..=6,
        };
        assert!(expected.contains(&used), "{window:?}: {used} units");
    }
}

/// Ways in which the limits of a key become shorter after five calls by 1,000 per day, two seconds apart.
#[derive(Clone, Copy, Debug)]
enum Shorter {
    SetLimits,
    CheckWith,
    UntilReady,
    BeyondMaxKeys,
    Debt,
}

#[tokio::test(start_paused = true)]
async fn shorter_limit_counts_earlier_calls_for_its_own_window() {
    use Shorter::*;

    let (long, short) = (Limit::new(1_000, DAY), Limit::per_minute(3));
    for window in ALL_WINDOWS {
        for way in [SetLimits, CheckWith, UntilReady, BeyondMaxKeys, Debt] {
            let builder = RateLimiter::<String>::builder().window(window).limit(long.clone());
            let max_keys = if matches!(way, BeyondMaxKeys) { 1 } else { 100 };
            let limiter = builder.max_keys(max_keys).build();
            if matches!(way, BeyondMaxKeys) {
                take(&limiter, "other", 1).await;
            }
            let mut last = None;
            for call in 0..5 {
                advance(if call == 0 { Duration::ZERO } else { 2 * SECOND }).await;
                last = Some(limiter.check("ada").await.unwrap());
            }
            if let (Debt, Some(last)) = (way, last) {
                last.settle(4).await;
            }
            let begin = Instant::now();
            let wait = match way {
                CheckWith => {
                    let limits = std::slice::from_ref(&short);
                    let limited = limiter.check_with("ada", limits).await.unwrap_err();
                    advance(limited.retry_after()).await;
                    assert!(limiter.check_with("ada", limits).await.is_ok(), "{window:?} {way:?}");
                    limited.retry_after().max(begin.elapsed())
                }
                UntilReady => {
                    limiter.set_limits([short.clone()]);
                    limiter.until_ready("ada").await;
                    // The timer counts milliseconds.
                    begin.elapsed().saturating_sub(MILLISECOND)
                }
                SetLimits | BeyondMaxKeys | Debt => {
                    limiter.set_limits([short.clone()]);
                    let limited = limiter.check("ada").await.unwrap_err();
                    let wait = limited.retry_after();
                    advance(wait).await;
                    assert!(limiter.check("ada").await.is_ok(), "{window:?} {way:?}");
                    wait
                }
            };
            assert!(wait <= longest(window, &short), "{window:?} {way:?}: denied for {wait:?}");
        }
    }
}

/// The charge of a permit, corrected after the key was charged by another limit.
#[tokio::test(start_paused = true)]
async fn refund_and_settle_after_calls_by_another_limit_take_back_the_difference() {
    let own = Limit::per_minute(100);
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(10), Window::Buckets(100)] {
        for other in [Limit::per_hour(1_000), Limit::per_second(1_000), Limit::per_minute(100_000)]
        {
            for (actual, left) in [(0, 99), (5, 94)] {
                let limiter = limiter_of(window, own.clone());
                let permit = limiter.check_n("ada", 20).await.unwrap();
                assert!(limiter.check_with("ada", std::slice::from_ref(&other)).await.is_ok());
                correct(permit, actual).await;
                let remaining = limiter.peek("ada").await.remaining();
                assert_eq!(remaining, left, "{window:?}, {other}, settled to {actual}");
            }
        }
    }
}

async fn correct(permit: Permit, actual: u32) {
    match actual {
        0 => permit.refund().await,
        actual => permit.settle(actual).await,
    }
}

#[tokio::test(start_paused = true)]
async fn refund_and_settle_after_set_limits_take_back_the_difference() {
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(10), Window::Buckets(100)] {
        // The largest number that a small counter holds is 65,535.
        for (quota, per) in [(100_000, MINUTE), (1_000, 60 * MINUTE), (1_000, 30 * SECOND)] {
            for (actual, used) in [(0, 1), (5, 6)] {
                let limiter = limiter_of(window, Limit::per_minute(100));
                let permit = limiter.check_n("ada", 20).await.unwrap();
                limiter.set_limits([Limit::new(quota, per)]);
                take(&limiter, "ada", 1).await;
                correct(permit, actual).await;
                let remaining = limiter.peek("ada").await.remaining();
                assert_eq!(remaining, quota - used, "{window:?}, {quota} in {per:?}, {actual}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_by_two_limits_in_turn_are_not_denied_while_both_have_quota() {
    let plans = [Limit::new(1_000, DAY), Limit::per_minute(10)];
    for window in ALL_WINDOWS {
        let limiter = limiter_of(window, plans[0].clone());
        for call in 0..1_000 {
            let plan = &plans[call % 2];
            let checked = limiter.check_with("ada", std::slice::from_ref(plan)).await;
            if let Err(limited) = checked {
                panic!("{window:?}: call {call} by {plan} is denied: {limited:?}");
            }
            // Two calls per minute, of which the buckets of the shorter limit count at most four.
            advance(30 * SECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn checks_and_their_refunds_leave_the_whole_quota_some_time_later() {
    for window in WINDOWS {
        for later in [Duration::ZERO, NANOSECOND, MILLISECOND, SECOND] {
            for is_reverse in [false, true] {
                let limiter = limiter_of(window, Limit::per_hour(3));
                let mut permits = Vec::new();
                for _ in 0..3 {
                    permits.push(limiter.check("ada").await.unwrap());
                }
                advance(later).await;
                if is_reverse {
                    permits.reverse();
                }
                for permit in permits {
                    permit.refund().await;
                }
                let case = format!("{window:?}, {later:?} later, reverse {is_reverse}");
                assert_eq!(limiter.peek("ada").await.remaining(), 3, "{case}");
                take(&limiter, "ada", 3).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refund_leaves_the_quota_of_a_limit_of_one_call() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(1));
        for call in 0..50 {
            let checked = limiter.check("ada").await;
            let permit = checked.unwrap_or_else(|limited| panic!("{window:?} {call}: {limited:?}"));
            advance(MILLISECOND).await;
            permit.refund().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_in_use_by_any_limit_when_all_calls_were_refunded() {
    cases::nothing_is_in_use_by_any_limit_when_all_calls_were_refunded(5_000, Embedded::new).await;
}

#[tokio::test(start_paused = true)]
async fn debt_is_not_forgotten_while_other_limits_are_used() {
    cases::debt_is_not_forgotten_while_other_limits_are_used(Embedded::new).await;
}
