//! The rate limiter on Redis: stored keys, cached denials, and quotas shared by many callers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Limited, Window,
    redis::{Client, Error, OnError, Permit, RateLimiter, RateLimiterBuilder},
};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms, until_enough},
    near::calls,
    patience::patience,
    servers::{Cluster, Server, connect},
};

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

pub(super) async fn client(server: &Server) -> Client {
    connect(server.url()).await
}

/// Returns a builder with `OnError::Deny`, so that errors are visible, and a timeout that is generous for loaded
/// machines.
pub(super) fn strict(client: &Client, name: &str) -> RateLimiterBuilder<String> {
    let builder = RateLimiter::builder(client, name);
    builder.on_error(OnError::Deny).timeout(patience())
}

pub(super) fn limited(checked: Result<Permit, Error>) -> Limited {
    match checked {
        Err(Error::Limited(limited)) => limited,
        other => panic!("the check was not denied: {other:?}"),
    }
}

/// Returns the number of scripts that the server has executed.
async fn scripts_run(plain: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(plain).await.unwrap();
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    calls("cmdstat_evalsha:") + calls("cmdstat_eval:")
}

pub(super) async fn server_time(plain: &mut MultiplexedConnection) -> u64 {
    let (seconds, microseconds): (u64, u64) = redis::cmd("TIME").query_async(plain).await.unwrap();
    seconds * 1_000_000 + microseconds
}

#[tokio::test]
async fn concurrent_callers_of_two_clients_share_an_exact_quota() {
    let server = Server::start();
    for window in WINDOWS {
        let (one, other) = (client(&server).await, client(&server).await);
        let mut callers = tokio::task::JoinSet::new();
        for client in [one, other] {
            // A window longer than the test, so that no charge leaves it.
            let limiter = strict(&client, &format!("{window:?}").replace(['(', ')'], "-"))
                .window(window)
                .limit(Limit::new(100, Duration::from_secs(86_400)))
                .build()
                .unwrap();
            for _ in 0..32 {
                let limiter = limiter.clone();
                callers.spawn(async move {
                    let mut passed = 0;
                    for _ in 0..5 {
                        passed += u32::from(limiter.check("ada").await.is_ok());
                    }
                    passed
                });
            }
        }
        assert_eq!(callers.join_all().await.into_iter().sum::<u32>(), 100, "{window:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_admits_more_than_the_quota_under_concurrency() {
    for window in [Window::Log, Window::Buckets(5)] {
        until_enough(async || hammer(window).await).await;
    }
}

/// Asserts that no window admits more than its quota. Returns whether enough calls passed for the assertion to be
/// meaningful.
async fn hammer(window: Window) -> bool {
    let server = Server::start();
    let (quota, per) = (40, Duration::from_millis(100));
    let limiter = strict(&client(&server).await, "busy")
        .window(window)
        .limit(Limit::new(quota, per))
        .build()
        .unwrap();
    let begin = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..64 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(caller);
            let mut passed = Vec::new();
            while begin.elapsed() < 8 * per {
                let before = Instant::now();
                if limiter.check("ada").await.is_ok() {
                    passed.push((before, Instant::now()));
                }
                sleep(Duration::from_millis(rng.random_range(0..20))).await;
            }
            passed
        });
    }
    let passed: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    for (start, _) in &passed {
        // Calls that were certainly charged within one window.
        let within = passed
            .iter()
            .filter(|(before, after)| before >= start && after.duration_since(*start) < per);
        let count = within.count();
        assert!(count <= quota as usize, "{window:?}: {count} calls passed in one window");
    }
    println!("{window:?}: {} passed", passed.len());
    passed.len() > 4 * quota as usize
}

