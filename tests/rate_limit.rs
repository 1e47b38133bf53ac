//! What the doc comments of the rate limiter promise, one by one.

use std::{
    collections::hash_map::RandomState,
    hash::Hash,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{
    Limit, Limited, LimiterStats, Permit, RateLimiter, RateLimiterBuilder, Standing, State, Sweep,
    Window,
};
use futures_util::FutureExt;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep, timeout},
};

const NANOSECOND: Duration = Duration::from_nanos(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

fn limiter(limit: Limit) -> RateLimiter<String> {
    RateLimiter::builder().limit(limit).build()
}

fn limiter_of(window: Window, limit: Limit) -> RateLimiter<String> {
    RateLimiter::builder().window(window).limit(limit).build()
}

async fn take(limiter: &RateLimiter<String>, key: &str, times: u32) {
    for _ in 0..times {
        limiter.check(key).await.expect("there is room");
    }
}

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
    assert_eq!(limiter.limits(), [Limit::per_second(2).named("burst")]);
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
    assert!(limiter.check("ada").now_or_never().unwrap().is_ok());
    let permit = limiter.until_ready("ada").now_or_never().expect("there is room");
    assert!(limiter.check("ada").now_or_never().unwrap().is_err());
    permit.refund().now_or_never().unwrap();
    assert_eq!(limiter.peek("ada").now_or_never().unwrap().remaining(), 1);
    assert!(limiter.reset("ada").now_or_never().unwrap());
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

// Peeks, resets, refunds.

#[tokio::test(start_paused = true)]
async fn a_peek_tells_what_is_left_and_charges_nothing() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4).named("steady"));
        for _ in 0..10 {
            let state = limiter.peek("ada").await;
            assert_eq!((state.remaining(), state.retry_after()), (4, Duration::ZERO));
            let standing = &state.standings()[0];
            assert_eq!(standing.limit(), &Limit::per_minute(4).named("steady"));
            assert_eq!((standing.remaining(), standing.more_after()), (4, None));
        }
        assert_eq!(limiter.stats(), LimiterStats::default(), "it makes no key known");
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
        assert_eq!(state.retry_after(), Duration::ZERO, "it counts down");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peek_tells_of_each_limit_in_their_order() {
    let limiter: RateLimiter<u32> = RateLimiter::builder()
        .limit(Limit::per_hour(10).named("hourly"))
        .limit(Limit::per_second(2).named("burst"))
        .build();
    limiter.check_n(&1, 2).await.unwrap();
    let state = limiter.peek(&1).await;
    let told = |standing: &Standing| {
        (standing.limit().name().unwrap().to_owned(), standing.remaining(), standing.more_after())
    };
    let told: Vec<_> = state.standings().iter().map(told).collect();
    let hourly = ("hourly".to_owned(), 8, Some(60 * MINUTE));
    assert_eq!(told, [hourly, ("burst".to_owned(), 0, Some(SECOND))]);
    assert_eq!((state.remaining(), state.retry_after()), (0, SECOND));
}

#[tokio::test(start_paused = true)]
async fn more_comes_when_a_peek_says_so() {
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

/// A plan of a smaller quota may find more in use than it has: what leaves first makes no room yet.
#[tokio::test(start_paused = true)]
async fn more_comes_when_a_peek_by_a_smaller_plan_says_so() {
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
        assert!(remaining().await > 0, "no more after {after:?}: {window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_forgets_and_tells_whether_anything_was_known() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(2));
        assert!(!limiter.reset("ada").await, "nothing was known");
        take(&limiter, "ada", 2).await;
        take(&limiter, "bob", 1).await;
        assert!(limiter.reset("ada").await);
        assert!(!limiter.reset("ada").await, "it was forgotten");
        assert_eq!(limiter.stats().keys, 1);
        take(&limiter, "ada", 2).await;
        assert_eq!(limiter.peek("bob").await.remaining(), 1, "the others stay");
        advance(5 * SECOND).await;
        assert!(!limiter.reset("ada").await, "nothing is in use any more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_takes_back_exactly_what_was_charged() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(10));
        let permit = limiter.check_n("ada", 3).await.unwrap();
        let other = limiter.check_n("ada", 5).await.unwrap();
        let bobs = limiter.check_n("bob", 10).await.unwrap();
        permit.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 5, "{window:?}");
        other.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 10, "{window:?}");
        assert_eq!(limiter.peek("bob").await.remaining(), 0, "that of another key stays");
        bobs.refund().await;
        assert_eq!(limiter.peek("bob").await.remaining(), 10);
        assert_eq!(limiter.stats().refunded, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_takes_back_of_all_limits() {
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
async fn a_refund_takes_back_nothing_that_has_left() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = limiter_of(window, Limit::per_second(4));
        let permit = limiter.check_n("ada", 4).await.unwrap();
        // The key has left, too.
        sleep(5 * SECOND).await;
        take(&limiter, "ada", 3).await;
        permit.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 1, "{window:?}");

        let early = limiter.check("ada").await.unwrap();
        advance(800 * MILLISECOND).await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0);
        advance(700 * MILLISECOND).await;
        // It has left, and the key has not.
        take(&limiter, "ada", 4).await;
        early.refund().await;
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "{window:?}");
    }
}

