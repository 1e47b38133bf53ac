//! Promises of the rate limiter's docs, one by one: limits and builders, checks, statistics.

use std::{
    collections::hash_map::RandomState,
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use fleeting::{
    Limit, Limited, LimiterStats, Permit, RateLimiter, RateLimiterBuilder, Standing, State, Sweep,
    Window,
};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_ready, task::spawn};
use tracing::Level;

use crate::limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS, limiter, limiter_of, take};
use crate::log::Log;

const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

// Limits and builders.

#[tokio::test(start_paused = true)]
async fn denial_by_a_limit_after_many_others_contains_it() {
    for exhausted in [vec![0, 1, 39], vec![39], vec![5, 39]] {
        let mut limits = vec![Limit::per_hour(100); 40];
        exhausted.iter().for_each(|index| limits[*index] = Limit::per_minute(1));
        limits[39] = Limit::per_hour(1);
        let builder = RateLimiter::<u32>::builder();
        let limiter = limits.iter().cloned().fold(builder, RateLimiterBuilder::limit).build();
        limiter.check(&0).await.unwrap();
        let limited = limiter.check(&0).await.unwrap_err();
        assert_eq!(limited.limit(), &limits[39]);
        let expected: Vec<_> = exhausted.iter().map(|index| limits[*index].clone()).collect();
        assert_eq!(limited.exceeded(), expected);
    }
}

