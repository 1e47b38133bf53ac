//! The client where the network fails: connections that go silent, addresses that lead elsewhere, lanes that are full.

use std::time::{Duration, Instant};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, Format, OnError, RateLimiter},
};
use futures::StreamExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::cmd;
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms},
    servers::{Proxy, Server},
};

/// In which a client finds its way again.
const RECOVERY: Duration = Duration::from_secs(2);

/// As one attempt of [`in_time`] has it.
fn recovery() -> Duration {
    ms(RECOVERY.as_millis() as u64)
}

async fn through(proxy: &Proxy) -> Cache<String, u64> {
    Cache::new(&Client::connect(proxy.url()).await.unwrap(), "c").unwrap()
}

/// How long it takes until `call` succeeds.
async fn until_ok<T>(call: impl AsyncFn() -> Option<T>) -> Duration {
    let begin = Instant::now();
    while call().await.is_none() {
        assert!(begin.elapsed() < 6 * recovery(), "it never succeeds");
        sleep(ms(5)).await;
    }
    begin.elapsed()
}

#[tokio::test]
async fn a_silent_connection_is_replaced_where_there_is_another_way() {
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
async fn a_silent_connection_is_noticed_by_those_who_wait_for_no_more_than_a_moment() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = through(&proxy).await;
        cache.set("a".into(), 1).await.unwrap();
        proxy.silence();
        // The library is never told that its answer is not waited for any more.
        let took = until_ok(async || timeout(ms(20), cache.get("a")).await.ok()?.ok()).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn who_only_reads_does_not_wait_on_a_silent_connection() {
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

#[tokio::test]
async fn a_limiter_finds_its_server_again_on_another_way() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::connect(proxy.url()).await.unwrap();
        let limiter: RateLimiter<String> = RateLimiter::builder(&client, "l")
            .limit(Limit::per_hour(1_000_000))
            .on_error(OnError::Deny)
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
async fn a_network_that_comes_back_is_found_again() {
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
        // What is known to be silent is not written to any more: such calls are certain not to be carried out.
        assert!(unsent > 0);
    })
    .await;
}

#[tokio::test]
async fn a_slow_answer_costs_no_connection() {
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

#[tokio::test]
async fn who_waits_on_a_connection_that_is_let_go_is_still_answered() {
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

/// What is dead and idle is noticed before it is needed.
#[tokio::test]
async fn the_kernel_looks_after_idle_connections() {
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // The server's port is the third field's, of one that is established, and 2 means keepalive.
    let port = format!(":{:04X}", server.port());
    let ours = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours: Vec<_> = ours.filter(|line| line[2].ends_with(&port) && line[3] == "01").collect();
    assert_eq!(ours.len(), 1, "{table}");
    assert!(ours[0][5].starts_with("02:"), "{ours:?}");
    drop(client);
}

/// What [`Error::Unanswered`] says.
#[tokio::test]
async fn what_a_stopped_server_was_sent_is_carried_out_when_it_goes_on() {
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
async fn an_old_master_is_left_where_its_address_leads_to_the_new_one() {
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
async fn large_answers_keep_no_limiter_waiting() {
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
        // The answer takes two seconds, and a call takes a millisecond.
        proxy.slow_down(2 << 20);
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

/// What reads many entries at once has a connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_keep_no_verb_waiting() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(60_000)).connect().await.unwrap();
        let cache: Cache<u64, Vec<u8>> =
            Cache::builder(&client, "c").format(Format::Raw).build().unwrap();
        cache.set_many((0..8).map(|n| (n, vec![7; 512 << 10])), None).await.unwrap();
        cache.set(9, vec![9]).await.unwrap();
        let keys: Vec<u64> = (0..8).collect();
        proxy.slow_down(2 << 20);
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
async fn subscribers_find_their_server_again_on_another_way() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let build = async |url: String| {
            let client = Client::connect(url).await.unwrap();
            let builder = Cache::<String, u64>::builder(&client, "c").events(60 * RECOVERY);
            builder.poll_every(ms(10)).lease(ms(500)).build().unwrap()
        };
        let (silent, other) = (build(proxy.url()).await, build(server.url()).await);
        let mut events = silent.events_lossless("g").await.unwrap();
        let mut all = silent.events().await.unwrap();
        for n in 0..2 {
            other.set("a".into(), n).await.unwrap();
            other.expire_now("a").await.unwrap();
            let begin = Instant::now();
            let event = timeout(6 * recovery(), all.next()).await.expect("never").unwrap();
            assert_eq!(event.unwrap().value, n);
            // That the server could not be asked is told too, once.
            let event = loop {
                if let Ok(event) = events.recv().await.unwrap() {
                    break event;
                }
            };
            assert_eq!(event.value, n);
            // A lease may have to end first, of what was on its way.
            assert!(begin.elapsed() < recovery() + ms(1_000), "{:?}", begin.elapsed());
            proxy.silence();
        }
    })
    .await;
}

#[tokio::test]
async fn calls_that_are_dropped_anywhere_leave_a_client_that_works() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let cache = through(&proxy).await;
    let mut random = SmallRng::seed_from_u64(7);
    let (mut cuts, mut dropped, mut done) = (0, 0, 0);
    while dropped < 200 || done < 200 {
        assert!(dropped + done < 20_000, "{dropped} were dropped, and {done} were not");
        // Sometimes it is not even sent, and sometimes the answer is on its way.
        let polls = random.random_range(0..200);
        tokio::select! {
            biased;
            _ = cache.set("a".into(), 1) => done += 1,
            () = async { for _ in 0..polls { tokio::task::yield_now().await } } => dropped += 1,
        }
        if random.random_ratio(1, 20) {
            proxy.cut();
            cuts += 1;
        }
    }
    until_ok(async || cache.set("a".into(), 2).await.ok()).await;
    // One for each that was cut, and one more where a cut met one that was just made.
    assert!(proxy.made() <= 2 * cuts + 2, "{} for {cuts} cuts", proxy.made());
}
