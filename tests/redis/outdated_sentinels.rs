//! Sentinels that lag behind a failover: they report a replica, a server that is down, or a silent one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client};
use futures::{StreamExt, future::join_all, stream};
use tokio::{net::TcpListener, time::sleep};

use crate::{
    clock::{in_time, ms},
    servers::{FakeServer, Server},
};

/// Time within which a client is connected once a sentinel reports the master.
fn recovery() -> Duration {
    ms(2_000)
}

/// Sentinels in the order of their URL.
struct Sentinels(Vec<(FakeServer, Arc<AtomicU16>)>);

impl Sentinels {
    /// Starts sentinels that report the master of `ports` for each `r` of `order`, and the other one for each `s`.
    async fn start(order: &str, ports: (u16, u16)) -> Self {
        Self(
            join_all(order.chars().map(async |kind| {
                let reported =
                    Arc::new(AtomicU16::new(if kind == 'r' { ports.0 } else { ports.1 }));
                (FakeServer::sentinel(reported.clone()).await, reported)
            }))
            .await,
        )
    }

    fn url(&self) -> String {
        let hosts: Vec<_> =
            self.0.iter().map(|(sentinel, _)| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }
}

/// All orders of up to four right (`r`) and outdated (`s`) sentinels with at least one of each.
fn orders() -> Vec<String> {
    (2..=4u32)
        .flat_map(|len| (1..(1 << len) - 1).map(move |bits: u32| (len, bits)))
        .map(|(len, bits)| (0..len).map(|at| if bits >> at & 1 == 0 { 's' } else { 'r' }).collect())
        .collect()
}

#[tokio::test]
async fn client_connects_if_any_sentinel_reports_the_master() {
    in_time(async || {
        let master = Server::start();
        let replica = Server::replica_of(&master);
        // The kernel accepts connections, and no data is ever sent on them.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().map(|address| (address.port(), silent)).unwrap();
        let outdated = [("replica", replica.port()), ("down", 1), ("silent", silent.0)];
        let cases = outdated.iter().flat_map(|case| orders().into_iter().map(move |o| (case, o)));
        let connects = cases.map(async |((name, port), order)| {
            let sentinels = Sentinels::start(&order, (master.port(), *port)).await;
            let begin = Instant::now();
            let client = Client::connect(sentinels.url()).await;
            let client = client.unwrap_or_else(|error| panic!("{name} {order}: {error:?}"));
            let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
            cache.set(format!("{name} {order}"), 7).await.unwrap();
            (begin.elapsed(), format!("{name} {order}"))
        });
        // Not all at once: the connections of hundreds of attempts would take longer than their timeout.
        let times: Vec<_> = stream::iter(connects).buffer_unordered(6).collect().await;
        let slowest = times.iter().max().unwrap();
        assert!(slowest.0 < recovery(), "{slowest:?}");
    })
    .await;
}

#[tokio::test]
async fn client_finds_the_new_master_of_a_silent_one_if_any_sentinel_reports_it() {
    in_time(async || {
        let old = Server::start();
        let new = Server::replica_of(&old);
        let both = (old.port(), old.port());
        let clients = join_all(orders().into_iter().map(async |order| {
            let sentinels = Sentinels::start(&order, both).await;
            let client = Client::connect(sentinels.url()).await.unwrap();
            let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
            cache.set(order.clone(), 1).await.unwrap();
            (order, sentinels, cache)
        }))
        .await;
        old.pause();
        assert!(new.ask("REPLICAOF NO ONE").starts_with("+OK"));
        for (order, Sentinels(sentinels), _) in &clients {
            for (kind, (_, reported)) in order.chars().zip(sentinels) {
                reported.store(if kind == 'r' { new.port() } else { old.port() }, Relaxed);
            }
        }
        let begin = Instant::now();
        let times = join_all(clients.iter().map(async |(order, _, cache)| {
            while let Err(error) = cache.set(order.clone(), 7).await {
                assert!(error.is_temporary(), "{order}: {error:?}");
                assert!(begin.elapsed() < 10 * recovery(), "{order}: {error:?}");
                sleep(ms(5)).await;
            }
            (begin.elapsed(), order)
        }))
        .await;
        let slowest = times.iter().max().unwrap();
        assert!(slowest.0 < recovery(), "{slowest:?}");
        assert!(new.ask("KEYS *").contains("ssr"));
    })
    .await;
}
