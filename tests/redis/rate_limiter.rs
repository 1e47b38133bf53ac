//! The rate limiter on Redis: what it writes, what it remembers, and what many callers share.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Limited, Window,
    redis::{Client, Error, OnError, Permit, RateLimiter, RateLimiterBuilder},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms, until_enough},
    servers::{Cluster, Server, connect},
};

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

pub(super) async fn client(server: &Server) -> Client {
    connect(server.url()).await
}

/// Errors are seen as such, and a busy machine is no failing server.
pub(super) fn strict(client: &Client, name: &str) -> RateLimiterBuilder<String> {
    let builder = RateLimiter::builder(client, name);
    builder.on_error(OnError::Deny).timeout(Duration::from_secs(5))
}

pub(super) fn limited(checked: Result<Permit, Error>) -> Limited {
    match checked {
        Err(Error::Limited(limited)) => limited,
        other => panic!("it is not limited: {other:?}"),
    }
}

/// How many scripts the server has run.
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
async fn sixty_four_callers_on_two_connections_share_an_exact_quota() {
    let server = Server::start();
    for window in WINDOWS {
        let (one, other) = (client(&server).await, client(&server).await);
        let mut callers = tokio::task::JoinSet::new();
        for client in [one, other] {
            // Nothing is free again before the test is over.
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
async fn no_window_has_more_than_the_quota_whatever_many_callers_do() {
    for window in [Window::Log, Window::Buckets(5)] {
        until_enough(async || hammer(window).await).await;
    }
}

/// Whether much passed, where no window had more than its quota.
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
            let mut random = SmallRng::seed_from_u64(caller);
            let mut passed = Vec::new();
            while begin.elapsed() < 8 * per {
                let before = Instant::now();
                if limiter.check("ada").await.is_ok() {
                    passed.push((before, Instant::now()));
                }
                sleep(Duration::from_millis(random.random_range(0..20))).await;
            }
            passed
        });
    }
    let passed: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    for (start, _) in &passed {
        // Those that were charged within less than the window, for certain.
        let within = passed
            .iter()
            .filter(|(before, after)| before >= start && after.duration_since(*start) < per);
        let count = within.count();
        assert!(count <= quota as usize, "{window:?}: {count}");
    }
    println!("{window:?}: {} passed", passed.len());
    passed.len() > 4 * quota as usize
}

#[tokio::test]
async fn a_denial_is_repeated_without_asking_until_it_would_pass() {
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
            // Less has room, and more waits longer: only the server knows.
            let more = limited(limiter.check_n("ada", 4).await);
            // They wait for the same; the answers did not take equally long.
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
async fn a_denial_is_of_its_key_and_its_plan() {
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
async fn what_is_taken_back_ends_a_denial() {
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

    // Another process learns of it when its denial is over, and one without a cache at once.
    let other = strict(&client, "back").limit(Limit::per_minute(1)).build().unwrap();
    let forgetful =
        strict(&client, "back").limit(Limit::per_minute(1)).deny_cache(0).build().unwrap();
    limited(other.check("ada").await);
    limited(forgetful.check("ada").await);
    permit.refund().await.unwrap();
    limited(other.check("ada").await);
    forgetful.check("ada").await.unwrap();
    assert_eq!((other.stats().denied_locally, forgetful.stats().denied_locally), (1, 0));
}

#[tokio::test]
async fn denials_are_remembered_of_so_many_keys() {
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
async fn a_clock_that_goes_back_keeps_nobody_waiting_for_longer_than_a_window() {
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
                    // Nothing passes sooner because of it, either: not even in pieces, by being asked often.
                    assert!(wait <= window + begin.elapsed(), "{windows:?}: {wait:?}");
                    assert!(wait + begin.elapsed() > window / 3, "{windows:?}: {wait:?}");
                    sleep(window / 10).await;
                }
                // What was charged by the other clock can't be told from what was charged since.
                first.refund().await.unwrap();
                assert!(limiter.check("ada").await.is_err(), "{windows:?}");
                limiter.until_ready_within("ada", 2 * window).await.unwrap();
                let standings = limiter.peek("ada").await.unwrap();
                assert_eq!(standings.standings()[1].remaining(), 97, "what was charged is kept");
                limiter.reset("ada").await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_subject_has_one_key_that_leaves_when_it_is_idle() {
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
            let until = Instant::now() + Duration::from_secs(60);
            while plain.exists::<_, bool>(&keys[0]).await.unwrap() {
                assert!(Instant::now() < until, "the key stays");
                sleep(Duration::from_millis(10)).await;
            }
        }
        let keys: Vec<String> = plain.keys("*").await.unwrap();
        assert!(keys.is_empty(), "a look writes nothing: {keys:?}");
    })
    .await;
}