/// Of a bucket that leaks, so much as has not leaked.
#[tokio::test(start_paused = true)]
async fn a_refund_of_gcra_takes_back_nothing_that_has_leaked() {
    let limiter = limiter_of(Window::Gcra, Limit::new(2, 20 * SECOND));
    let full_in = async || limiter.peek("ada").await.standings()[0].more_after();
    let permit = limiter.check("ada").await.unwrap();
    advance(4 * SECOND).await;
    permit.refund().await;
    assert_eq!(full_in().await, None, "6 s were left of it");
    let permit = limiter.check("ada").await.unwrap();
    advance(11 * SECOND).await;
    take(&limiter, "ada", 1).await;
    permit.refund().await;
    assert_eq!(full_in().await, Some(10 * SECOND), "nothing was left of it");
}

#[tokio::test(start_paused = true)]
async fn a_refund_takes_back_nothing_that_was_reset() {
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
async fn a_refund_after_its_limiter_is_gone_does_nothing() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4));
        let (permit, other) =
            (limiter.check("ada").await.unwrap(), self::limiter(Limit::per_hour(9)));
        take(&other, "ada", 9).await;
        drop(limiter);
        permit.refund().await;
        assert_eq!(other.peek("ada").await.remaining(), 0, "another limiter is not its own");
    }
}

// Plans.

#[tokio::test(start_paused = true)]
async fn limits_may_be_given_with_each_check() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = limiter_of(window, Limit::per_minute(1));
        let paid = [Limit::per_minute(100)];
        take(&limiter, "ada", 1).await;
        assert!(limiter.check("ada").await.is_err());
        assert_eq!(limiter.check_with("ada", &paid).await.unwrap().remaining(), 98, "{window:?}");
        assert_eq!(limiter.check_n_with("ada", 8, &paid).await.unwrap().remaining(), 90);
        assert_eq!(limiter.peek_with("ada", &paid).await.remaining(), 90);
        assert_eq!(limiter.peek("ada").await.remaining(), 0, "more than its own limit is in use");
        assert!(limiter.check("ada").await.is_err());
        let limited = limiter.check_n_with("ada", 101, &paid).await.unwrap_err();
        assert_eq!((limited.limit(), limited.ready_at()), (&paid[0], None));
    }
}

/// What is in use of a bucket that leaks is a time, not a number of units.
#[tokio::test(start_paused = true)]
async fn a_full_bucket_of_gcra_is_full_by_another_plan_too() {
    let limiter = limiter_of(Window::Gcra, Limit::per_minute(1));
    let paid = [Limit::per_minute(100)];
    take(&limiter, "ada", 1).await;
    let limited = limiter.check_with("ada", &paid).await.unwrap_err();
    assert_eq!(limited.retry_after(), 600 * MILLISECOND);
    advance(30 * SECOND).await;
    assert_eq!(limiter.check_n_with("ada", 8, &paid).await.unwrap().remaining(), 42);
    assert_eq!(limiter.check("ada").await.unwrap_err().retry_after(), 34_800 * MILLISECOND);
}

