//! A server that is unreachable for a whole timeout: calls fail immediately, and the client finds it when it returns.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, ExpiringSet, OnError, RateLimiter, TimeoutDict},
};
use futures::{
    TryStreamExt,
    future::{join_all, ready},
};
use tokio::time::sleep;
use tracing::Level;

use crate::{
    clock::{in_time, ms},
    log::Log,
    patience::patience,
    servers::{Cluster, Proxy, Server},
};

/// The default timeout of a client.
fn client_timeout() -> Duration {
    ms(1_000)
}

async fn connect(url: String) -> Client {
    Client::builder(url).timeout(client_timeout()).connect().await.unwrap()
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
    assert_immediate(durations);
    let begin = Instant::now();
    let calls = join_all((0..1_000).map(|_| cache.get("a"))).await;
    assert!(calls.into_iter().all(|call| matches!(call, Err(Error::Connect(_)))));
    assert!(begin.elapsed() < ms(500), "{:?}", begin.elapsed());
}

fn assert_immediate(mut durations: Vec<Duration>) {
    durations.sort();
    assert!(durations[durations.len() / 2] < ms(5), "{durations:?}");
    assert!(*durations.last().unwrap() < client_timeout() / 4, "{durations:?}");
}

fn limiter(client: &Client) -> RateLimiter<String> {
    let builder = RateLimiter::builder(client, "l").limit(Limit::per_hour(1_000));
    builder.on_error(OnError::Deny).build().unwrap()
}

/// The attempt to connect is in flight when the server returns, and its runtime has a single worker.
#[tokio::test]
async fn calls_without_a_pause_do_not_keep_the_client_from_connecting() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    server.pause();
    wait_for_outage(&cache).await;
    let returns = thread::spawn(move || {
        thread::sleep(ms(100));
        server.resume();
        server
    });
    let begin = Instant::now();
    while cache.get("a").await.is_err() {
        assert!(begin.elapsed() < patience(), "the server has returned, but is not found");
    }
    drop(returns.join());
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

#[tokio::test]
async fn all_types_fail_immediately_with_connect_during_an_outage() {
    in_time(async || {
        let mut server = Server::start();
        let client = connect(server.url()).await;
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        let limiter = limiter(&client);
        let dict: TimeoutDict<String, u64> =
            TimeoutDict::builder(&client, "d").max_attempts(3).build().unwrap();
        let set: ExpiringSet<String> =
            ExpiringSet::new(&client, "s", 9 * client_timeout()).unwrap();
        cache.set("a".into(), 1).await.unwrap();
        for _ in 0..4 {
            limiter.reset("ada").await.unwrap();
        }
        server.kill();
        // The limiter's breaker opens before the server counts as unreachable.
        let begin = Instant::now();
        while begin.elapsed() < 2 * client_timeout() {
            let error = limiter.check("ada").await.unwrap_err();
            assert!(error.is_temporary(), "{error:?}");
            sleep(ms(5)).await;
        }
        let minute = 60 * client_timeout();
        for kind in 0..3 {
            let mut durations = Vec::new();
            for call in 0..20 {
                let begin = Instant::now();
                let answer = match (kind, call % 4) {
                    (0, 0) => limiter.check("ada").await.map(drop),
                    (0, 1) => limiter.peek("ada").await.map(drop),
                    (0, 2) => limiter.reset("ada").await.map(drop),
                    (0, _) => limiter.until_ready("ada").await.map(drop),
                    (1, 0) => dict.set("a".into(), 1, minute).await.map(drop),
                    (1, 1) => dict.take_expired(9).await.map(drop),
                    (1, 2) => dict.claim_expired(9, minute).await.map(drop),
                    (1, _) => dict.dead_letters(9).await.map(drop),
                    (_, 0) => set.push("a".into()).await.map(drop),
                    (_, 1) => set.elements().await.map(drop),
                    (_, 2) => set.len().await.map(drop),
                    (_, _) => set.pop().await.map(drop),
                };
                durations.push(begin.elapsed());
                assert!(matches!(answer, Err(Error::Connect(_))), "{kind} {call}: {answer:?}");
                sleep(ms(20)).await;
            }
            assert_immediate(durations);
        }
    })
    .await;
}

