//! The timeout dictionary on a Redis server that may evict its keys.

use std::time::{Duration, Instant};

use fleeting::redis::{Client, TimeoutDict};
use tokio::time::sleep;
use tracing::Level;

use crate::{log::Log, patience::patience, servers::Server};

#[tokio::test]
async fn dictionary_warns_of_a_server_that_may_evict_its_keys() {
    for (server, is_warned) in [
        (Server::with_policy("allkeys-lru", "100mb"), true),
        // Its keys have no TTL.
        (Server::with_policy("volatile-ttl", "100mb"), false),
        (Server::with_policy("noeviction", "100mb"), false),
        (Server::with_policy("allkeys-lru", "0"), false),
    ] {
        let (log, _guard) = Log::start(Level::WARN);
        let client = Client::builder(server.url()).timeout(patience()).lazy().unwrap();
        let dict: TimeoutDict<String, u32> = TimeoutDict::new(&client, "jobs").unwrap();
        for key in ["a", "b"] {
            dict.set(key.into(), 1, Duration::ZERO).await.unwrap();
        }
        dict.next_expired().await.unwrap();
        let begin = Instant::now();
        while is_warned && log.lines("server may evict entries").is_empty() {
            assert!(begin.elapsed() < patience(), "nothing was logged");
            sleep(Duration::from_millis(5)).await;
        }
        sleep(Duration::from_millis(100)).await;
        let warnings = log.lines("server may evict entries");
        assert_eq!(warnings.len(), usize::from(is_warned), "{warnings:?}");
        assert!(warnings.iter().all(|line| line.contains("jobs")), "{warnings:?}");
    }
}