#[tokio::test(start_paused = true)]
async fn without_limits_everything_passes_and_nothing_is_charged() {
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

/// What one of fewer limits does not ask for stays.
#[tokio::test(start_paused = true)]
async fn limits_are_told_apart_by_their_order() {
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

/// A page that shows what another plan would give must not give it.
#[tokio::test(start_paused = true)]
async fn a_peek_by_another_plan_changes_nothing() {
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

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Log, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains("calls are denied")).map(str::to_owned).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn denials_are_logged_at_most_once_a_second() {
    let (log, _guard) = Log::start();
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().name("api").limit(Limit::per_hour(1).named("hourly")).build();
    limiter.check(&1).await.unwrap();
    assert_eq!(log.lines(), Vec::<String>::new(), "what passes is not logged");
    for _ in 0..1_000 {
        limiter.check(&1).await.unwrap_err();
        advance(10 * MILLISECOND).await;
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 10, "{lines:#?}");
    let parts = ["INFO", "limiter=\"api\"", "limit=1 in 3600s (hourly)"];
    for (line, denials) in lines.iter().zip([1].into_iter().chain([100; 9])) {
        for part in parts.iter().copied().chain([format!("denials={denials} ").as_str()]) {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}

// Waiting.

type Order = Arc<Mutex<Vec<(u32, Duration)>>>;

/// Those who wait for `key`, in the order of asking. When it lets them in, they say so.
async fn waiters(
    limiter: &RateLimiter<String>,
    key: &'static str,
    ids: std::ops::Range<u32>,
    order: &Order,
) -> Vec<JoinHandle<()>> {
    let start = Instant::now();
    let wait = |id| {
        let (limiter, order) = (limiter.clone(), order.clone());
        tokio::spawn(async move {
            limiter.until_ready(key).await;
            order.lock().unwrap().push((id, start.elapsed()));
        })
    };
    let tasks = ids.map(wait).collect();
    // Each has asked by now.
    yield_now().await;
    tasks
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_key_are_let_in_in_the_order_of_asking() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        let order = Order::default();
        for task in waiters(&limiter, "ada", 0..50, &order).await {
            task.await.unwrap();
        }
        let expected: Vec<_> = (0..50).map(|id| (id, id * SECOND)).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
        assert_eq!(limiter.stats().admitted, 50);
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_lets_several_in_at_once_and_in_order() {
    let limiter = limiter(Limit::new(3, SECOND));
    let order = Order::default();
    for task in waiters(&limiter, "ada", 0..10, &order).await {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..10).map(|id| (id, id / 3 * SECOND)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_was_not_charged_and_those_behind_move_up() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..10, &order).await;
        sleep(500 * MILLISECOND).await;
        for gone in [0, 1, 5, 9] {
            tasks[gone].abort();
        }
        for (id, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_err(), [0, 1, 5, 9].contains(&id));
        }
        let expected: Vec<_> =
            [2, 3, 4, 6, 7, 8].into_iter().zip(1..).map(|(id, at)| (id, at * SECOND)).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
        assert_eq!(limiter.stats().admitted, 7, "who gave up was not charged");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_alone_and_gives_up_leaves_nothing_behind() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    for _ in 0..5 {
        let waited = timeout(100 * MILLISECOND, limiter.until_ready("ada")).await;
        assert!(waited.is_err());
    }
    let start = Instant::now();
    limiter.until_ready("ada").await;
    assert_eq!(start.elapsed(), SECOND / 2);
    assert_eq!(limiter.stats().admitted, 2);
}

#[tokio::test(start_paused = true)]
async fn different_keys_do_not_wait_for_each_other() {
    let limiter = limiter(Limit::new(1, MINUTE));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let adas = waiters(&limiter, "ada", 0..3, &order).await;
    let bobs = waiters(&limiter, "bob", 10..12, &order).await;
    for task in adas.into_iter().chain(bobs) {
        task.await.unwrap();
    }
    let minutes = |id, minutes| (id, minutes * MINUTE);
    let mut order = order.lock().unwrap();
    assert_eq!(order[0], minutes(10, 0), "at once");
    order.sort();
    assert_eq!(*order, [(0, 1), (1, 2), (2, 3), (10, 0), (11, 1)].map(|(id, at)| minutes(id, at)));
}

#[tokio::test(start_paused = true)]
async fn a_check_may_come_before_those_who_wait() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..2, &order).await;
    sleep(SECOND - MILLISECOND).await;
    limiter.reset("ada").await;
    take(&limiter, "ada", 1).await;
    for task in tasks {
        task.await.unwrap();
    }
    let milliseconds = |n| n * MILLISECOND;
    assert_eq!(*order.lock().unwrap(), [(0, milliseconds(1_999)), (1, milliseconds(2_999))]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_with_an_end_is_over_at_once_where_that_is_clear() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        let start = Instant::now();
        assert!(limiter.until_ready_within("ada", Duration::ZERO).await.is_ok(), "there is room");
        for wait in [Duration::ZERO, MILLISECOND, SECOND - NANOSECOND] {
            let limited = limiter.until_ready_within("ada", wait).await.unwrap_err();
            assert!(limited.retry_after() >= SECOND, "{window:?}");
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "{window:?}");
        assert_eq!(limiter.stats().admitted, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_when_there_is_room_ends_with_a_permit() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    for wait in [SECOND, 5 * SECOND, Duration::MAX] {
        let start = Instant::now();
        assert!(limiter.until_ready_within("ada", wait).await.is_ok());
        assert_eq!(start.elapsed(), SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_behind_others_is_over_at_its_end() {
    let limiter = limiter(Limit::new(1, 10 * SECOND));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..3, &order).await;
    let start = Instant::now();
    let limited = limiter.until_ready_within("ada", Duration::ZERO).await.unwrap_err();
    assert_eq!((start.elapsed(), limited.retry_after()), (Duration::ZERO, 10 * SECOND));
    let limited = limiter.until_ready_within("ada", 3 * SECOND).await.unwrap_err();
    assert_eq!((start.elapsed(), limited.retry_after()), (3 * SECOND, 7 * SECOND));
    assert_eq!((limited.limit(), limited.cost()), (&Limit::new(1, 10 * SECOND), 1));
    // In the time of the others: it waits for the third, and for none that gave up.
    let permit = limiter.until_ready_within("ada", 37 * SECOND).await;
    assert_eq!((start.elapsed(), permit.is_ok()), (40 * SECOND, true));
    for task in tasks {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..3).map(|id| (id, (id + 1) * 10 * SECOND)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
    assert_eq!(limiter.stats().admitted, 5);
}

// Many keys.

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

// Taking turns.

/// How many turns another task has while one checks 100,000 times.
async fn turns_beside<T>(mut check: impl AsyncFnMut() -> T) -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let count = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            count.fetch_add(1, Relaxed);
            yield_now().await;
        }
    });
    for _ in 0..100_000 {
        check().await;
    }
    other.abort();
    turns.load(Relaxed)
}

/// What the `async` of a check is for: 128 of Tokio's budget, each for some 61 calls.
#[tokio::test(start_paused = true)]
async fn a_task_that_only_checks_starves_nobody() {
    let limiter = limiter(Limit::per_hour(50_000));
    let turns = turns_beside(async || limiter.check("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns");
    let turns = turns_beside(async || limiter.check("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns beside denials");
    let turns = turns_beside(async || limiter.peek("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns beside peeks");
    let plan = [Limit::per_hour(1_000_000)];
    let turns = turns_beside(async || limiter.check_with("ada", &plan).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside plans");
    let mut key = 0_u32;
    let turns = turns_beside(async || {
        key += 1;
        limiter.check(&key.to_string()).await
    });
    let turns = turns.await;
    assert!(turns >= 10, "another task had {turns} turns beside many keys");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_with_room_starves_nobody() {
    let limiter = limiter(Limit::per_hour(u32::MAX));
    let turns = turns_beside(async || limiter.until_ready("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns");
}

/// What is charged to no key of its own takes turns, too.
#[tokio::test(start_paused = true)]
async fn a_task_that_checks_keys_beyond_the_bound_starves_nobody() {
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().limit(Limit::per_hour(100)).shards(2).max_keys(50).build();
    for key in 0..50 {
        limiter.check(&key).await.unwrap();
    }
    let mut least = usize::MAX;
    // In either shard, after some number of checks in it.
    for key in [1_000, 1_001, 1_002, 1_003] {
        limiter.check(&0).await.unwrap();
        limiter.check(&1).await.unwrap();
        least = least.min(turns_beside(async || limiter.check(&key).await).await);
    }
    assert!(least >= 10, "another task had {least} turns");
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_checks_charge_nothing_starves_nobody() {
    let limiter = limiter(Limit::per_hour(100));
    take(&limiter, "ada", 5).await;
    let turns = turns_beside(async || limiter.check_n("ada", 0).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside checks of nothing");
    let turns = turns_beside(async || limiter.check_n("ada", 101).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside checks of too much");
    let turns = turns_beside(async || limiter.check_with("ada", &[]).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside checks without limits");
}