#[test]
fn limit_returns_and_displays_its_quota_window_and_name() {
    let limit = Limit::new(50, 1_500 * MILLISECOND).named("burst");
    assert_eq!((limit.quota(), limit.per(), limit.name()), (50, 3 * SECOND / 2, Some("burst")));
    assert_eq!(limit.to_string(), "50 in 1.5s (burst)");
    assert_eq!(Limit::per_second(7), Limit::new(7, SECOND));
    assert_eq!(Limit::per_minute(7), Limit::new(7, MINUTE));
    assert_eq!(Limit::per_hour(7), Limit::new(7, 60 * MINUTE));
    assert_eq!(Limit::per_hour(7).name(), None);
    assert_eq!(Limit::per_hour(7).to_string(), "7 in 3600s");
    assert_ne!(Limit::per_hour(7), Limit::per_hour(7).named("hourly"));
    assert_eq!(Limit::per_hour(7).named(String::from("hourly")).name(), Some("hourly"));
    assert_eq!(Limit::new(u32::MAX, CENTURY).per(), CENTURY);
    assert_eq!(Limit::new(1, NANOSECOND).per(), NANOSECOND);
    assert!(format!("{limit:?}").contains("burst"));
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn limit_of_quota_zero_panics() {
    let _ = Limit::new(0, SECOND);
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn per_second_of_quota_zero_panics() {
    let _ = Limit::per_second(0);
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn per_minute_of_quota_zero_panics() {
    let _ = Limit::per_minute(0);
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn per_hour_of_quota_zero_panics() {
    let _ = Limit::per_hour(0);
}

#[test]
#[should_panic(expected = "per must be longer than zero and at most 100 years, got 0ns")]
fn limit_with_a_window_of_zero_panics() {
    let _ = Limit::new(1, Duration::ZERO);
}

#[test]
#[should_panic(expected = "per must be longer than zero and at most 100 years, got 3153600000.000")]
fn limit_with_a_window_above_a_century_panics() {
    let _ = Limit::new(1, CENTURY + NANOSECOND);
}

#[test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 0")]
fn window_of_zero_buckets_panics() {
    let _ = RateLimiter::<u8>::builder().window(Window::Buckets(0));
}

#[test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 10001")]
fn window_of_more_than_10_000_buckets_panics() {
    let _ = RateLimiter::<u8>::builder().window(Window::Buckets(10_001));
}

#[test]
#[should_panic(expected = "max_keys must be at least 1, got 0")]
fn max_keys_of_zero_panics() {
    let _ = RateLimiter::<u8>::builder().max_keys(0);
}

#[test]
#[should_panic(expected = "shards must be 1 to 65536, got 0")]
fn zero_shards_panic() {
    let _ = RateLimiter::<u8>::builder().shards(0);
}

#[test]
#[should_panic(expected = "shards must be 1 to 65536, got 65537")]
fn more_than_65_536_shards_panic() {
    let _ = RateLimiter::<u8>::builder().shards(65_537);
}

#[tokio::test]
#[should_panic(expected = "a rate limiter needs at least one limit, got none")]
async fn build_without_a_limit_panics() {
    let _ = RateLimiter::<u8>::builder().build();
}

#[test]
#[should_panic(expected = "\"api\" must be built inside of a Tokio runtime")]
fn build_outside_of_a_runtime_panics() {
    let _ = RateLimiter::<u8>::builder().name("api").limit(Limit::per_second(1)).build();
}

#[test]
fn build_on_a_runtime_without_time_panics() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let build = || RateLimiter::<u8>::builder().limit(Limit::per_second(1)).build();
    let built = runtime.block_on(async { catch_unwind(AssertUnwindSafe(build)) });
    let panic = built.map(drop).expect_err("the runtime has no time driver");
    let message = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
    assert!(
        message.contains("enable_time"),
        "the panic message does not name the remedy: {message}"
    );
    assert_eq!(runtime.metrics().num_alive_tasks(), 0, "a task was leaked");
}

#[tokio::test(start_paused = true)]
async fn limiter_works_with_any_number_of_shards() {
    for shards in [1, 2, 3, 7, 64, 100, 4_096] {
        let limiter: RateLimiter<u32, RandomState> = RateLimiter::builder()
            .shards(shards)
            .hasher(RandomState::new())
            .limit(Limit::per_second(1))
            .build();
        for key in 0..500 {
            assert!(limiter.check(&key).await.is_ok());
            assert!(limiter.check(&key).await.is_err());
        }
        assert_eq!(limiter.stats().keys, 500);
        sleep(3 * SECOND).await;
        assert_eq!(limiter.stats().keys, 0, "{shards} shards");
    }
}

#[tokio::test(start_paused = true)]
async fn debug_shows_the_settings() {
    assert_eq!(Window::default(), Window::Log);
    assert_eq!(format!("{:?}", Window::Buckets(10)), "Buckets(10)");
    let builder = RateLimiter::<String>::builder().name("api").max_keys(7).shards(3);
    let builder = builder.limit(Limit::per_second(2).named("burst")).window(Window::Gcra);
    let shown = format!("{builder:?}");
    for part in ["RateLimiterBuilder", "\"api\"", "Gcra", "\"burst\"", "max_keys: 7", "shards: 4"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let limiter = builder.build();
    let shown = format!("{limiter:?}");
    for part in ["RateLimiter {", "name: \"api\"", "window: Gcra", "quota: 2", "\"burst\"", ", .."]
    {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    assert_eq!(*limiter.limits(), [Limit::per_second(2).named("burst")]);
    let shown = format!("{:?}", limiter.check("ada").await.unwrap());
    assert!(shown.starts_with("Permit"), "{shown}");
    assert!(format!("{:?}", limiter.peek("ada").await).contains("burst"));
    assert!(format!("{:?}", limiter.stats()).contains("admitted: 1"));
    assert!(format!("{:?}", limiter.check_n("ada", 2).await.unwrap_err()).contains("burst"));
}

// Checks.

#[tokio::test(start_paused = true)]
async fn call_passes_exactly_at_retry_after_and_not_a_nanosecond_sooner() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
        let start = Instant::now();
        let limited = limiter.check("ada").await.unwrap_err();
        let wait = limited.retry_after();
        assert_eq!(limited.ready_at(), Some(start + wait));
        advance(wait - NANOSECOND).await;
        assert_eq!(limited.retry_after(), NANOSECOND, "retry_after counts down");
        assert!(limiter.check("ada").await.is_err(), "{window:?}");
        advance(NANOSECOND).await;
        assert!(limiter.check("ada").await.is_ok(), "{window:?}");
        assert_eq!(limited.retry_after(), Duration::ZERO, "the wait has elapsed");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_log_and_gcra_is_exactly_per() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        assert_eq!(limiter.check("ada").await.unwrap_err().retry_after(), SECOND, "{window:?}");
    }
}

/// One more nanosecond would add a second to `Retry-After`.
#[tokio::test(start_paused = true)]
async fn retry_after_of_buckets_after_a_burst_is_exactly_per() {
    let limiter = limiter_of(Window::Buckets(10), Limit::per_second(5));
    take(&limiter, "ada", 5).await;
    assert_eq!(limiter.check("ada").await.unwrap_err().retry_after(), SECOND);
}

/// Up to `per / n` late, at any position of the call in its bucket.
#[tokio::test(start_paused = true)]
async fn buckets_free_a_charge_at_most_one_bucket_late() {
    for (n, per) in [(1, 1_000), (4, 1_000), (10, 1_000), (16, 1_600), (1_000, 1_000)] {
        let (limit, per) = (Limit::new(2, Duration::from_nanos(per)), Duration::from_nanos(per));
        let limiter = limiter_of(Window::Buckets(n as usize), limit);
        for gap in 0..=per.as_nanos() as u64 {
            let key = gap.to_string();
            take(&limiter, &key, 1).await;
            advance(Duration::from_nanos(gap)).await;
            // In the bucket that the first call began, unless it has left the window.
            take(&limiter, &key, 1).await;
            let limited = limiter.check_n(&key, 2).await.unwrap_err();
            let wait = limited.retry_after();
            assert!((per..=per + per / n).contains(&wait), "{wait:?} for {n} buckets of {per:?}");
        }
    }
}

/// Twice the quota, less one, in one window, as the table of `Window` says.
#[tokio::test(start_paused = true)]
async fn gcra_admits_a_burst_and_then_one_unit_per_part_of_the_window() {
    let limiter = limiter_of(Window::Gcra, Limit::new(10, SECOND));
    let start = Instant::now();
    take(&limiter, "ada", 10).await;
    let mut more = 0;
    while start.elapsed() < SECOND {
        let passes = limiter.check("ada").await.is_ok();
        assert_eq!(
            passes,
            more < start.elapsed().as_millis() as u32 / 100,
            "units are not admitted evenly"
        );
        more += u32::from(passes);
        advance(10 * MILLISECOND).await;
    }
    assert_eq!(more, 9);
}

/// Even if a unit leaks in a fraction of a nanosecond, as with quotas of bytes.
#[tokio::test(start_paused = true)]
async fn gcra_leaks_exactly_the_quota_in_per() {
    for quota in [3, 7, 150_000_000, 999_999_999, 1_000_000_007, u32::MAX] {
        let limiter = limiter_of(Window::Gcra, Limit::new(quota, SECOND));
        // In some calls, each of which leaves a fraction.
        for call in 0..3 {
            let cost = if call < 2 { quota / 3 } else { quota - 2 * (quota / 3) };
            limiter.check_n("ada", cost).await.unwrap();
        }
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "{quota}");
        let wait = limiter.check_n("ada", quota).await.unwrap_err().retry_after();
        assert_eq!(wait, SECOND, "{quota}");
        let mut admitted = 0_u64;
        for _ in 0..1_000 {
            advance(MILLISECOND).await;
            let left = limiter.peek("ada").await.remaining();
            if left > 0 {
                assert_eq!(limiter.check_n("ada", left).await.unwrap().remaining(), 0, "{quota}");
            }
            admitted += u64::from(left);
        }
        assert_eq!(admitted, u64::from(quota));
    }
}

#[tokio::test(start_paused = true)]
async fn refunds_of_gcra_return_fractions_of_nanoseconds() {
    for quota in [3, 7, 999_999_999, u32::MAX] {
        let limiter = limiter_of(Window::Gcra, Limit::new(quota, SECOND));
        let first = limiter.check_n("ada", quota / 3).await.unwrap();
        let second = limiter.check_n("ada", quota / 3).await.unwrap();
        first.refund().await;
        second.refund().await;
        let standing = &limiter.peek("ada").await.standings()[0].clone();
        assert_eq!((standing.remaining(), standing.more_after()), (quota, None), "{quota}");
        let third = limiter.check_n("ada", quota).await.unwrap();
        advance(SECOND / 2).await;
        third.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), quota, "{quota}");
    }
}

