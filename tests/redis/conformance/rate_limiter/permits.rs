//! Permits, the state of a key, and statistics.

use std::time::Duration;

use fleeting::{Limit, State, Window};
use tokio::time::sleep;

use super::{Embedded, Limiter, OnRedis, Permit, WINDOWS};
use crate::clock::ms as per;

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        peek_returns_the_remaining_quota_and_charges_nothing,
        more_after_of_peek_is_when_more_is_available,
        reset_clears_the_key_and_returns_whether_it_had_charges,
        refund_returns_the_charges_of_all_limits,
        refund_of_charges_outside_the_window_returns_nothing,
        refund_after_reset_returns_nothing,
        settle_charges_or_refunds_the_difference,
        debt_of_settle_denies_later_callers,
        debt_of_settle_may_be_as_large_as_u32_max,
        stats_count_an_admitted_waiter_as_waited_not_denied,
        stats_count_admitted_denied_and_refunded_checks,
    }
}

async fn peek_returns_the_remaining_quota_and_charges_nothing<L: Limiter>() {
    for window in WINDOWS {
        let limits = [Limit::per_minute(3), Limit::per_hour(2)];
        let limiter = L::with_limits(window, &limits).await;
        let state = limiter.peek("ada").await;
        assert_eq!(state.remaining(), 2);
        assert_eq!(state.retry_after(), Duration::ZERO);
        assert!(state.standings().iter().all(|each| each.more_after().is_none()));
        assert!(limiter.check_n("ada", 2).await.is_ok());
        for _ in 0..3 {
            let state = limiter.peek("ada").await;
            assert_eq!(state.remaining(), 0);
            let max_secs = if window == Window::Gcra { 1_800 } else { 3_600 };
            let wait = state.retry_after();
            assert!(wait <= Duration::from_secs(max_secs), "{window:?} {wait:?}");
            assert!(wait > Duration::from_secs(max_secs - 5), "{window:?} {wait:?}");
            let [minute, hour] = state.standings() else { panic!("{state:?}") };
            assert_eq!((minute.limit(), minute.remaining()), (&limits[0], 1));
            assert_eq!((hour.limit(), hour.remaining()), (&limits[1], 0));
            let more = minute.more_after().unwrap();
            let max_secs = if window == Window::Gcra { 20 } else { 60 };
            assert!(more <= Duration::from_secs(max_secs), "{window:?} {more:?}");
            assert!(more > Duration::from_secs(max_secs - 5), "{window:?} {more:?}");
        }
    }
}

async fn more_after_of_peek_is_when_more_is_available<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(3, per(90))]).await;
        assert!(limiter.check("ada").await.is_ok());
        sleep(per(20)).await;
        assert!(limiter.check_n("ada", 2).await.is_ok());
        for _ in 0..3 {
            let state = limiter.peek("ada").await;
            let Some(more) = state.standings()[0].more_after() else { break };
            sleep(more).await;
            let later = limiter.peek("ada").await;
            assert!(later.remaining() > state.remaining(), "{window:?} {state:?} {later:?}");
        }
        assert_eq!(limiter.peek("ada").await.remaining(), 3, "{window:?}");
    }
}

async fn reset_clears_the_key_and_returns_whether_it_had_charges<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::per_minute(1)]).await;
        assert!(!limiter.reset("ada").await);
        assert!(limiter.check("ada").await.is_ok());
        assert!(limiter.check("ada").await.is_err());
        assert!(limiter.reset("ada").await);
        assert!(limiter.check("ada").await.is_ok());
    }
}

async fn refund_returns_the_charges_of_all_limits<L: Limiter>() {
    for window in WINDOWS {
        let limits = [Limit::per_minute(5), Limit::per_hour(9)];
        let limiter = L::with_limits(window, &limits).await;
        let first = limiter.check_n("ada", 2).await.unwrap();
        let second = limiter.check_n("ada", 3).await.unwrap();
        assert!(limiter.check("ada").await.is_err());
        first.refund().await;
        let remaining = |state: State| -> Vec<u32> {
            state.standings().iter().map(|standing| standing.remaining()).collect()
        };
        assert_eq!(remaining(limiter.peek("ada").await), [2, 6], "{window:?}");
        assert!(limiter.check_n("ada", 2).await.is_ok(), "{window:?}");
        assert!(limiter.check("ada").await.is_err());
        second.refund().await;
        assert_eq!(remaining(limiter.peek("ada").await), [3, 7], "{window:?}");
    }
}