#[tokio::test]
async fn denial_is_repeated_without_a_round_trip_until_it_would_pass() {
    in_time(async || {
        let server = Server::start();
        let mut plain = server.plain().await;
        for window in WINDOWS {
            let limiter = strict(&client(&server).await, "denials")
                .window(window)
                .limit(Limit::new(4, ms(400)))
                .build()
                .unwrap();
            limiter.check_n("ada", 3).await.unwrap();
            let first = limited(limiter.check_n("ada", 2).await);
            let before = scripts_run(&mut plain).await;
            for _ in 0..10 {
                let again = limited(limiter.check_n("ada", 2).await);
                assert_eq!(again.ready_at(), first.ready_at());
                assert_eq!((again.cost(), again.limit()), (2, first.limit()));
            }
            assert_eq!(scripts_run(&mut plain).await, before, "{window:?}");
            assert_eq!(limiter.stats().denied_locally, 10);
            assert_eq!(limiter.stats().denied, 11);
            // For other costs the server decides: a lower one passes, a higher one is denied.
            let more = limited(limiter.check_n("ada", 4).await);
            // Both wait for the same charge; the replies took different times.
            let jitter = ms(50);
            assert!(more.ready_at().unwrap() + jitter >= first.ready_at().unwrap());
            limiter.check_n("ada", 1).await.unwrap();
            assert_eq!(scripts_run(&mut plain).await, before + 2);
            let last = limited(limiter.check_n("ada", 4).await);
            tokio::time::sleep_until(last.ready_at().unwrap()).await;
            limiter.check_n("ada", 4).await.unwrap();
            limiter.reset("ada").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn cached_denial_applies_to_its_key_and_limits_only() {
    let server = Server::start();
    let limiter =
        strict(&client(&server).await, "plans").limit(Limit::per_minute(1)).build().unwrap();
    let paid = [Limit::per_minute(3)];
    limiter.check("ada").await.unwrap();
    limited(limiter.check("ada").await);
    limiter.check("grace").await.unwrap();
    limiter.check_with("ada", &paid).await.unwrap();
    limiter.check_with("ada", &paid).await.unwrap();
    limited(limiter.check_with("ada", &paid).await);
    limited(limiter.check_with("ada", &paid).await);
    assert_eq!(limiter.stats().denied_locally, 1);
}

#[tokio::test]
async fn refund_and_reset_end_a_cached_denial() {
    let server = Server::start();
    let client = client(&server).await;
    let limiter = strict(&client, "back").limit(Limit::per_minute(1)).build().unwrap();
    let permit = limiter.check("ada").await.unwrap();
    limited(limiter.check("ada").await);
    permit.refund().await.unwrap();
    limiter.check("ada").await.unwrap();
    limited(limiter.check("ada").await);
    limiter.reset("ada").await.unwrap();
    let permit = limiter.check("ada").await.unwrap();

    // Another process repeats its cached denial; one without a cache is admitted.
    let other = strict(&client, "back").limit(Limit::per_minute(1)).build().unwrap();
    let uncached =
        strict(&client, "back").limit(Limit::per_minute(1)).deny_cache(0).build().unwrap();
    limited(other.check("ada").await);
    limited(uncached.check("ada").await);
    permit.refund().await.unwrap();
    limited(other.check("ada").await);
    uncached.check("ada").await.unwrap();
    assert_eq!((other.stats().denied_locally, uncached.stats().denied_locally), (1, 0));
}

#[tokio::test]
async fn deny_cache_is_bounded_by_its_number_of_keys() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "few")
        .limit(Limit::per_minute(1))
        .deny_cache(2)
        .build()
        .unwrap();
    for key in ["a", "b", "c", "d"] {
        limiter.check(key).await.unwrap();
        limited(limiter.check(key).await);
    }
    for key in ["a", "b", "c", "d"] {
        limited(limiter.check(key).await);
    }
    assert_eq!(limiter.stats().denied_locally, 2);
    assert_eq!(limiter.stats().denied, 8);
}

/// As after a failover from a master whose clock was ahead.
#[tokio::test]
async fn retry_after_is_at_most_a_window_after_the_clock_went_back() {
    in_time(async || {
        let server = Server::start_with_clock();
        let (window, hour) = (ms(500), Duration::from_secs(3_600));
        for windows in WINDOWS {
            let limiter = strict(&client(&server).await, "ahead")
                .window(windows)
                .limit(Limit::new(2, window))
                .limit(Limit::new(100, 24 * hour))
                .deny_cache(0)
                .build()
                .unwrap();
            for ahead in [hour, ms(100)] {
                server.set_clock(ahead);
                let first = limiter.check("ada").await.unwrap();
                limiter.check("ada").await.unwrap();
                server.set_clock(Duration::ZERO);
                let begin = Instant::now();
                for _ in 0..3 {
                    let wait = limited(limiter.check("ada").await).retry_after();
                    // No call passes sooner because of it either, not even after repeated checks.
                    assert!(wait <= window + begin.elapsed(), "{windows:?}: {wait:?}");
                    assert!(wait + begin.elapsed() > window / 3, "{windows:?}: {wait:?}");
                    sleep(window / 10).await;
                }
                // Charges from before the correction cannot be refunded.
                first.refund().await.unwrap();
                assert!(limiter.check("ada").await.is_err(), "{windows:?}");
                limiter.until_ready_within("ada", 2 * window).await.unwrap();
                let standings = limiter.peek("ada").await.unwrap();
                assert_eq!(standings.standings()[1].remaining(), 97, "existing charges are kept");
                limiter.reset("ada").await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn subject_has_one_key_which_expires_when_idle() {
    in_time(async || {
        let server = Server::start();
        let mut plain = server.plain().await;
        for window in WINDOWS {
            let limiter = strict(&client(&server).await, "api")
                .window(window)
                .limit(Limit::new(100, ms(300)))
                .limit(Limit::new(300, ms(200)))
                .build()
                .unwrap();
            for _ in 0..100 {
                limiter.check("ada").await.unwrap();
            }
            let keys: Vec<String> = plain.keys("*").await.unwrap();
            assert_eq!(keys, ["fleeting:limit1:api:{ada}"]);
            let ttl: i64 = plain.pttl(&keys[0]).await.unwrap();
            assert!((1..=ms(340).as_millis() as i64).contains(&ttl), "{window:?}: {ttl}");
            limiter.peek("grace").await.unwrap();
            let until = Instant::now() + patience();
            while plain.exists::<_, bool>(&keys[0]).await.unwrap() {
                assert!(Instant::now() < until, "the key did not expire");
                sleep(Duration::from_millis(10)).await;
            }
        }
        let keys: Vec<String> = plain.keys("*").await.unwrap();
        assert!(keys.is_empty(), "peek has written a key: {keys:?}");
    })
    .await;
}

#[tokio::test]
async fn log_in_use_is_bounded_in_size() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let limiter = strict(&client(&server).await, "long")
        .limit(Limit::new(100, Duration::from_millis(50)))
        .deny_cache(0)
        .build()
        .unwrap();
    let begin = Instant::now();
    let (mut passed, mut max_bytes) = (0, 0);
    while begin.elapsed() < Duration::from_millis(600) || passed <= 250 {
        assert!(begin.elapsed() < patience(), "only {passed} passed");
        match limiter.check("ada").await {
            Ok(_) => passed += 1,
            Err(error) => {
                tokio::time::sleep_until(limited(Err(error)).ready_at().unwrap()).await;
            }
        }
        let bytes: usize = plain.strlen("fleeting:limit1:long:{ada}").await.unwrap();
        max_bytes = max_bytes.max(bytes);
    }
    // At most as many expired calls as live ones, plus the calls of one read.
    assert!(
        max_bytes <= 44 + 28 + 12 * (2 * 100 + 64 + 1),
        "{passed} calls took {max_bytes} bytes"
    );
}

#[tokio::test]
async fn long_keys_are_shortened_and_stay_distinct() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    let make = || strict(&client, "keys").limit(Limit::per_minute(1)).build().unwrap();
    let (limiter, other) = (make(), make());
    let (one, two) = ("x".repeat(9_000) + "1", "x".repeat(9_000) + "2");
    limiter.check(&one).await.unwrap();
    limiter.check(&two).await.unwrap();
    // The shortened key is the same in every process.
    limited(other.check(&one).await);
    let keys: Vec<String> = plain.keys("*").await.unwrap();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.len() < 350), "{keys:?}");
    // The longest key that is not shortened.
    let whole = "y".repeat(256);
    limiter.check(&whole).await.unwrap();
    assert!(plain.exists::<_, bool>(format!("fleeting:limit1:keys:{{{whole}}}")).await.unwrap());
}

#[tokio::test]
async fn key_of_another_program_is_a_wrong_type_error_with_every_policy() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    for policy in [OnError::Allow, OnError::Deny, OnError::Local] {
        for window in WINDOWS {
            let limiter: RateLimiter<String> = RateLimiter::builder(&client, "taken")
                .window(window)
                .limit(Limit::per_minute(1))
                .on_error(policy)
                .timeout(patience())
                .build()
                .unwrap();
            let () = plain.lpush("fleeting:limit1:taken:{list}", 1).await.unwrap();
            let () = plain.set("fleeting:limit1:taken:{text}", "hello").await.unwrap();
            for key in ["list", "text"] {
                let error = limiter.check(key).await.unwrap_err();
                let name = format!("fleeting:limit1:taken:{{{key}}}");
                assert!(
                    matches!(&error, Error::WrongType { key } if *key == name),
                    "{window:?}: {error:?}"
                );
                assert!(matches!(limiter.peek(key).await, Err(Error::WrongType { .. })));
            }
            let text: String = plain.get("fleeting:limit1:taken:{text}").await.unwrap();
            assert_eq!(text, "hello");
        }
    }
}

#[tokio::test]
async fn key_starts_again_under_another_window() {
    let server = Server::start();
    let client = client(&server).await;
    for before in WINDOWS {
        for after in WINDOWS.into_iter().filter(|after| *after != before) {
            let build = |window| {
                let builder = strict(&client, &format!("{before:?} {after:?}")).window(window);
                builder.limit(Limit::per_hour(100)).build().unwrap()
            };
            let (old, new) = (build(before), build(after));
            // Few calls and many: a long state is read in parts.
            for (key, calls) in [("ada", 1), ("bob", 60)] {
                let mut permit = old.check(key).await.unwrap();
                for _ in 1..calls {
                    permit = old.check(key).await.unwrap();
                }
                assert_eq!(new.peek(key).await.unwrap().remaining(), 100, "{before:?} {after:?}");
                assert_eq!(old.peek(key).await.unwrap().remaining(), 100 - calls);
                let taken = new.check_n(key, 30).await.unwrap();
                assert_eq!(taken.remaining(), 70, "{before:?} {after:?}");
                permit.refund().await.unwrap();
                let state = new.peek(key).await.unwrap();
                assert_eq!(state.remaining(), 70, "an old permit refunds nothing");
                for left in [69, 68] {
                    assert_eq!(new.check(key).await.unwrap().remaining(), left);
                }
                taken.refund().await.unwrap();
                assert_eq!(new.peek(key).await.unwrap().remaining(), 98, "{before:?} {after:?}");
                limited(new.check_n(key, 99).await);
            }
        }
    }
    let keys: Vec<String> = server.plain().await.keys("*").await.unwrap();
    for key in keys {
        let ttl: i64 = server.plain().await.pttl(&key).await.unwrap();
        assert!(ttl > 0, "{key} expires");
    }
}

#[tokio::test]
async fn scripts_are_sent_again_after_script_flush() {
    let server = Server::start();
    let mut plain = server.plain().await;
    for window in WINDOWS {
        let limiter =
            strict(&client(&server).await, &format!("{window:?}").replace(['(', ')'], "-"))
                .window(window)
                .limit(Limit::per_hour(10))
                .build()
                .unwrap();
        for left in [9, 8, 7] {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut plain).await.unwrap();
            assert_eq!(limiter.check("ada").await.unwrap().remaining(), left);
        }
    }
}

#[tokio::test]
async fn check_with_counts_the_calls_at_each_position_of_a_log() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "log").limit(Limit::per_hour(5)).build().unwrap();
    for _ in 0..4 {
        limiter.check("ada").await.unwrap();
    }
    let limits = [Limit::per_minute(9), Limit::per_hour(6)];
    let permit = limiter.check_with("ada", &limits).await.unwrap();
    assert_eq!(permit.remaining(), 4);
    assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 0);
    permit.refund().await.unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
}