/// A plan counts what other plans have charged, as the other windows do.
#[tokio::test(start_paused = true)]
async fn larger_plan_admits_what_it_has_left() {
    let (small, large) = ([Limit::new(2, 10 * SECOND)], [Limit::new(5, 10 * SECOND)]);
    for window in WINDOWS {
        let limiter = limiter_of(window, small[0].clone());
        take(&limiter, "ada", 2).await;
        assert_eq!(limiter.peek_with("ada", &large).await.remaining(), 3, "{window:?}");
        for left in [2, 1, 0] {
            let permit = limiter.check_with("ada", &large).await.unwrap();
            assert_eq!(permit.remaining(), left, "{window:?}");
        }
        let limited = limiter.check_with("ada", &large).await.unwrap_err();
        advance(limited.retry_after()).await;
        assert!(limiter.check_with("ada", &large).await.is_ok(), "{window:?}");
    }
}

/// The wait is by the limits of the denied check, not by those that charged the key.
#[tokio::test(start_paused = true)]
async fn retry_after_of_another_plan_is_obeyed() {
    let daily = Limit::new(1, 86_400 * SECOND);
    for window in WINDOWS {
        let limiter = limiter_of(window, daily.clone());
        take(&limiter, "ada", 1).await;
        let second = [Limit::per_second(1)];
        match limiter.check_with("ada", &second).await {
            Ok(_) => panic!("{window:?} forgot a charge"),
            Err(limited) => {
                assert_eq!(limited.retry_after(), SECOND, "{window:?}");
                advance(limited.retry_after()).await;
                assert!(limiter.check_with("ada", &second).await.is_ok(), "{window:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cost_is_charged_completely_or_not_at_all() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        assert_eq!(limiter.check_n("ada", 4).await.unwrap().remaining(), 6);
        let limited = limiter.check_n("ada", 7).await.unwrap_err();
        assert_eq!(limited.cost(), 7);
        assert_eq!(limiter.peek("ada").await.remaining(), 6, "the denied check was charged");
        assert_eq!(limiter.check_n("ada", 6).await.unwrap().remaining(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn check_of_cost_zero_always_passes() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(1));
        assert_eq!(limiter.check_n("ada", 0).await.unwrap().remaining(), 1);
        assert_eq!(limiter.stats().keys, 0, "a check of cost 0 created an entry");
        let plan = [Limit::per_minute(7), Limit::per_hour(5)];
        assert_eq!(limiter.check_n_with("ada", 0, &plan).await.unwrap().remaining(), 5);
        assert_eq!(limiter.check_n_with("ada", 0, &[]).await.unwrap().remaining(), u32::MAX);
        take(&limiter, "ada", 1).await;
        assert_eq!(limiter.until_ready_n("ada", 0).await.unwrap().remaining(), 0, "{window:?}");
        let free =
            limiter.check_n("ada", 0).await.expect("a cost of 0 passes even if no quota is left");
        assert_eq!(free.remaining(), 0, "{window:?}");
        free.refund().await;
        assert_eq!(
            limiter.peek("ada").await.remaining(),
            0,
            "a refund of a cost of 0 gave something back"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn cost_above_the_quota_never_passes_and_has_no_ready_at() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_hour(100))
            .limit(Limit::per_second(2).named("burst"))
            .build();
        let limited = limiter.check_n(&1, 3).await.unwrap_err();
        assert_eq!((limited.retry_after(), limited.ready_at()), (Duration::MAX, None));
        assert_eq!((limited.limit().name(), limited.cost()), (Some("burst"), 3));
        let shown = limited.to_string();
        assert_eq!(shown, "a cost of 3 can never pass a limit of 2 in 1s (burst)");
        assert_eq!(limiter.peek(&1).await.remaining(), 2, "the denied check was charged");
        assert!(limiter.check_n(&1, u32::MAX).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn limited_is_an_error_that_displays_retry_after() {
    fn error(error: impl std::error::Error + Send + Sync + Clone + 'static) -> String {
        error.to_string()
    }
    let limiter = limiter(Limit::per_second(2).named("burst"));
    take(&limiter, "ada", 2).await;
    advance(250 * MILLISECOND).await;
    let limited: Limited = limiter.check("ada").await.unwrap_err();
    assert_eq!(error(limited), "over the limit of 2 in 1s (burst), retry after 750ms");
}

#[tokio::test(start_paused = true)]
async fn denied_check_charges_none_of_several_limits() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_second(2).named("burst"))
            .limit(Limit::per_minute(3).named("steady"))
            .build();
        let left = async || {
            let state = limiter.peek(&1).await;
            [state.standings()[0].remaining(), state.standings()[1].remaining()]
        };
        assert_eq!(
            limiter.check(&1).await.unwrap().remaining(),
            1,
            "remaining is not the least of both"
        );
        assert_eq!(limiter.check(&1).await.unwrap().remaining(), 0);
        let limited = limiter.check(&1).await.unwrap_err();
        assert_eq!(limited.limit().name(), Some("burst"), "{window:?}");
        assert_eq!(left().await, [0, 1], "the other limit was charged: {window:?}");
        advance(5 * SECOND).await;
        assert!(limiter.check(&1).await.is_ok());
        let limited = limiter.check_n(&1, 2).await.unwrap_err();
        assert_eq!(
            limited.limit().name(),
            Some("steady"),
            "not the limit with the longest wait: {window:?}"
        );
        assert_eq!(left().await[0], 1, "the other limit was charged: {window:?}");
        advance(limited.retry_after()).await;
        assert!(limiter.check_n(&1, 2).await.is_ok(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn limited_names_the_limit_with_the_longest_wait() {
    let limiter = limiter(Limit::per_second(1));
    let limits = [Limit::per_second(1), Limit::per_hour(1), Limit::per_minute(1)];
    assert!(limiter.check_with("ada", &limits).await.is_ok());
    let limited = limiter.check_with("ada", &limits).await.unwrap_err();
    assert_eq!((limited.limit(), limited.retry_after()), (&limits[1], 60 * MINUTE));
}

#[tokio::test]
async fn key_is_taken_in_any_borrowed_form() {
    let limit = || Limit::per_hour(2);
    let strings: RateLimiter<String> = limiter(limit());
    let owned = "ada".to_owned();
    assert!(strings.check("ada").await.is_ok());
    assert!(strings.check(&owned).await.is_ok());
    assert!(
        strings.check(owned.as_str()).await.is_err(),
        "borrowed and owned form are not one key"
    );
    let numbers: RateLimiter<u32> = RateLimiter::builder().limit(limit()).build();
    assert!(numbers.check(&7).await.is_ok());
    let bytes: RateLimiter<Vec<u8>> = RateLimiter::builder().limit(limit()).build();
    assert!(bytes.check([1_u8, 2].as_slice()).await.is_ok());
    assert!(bytes.check(&vec![1_u8, 2]).await.is_ok());
    assert!(bytes.check([1_u8, 2].as_slice()).await.is_err());
    let arcs: RateLimiter<Arc<str>> = RateLimiter::builder().limit(limit()).build();
    assert!(arcs.check(&Arc::from("ada")).await.is_ok());
    assert!(arcs.reset("ada").await);
    let pairs: RateLimiter<(u8, String)> = RateLimiter::builder().limit(limit()).build();
    assert!(pairs.check(&(1, "ada".to_owned())).await.is_ok());
}

/// Trait bounds of the public contract: the API may not demand more.
async fn call_all_methods<K>(key: K)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    fn is_shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let builder: RateLimiterBuilder<K> = RateLimiter::builder();
    let limiter: RateLimiter<K> = builder
        .limit(Limit::per_hour(10))
        .limit(Limit::per_second(10).named("burst"))
        .window(Window::Log)
        .max_keys(100)
        .sweep(Sweep::default())
        .build();
    is_shared(&limiter);
    let plan = [Limit::per_hour(20)];
    let permit: Result<Permit, Limited> = is_send(limiter.check(&key)).await;
    is_send(permit.unwrap().refund()).await;
    let _: Result<Permit, Limited> = is_send(limiter.check_n(&key, 2)).await;
    let _: Result<Permit, Limited> = is_send(limiter.check_with(&key, &plan)).await;
    let _: Result<Permit, Limited> = is_send(limiter.check_n_with(&key, 2, &plan)).await;
    let state: State = is_send(limiter.peek(&key)).await;
    let _: &[Standing] = state.standings();
    let _: State = is_send(limiter.peek_with(&key, &plan)).await;
    let _: Permit = is_send(limiter.until_ready(&key)).await;
    let _: Result<Permit, Limited> = is_send(limiter.until_ready_within(&key, SECOND)).await;
    let _: bool = is_send(limiter.reset(&key)).await;
    let _: LimiterStats = limiter.stats();
}

#[tokio::test]
async fn futures_are_send_and_keys_need_only_the_documented_bounds() {
    call_all_methods("key".to_owned()).await;
    call_all_methods((1_u32, [0_u8; 3])).await;
    tokio::spawn(call_all_methods(7_u64)).await.unwrap();
}

/// A handle outlives the runtime on which it was built.
#[test]
fn handle_works_without_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let limiter = runtime.block_on(async { limiter(Limit::per_hour(2)) });
    drop(runtime);
    assert!(assert_ready!(spawn(limiter.check("ada")).poll()).is_ok());
    let permit = assert_ready!(spawn(limiter.until_ready("ada")).poll());
    assert!(assert_ready!(spawn(limiter.check("ada")).poll()).is_err());
    assert_ready!(spawn(permit.refund()).poll());
    assert_eq!(assert_ready!(spawn(limiter.peek("ada")).poll()).remaining(), 1);
    assert!(assert_ready!(spawn(limiter.reset("ada")).poll()));
}

#[tokio::test(start_paused = true)]
async fn dropped_futures_change_nothing() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(5));
        drop(limiter.check("ada"));
        drop(limiter.check_n("ada", 2));
        drop(limiter.check_with("ada", &[Limit::per_hour(1)]));
        drop(limiter.until_ready("ada"));
        drop(limiter.until_ready_within("ada", SECOND));
        assert_eq!(limiter.stats(), LimiterStats::default());
        let permit = limiter.check("ada").await.unwrap();
        drop(permit.refund());
        drop(limiter.reset("ada"));
        assert_eq!(limiter.peek("ada").await.remaining(), 4);
        let permit = limiter.check("ada").await.unwrap();
        drop(permit);
        assert_eq!(limiter.peek("ada").await.remaining(), 3, "a dropped permit stays charged");
    }
}

// Statistics and the log.

#[tokio::test(start_paused = true)]
async fn stats_count_decisions() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> =
            RateLimiter::builder().window(window).limit(Limit::per_minute(3)).max_keys(2).build();
        assert_eq!(limiter.stats(), LimiterStats::default());
        for key in 0..2 {
            for _ in 0..5 {
                let _ = limiter.check(&key).await;
            }
        }
        let stats = limiter.stats();
        assert_eq!((stats.keys, stats.admitted, stats.denied), (2, 6, 4));
        assert_eq!((stats.refunded, stats.overflowed), (0, 0));
        let permit = limiter.check(&7).await.unwrap();
        let _ = limiter.check_n(&8, 3).await;
        permit.refund().await;
        let stats = limiter.stats();
        assert_eq!((stats.keys, stats.admitted, stats.denied), (2, 7, 5));
        assert_eq!((stats.refunded, stats.overflowed), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn denials_are_logged_at_most_once_a_second() {
    let (log, _guard) = Log::start(Level::INFO);
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().name("api").limit(Limit::per_hour(1).named("hourly")).build();
    limiter.check(&1).await.unwrap();
    assert_eq!(
        log.lines("rate limiter denied calls"),
        Vec::<String>::new(),
        "an admitted call was logged"
    );
    for _ in 0..1_000 {
        limiter.check(&1).await.unwrap_err();
        advance(10 * MILLISECOND).await;
    }
    let lines = log.lines("rate limiter denied calls");
    assert_eq!(lines.len(), 10, "{lines:#?}");
    let parts = ["INFO", "limiter=\"api\"", "limit=1 in 3600s (hourly)"];
    for (line, denials) in lines.iter().zip([1].into_iter().chain([100; 9])) {
        for part in parts.iter().copied().chain([format!("denials={denials} ").as_str()]) {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
    }
}