async fn refund_of_charges_outside_the_window_returns_nothing<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(4, per(60))]).await;
        let permit = limiter.check_n("ada", 2).await.unwrap();
        sleep(per(61)).await;
        assert!(limiter.check_n("ada", 4).await.is_ok());
        permit.refund().await;
        assert!(limiter.check_n("ada", 4).await.is_err(), "{window:?}");
    }
}

async fn refund_after_reset_returns_nothing<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::per_minute(2)]).await;
        let permit = limiter.check_n("ada", 2).await.unwrap();
        assert!(limiter.reset("ada").await);
        permit.refund().await;
        let permit = limiter.check_n("ada", 2).await.unwrap();
        assert!(limiter.reset("ada").await);
        assert!(limiter.check_n("ada", 2).await.is_ok());
        permit.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "{window:?}");
    }
}

async fn settle_charges_or_refunds_the_difference<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::per_hour(10), Limit::per_hour(20)]).await;
        let remaining = async || limiter.peek("ada").await.remaining();
        let charged = async |cost| limiter.check_n("ada", cost).await.unwrap();
        charged(3).await.settle(5).await;
        assert_eq!(remaining().await, 5, "{window:?}");
        charged(4).await.settle(1).await;
        assert_eq!(remaining().await, 4, "{window:?}");
        charged(2).await.settle(2).await;
        assert_eq!(remaining().await, 2, "{window:?}");
        charged(0).await.settle(1).await;
        assert_eq!(remaining().await, 1, "{window:?}");
        charged(0).await.settle(0).await;
        let permit = limiter.check_with("ada", &[]).await.unwrap();
        permit.settle(9).await;
        assert_eq!(remaining().await, 1, "without limits, nothing is charged");
    }
}

async fn debt_of_settle_denies_later_callers<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(3, per(60)), Limit::per_hour(900)]).await;
        let permit = limiter.check("ada").await.unwrap();
        sleep(per(90)).await;
        permit.settle(7).await;
        let limited = limiter.check("ada").await.unwrap_err();
        assert_eq!(limited.limit().quota(), 3);
        if window == Window::Log {
            assert!(limited.retry_after() > per(40), "{limited}");
        }
        sleep(limited.retry_after()).await;
        assert!(limiter.check("ada").await.is_ok(), "{window:?}");
        let state = limiter.peek("ada").await;
        assert_eq!(state.standings()[1].remaining(), 900 - 8, "{window:?}");
    }
}

async fn debt_of_settle_may_be_as_large_as_u32_max<L: Limiter>() {
    // With a window of a century, the debt lasts longer than the server can count in milliseconds.
    let lengths = [3_600, 100 * 365 * 86_400].map(Duration::from_secs);
    for (window, length) in
        WINDOWS.into_iter().flat_map(|window| lengths.map(|length| (window, length)))
    {
        let limits = [Limit::new(3, length), Limit::new(70_000, length)];
        let limiter = L::with_limits(window, &limits).await;
        for _ in 0..3 {
            let permit = limiter.check_n("ada", 0).await.unwrap();
            permit.settle(u32::MAX).await;
            assert_eq!(limiter.peek("ada").await.remaining(), 0);
            let limited = limiter.check("ada").await.unwrap_err();
            assert!(limited.retry_after() > Duration::from_secs(3_500), "{limited}");
        }
    }
}

async fn stats_count_an_admitted_waiter_as_waited_not_denied<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(1, per(60))]).await;
        for _ in 0..3 {
            limiter.until_ready("ada").await;
        }
        let stats = limiter.stats();
        assert_eq!((stats.admitted, stats.waited, stats.denied), (3, 2, 0), "{window:?}");
        // A denied wait, and a cancelled one.
        assert!(limiter.until_ready_within("ada", per(1)).await.is_err());
        let cancelled = tokio::time::timeout(per(10), limiter.until_ready("ada")).await;
        assert!(cancelled.is_err());
        let stats = limiter.stats();
        assert_eq!((stats.admitted, stats.waited, stats.denied), (3, 2, 1), "{window:?}");
        let denials: u64 = limiter.denials().iter().map(|(_, denials)| denials).sum();
        assert_eq!(denials, 1);
    }
}

async fn stats_count_admitted_denied_and_refunded_checks<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::per_minute(2)]).await;
    let permit = limiter.check("ada").await.unwrap();
    assert!(limiter.check("ada").await.is_ok());
    for _ in 0..3 {
        assert!(limiter.check("ada").await.is_err());
    }
    assert!(limiter.check_n("ada", 0).await.is_ok());
    assert!(limiter.check_n("ada", 3).await.is_err());
    permit.refund().await;
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied, stats.refunded), (2, 3, 1));
}
