//! `set_limits`: limits that one process changes for all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant as RealInstant},
};

use fleeting::{
    Limit, Window,
    redis::{Client, Error, RateLimiter},
};
use futures::FutureExt;
use redis::AsyncCommands;
use tokio::{
    task::{spawn_blocking, yield_now},
    time::{Instant, sleep, timeout},
};
use tracing::Level;

use super::rate_limiter::{client, limited, strict};
use crate::{
    clock::{in_time, ms},
    log::Log,
    patience::patience,
    servers::{Cluster, FakeServer, Reply, Server, connect},
};

const SECOND: Duration = Duration::from_secs(1);

async fn hourly(server: &Server, window: Window, quota: u32) -> RateLimiter<String> {
    let builder = strict(&client(server).await, "changes").window(window);
    builder.limit(Limit::per_hour(quota)).build().unwrap()
}

/// Waits until the limiter has these limits; returns the time that this took.
async fn wait_for_limits(limiter: &RateLimiter<String>, limits: &[Limit]) -> Duration {
    let start = Instant::now();
    let seen = async {
        while *limiter.limits() != *limits {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(patience(), seen).await.expect("the limiter sees the new limits");
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_limits_applies_to_all_processes() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let server = Server::start();
        let (one, other) = (hourly(&server, window, 10).await, hourly(&server, window, 10).await);
        one.check_n("ada", 4).await.unwrap();
        let limits = [Limit::per_hour(6).named("less, \"by\" far"), Limit::per_hour(8).of_bytes()];
        one.set_limits(limits.clone()).await.unwrap();
        assert_eq!(*one.limits(), limits, "the new limits apply to this process immediately");
        wait_for_limits(&other, &limits).await;
        // Existing charges stay.
        assert_eq!(other.check("ada").await.unwrap().remaining(), 1, "{window:?}");
        // A limiter that is built later, with other limits in its builder.
        let late = hourly(&server, window, 10).await;
        wait_for_limits(&late, &limits).await;
        assert!(matches!(late.check_n("bob", 7).await, Err(Error::Limited(_))));
        one.set_limits([Limit::per_hour(100)]).await.unwrap();
        for limiter in [&other, &late] {
            wait_for_limits(limiter, &[Limit::per_hour(100)]).await;
            assert!(limiter.check_n("eve", 40).await.is_ok(), "{window:?}");
        }
    }
}

/// Two changes, of which the second happens right after a poll. Limits that another process sets are only seen on the
/// server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_limits_reaches_other_processes_within_a_second() {
    let server = Server::start();
    let limiter = hourly(&server, Window::Log, 10).await;
    let mut plain = server.plain().await;
    in_time(async || {
        for quota in [11, 12] {
            let stored = format!("[[{quota},3600000000000,null]]");
            let () = plain.clone().set("fleeting:limit1:changes:{}:limits", stored).await.unwrap();
            let after = wait_for_limits(&limiter, &[Limit::per_hour(quota)]).await;
            assert!(after < ms(1_000), "{after:?}");
        }
    })
    .await;
    // As the process that sets them writes them.
    limiter.set_limits([Limit::per_hour(13)]).await.unwrap();
    let stored: String = plain.get("fleeting:limit1:changes:{}:limits").await.unwrap();
    assert_eq!(stored, "[[13,3600000000000,null]]");
}