#[tokio::test]
async fn a_key_in_use_stays_and_a_log_keeps_no_more_than_it_has_to() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let limiter = strict(&client(&server).await, "long")
        .limit(Limit::new(100, Duration::from_millis(50)))
        .deny_cache(0)
        .build()
        .unwrap();
    let begin = Instant::now();
    let (mut passed, mut most) = (0, 0);
    while begin.elapsed() < Duration::from_millis(600) || passed <= 250 {
        assert!(begin.elapsed() < Duration::from_secs(120), "only {passed} passed");
        match limiter.check("ada").await {
            Ok(_) => passed += 1,
            Err(error) => {
                tokio::time::sleep_until(limited(Err(error)).ready_at().unwrap()).await;
            }
        }
        let bytes: usize = plain.strlen("fleeting:limit1:long:{ada}").await.unwrap();
        most = most.max(bytes);
    }
    // As many that have left as stay, and a part that is read at a time.
    assert!(most <= 44 + 28 + 12 * (2 * 100 + 64 + 1), "{passed} calls took {most} bytes");
}

#[tokio::test]
async fn a_long_key_is_shortened_and_still_its_own() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    let make = || strict(&client, "keys").limit(Limit::per_minute(1)).build().unwrap();
    let (limiter, other) = (make(), make());
    let (one, two) = ("x".repeat(9_000) + "1", "x".repeat(9_000) + "2");
    limiter.check(&one).await.unwrap();
    limiter.check(&two).await.unwrap();
    // In every process it is the same.
    limited(other.check(&one).await);
    let keys: Vec<String> = plain.keys("*").await.unwrap();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.len() < 350), "{keys:?}");
    // The longest that is not.
    let whole = "y".repeat(256);
    limiter.check(&whole).await.unwrap();
    assert!(plain.exists::<_, bool>(format!("fleeting:limit1:keys:{{{whole}}}")).await.unwrap());
}

#[tokio::test]
async fn what_others_have_put_there_is_an_error_whatever_the_policy() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    for policy in [OnError::Allow, OnError::Deny, OnError::Local] {
        for window in WINDOWS {
            let limiter: RateLimiter<String> = RateLimiter::builder(&client, "taken")
                .window(window)
                .limit(Limit::per_minute(1))
                .on_error(policy)
                .timeout(Duration::from_secs(5))
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
    // What another window has written is no other program's, but as little understood.
    let log = strict(&client, "kinds").limit(Limit::per_minute(1)).build().unwrap();
    let gcra =
        strict(&client, "kinds").window(Window::Gcra).limit(Limit::per_minute(1)).build().unwrap();
    log.check("ada").await.unwrap();
    assert!(matches!(gcra.check("ada").await, Err(Error::WrongType { .. })));
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
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
async fn a_plan_of_another_window_counts_the_same_calls_of_a_log() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "log").limit(Limit::per_hour(5)).build().unwrap();
    for _ in 0..4 {
        limiter.check("ada").await.unwrap();
    }
    let plan = [Limit::per_minute(9), Limit::per_hour(6)];
    let permit = limiter.check_with("ada", &plan).await.unwrap();
    assert_eq!(permit.remaining(), 1);
    assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 0);
    permit.refund().await.unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn a_smaller_plan_of_gcra_finds_more_in_use_than_it_has() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "gcra")
        .window(Window::Gcra)
        .limit(Limit::per_hour(100))
        .build()
        .unwrap();
    limiter.check_n("ada", 100).await.unwrap();
    // A unit leaks in 36 s by both; 51 have to before one has room.
    let half = [Limit::new(50, Duration::from_secs(1_800))];
    let state = limiter.peek_with("ada", &half).await.unwrap();
    assert_eq!(state.remaining(), 0);
    for wait in [state.retry_after(), state.standings()[0].more_after().unwrap()] {
        assert!((51 * 36 - 5..=51 * 36).contains(&wait.as_secs()), "{wait:?}");
    }
}

#[tokio::test]
async fn a_name_that_can_not_be_part_of_a_key_is_refused() {
    let server = Server::start();
    let client = client(&server).await;
    for name in ["", "a{b", "a}b"] {
        let limiter = RateLimiter::<String>::builder(&client, name).limit(Limit::per_second(1));
        assert!(matches!(limiter.build(), Err(Error::Name(bad)) if bad == name));
    }
}

#[tokio::test]
#[should_panic(expected = "a rate limiter needs at least one limit, got none")]
async fn no_limit() {
    let server = Server::start();
    let _ = RateLimiter::<String>::builder(&client(&server).await, "api").build();
}

#[tokio::test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 0")]
async fn no_buckets() {
    let server = Server::start();
    let _ =
        RateLimiter::<String>::builder(&client(&server).await, "api").window(Window::Buckets(0));
}

#[tokio::test]
async fn keys_are_whatever_serde_writes() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let limiter: RateLimiter<(u32, String)> = RateLimiter::builder(&client(&server).await, "pairs")
        .limit(Limit::per_minute(1))
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
async fn in_a_cluster_keys_are_on_all_nodes() {
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
        assert!(keys > 5, "{keys} keys are on this node");
    }
}