/// During a rollout that changes `per`, processes with both limits use the same keys.
#[tokio::test]
async fn checks_with_limits_in_turn_do_not_count_all_calls_again() {
    const CALLS: u32 = 5_000;
    let server = Server::start();
    let client = client(&server).await;
    let of = |quota: u32, hours: u64| Limit::new(quota, Duration::from_secs(3_600 * hours));
    let build = |limits: &[Limit]| {
        let builder = strict(&client, "rollout").window(Window::Log).deny_cache(0);
        limits.iter().cloned().fold(builder, RateLimiterBuilder::limit).build().unwrap()
    };
    let (old, new) = (build(&[of(9_000, 1)]), build(&[of(9_000, 2), of(8_000, 3)]));
    // Its quota is in use: it is always denied.
    let small = build(&[of(CALLS, 4)]);
    for permit in join_all((0..CALLS).map(|_| old.check("ada"))).await {
        permit.unwrap();
    }
    let reads = async || calls(&server, "getrange").await;
    let first = reads().await;
    new.check("ada").await.unwrap();
    limited(small.check("ada").await);
    assert!(reads().await - first > u64::from(CALLS) / 64, "each counts the calls once");
    let before = reads().await;
    let mut used = CALLS + 1;
    for _ in 0..10 {
        let permit = old.check("ada").await.unwrap();
        used += 1;
        assert_eq!(permit.remaining(), 9_000 - used);
        let other = new.check("ada").await.unwrap();
        used += 1;
        assert_eq!(other.remaining(), 9_000 - used, "both count the same calls");
        limited(small.check("ada").await);
        permit.refund().await.unwrap();
        used -= 1;
        assert_eq!(old.peek("ada").await.unwrap().remaining(), 9_000 - used);
        assert_eq!(new.peek("ada").await.unwrap().remaining(), 9_000 - used);
    }
    let each = (reads().await - before) as f64 / 60.0;
    assert!(each < 8.0, "{each} reads per call");
}

