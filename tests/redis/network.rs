//! The client with a failing network: silent connections, addresses that lead to another server, and busy lanes.

use std::time::{Duration, Instant};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, Format, OnError, RateLimiter, TimeoutDict},
};
use futures::StreamExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::cmd;
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms, per_second},
    servers::{Proxy, Server},
};

/// Time within which a client recovers.
fn recovery() -> Duration {
    ms(2_000)
}

/// Returns a client with the default timeout.
async fn connect(url: String) -> Client {
    Client::builder(url).timeout(ms(1_000)).connect().await.unwrap()
}

async fn through(proxy: &Proxy) -> Cache<String, u64> {
    Cache::new(&connect(proxy.url()).await, "c").unwrap()
}

/// Repeats `call` until it succeeds; returns the time that this took.
async fn until_ok<T>(call: impl AsyncFn() -> Option<T>) -> Duration {
    let begin = Instant::now();
    while call().await.is_none() {
        assert!(begin.elapsed() < 6 * recovery(), "no call succeeded");
        sleep(ms(5)).await;
    }
    begin.elapsed()
}

#[tokio::test]
async fn silent_connection_is_replaced() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = through(&proxy).await;
        cache.set("a".into(), 1).await.unwrap();
        proxy.silence();
        let took = until_ok(async || cache.set("a".into(), 2).await.ok()).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn cancelled_calls_detect_a_silent_connection() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = through(&proxy).await;
        cache.set("a".into(), 1).await.unwrap();
        proxy.silence();
        // Each call is cancelled long before the timeout of the client.
        let took = until_ok(async || timeout(ms(20), cache.get("a")).await.ok()?.ok()).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn read_is_sent_again_when_its_connection_is_silent() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(60_000)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        proxy.silence();
        let begin = Instant::now();
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
        assert!(begin.elapsed() < recovery(), "{:?}", begin.elapsed());
    })
    .await;
}

/// A late copy of the first request could otherwise undo later changes.
#[tokio::test]
async fn change_is_not_sent_again_when_its_connection_is_silent() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(2_000)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        let hour = Duration::from_secs(3_600);
        let dict: TimeoutDict<String, u64> = TimeoutDict::new(&client, "d").unwrap();
        let builder = RateLimiter::<String>::builder(&client, "l").limit(Limit::per_hour(9));
        let limiter = builder.on_error(OnError::Deny).timeout(ms(2_000)).build().unwrap();
        cache.set("a".into(), 1).await.unwrap();
        dict.set("a".into(), 1, hour).await.unwrap();
        limiter.check("a").await.unwrap();
        proxy.silence();
        let (expired, read, untagged, cleared, cleared_dict, set, cleared_limits) = tokio::join!(
            cache.expire("a", hour),
            cache.get_ex("a", hour),
            cache.remove_tag("t"),
            cache.clear(),
            dict.clear(),
            limiter.set_limits([Limit::per_hour(10)]),
            limiter.clear_limits(),
        );
        let calls = [
            ("expire", expired.map(drop)),
            ("get_ex", read.map(drop)),
            ("remove_tag", untagged),
            ("clear", cleared),
            ("clear of a dictionary", cleared_dict),
            ("set_limits", set),
            ("clear_limits", cleared_limits),
        ];
        for (name, call) in calls {
            assert!(matches!(call, Err(Error::Unanswered(_))), "{name}: {call:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn limiter_recovers_from_a_silent_connection() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = connect(proxy.url()).await;
        let limiter: RateLimiter<String> = RateLimiter::builder(&client, "l")
            .limit(Limit::per_hour(1_000_000))
            .on_error(OnError::Deny)
            .timeout(ms(50))
            .build()
            .unwrap();
        until_ok(async || limiter.check("ada").await.ok()).await;
        proxy.silence();
        assert!(limiter.check("ada").await.is_err());
        let took = until_ok(async || limiter.check("ada").await.ok()).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn client_recovers_when_the_network_is_back() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(300)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        proxy.hole(true);
        let begin = Instant::now();
        let mut unsent = 0;
        while begin.elapsed() < ms(1_500) {
            let error = cache.set("a".into(), 2).await.unwrap_err();
            assert!(error.is_temporary(), "{error:?}");
            unsent += u32::from(matches!(error, Error::Connect(_)));
        }
        proxy.hole(false);
        let took = until_ok(async || cache.set("a".into(), 3).await.ok()).await;
        assert!(took < recovery(), "{took:?}");
        // Nothing is sent on a connection known to be silent: such calls fail with `Connect`, certainly not executed.
        assert!(unsent > 0, "all calls were sent");
    })
    .await;
}