#[tokio::test]
async fn permits_of_a_limiter_fail_with_connect_during_an_outage_and_calls_pass_after_it() {
    in_time(async || {
        let mut server = Server::durable();
        let client = connect(server.url()).await;
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        let limiter = limiter(&client);
        let mut permits = Vec::new();
        while permits.len() < 8 {
            permits.extend(limiter.check_n("ada", 2).await.ok());
        }
        server.kill();
        let begin = Instant::now();
        while begin.elapsed() < 2 * client_timeout() {
            let _ = limiter.check("ada").await;
            sleep(ms(5)).await;
        }
        for permit in permits {
            let answer = match permit.remaining() % 4 {
                0 => permit.refund().await,
                _ => permit.settle(1).await,
            };
            assert!(matches!(answer, Err(Error::Connect(_))), "{answer:?}");
        }
        server.restart();
        // Calls keep the breaker open until the outage ends.
        while let Err(error) = cache.get("a").await {
            assert!(matches!(error, Error::Connect(_)), "{error:?}");
            let _ = limiter.check("ada").await;
            sleep(ms(5)).await;
        }
        limiter.peek("ada").await.unwrap();
        limiter.reset("ada").await.unwrap();
    })
    .await;
}

/// Timeout of a client that gives up before a stopped server is found silent.
const SHORT: Duration = Duration::from_millis(300);

