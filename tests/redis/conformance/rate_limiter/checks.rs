//! Checks against one or several limits.

use std::time::Duration;

use fleeting::{Limit, Window};
use tokio::time::{Instant, sleep};

use super::{Embedded, Limiter, OnRedis, Permit, WINDOWS};
use crate::clock::ms as per;

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        check_admits_exactly_the_quota,
        caller_that_waits_for_retry_after_is_admitted,
        full_quota_is_available_after_the_window,
        log_and_buckets_never_exceed_the_quota_in_any_window,
        gcra_frees_one_unit_per_interval,
        check_n_charges_the_whole_cost_or_nothing,
        cost_of_zero_is_always_admitted,
        cost_above_the_quota_is_never_admitted,
        all_limits_are_charged_or_none_is,
        limited_names_the_limit_with_the_longest_retry_after,
        keys_are_limited_independently,
        clones_share_one_limiter,
        check_with_applies_the_given_limits,
        check_with_no_limits_admits_all_and_charges_nothing,
    }
}

async fn check_admits_exactly_the_quota<L: Limiter>() {
    for window in WINDOWS {
        let limit = Limit::per_minute(3).named("minute");
        let limiter = L::with_limits(window, &[limit]).await;
        for remaining in [2, 1, 0] {
            let permit = limiter.check("ada").await.unwrap();
            assert_eq!(permit.remaining(), remaining, "{window:?}");
        }
        let limited = limiter.check("ada").await.unwrap_err();
        assert_eq!(limited.limit().name(), Some("minute"));
        assert_eq!(limited.cost(), 1);
        let max_secs = if window == Window::Gcra { 20 } else { 60 };
        let wait = limited.retry_after();
        assert!(wait <= Duration::from_secs(max_secs), "{window:?} {wait:?}");
        assert!(wait > Duration::from_secs(max_secs - 5), "{window:?} {wait:?}");
    }
}

async fn caller_that_waits_for_retry_after_is_admitted<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(3, per(120))]).await;
        for _ in 0..12 {
            if let Err(limited) = limiter.check("ada").await {
                sleep(limited.retry_after()).await;
                let passed = limiter.check("ada").await;
                assert!(passed.is_ok(), "{window:?} {passed:?}");
            }
        }
    }
}

async fn full_quota_is_available_after_the_window<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(3, per(60))]).await;
        assert!(limiter.check_n("ada", 3).await.is_ok());
        assert!(limiter.check("ada").await.is_err());
        sleep(per(61)).await;
        let permit = limiter.check_n("ada", 3).await;
        assert_eq!(permit.map(|permit| permit.remaining()).ok(), Some(0), "{window:?}");
    }
}

async fn log_and_buckets_never_exceed_the_quota_in_any_window<L: Limiter>() {
    for window in [Window::Log, Window::Buckets(4)] {
        let (quota, length) = (5, per(80));
        let limiter = L::with_limits(window, &[Limit::new(quota, length)]).await;
        let mut passed: Vec<(Instant, Instant)> = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < 5 * length {
            let before = Instant::now();
            if limiter.check("ada").await.is_ok() {
                passed.push((before, Instant::now()));
            }
            sleep(per(3)).await;
        }
        // Counts the calls that were certainly admitted within one window.
        for (at, (before, _)) in passed.iter().enumerate() {
            let within = |(_, after): &&(Instant, Instant)| *after - *before < length;
            let count = passed[at..].iter().filter(within).count();
            assert!(count <= quota as usize, "{window:?}: {count}");
        }
        // Not too few either: a burst, and the quota in each further window except the last.
        assert!(passed.len() >= 4 * quota as usize, "{window:?}: {}", passed.len());
    }
}

async fn gcra_frees_one_unit_per_interval<L: Limiter>() {
    let limiter = L::with_limits(Window::Gcra, &[Limit::new(4, per(200))]).await;
    assert!(limiter.check_n("ada", 4).await.is_ok());
    for _ in 0..4 {
        let wait = limiter.check("ada").await.unwrap_err().retry_after();
        assert!(wait <= per(50), "{wait:?}");
        sleep(wait).await;
        assert!(limiter.check("ada").await.is_ok());
    }
}

async fn check_n_charges_the_whole_cost_or_nothing<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::per_minute(10)]).await;
        assert_eq!(limiter.check_n("ada", 7).await.unwrap().remaining(), 3);
        assert_eq!(limiter.check_n("ada", 4).await.unwrap_err().cost(), 4);
        assert_eq!(limiter.check_n("ada", 3).await.unwrap().remaining(), 0);
    }
}