#[tokio::test]
async fn slow_reply_does_not_cause_a_reconnect() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(10_000)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        let made = proxy.made();
        for seconds in ["0.3", "0.6"] {
            let mut plain = server.plain().await;
            let slow = tokio::spawn(async move {
                cmd("DEBUG").arg("SLEEP").arg(seconds).exec_async(&mut plain).await
            });
            sleep(ms(20)).await;
            assert_eq!(cache.set("a".into(), 1).await.unwrap(), Some(1));
            slow.await.unwrap().unwrap();
        }
        assert_eq!(proxy.made(), made);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_request_does_not_cause_a_reconnect() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(20_000)).connect().await.unwrap();
        let cache: Cache<String, Vec<u8>> =
            Cache::builder(&client, "c").format(Format::Raw).build().unwrap();
        cache.set("a".into(), vec![1]).await.unwrap();
        let made = proxy.made();
        proxy.slow_requests_down(1 << 20);
        let begin = Instant::now();
        cache.set("a".into(), vec![7; 3 << 20]).await.unwrap();
        assert!(begin.elapsed() > Duration::from_secs(2), "{:?}", begin.elapsed());
        // The connection of large values.
        assert_eq!(proxy.made(), made + 1);
        proxy.slow_requests_down(0);
        // Silence during a large request is noticed.
        proxy.silence();
        let begin = Instant::now();
        let _ = timeout(ms(1_500), cache.set("a".into(), vec![8; 3 << 20])).await;
        cache.set("a".into(), vec![9; 3 << 20]).await.unwrap();
        assert!(begin.elapsed() < 2 * recovery(), "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test]
async fn waiter_on_a_retired_connection_still_gets_its_reply() {
    in_time(async || {
        let server = Server::start();
        let client = Client::builder(server.url()).timeout(ms(20_000)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        server.pause();
        let waiting = tokio::spawn({
            let cache = cache.clone();
            async move { cache.set("a".into(), 2).await }
        });
        sleep(ms(1_500)).await;
        server.resume();
        assert_eq!(waiting.await.unwrap().unwrap(), Some(1));
        assert_eq!(cache.get("a").await.unwrap(), Some(2));
    })
    .await;
}

#[tokio::test]
async fn connections_enable_tcp_keepalive() {
    let server = Server::start();
    let client = crate::servers::connect(server.url()).await;
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // The third field has the remote port, state 01 is an established connection, and timer 02 is keepalive.
    let port = format!(":{:04X}", server.port());
    let connections = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let connections: Vec<_> =
        connections.filter(|line| line[2].ends_with(&port) && line[3] == "01").collect();
    assert_eq!(connections.len(), 1, "{table}");
    assert!(connections[0][5].starts_with("02:"), "{connections:?}");
    drop(client);
}

/// See [`Error::Unanswered`].
#[tokio::test]
async fn unanswered_write_is_executed_when_a_stopped_server_resumes() {
    in_time(async || {
        let server = Server::start();
        let client = Client::builder(server.url()).timeout(ms(100)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        server.pause();
        let error = cache.set("a".into(), 2).await.unwrap_err();
        assert!(matches!(error, Error::Unanswered(_)), "{error:?}");
        server.resume();
        let took = until_ok(async || cache.get("a").await.ok().flatten().filter(|n| *n == 2)).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn read_only_reply_makes_the_client_connect_to_the_address_again() {
    in_time(async || {
        let (old, new) = (Server::start(), Server::start());
        let proxy = Proxy::to(old.port()).await;
        let cache = through(&proxy).await;
        cache.set("a".into(), 1).await.unwrap();
        old.ask(&format!("REPLICAOF 127.0.0.1 {}", new.port()));
        proxy.lead_to(new.port());
        let took = until_ok(async || cache.set("a".into(), 2).await.ok()).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_replies_do_not_delay_limiter_checks() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(60_000)).connect().await.unwrap();
        let cache: Cache<String, Vec<u8>> =
            Cache::builder(&client, "c").format(Format::Raw).build().unwrap();
        let limiter: RateLimiter<String> = RateLimiter::builder(&client, "l")
            .limit(Limit::per_hour(1_000_000))
            .timeout(ms(100))
            .build()
            .unwrap();
        cache.set("large".into(), vec![7; 4 << 20]).await.unwrap();
        until_ok(async || limiter.check("ada").await.ok()).await;
        let before = limiter.stats().by_policy;
        // The reply takes two seconds, a check about a millisecond.
        proxy.slow_down(per_second(2 << 20));
        let large = tokio::spawn(async move { cache.get("large").await.unwrap().unwrap().len() });
        sleep(ms(50)).await;
        for _ in 0..50 {
            limiter.check("ada").await.unwrap();
        }
        assert!(!large.is_finished());
        assert_eq!(limiter.stats().by_policy - before, 0);
        proxy.slow_down(0);
        assert_eq!(large.await.unwrap(), 4 << 20);
    })
    .await;
}

/// Reads of many entries use a separate connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_do_not_delay_calls_on_single_keys() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(60_000)).connect().await.unwrap();
        let cache: Cache<u64, Vec<u8>> =
            Cache::builder(&client, "c").format(Format::Raw).build().unwrap();
        cache.set_many((0..8).map(|n| (n, vec![7; 512 << 10])), None).await.unwrap();
        cache.set(9, vec![9]).await.unwrap();
        let keys: Vec<u64> = (0..8).collect();
        proxy.slow_down(per_second(2 << 20));
        let large = tokio::spawn({
            let cache = cache.clone();
            async move { cache.get_many(&keys).await.unwrap() }
        });
        let walk = tokio::spawn({
            let cache = cache.clone();
            async move { cache.values().count().await }
        });
        sleep(ms(50)).await;
        for _ in 0..50 {
            assert_eq!(cache.get(&9).await.unwrap(), Some(vec![9]));
        }
        assert!(!large.is_finished() && !walk.is_finished());
        proxy.slow_down(0);
        assert_eq!(large.await.unwrap().into_iter().flatten().count(), 8);
        assert_eq!(walk.await.unwrap(), 9);
    })
    .await;
}

#[tokio::test]
async fn subscribers_recover_from_a_silent_connection() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let build = async |url: String| {
            let client = connect(url).await;
            let builder = Cache::<String, u64>::builder(&client, "c").events(60 * recovery());
            builder.poll_every(ms(10)).lease(ms(500)).build().unwrap()
        };
        let (silent, other) = (build(proxy.url()).await, build(server.url()).await);
        let mut events = silent.events_lossless("g").await.unwrap();
        let mut all = silent.events().await.unwrap();
        for n in 0..2 {
            other.set("a".into(), n).await.unwrap();
            other.expire_now("a").await.unwrap();
            let begin = Instant::now();
            let event =
                timeout(6 * recovery(), all.next()).await.expect("an event arrives").unwrap();
            assert_eq!(event.unwrap().value, n);
            // A failure to reach the server is an item of the stream too.
            let event = loop {
                if let Ok(event) = events.recv().await.unwrap() {
                    break event;
                }
            };
            assert_eq!(event.value, n);
            // The lease of an event that was in flight may have to expire first.
            assert!(begin.elapsed() < recovery() + ms(1_000), "{:?}", begin.elapsed());
            proxy.silence();
        }
    })
    .await;
}

#[tokio::test]
async fn client_works_after_calls_were_dropped_at_any_point() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let cache = through(&proxy).await;
    let mut rng = SmallRng::seed_from_u64(7);
    let (mut cuts, mut dropped, mut done) = (0, 0, 0);
    while dropped < 200 || done < 200 {
        assert!(dropped + done < 20_000, "{dropped} calls were dropped, {done} were not");
        // The call is dropped before it is sent, after that, or while its reply is in flight.
        let polls = rng.random_range(0..200);
        tokio::select! {
            biased;
            _ = cache.set("a".into(), 1) => done += 1,
            () = async { for _ in 0..polls { tokio::task::yield_now().await } } => dropped += 1,
        }
        if rng.random_ratio(1, 20) {
            proxy.cut();
            cuts += 1;
        }
    }
    until_ok(async || cache.set("a".into(), 2).await.ok()).await;
    // One new connection per cut, and another one if the cut hit a connection that was just made.
    assert!(proxy.made() <= 2 * cuts + 2, "{} connections for {cuts} cuts", proxy.made());
}