#[tokio::test]
async fn peek_with_a_smaller_gcra_quota_reports_the_wait_until_it_fits() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "gcra")
        .window(Window::Gcra)
        .limit(Limit::per_hour(100))
        .build()
        .unwrap();
    let begin = Instant::now();
    limiter.check_n("ada", 100).await.unwrap();
    // With both limits a unit leaks in 36 s; 51 units must leak before one fits.
    let half = [Limit::new(50, Duration::from_secs(1_800))];
    let state = limiter.peek_with("ada", &half).await.unwrap();
    assert_eq!(state.remaining(), 0);
    for wait in [state.retry_after(), state.standings()[0].more_after().unwrap()] {
        let late = begin.elapsed().as_secs() + 2;
        assert!((51 * 36 - late..=51 * 36).contains(&wait.as_secs()), "{wait:?}");
    }
}

#[tokio::test]
async fn name_with_braces_is_refused() {
    let server = Server::start();
    let client = client(&server).await;
    for name in ["", "a{b", "a}b"] {
        let limiter = RateLimiter::<String>::builder(&client, name).limit(Limit::per_second(1));
        assert!(matches!(limiter.build(), Err(Error::Name(bad)) if bad == name));
    }
}

#[tokio::test]
#[should_panic(expected = "a rate limiter needs at least one limit, got none")]
async fn build_panics_without_a_limit() {
    let server = Server::start();
    let _ = RateLimiter::<String>::builder(&client(&server).await, "api").build();
}

