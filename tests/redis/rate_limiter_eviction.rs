//! The rate limiter on a Redis server that may evict keys.

use std::time::{Duration, Instant};

use fleeting::{
    Limit, Window,
    redis::{Client, OnError, RateLimiter},
};
use tokio::time::sleep;
use tracing::Level;

use crate::{
    log::Log,
    patience::patience,
    servers::{Server, connect},
};

#[tokio::test]
async fn limiter_warns_of_a_server_that_may_evict_keys() {
    for (server, is_warned) in [
        (Server::with_policy("allkeys-lru", "100mb"), true),
        (Server::with_policy("volatile-ttl", "100mb"), true),
        (Server::with_policy("noeviction", "100mb"), false),
        (Server::with_policy("allkeys-lru", "0"), false),
    ] {
        let (log, _guard) = Log::start(Level::WARN);
        let client = Client::lazy(server.url()).unwrap();
        let limiter = RateLimiter::<String>::builder(&client, "faults")
            .limit(Limit::per_hour(5))
            .build()
            .unwrap();
        // The limiter polls the limits, and then sends INFO for the policy; this loop sends INFO too.
        let (begin, mut own_calls) = (Instant::now(), 0);
        loop {
            let stats = server.ask("INFO commandstats");
            let calls = stats.split_once("cmdstat_info:calls=").map_or("0", |(_, calls)| calls);
            let calls = calls.split(',').next().and_then(|calls| calls.parse().ok());
            if calls.is_some_and(|calls: u32| calls > own_calls) {
                break;
            }
            own_calls += 1;
            assert!(begin.elapsed() < patience(), "the limiter sent no INFO: {stats}");
            sleep(Duration::from_millis(5)).await;
        }
        while is_warned && log.lines("server may evict keys").is_empty() {
            assert!(begin.elapsed() < patience(), "nothing was logged");
            sleep(Duration::from_millis(5)).await;
        }
        sleep(Duration::from_millis(50)).await;
        let warnings = log.lines("server may evict keys");
        assert_eq!(warnings.len(), usize::from(is_warned), "{warnings:?}");
        assert!(warnings.iter().all(|line| line.contains("faults")), "{warnings:?}");
        drop(limiter);
    }
}

#[tokio::test]
async fn evicted_key_has_its_whole_quota_again() {
    let server = Server::start();
    let client = connect(server.url()).await;
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let limiter = RateLimiter::<String>::builder(&client, "evicted")
            .limit(Limit::per_hour(2))
            .window(window)
            .on_error(OnError::Deny)
            .timeout(patience())
            .build()
            .unwrap();
        let permit = limiter.check("ada").await.unwrap();
        server.ask("FLUSHALL");
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 1);
        // The permit was charged to the evicted state, so nothing is refunded.
        permit.refund().await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 1);
        limiter.reset("ada").await.unwrap();
    }
}
