//! A server that is unreachable for a whole timeout: calls fail immediately, and the client finds it when it returns.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client, Error};
use futures::future::join_all;
use tokio::time::sleep;
use tracing::Level;

use crate::{
    clock::{in_time, ms},
    log::Log,
    servers::{Cluster, Proxy, Server},
};

/// The default timeout of a client.
fn client_timeout() -> Duration {
    ms(1_000)
}

async fn cache(url: String) -> Cache<String, u64> {
    let client = Client::builder(url).timeout(client_timeout()).lazy().unwrap();
    let cache = Cache::new(&client, "c").unwrap();
    cache.set("a".into(), 1).await.unwrap();
    cache
}

/// Makes calls until the server counts as unreachable.
async fn wait_for_outage(cache: &Cache<String, u64>) {
    let begin = Instant::now();
    // A silent connection is noticed first, and then a whole timeout passes without a connection.
    while begin.elapsed() < 3 * client_timeout() {
        let call = Instant::now();
        assert!(cache.get("a").await.is_err());
        assert!(call.elapsed() < client_timeout() + ms(200), "{:?}", call.elapsed());
    }
}

/// Asserts that no call waits for the server: half of them fail within 5 ms, and none takes a quarter of a timeout.
async fn assert_fails_immediately(cache: &Cache<String, u64>) {
    let mut durations = Vec::new();
    for call in 0..20 {
        let begin = Instant::now();
        let answer = match call % 4 {
            0 => cache.get("a").await.map(drop),
            1 => cache.set("a".into(), 2).await.map(drop),
            2 => cache.get_many(["a", "b"]).await.map(drop),
            _ => cache.get_or_set_with("z", None, async || 1).await.map(drop),
        };
        durations.push(begin.elapsed());
        assert!(matches!(answer, Err(Error::Connect(_))), "{answer:?}");
        sleep(ms(20)).await;
    }
    durations.sort();
    assert!(durations[10] < ms(5) && durations[19] < client_timeout() / 4, "{durations:?}");
    let begin = Instant::now();
    let calls = join_all((0..1_000).map(|_| cache.get("a"))).await;
    assert!(calls.into_iter().all(|call| matches!(call, Err(Error::Connect(_)))));
    assert!(begin.elapsed() < ms(500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn calls_to_a_server_that_is_down_fail_immediately_and_it_is_found_without_a_call() {
    in_time(async || {
        let mut server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = cache(proxy.url()).await;
        server.kill();
        proxy.cut();
        proxy.close(true);
        wait_for_outage(&cache).await;
        assert_fails_immediately(&cache).await;
        server.restart();
        proxy.close(false);
        let before = proxy.made();
        sleep(ms(2_000)).await;
        assert!(proxy.made() > before, "no attempt without a call");
        let begin = Instant::now();
        assert_eq!(cache.get("a").await.unwrap(), None);
        assert!(begin.elapsed() < ms(200), "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test]
async fn server_that_accepts_connections_but_does_not_answer_is_unreachable() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        server.pause();
        wait_for_outage(&cache).await;
        assert_fails_immediately(&cache).await;
        server.resume();
        sleep(ms(2_000)).await;
        let begin = Instant::now();
        cache.get("a").await.unwrap();
        assert!(begin.elapsed() < ms(200), "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test]
async fn server_behind_a_network_that_drops_all_packets_is_unreachable() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = cache(proxy.url()).await;
        proxy.hole(true);
        wait_for_outage(&cache).await;
        assert_fails_immediately(&cache).await;
        proxy.hole(false);
        sleep(ms(2_000)).await;
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
    })
    .await;
}

#[tokio::test]
async fn lazy_client_of_a_server_that_never_ran_fails_immediately_after_one_timeout() {
    in_time(async || {
        let mut server = Server::start();
        server.kill();
        let client = Client::builder(server.url()).timeout(client_timeout()).lazy().unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        let begin = Instant::now();
        assert!(matches!(cache.get("a").await, Err(Error::Connect(_))));
        let passed = begin.elapsed();
        assert!(
            passed > client_timeout() * 9 / 10 && passed < client_timeout() + ms(200),
            "{passed:?}"
        );
        assert_fails_immediately(&cache).await;
        // Another cache of the client, and a call with a timeout of its own.
        let other: Cache<String, u64> = Cache::new(&client, "d").unwrap();
        let begin = Instant::now();
        assert!(other.remove("a").await.is_err());
        assert!(begin.elapsed() < client_timeout() / 4, "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test]
async fn connection_that_ends_while_the_server_runs_does_not_count_as_an_outage() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = cache(proxy.url()).await;
        for _ in 0..5 {
            sleep(ms(300)).await;
            proxy.cut();
            sleep(ms(20)).await;
            cache.set("a".into(), 1).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn outage_of_one_node_leaves_the_others_of_its_cluster_reachable() {
    in_time(async || {
        let mut cluster = Cluster::start();
        let client = Client::builder(cluster.urls()).timeout(client_timeout());
        let client = client.connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        for key in 0..30 {
            cache.set(key.to_string(), key).await.unwrap();
        }
        cluster.nodes()[1].kill();
        let calls = async || {
            let calls = join_all((0..30).map(async |key: u64| {
                let begin = Instant::now();
                (cache.get(&key.to_string()).await.is_ok(), begin.elapsed())
            }));
            let (ok, failed): (Vec<_>, Vec<_>) = calls.await.into_iter().partition(|call| call.0);
            (ok.len(), failed.into_iter().map(|call| call.1).max().unwrap_or_default())
        };
        calls().await;
        calls().await;
        let (ok, slowest) = calls().await;
        assert!(ok > 5 && ok < 30, "{ok}");
        assert!(slowest < ms(50), "{slowest:?}");
        cluster.nodes()[1].restart();
        sleep(ms(2_000)).await;
        let begin = Instant::now();
        while calls().await.0 < 30 {
            // The node has to join the cluster again.
            assert!(begin.elapsed() < ms(10_000), "the node is not found");
            sleep(ms(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn begin_and_end_of_an_outage_are_logged_once() {
    in_time(async || {
        let (log, _guard) = Log::start(Level::INFO);
        let mut server = Server::start();
        let cache = cache(server.url()).await;
        server.kill();
        wait_for_outage(&cache).await;
        server.restart();
        let begin = Instant::now();
        while cache.get("a").await.is_err() {
            assert!(begin.elapsed() < crate::patience::patience(), "the server is not found");
            sleep(ms(20)).await;
        }
        let begun = log.lines("server is unreachable");
        assert_eq!(begun.len(), 1, "{begun:?}");
        assert!(begun[0].contains(&server.port().to_string()), "{begun:?}");
        assert_eq!(log.lines("server is reachable again").len(), 1);
    })
    .await;
}
