//! What the doc comments of the rate limiter promise, one by one: limits and builders, checks, statistics.

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

#[test]
fn a_limit_shows_what_it_is() {
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
fn no_quota() {
    let _ = Limit::new(0, SECOND);
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn no_quota_a_second() {
    let _ = Limit::per_second(0);
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn no_quota_a_minute() {
    let _ = Limit::per_minute(0);
}

#[test]
#[should_panic(expected = "quota must be at least 1, got 0")]
fn no_quota_an_hour() {
    let _ = Limit::per_hour(0);
}

#[test]
#[should_panic(expected = "per must be longer than zero and at most 100 years, got 0ns")]
fn no_window() {
    let _ = Limit::new(1, Duration::ZERO);
}

#[test]
#[should_panic(expected = "per must be longer than zero and at most 100 years, got 3153600000.000")]
fn too_long_a_window() {
    let _ = Limit::new(1, CENTURY + NANOSECOND);
}

#[test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 0")]
fn no_buckets() {
    let _ = RateLimiter::<u8>::builder().window(Window::Buckets(0));
}

#[test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 10001")]
fn too_many_buckets() {
    let _ = RateLimiter::<u8>::builder().window(Window::Buckets(10_001));
}

#[test]
#[should_panic(expected = "max_keys must be at least 1, got 0")]
fn no_keys() {
    let _ = RateLimiter::<u8>::builder().max_keys(0);
}

#[test]
#[should_panic(expected = "shards must be 1 to 65536, got 0")]
fn no_shards() {
    let _ = RateLimiter::<u8>::builder().shards(0);
}

#[test]
#[should_panic(expected = "shards must be 1 to 65536, got 65537")]
fn too_many_shards() {
    let _ = RateLimiter::<u8>::builder().shards(65_537);
}

#[tokio::test]
#[should_panic(expected = "a rate limiter needs at least one limit, got none")]
async fn no_limit() {
    let _ = RateLimiter::<u8>::builder().build();
}

#[test]
#[should_panic(expected = "\"api\" must be built inside of a Tokio runtime")]
fn build_needs_a_runtime() {
    let _ = RateLimiter::<u8>::builder().name("api").limit(Limit::per_second(1)).build();
}

#[test]
fn build_needs_a_runtime_with_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let build = || RateLimiter::<u8>::builder().limit(Limit::per_second(1)).build();
    let built = runtime.block_on(async { catch_unwind(AssertUnwindSafe(build)) });
    let panic = built.map(drop).expect_err("there is no time on this runtime");
    let message = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
    assert!(message.contains("enable_time"), "the panic does not say what to do: {message}");
    assert_eq!(runtime.metrics().num_alive_tasks(), 0, "a task is left behind");
}

#[tokio::test(start_paused = true)]
async fn any_number_of_shards_works() {
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
async fn debug_shows_what_was_set() {
    assert_eq!(Window::default(), Window::Log);
    assert_eq!(format!("{:?}", Window::Buckets(10)), "Buckets(10)");
    let builder = RateLimiter::<String>::builder().name("api").max_keys(7).shards(3);
    let builder = builder.limit(Limit::per_second(2).named("burst")).window(Window::Gcra);
    let shown = format!("{builder:?}");
    for part in ["RateLimiterBuilder", "\"api\"", "Gcra", "\"burst\"", "max_keys: 7", "shards: 4"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let limiter = builder.build();
    let shown = format!("{limiter:?}");
    for part in ["RateLimiter {", "name: \"api\"", "window: Gcra", "quota: 2", "\"burst\"", ", .."]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
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
async fn the_window_is_open_at_its_past_end() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
        let start = Instant::now();
        let limited = limiter.check("ada").await.unwrap_err();
        let wait = limited.retry_after();
        assert_eq!(limited.ready_at(), Some(start + wait));
        advance(wait - NANOSECOND).await;
        assert_eq!(limited.retry_after(), NANOSECOND, "it counts down");
        assert!(limiter.check("ada").await.is_err(), "{window:?}");
        advance(NANOSECOND).await;
        assert!(limiter.check("ada").await.is_ok(), "{window:?}");
        assert_eq!(limited.retry_after(), Duration::ZERO, "it is over");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_and_gcra_wait_not_a_nanosecond_more_than_per() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        assert_eq!(limiter.check("ada").await.unwrap_err().retry_after(), SECOND, "{window:?}");
    }
}

/// A nanosecond more would make `Retry-After` a second more.
#[tokio::test(start_paused = true)]
async fn a_burst_is_free_again_after_per_by_buckets_too() {
    let limiter = limiter_of(Window::Buckets(10), Limit::per_second(5));
    take(&limiter, "ada", 5).await;
    assert_eq!(limiter.check("ada").await.unwrap_err().retry_after(), SECOND);
}

/// Up to `per / n` late, wherever in its bucket a call comes.
#[tokio::test(start_paused = true)]
async fn buckets_free_a_call_at_most_one_bucket_late() {
    for (n, per) in [(1, 1_000), (4, 1_000), (10, 1_000), (16, 1_600), (1_000, 1_000)] {
        let (limit, per) = (Limit::new(2, Duration::from_nanos(per)), Duration::from_nanos(per));
        let limiter = limiter_of(Window::Buckets(n as usize), limit);
        for gap in 0..=per.as_nanos() as u64 {
            let key = gap.to_string();
            take(&limiter, &key, 1).await;
            advance(Duration::from_nanos(gap)).await;
            // In a bucket that the first call began, unless that has left.
            take(&limiter, &key, 1).await;
            let limited = limiter.check_n(&key, 2).await.unwrap_err();
            let wait = limited.retry_after();
            assert!((per..=per + per / n).contains(&wait), "{wait:?} for {n} buckets of {per:?}");
        }
    }
}

/// Twice the quota, less one, in one window: what the table says of it.
#[tokio::test(start_paused = true)]
async fn gcra_lets_a_burst_pass_and_then_a_unit_each_part() {
    let limiter = limiter_of(Window::Gcra, Limit::new(10, SECOND));
    let start = Instant::now();
    take(&limiter, "ada", 10).await;
    let mut more = 0;
    while start.elapsed() < SECOND {
        let passes = limiter.check("ada").await.is_ok();
        assert_eq!(passes, more < start.elapsed().as_millis() as u32 / 100, "evenly");
        more += u32::from(passes);
        advance(10 * MILLISECOND).await;
    }
    assert_eq!(more, 9);
}

#[tokio::test(start_paused = true)]
async fn gcra_rounds_its_parts_up() {
    let limiter = limiter_of(Window::Gcra, Limit::new(3, SECOND));
    take(&limiter, "ada", 3).await;
    let wait = limiter.check_n("ada", 3).await.unwrap_err().retry_after();
    assert_eq!(wait, Duration::from_nanos(3 * 333_333_334));
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_charged_whole_or_not_at_all() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        assert_eq!(limiter.check_n("ada", 4).await.unwrap().remaining(), 6);
        let limited = limiter.check_n("ada", 7).await.unwrap_err();
        assert_eq!(limited.cost(), 7);
        assert_eq!(limiter.peek("ada").await.remaining(), 6, "a denial is not charged");
        assert_eq!(limiter.check_n("ada", 6).await.unwrap().remaining(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_of_nothing_always_passes() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(1));
        assert_eq!(limiter.check_n("ada", 0).await.unwrap().remaining(), u32::MAX);
        assert_eq!(limiter.stats().keys, 0, "nothing is kept of it");
        take(&limiter, "ada", 1).await;
        let nothing =
            limiter.check_n("ada", 0).await.expect("nothing passes where nothing is left");
        nothing.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "and gives nothing back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_quota_never_passes_and_says_so() {
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
        assert_eq!(limiter.peek(&1).await.remaining(), 2, "nothing is charged");
        assert!(limiter.check_n(&1, u32::MAX).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_an_error_that_tells_when_to_come_again() {
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
async fn all_limits_are_charged_or_none() {
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
        assert_eq!(limiter.check(&1).await.unwrap().remaining(), 1, "the least of both");
        assert_eq!(limiter.check(&1).await.unwrap().remaining(), 0);
        let limited = limiter.check(&1).await.unwrap_err();
        assert_eq!(limited.limit().name(), Some("burst"), "{window:?}");
        assert_eq!(left().await, [0, 1], "the other was not charged: {window:?}");
        advance(5 * SECOND).await;
        assert!(limiter.check(&1).await.is_ok());
        let limited = limiter.check_n(&1, 2).await.unwrap_err();
        assert_eq!(limited.limit().name(), Some("steady"), "the longest to wait for: {window:?}");
        assert_eq!(left().await[0], 1, "the other was not charged: {window:?}");
        advance(limited.retry_after()).await;
        assert!(limiter.check_n(&1, 2).await.is_ok(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_that_is_named_is_the_one_that_takes_longest_to_wait_for() {
    let limiter = limiter(Limit::per_second(1));
    let limits = [Limit::per_second(1), Limit::per_hour(1), Limit::per_minute(1)];
    assert!(limiter.check_with("ada", &limits).await.is_ok());
    let limited = limiter.check_with("ada", &limits).await.unwrap_err();
    assert_eq!((limited.limit(), limited.retry_after()), (&limits[1], 60 * MINUTE));
}

#[tokio::test(start_paused = true)]
async fn keys_are_limited_each_for_itself() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(2));
        take(&limiter, "ada", 2).await;
        assert!(limiter.check("ada").await.is_err());
        take(&limiter, "bob", 2).await;
        assert!(limiter.check("bob").await.is_err());
    }
}

#[tokio::test]
async fn keys_are_given_in_any_borrowed_form() {
    let limit = || Limit::per_hour(2);
    let strings: RateLimiter<String> = limiter(limit());
    let owned = "ada".to_owned();
    assert!(strings.check("ada").await.is_ok());
    assert!(strings.check(&owned).await.is_ok());
    assert!(strings.check(owned.as_str()).await.is_err(), "they are one key");
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

#[tokio::test]
async fn clones_are_one_limiter() {
    let limiter = limiter(Limit::per_hour(2));
    let other = limiter.clone();
    take(&limiter, "ada", 1).await;
    assert_eq!(other.check("ada").await.unwrap().remaining(), 0);
    assert!(limiter.check("ada").await.is_err());
    assert!(other.reset("ada").await);
    assert_eq!(limiter.peek("ada").await.remaining(), 2);
    assert_eq!(limiter.stats(), other.stats());
}

/// Bounds as the contract gives them: no more than these may be asked of a user.
async fn every_call_for_any_key<K>(key: K)
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
async fn every_call_takes_any_key_and_is_send() {
    every_call_for_any_key("key".to_owned()).await;
    every_call_for_any_key((1_u32, [0_u8; 3])).await;
    tokio::spawn(every_call_for_any_key(7_u64)).await.unwrap();
}

/// A handle does what it did also where there is no runtime.
#[test]
fn handles_work_without_a_runtime() {
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
async fn what_is_dropped_before_its_end_changed_nothing() {
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
        assert_eq!(limiter.peek("ada").await.remaining(), 3, "to drop a permit is to use it");
    }
}

// Statistics and the log.

#[tokio::test(start_paused = true)]
async fn stats_count_what_was_decided() {
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
    assert_eq!(log.lines("calls are denied"), Vec::<String>::new(), "what passes is not logged");
    for _ in 0..1_000 {
        limiter.check(&1).await.unwrap_err();
        advance(10 * MILLISECOND).await;
    }
    let lines = log.lines("calls are denied");
    assert_eq!(lines.len(), 10, "{lines:#?}");
    let parts = ["INFO", "limiter=\"api\"", "limit=1 in 3600s (hourly)"];
    for (line, denials) in lines.iter().zip([1].into_iter().chain([100; 9])) {
        for part in parts.iter().copied().chain([format!("denials={denials} ").as_str()]) {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}
