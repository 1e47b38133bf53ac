//! Loads that several processes share, some of which are killed; servers that go away meanwhile; clusters.

use std::{
    env,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client};
use futures::{StreamExt, future::join_all, stream::iter};
use rand::{SeedableRng, rngs::SmallRng, seq::SliceRandom};
use redis::AsyncCommands;
use tokio::time::sleep;

use crate::{
    loaders::{Gate, begin},
    many::many,
    servers::{Cluster, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

const KEYS: usize = 1_000;

/// What a process of the fleet does: it loads all keys, in an order of its own, and writes into a log when a load begins.
async fn load_all(url: &str, seed: u64) {
    let client = connect(url).await;
    let builder = Cache::<u64, u64>::builder(&client, "fleet").lease(Duration::from_millis(500));
    let cache = builder.build().unwrap();
    let log = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mut keys: Vec<u64> = (0..KEYS as u64).collect();
    keys.shuffle(&mut SmallRng::seed_from_u64(seed));
    let loads = iter(keys).map(|key| {
        let (cache, mut log) = (&cache, log.clone());
        async move {
            let loader = async move || {
                let _: u64 = log.rpush(format!("log:{key}"), std::process::id()).await.unwrap();
                sleep(Duration::from_millis(2)).await;
                key
            };
            assert_eq!(cache.get_or_set_with(&key, HOUR, loader).await.unwrap(), key);
        }
    });
    loads.buffer_unordered(16).collect::<()>().await;
}

/// This test in a process of its own, as a part of the fleet of another.
fn start_process(url: &str, seed: u64) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "fleet::a_fleet_loads_each_key_once_though_some_are_killed"])
        .env("FLEETING_FLEET", format!("{url} {seed}"))
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_fleet_loads_each_key_once_though_some_are_killed() {
    if let Ok(fleet) = env::var("FLEETING_FLEET") {
        let (url, seed) = fleet.split_once(' ').unwrap();
        return load_all(url, seed.parse().unwrap()).await;
    }
    let server = Server::start();
    let mut plain = server.plain().await;
    let mut killed = (0..2).map(|seed| start_process(&server.url(), seed)).collect::<Vec<_>>();
    let rest = (2..4).map(|seed| start_process(&server.url(), seed)).collect::<Vec<_>>();
    for (child, keys) in killed.iter_mut().zip([100, 200]) {
        while redis::cmd("DBSIZE").query_async::<usize>(&mut plain).await.unwrap() < keys {
            sleep(Duration::from_millis(1)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let lives: Vec<u32> = rest.iter().map(Child::id).collect();
    for mut child in rest {
        assert!(child.wait().unwrap().success());
    }
    let mut again = 0;
    for key in 0..KEYS {
        let loaded_by: Vec<u32> = plain.lrange(format!("log:{key}"), 0, -1).await.unwrap();
        // Another begins only after the death of the one before.
        let (last, before) = loaded_by.split_last().expect("it was loaded");
        again += before.len();
        assert!(before.iter().all(|id| !lives.contains(id)), "{key}: {loaded_by:?} of {lives:?}");
        assert!(!before.contains(last), "{key}: {loaded_by:?}");
    }
    println!("{again} keys were loaded again, by those who took over");
    assert!(again <= 2 * 16, "one for each that those who were killed were at: {again}");
}

#[tokio::test]
async fn a_server_that_goes_away_is_an_error_for_all_and_ends_no_load() {
    let mut server = Server::start();
    let client = Client::builder(server.url()).timeout(Duration::from_millis(500));
    let cache: Cache<String, u64> = Cache::new(&client.connect().await.unwrap(), "away").unwrap();
    let gate = Gate::default();
    let load = begin(&cache, "ada", &gate, 1);
    gate.has_begun().await;
    server.kill();
    gate.open();
    assert_eq!(load.await.unwrap().unwrap(), 1, "it was loaded");
    assert_eq!(cache.stats().failed_loads, 1);
    let begin_at = Instant::now();
    let calls: Vec<_> = (0..20).map(|_| begin(&cache, "ada", &gate, 2)).collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
    }
    // Not one after the other.
    assert!(begin_at.elapsed() < Duration::from_secs(8), "{:?}", begin_at.elapsed());
    assert_eq!(gate.loads(), 1);
    // It has lost its data, and with them the lease of one who loads meanwhile.
    server.restart();
    let until = Instant::now() + PATIENCE;
    while cache.get("ada").await.is_err() {
        assert!(Instant::now() < until);
    }
    let load = begin(&cache, "ada", &gate, 3);
    gate.has_begun().await;
    server.kill();
    server.restart();
    while cache.get("ada").await.is_err() {
        assert!(Instant::now() < until);
    }
    gate.open();
    assert_eq!(load.await.unwrap().unwrap(), 3);
    assert_eq!(cache.get("ada").await.unwrap(), None);
    assert_eq!(cache.get_or_set_with("ada", HOUR, async || 4).await.unwrap(), 4);
}

#[tokio::test]
async fn on_a_cluster_too() {
    let cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let elsewhere = connect(cluster.urls()).await;
    for told in [false, true] {
        let cache = |client: &Client| {
            let builder = Cache::<String, u64>::builder(client, if told { "told" } else { "c" });
            let builder = builder.stale_while_revalidate(HOUR);
            if told { builder.events(HOUR) } else { builder }.build().unwrap()
        };
        let (here, elsewhere) = (cache(&client), cache(&elsewhere));
        many(&here).await;
        let loads = AtomicU32::new(0);
        let loads = Arc::new(loads);
        let calls = (0..100).flat_map(|n| [(&here, n), (&elsewhere, n)]).map(|(cache, n)| {
            let loads = loads.clone();
            let key = format!("load-{n}");
            async move {
                let loader = async move || {
                    loads.fetch_add(1, Relaxed);
                    sleep(Duration::from_millis(10)).await;
                    n
                };
                cache.get_or_set_with(&key, HOUR, loader).await.unwrap() == n
            }
        });
        assert!(join_all(calls).await.into_iter().all(|is_it| is_it));
        assert_eq!(loads.load(Relaxed), 100);
        let gate = Gate::default();
        let load = begin(&here, "ada", &gate, 1);
        gate.has_begun().await;
        elsewhere.clear().await.unwrap();
        gate.open();
        assert_eq!(load.await.unwrap().unwrap(), 1);
        assert!(here.is_empty().await.unwrap());
    }
}