#[tokio::test(start_paused = true)]
async fn set_limits_reaches_the_limiters_of_this_process_at_once() {
    let server = Server::start();
    let (start, _stopped) = (Instant::now(), stop_clock());
    let (one, other) =
        (hourly(&server, Window::Log, 10).await, hourly(&server, Window::Log, 10).await);
    for quota in 11..14 {
        one.set_limits([Limit::per_hour(quota)]).await.unwrap();
        until(|| *other.limits() == [Limit::per_hour(quota)]).await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Stops a paused clock, which would otherwise advance whenever all tasks wait for replies, until the result is
/// dropped.
fn stop_clock() -> mpsc::Sender<()> {
    let (stop, until_dropped) = mpsc::channel();
    spawn_blocking(move || until_dropped.recv());
    stop
}

async fn until(has_happened: impl Fn() -> bool) {
    let start = RealInstant::now();
    while !has_happened() {
        assert!(start.elapsed() < patience(), "it has not happened in time");
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn polls_follow_the_real_clock_while_that_of_tokio_is_paused() {
    let polls = Arc::<AtomicU32>::default();
    let count = polls.clone();
    let server = FakeServer::start(move |_| {
        count.fetch_add(1, Relaxed);
        Reply::Bytes(b"$-1\r\n".into())
    })
    .await;
    let (stopped, real_start) = (stop_clock(), RealInstant::now());
    let client = connect(server.url()).await;
    let builder = strict(&client, "paused").limit(Limit::per_hour(1));
    let _limiter: RateLimiter<String> = builder.build().unwrap();
    until(|| polls.load(Relaxed) > 0).await;
    drop(stopped);
    sleep(10 * 24 * 3_600 * SECOND).await;
    // The first, with an `INFO`, and then at most one per 0.2 s of the real clock. Each is sent again if virtual time
    // passes while its reply is on the way.
    let most = 3 + 2 * (real_start.elapsed().as_millis() as u32 / 200);
    let polls = polls.load(Relaxed);
    println!("{polls} polls in {:?}", real_start.elapsed());
    assert!(polls <= most, "at most {most}");
}

/// As in memory, even if a bucket of the old window is longer than the whole new window.
#[tokio::test]
async fn shorter_window_frees_calls_that_have_left_it() {
    let server = Server::start();
    for window in [Window::Log, Window::Buckets(10)] {
        let builder = strict(&client(&server).await, &format!("{window:?}")).window(window);
        let limits = [Limit::per_hour(4), Limit::per_hour(9)];
        let limiter = limits.iter().fold(builder, |builder, limit| builder.limit(limit.clone()));
        let limiter = limiter.build().unwrap();
        for _ in 0..3 {
            limiter.check("ada").await.unwrap();
            limiter.check_with("bob", &limits[..1]).await.unwrap();
        }
        // It is not sufficient that the first call leaves the window.
        limiter.set_limits([Limit::per_second(1), Limit::new(9, 1_800 * SECOND)]).await.unwrap();
        for key in ["ada", "bob"] {
            let limits = &limiter.limits()[..if key == "bob" { 1 } else { 2 }];
            let state = limiter.peek_with(key, limits).await.unwrap();
            assert!(state.retry_after() < 2 * SECOND, "{window:?} {key}: {state:?}");
            sleep(state.retry_after()).await;
            let permit = limiter.check_with(key, limits).await.unwrap();
            permit.refund().await.unwrap();
        }
        let left = limiter.peek("ada").await.unwrap().standings()[1].remaining();
        assert_eq!(left, 6, "existing charges stay: {window:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_limits_ends_cached_denials() {
    let server = Server::start();
    let limiter = hourly(&server, Window::Log, 2).await;
    limiter.check_n("ada", 2).await.unwrap();
    for _ in 0..3 {
        limited(limiter.check("ada").await);
    }
    assert_eq!(limiter.stats().denied_locally, 2);
    limiter.set_limits([Limit::per_hour(3)]).await.unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_limits_applies_to_waiters() {
    let server = Server::start();
    let limiter = hourly(&server, Window::Log, 5).await;
    limiter.check_n("ada", 5).await.unwrap();
    let wait = |cost| {
        let limiter = limiter.clone();
        let mut waits = Box::pin(async move { limiter.until_ready_n("ada", cost).await });
        // Polled before the spawn, since a waiter joins the queue at its first poll.
        assert!((&mut waits).now_or_never().is_none());
        tokio::spawn(waits)
    };
    let (head, behind) = (wait(4), wait(2));
    sleep(Duration::from_millis(100)).await;
    assert!(!head.is_finished() && !behind.is_finished());
    limiter.set_limits([Limit::per_hour(9)]).await.unwrap();
    let permit = timeout(patience(), head).await.expect("the waiter is woken").unwrap();
    assert_eq!(permit.unwrap().remaining(), 0);
    limiter.set_limits([Limit::per_hour(1)]).await.unwrap();
    let denied = timeout(patience(), behind).await.expect("the waiter is woken").unwrap();
    assert_eq!(limited(denied).ready_at(), None, "a cost above the quota can never pass");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_limits_on_the_server_are_ignored() {
    let server = Server::start();
    let limiter = hourly(&server, Window::Log, 5).await;
    let mut plain = server.plain().await;
    for invalid in [
        "",
        "hello",
        "[]",
        "[[0,1,null]]",
        "[[1,0,null]]",
        "[[1,99999999999999999999,null]]",
        "[[1,1,null,\"apples\"]]",
        "[[1,1,null],[0,1,null]]",
    ] {
        let () = plain.set("fleeting:limit1:changes:{}:limits", invalid).await.unwrap();
        sleep(Duration::from_millis(500)).await;
        assert_eq!(*limiter.limits(), [Limit::per_hour(5)], "{invalid:?}");
    }
    let () =
        plain.set("fleeting:limit1:changes:{}:limits", "[[7,1000000000,\"own\"]]").await.unwrap();
    wait_for_limits(&limiter, &[Limit::per_second(7).named("own")]).await;
}

/// Returns a limiter of 5 calls per hour whose calls wait for a server for a second only.
fn impatient(server: &Server) -> RateLimiter<String> {
    let client = Client::builder(server.url()).timeout(ms(1_000)).lazy().unwrap();
    let builder = strict(&client, "changes").timeout(ms(1_000));
    builder.limit(Limit::per_hour(5)).build().unwrap()
}

#[tokio::test]
async fn set_limits_without_a_server_changes_nothing() {
    let mut server = Server::start();
    let limiter = impatient(&server);
    server.kill();
    assert!(limiter.set_limits([Limit::per_hour(9)]).await.is_err());
    assert_eq!(*limiter.limits(), [Limit::per_hour(5)]);
}

/// As in memory: `settle` charges under the limits that apply when it is called.
#[tokio::test]
async fn settle_charges_under_the_current_limits() {
    let server = Server::start();
    for (window, left) in [(Window::Log, 49), (Window::Buckets(10), 49), (Window::Gcra, 49)] {
        let builder = strict(&client(&server).await, &format!("{window:?}")).window(window);
        let limiter = builder.limit(Limit::per_hour(10)).build().unwrap();
        let permit = limiter.check("ada").await.unwrap();
        limiter.set_limits([Limit::per_hour(100)]).await.unwrap();
        permit.settle(51).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), left, "{window:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clear_limits_restores_the_limits_of_each_builder() {
    let server = Server::start();
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let one = hourly(&server, window, 10).await;
        let other = hourly(&server, window, 20).await;
        let stored = [Limit::per_hour(5)];
        one.set_limits(stored.clone()).await.unwrap();
        wait_for_limits(&other, &stored).await;
        let key = format!("{window:?}");
        one.check_n(&key, 5).await.unwrap();
        limited(one.check(&key).await);
        one.clear_limits().await.unwrap();
        assert_eq!(*one.limits(), [Limit::per_hour(10)], "immediately in this process");
        let permit = one.check(&key).await.expect("cached denials have ended");
        assert_eq!(permit.remaining(), 4, "existing charges stay: {window:?}");
        wait_for_limits(&other, &[Limit::per_hour(20)]).await;
        let late = hourly(&server, window, 30).await;
        sleep(2 * SECOND).await;
        assert_eq!(*late.limits(), [Limit::per_hour(30)], "in a process that starts later");
        one.clear_limits().await.expect("without limits to clear");
        let () = server.plain().await.flushall().await.unwrap();
    }
}

/// The limits were set by a process that has ended, which is how a later release finds them.
#[tokio::test]
async fn stored_limits_are_logged_and_end_with_their_key() {
    let (log, _guard) = Log::start(Level::INFO);
    let server = Server::start();
    let mut plain = server.plain().await;
    let key = "fleeting:limit1:changes:{}:limits";
    let () = plain.set(key, "[[7,1000000000,\"own\"]]").await.unwrap();
    let limiter = hourly(&server, Window::Log, 10).await;
    wait_for_limits(&limiter, &[Limit::per_second(7).named("own")]).await;
    sleep(SECOND).await;
    let lines = log.lines("limits stored on the server replace those of the builder");
    assert_eq!(lines.len(), 1, "once per change: {lines:?}");
    let () = plain.del(key).await.unwrap();
    wait_for_limits(&limiter, &[Limit::per_hour(10)]).await;
    assert_eq!(log.lines("no limits are stored on the server any more").len(), 1);
}

#[tokio::test]
async fn clear_limits_without_a_server_changes_nothing() {
    let mut server = Server::start();
    let (limiter, limits) = (impatient(&server), [Limit::per_hour(9)]);
    hourly(&server, Window::Log, 5).await.set_limits(limits.clone()).await.unwrap();
    wait_for_limits(&limiter, &limits).await;
    server.kill();
    assert!(limiter.clear_limits().await.is_err());
    assert_eq!(*limiter.limits(), limits);
}

/// Usage of `Gcra` remains the same number of units under limits of any step.
#[tokio::test]
async fn changed_limits_lock_no_key_out() {
    in_time(async || {
        let server = Server::start();
        let daily = Limit::new(1, 86_400 * SECOND);
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            let builder = strict(&client(&server).await, &format!("{window:?}")).window(window);
            let limiter: RateLimiter<String> = builder.limit(Limit::per_hour(10)).build().unwrap();
            limiter.set_limits([daily.clone()]).await.unwrap();
            limiter.check("ada").await.unwrap();
            limiter.set_limits([Limit::per_hour(1_000)]).await.unwrap();
            assert_eq!(limiter.check_n("ada", 998).await.unwrap().remaining(), 1, "{window:?}");
            limiter.reset("ada").await.unwrap();
            limiter.check("ada").await.unwrap();
            limiter.set_limits([daily.clone()]).await.unwrap();
            let wait = limited(limiter.check("ada").await).retry_after();
            assert!(wait <= daily.per(), "{window:?}: {wait:?}");
            assert!(wait > Duration::from_secs(86_000), "{window:?}: {wait:?}");
            // The wait of a denied check is by its own limits, although nothing was charged by them.
            let second = [Limit::per_second(1)];
            if let Err(error) = limiter.check_with("ada", &second).await {
                let wait = limited(Err(error)).retry_after();
                assert!(wait <= SECOND, "{window:?}: {wait:?}");
                sleep(wait).await;
                limiter.check_with("ada", &second).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn gcra_keeps_usage_above_a_lower_quota_and_of_removed_limits() {
    let server = Server::start();
    let (hour, day) = (Limit::per_hour(100), Limit::new(100, 24 * 3_600 * SECOND));
    let builder = strict(&client(&server).await, "gcra").window(Window::Gcra);
    let limiter: RateLimiter<String> =
        builder.limit(hour.clone()).limit(day.clone()).build().unwrap();
    limiter.check_n("ada", 60).await.unwrap();
    limiter.set_limits([Limit::per_hour(10)]).await.unwrap();
    // 60 units are in use, of which 51 must leak at 10 per hour.
    let wait = limited(limiter.check("ada").await).retry_after();
    let expected = 51 * 360 * SECOND;
    assert!(wait <= expected && wait > expected - 3_600 * SECOND, "{wait:?}");
    limiter.set_limits([hour, day]).await.unwrap();
    let remaining = limiter.peek("ada").await.unwrap().standings()[1].remaining();
    assert_eq!(remaining, 40, "the usage of the removed limit has stayed");
}

/// The first poll also asks all nodes whether they evict keys, for a warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_limits_apply_to_a_new_limiter_while_other_nodes_are_silent() {
    in_time(async || {
        let mut cluster = Cluster::start();
        let client = connect(cluster.urls()).await;
        let build = || {
            let builder = strict(&client, "silent").limit(Limit::per_hour(1));
            builder.build().unwrap()
        };
        let limits = [Limit::per_hour(7)];
        build().set_limits(limits.clone()).await.unwrap();
        let silent = cluster.nodes().iter().filter(|node| !node.ask("KEYS *").contains(":limits"));
        silent.for_each(Server::pause);
        let after = wait_for_limits(&build(), &limits).await;
        assert!(after < ms(3_000), "{after:?}");
    })
    .await;
}