#[tokio::test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 0")]
async fn window_panics_with_zero_buckets() {
    let server = Server::start();
    let _ =
        RateLimiter::<String>::builder(&client(&server).await, "api").window(Window::Buckets(0));
}

#[tokio::test]
async fn keys_may_be_any_type_that_serde_serializes() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let limiter: RateLimiter<(u32, String)> = RateLimiter::builder(&client(&server).await, "pairs")
        .limit(Limit::per_hour(1))
        .on_error(OnError::Deny)
        .timeout(patience())
        .build()
        .unwrap();
    limiter.check(&(1, "23".to_owned())).await.unwrap();
    limiter.check(&(12, "3".to_owned())).await.unwrap();
    let mut keys: Vec<String> = plain.keys("*").await.unwrap();
    keys.sort();
    assert_eq!(
        keys,
        [r#"fleeting:limit1:pairs:{[1,"23"]}"#, r#"fleeting:limit1:pairs:{[12,"3"]}"#]
    );
}

#[tokio::test]
async fn keys_are_spread_over_all_nodes_of_a_cluster() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let limiter = Arc::new(strict(&client, "spread").limit(Limit::per_hour(2)).build().unwrap());
    let mut callers = tokio::task::JoinSet::new();
    for key in 0..60 {
        let limiter = Arc::clone(&limiter);
        callers.spawn(async move {
            let key = key.to_string();
            let permit = limiter.check(&key).await.unwrap();
            assert_eq!(limiter.check(&key).await.unwrap().remaining(), 0);
            limited(limiter.check(&key).await);
            permit.refund().await.unwrap();
            assert_eq!(limiter.peek(&key).await.unwrap().remaining(), 1);
        });
    }
    callers.join_all().await;
    for node in cluster.nodes() {
        let keys: usize = redis::cmd("DBSIZE").query_async(&mut node.plain().await).await.unwrap();
        assert!(keys > 5, "only {keys} keys are on this node");
    }
}
