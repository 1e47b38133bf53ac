//! `redis::Cache` on a server that evicts keys.

use std::{sync::Arc, time::Duration};

use fleeting::redis::Cache;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::Level;

use crate::{
    clock::ms,
    log::Log,
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn load_that_began_before_clear_is_not_cached_after_an_eviction() {
    let server = Server::start();
    let cache: Cache<String, u64> = Cache::new(&connect(server.url()).await, "c").unwrap();
    for (n, is_evicted) in [(1, false), (2, true), (3, true)] {
        let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let load = tokio::spawn({
            let (cache, started, release) = (cache.clone(), started.clone(), release.clone());
            async move {
                let loader = async move || {
                    started.notify_one();
                    release.notified().await;
                    n
                };
                cache.get_or_set_with("ada", HOUR, loader).await
            }
        });
        timeout(patience(), started.notified()).await.expect("the loader runs");
        cache.clear().await.unwrap();
        if is_evicted {
            let mut plain = server.plain().await;
            let keys: Vec<String> =
                redis::cmd("KEYS").arg("*.cleared").query_async(&mut plain).await.unwrap();
            assert_eq!(keys.len(), 16);
            let () = redis::cmd("DEL").arg(keys).query_async(&mut plain).await.unwrap();
        }
        release.notify_one();
        assert_eq!(load.await.unwrap().unwrap(), n, "the caller gets the loaded value");
        assert_eq!(cache.get("ada").await.unwrap(), None, "loaded before the clear");
    }
}

#[tokio::test]
async fn first_subscription_warns_of_a_server_that_may_evict_keys() {
    for (server, is_warned) in [
        (Server::with_policy("allkeys-lru", "100mb"), true),
        (Server::with_policy("volatile-ttl", "100mb"), true),
        (Server::with_policy("noeviction", "100mb"), false),
        (Server::with_policy("allkeys-lru", "0"), false),
    ] {
        let (log, _guard) = Log::start(Level::WARN);
        let builder = Cache::<String, u64>::builder(&connect(server.url()).await, "sessions");
        let cache = builder.events(HOUR).build().unwrap();
        let _all = cache.events().await.unwrap();
        let _events = cache.events_lossless("g").await.unwrap();
        let begin = Instant::now();
        let has_asked = || server.ask("INFO commandstats").contains("cmdstat_info:calls=");
        while !has_asked() || is_warned && log.lines("server may evict expirations").is_empty() {
            assert!(begin.elapsed() < patience(), "no warning");
            sleep(ms(5)).await;
        }
        sleep(ms(50)).await;
        let warnings = log.lines("server may evict expirations");
        assert_eq!(warnings.len(), usize::from(is_warned), "{warnings:?}");
        assert!(warnings.iter().all(|line| line.contains("sessions")), "{warnings:?}");
    }
}