/// Returns the number of scripts that the servers have executed.
async fn scripts(servers: &[&Server]) -> u64 {
    let mut sum = 0;
    for server in servers {
        let mut plain = server.plain().await;
        let stats = redis::cmd("INFO").arg("commandstats").query_async(&mut plain).await;
        let stats: String = stats.unwrap();
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        sum += calls
            .map(|calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum::<u64>();
    }
    sum
}

/// Asserts that a call to stopped servers waits for one timeout, and not for one per group of its shards.
async fn assert_waits_once(
    servers: &[&Server],
    name: &str,
    call: impl Future<Output = Result<(), Error>>,
) {
    let before = scripts(servers).await;
    servers.iter().for_each(|server| server.pause());
    let begin = Instant::now();
    let answer = call.await;
    let took = begin.elapsed();
    servers.iter().for_each(|server| server.resume());
    assert!(
        matches!(answer, Err(Error::Connect(_) | Error::Unanswered(_))),
        "{name}: {answer:?} after {took:?}"
    );
    assert!(took < SHORT + ms(400), "{name} took {took:?}");
    sleep(ms(100)).await;
    // Four at a time; a late machine may find the connection silent, and send them again.
    let sent = scripts(servers).await - before;
    assert!(sent <= 8, "{name} sent {sent} scripts");
}

#[tokio::test]
async fn call_on_many_shards_waits_for_one_timeout() {
    in_time(async || {
        let server = Server::start();
        for call in ["get_many", "set_many", "remove_many", "dead_letters", "iter"] {
            // New connections: those of the call before may be silent.
            let client = Client::builder(server.url()).timeout(SHORT).connect().await.unwrap();
            let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
            let dict: TimeoutDict<String, u64> =
                TimeoutDict::builder(&client, "d").max_attempts(1).build().unwrap();
            let keys: Vec<String> = (0..200).map(|n| n.to_string()).collect();
            let entries = || keys.iter().map(|key| (key.clone(), 7));
            cache.set_many(entries(), None).await.unwrap();
            cache.get_many(&keys).await.unwrap();
            dict.dead_letters(9).await.unwrap();
            assert_waits_once(&[&server], call, async {
                match call {
                    "get_many" => cache.get_many(&keys).await.map(drop),
                    "set_many" => cache.set_many(entries(), None).await,
                    "remove_many" => cache.remove_many(&keys).await.map(drop),
                    "dead_letters" => dict.dead_letters(9).await.map(drop),
                    _ => cache.iter().try_for_each(|_| ready(Ok(()))).await,
                }
            })
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn call_on_many_shards_of_a_cluster_waits_for_one_timeout() {
    in_time(async || {
        let mut cluster = Cluster::start();
        let urls = cluster.urls();
        for call in ["near get_many", "get_many", "keys", "remove_many"] {
            let client = Client::builder(urls.clone()).timeout(SHORT).connect().await.unwrap();
            let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
            let near: Cache<String, u64> = Cache::builder(&client, "c").near(9).build().unwrap();
            let keys: Vec<String> = (0..200).map(|n| n.to_string()).collect();
            cache.get_many(&keys).await.unwrap();
            near.get_many(&keys).await.unwrap();
            let nodes: Vec<&Server> = cluster.nodes().iter().collect();
            assert_waits_once(&nodes, call, async {
                match call {
                    "near get_many" => near.get_many(&keys).await.map(drop),
                    "get_many" => cache.get_many(&keys).await.map(drop),
                    "keys" => cache.keys().try_for_each(|_| ready(Ok(()))).await,
                    _ => cache.remove_many(&keys).await.map(drop),
                }
            })
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn cluster_client_without_a_slot_map_fails_immediately() {
    in_time(async || {
        // Nodes that refuse connections, and nodes that accept them and do not answer.
        let silent: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let silent = silent.iter().map(|node| node.local_addr().unwrap().to_string());
        let refused = (1..=4).map(|port| format!("127.0.0.1:{port}"));
        for nodes in [refused.collect::<Vec<_>>(), silent.collect()] {
            let urls: Vec<String> = nodes.iter().map(|node| format!("redis://{node}")).collect();
            let client = Client::builder(urls).timeout(client_timeout()).lazy().unwrap();
            let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
            let begin = Instant::now();
            assert!(matches!(cache.get("a").await, Err(Error::Connect(_))));
            assert!(begin.elapsed() < client_timeout() + ms(200), "{:?}", begin.elapsed());
            let mut durations = Vec::new();
            for call in 0..20 {
                let begin = Instant::now();
                let answer = match call % 3 {
                    0 => cache.get("a").await.map(drop),
                    1 => cache.get_many(["a", "b"]).await.map(drop),
                    _ => cache.keys().try_for_each(|_| ready(Ok(()))).await,
                };
                durations.push(begin.elapsed());
                assert!(matches!(answer, Err(Error::Connect(_))), "{answer:?}");
                sleep(ms(20)).await;
            }
            assert_immediate(durations);
        }
    })
    .await;
}

#[tokio::test]
async fn server_that_returns_is_found_in_time_regardless_of_the_timeout_to_connect() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client =
            Client::builder(proxy.url()).connect_timeout(ms(60_000)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        proxy.hole(true);
        wait_for_outage(&cache).await;
        assert_fails_immediately(&cache).await;
        // Attempts that have begun stay silent.
        proxy.hole(false);
        sleep(ms(2_000)).await;
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
    })
    .await;
}

#[tokio::test]
async fn end_of_a_connection_that_was_never_used_is_noticed() {
    in_time(async || {
        let mut server = Server::start();
        let client = connect(server.url()).await;
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        server.kill();
        sleep(2 * client_timeout()).await;
        let begin = Instant::now();
        assert!(matches!(cache.get("a").await, Err(Error::Connect(_))));
        assert!(begin.elapsed() < client_timeout() / 4, "{:?}", begin.elapsed());
        server.restart();
        sleep(ms(2_000)).await;
        assert_eq!(cache.get("a").await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn server_that_closes_each_new_connection_is_not_flooded_with_attempts() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let _client = connect(proxy.url()).await;
        let begin = Instant::now();
        while begin.elapsed() < ms(1_500) {
            server.ask("CLIENT KILL TYPE normal SKIPME yes");
            sleep(ms(2)).await;
        }
        // The first connection, and about two per second.
        let most = 5 + (2.0 * begin.elapsed().as_secs_f64()) as u64;
        assert!((2..=most).contains(&proxy.made()), "{}", proxy.made());
    })
    .await;
}

#[tokio::test]
async fn outage_of_a_server_with_near_caches_is_logged_once() {
    in_time(async || {
        let (log, _guard) = Log::start(Level::INFO);
        let mut server = Server::start();
        let client = connect(server.url()).await;
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        let near: Vec<Cache<String, u64>> =
            (0..2).map(|_| Cache::builder(&client, "c").near(9).build().unwrap()).collect();
        for cache in near.iter().chain([&cache]) {
            cache.get("a").await.unwrap();
        }
        server.kill();
        let begin = Instant::now();
        while begin.elapsed() < 3 * client_timeout() {
            for cache in near.iter().chain([&cache]) {
                let _ = cache.get("a").await;
            }
            sleep(ms(20)).await;
        }
        assert_eq!(log.lines("server is unreachable").len(), 1);
        server.restart();
        sleep(ms(2_000)).await;
        for cache in near.iter().chain([&cache]) {
            cache.get("a").await.unwrap();
        }
        assert_eq!(log.lines("server is reachable again").len(), 1);
    })
    .await;
}