async fn cost_of_zero_is_always_admitted<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::per_minute(1)]).await;
    assert!(limiter.check("ada").await.is_ok());
    let permit = limiter.check_n("ada", 0).await.unwrap();
    assert_eq!(permit.remaining(), 0);
    permit.refund().await;
    assert!(limiter.check("ada").await.is_err());
}

async fn cost_above_the_quota_is_never_admitted<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::per_minute(9), Limit::per_hour(3)]).await;
        let limited = limiter.check_n("ada", 4).await.unwrap_err();
        assert_eq!(limited.retry_after(), Duration::MAX);
        assert_eq!(limited.ready_at(), None);
        assert_eq!(limited.limit().quota(), 3);
        assert_eq!(limiter.peek("ada").await.remaining(), 3);
    }
}

async fn all_limits_are_charged_or_none_is<L: Limiter>() {
    for window in WINDOWS {
        let limits = [Limit::new(2, per(100)), Limit::per_hour(3)];
        let limiter = L::with_limits(window, &limits).await;
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 1);
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
        for _ in 0..3 {
            let limited = limiter.check("ada").await.unwrap_err();
            assert_eq!(limited.limit().quota(), 2, "{window:?}");
        }
        sleep(per(115)).await;
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
        let limited = limiter.check("ada").await.unwrap_err();
        assert_eq!(limited.limit().quota(), 3, "{window:?}");
        let remaining: Vec<u32> = limiter
            .peek("ada")
            .await
            .standings()
            .iter()
            .map(|standing| standing.remaining())
            .collect();
        assert_eq!(remaining, [1, 0], "{window:?}");
    }
}

async fn limited_names_the_limit_with_the_longest_retry_after<L: Limiter>() {
    for window in WINDOWS {
        let limits = [Limit::per_minute(1), Limit::per_hour(1), Limit::per_second(1)];
        let limiter = L::with_limits(window, &limits).await;
        assert!(limiter.check("ada").await.is_ok());
        let limited = limiter.check("ada").await.unwrap_err();
        assert_eq!(limited.limit(), &limits[1], "{window:?}");
    }
}

async fn keys_are_limited_independently<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::per_minute(1)]).await;
        for key in ["ada", "grace", "", "a:b", "{a}", "}{", "ad", "é"] {
            assert!(limiter.check(key).await.is_ok(), "{key:?}");
        }
        for key in ["ada", "grace", "", "a:b", "{a}", "}{", "ad", "é"] {
            assert!(limiter.check(key).await.is_err(), "{key:?}");
        }
    }
}

async fn clones_share_one_limiter<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::per_minute(2)]).await;
    let clone = limiter.clone();
    assert!(clone.check("ada").await.is_ok());
    assert!(limiter.check("ada").await.is_ok());
    assert!(clone.check("ada").await.is_err());
    assert!(clone.reset("ada").await);
    assert_eq!(limiter.peek("ada").await.remaining(), 2);
}

async fn check_with_applies_the_given_limits<L: Limiter>() {
    for window in [Window::Log, Window::Buckets(10)] {
        let (free, paid) = ([Limit::per_minute(1)], [Limit::per_minute(100)]);
        let limiter = L::with_limits(window, &free).await;
        assert!(limiter.check_with("ada", &free).await.is_ok());
        assert!(limiter.check_with("ada", &free).await.is_err());
        let permit = limiter.check_with("ada", &paid).await.unwrap();
        assert_eq!(permit.remaining(), 98, "{window:?}");
        let permit = limiter.check_n_with("ada", 98, &paid).await.unwrap();
        assert_eq!(permit.remaining(), 0, "{window:?}");
        assert_eq!(limiter.peek_with("ada", &paid).await.remaining(), 0);
        assert!(limiter.check("ada").await.is_err());
        permit.refund().await;
        assert_eq!(limiter.peek_with("ada", &paid).await.remaining(), 98);
    }
}

async fn check_with_no_limits_admits_all_and_charges_nothing<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::per_minute(1)]).await;
    for _ in 0..3 {
        assert!(limiter.check_with("ada", &[]).await.is_ok());
    }
    assert!(limiter.peek_with("ada", &[]).await.standings().is_empty());
    assert_eq!(limiter.peek("ada").await.remaining(), 1);
}
