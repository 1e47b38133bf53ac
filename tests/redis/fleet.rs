//! Loads shared by several processes, with killed processes, failing servers and clusters.

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
    clock::{in_time, ms},
    loaders::{Gate, begin},
    many::many,
    patience::patience,
    servers::{Cluster, Server, connect, plain},
};

const HOUR: Duration = Duration::from_secs(3_600);

const KEYS: usize = 1_000;

/// Loads all keys, in an order that depends on `seed`, and appends the process ID to a log of the key when a load
/// begins.
async fn load_all(url: &str, seed: u64, lease: Duration) {
    let client = connect(url).await;
    let builder = Cache::<u64, u64>::builder(&client, "fleet").lease(lease);
    let cache = builder.build().unwrap();
    let log = plain(url).await;
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

/// Runs this test in another process, as a member of the fleet.
fn start_process(url: &str, seed: u64, lease: Duration) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "fleet::each_key_is_loaded_once_by_a_fleet_with_killed_processes"])
        .env("FLEETING_FLEET", format!("{url} {seed} {}", lease.as_millis()))
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn each_key_is_loaded_once_by_a_fleet_with_killed_processes() {
    if let Ok(fleet) = env::var("FLEETING_FLEET") {
        let [url, seed, lease] = fleet.split(' ').collect::<Vec<_>>()[..] else { unreachable!() };
        let lease = Duration::from_millis(lease.parse().unwrap());
        return load_all(url, seed.parse().unwrap(), lease).await;
    }
    // A process that is suspended for a lease loses it although it is alive.
    in_time(async || check_fleet(ms(500)).await).await;
}

async fn check_fleet(lease: Duration) {
    let server = Server::start();
    let mut plain = server.plain().await;
    let mut killed =
        (0..2).map(|seed| start_process(&server.url(), seed, lease)).collect::<Vec<_>>();
    let rest = (2..4).map(|seed| start_process(&server.url(), seed, lease)).collect::<Vec<_>>();
    for (child, keys) in killed.iter_mut().zip([100, 200]) {
        while redis::cmd("DBSIZE").query_async::<usize>(&mut plain).await.unwrap() < keys {
            sleep(Duration::from_millis(1)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let alive: Vec<u32> = rest.iter().map(Child::id).collect();
    for mut child in rest {
        assert!(child.wait().unwrap().success());
    }
    let mut again = 0;
    for key in 0..KEYS {
        let loaded_by: Vec<u32> = plain.lrange(format!("log:{key}"), 0, -1).await.unwrap();
        // A load begins again only if the process that ran it was killed.
        let (last, before) = loaded_by.split_last().expect("the key was loaded");
        again += before.len();
        assert!(
            before.iter().all(|id| !alive.contains(id)),
            "{key}: {loaded_by:?} alive: {alive:?}"
        );
        assert!(!before.contains(last), "{key}: {loaded_by:?}");
    }
    println!("{again} keys were loaded again after their process was killed");
    assert!(
        again <= 2 * 16,
        "more keys were loaded again than the killed processes had in flight: {again}"
    );
}

#[tokio::test]
async fn server_failure_is_an_error_for_all_callers_and_does_not_end_loads() {
    in_time(async || {
        let mut server = Server::start();
        let client = Client::builder(server.url()).timeout(ms(500));
        let cache: Cache<String, u64> =
            Cache::new(&client.connect().await.unwrap(), "away").unwrap();
        let gate = Gate::default();
        let load = begin(&cache, "ada", &gate, 1);
        gate.has_begun().await;
        server.kill();
        gate.open();
        assert_eq!(load.await.unwrap().unwrap(), 1, "the caller gets the loaded value");
        assert_eq!(cache.stats().failed_loads, 1);
        let begin_at = Instant::now();
        let calls: Vec<_> = (0..20).map(|_| begin(&cache, "ada", &gate, 2)).collect();
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            assert!(error.is_temporary(), "{error:?}");
        }
        // The calls wait concurrently.
        assert!(begin_at.elapsed() < ms(8_000), "{:?}", begin_at.elapsed());
        assert_eq!(gate.loads(), 1);
        // A restarted server has lost its data, including the lease of a load in flight.
        server.restart();
        let until = Instant::now() + patience();
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
    })
    .await;
}

#[tokio::test]
async fn load_runs_once_for_all_clients_of_a_cluster() {
    let cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let elsewhere = connect(cluster.urls()).await;
    for has_events in [false, true] {
        let cache = |client: &Client| {
            let builder =
                Cache::<String, u64>::builder(client, if has_events { "events" } else { "c" });
            let builder = builder.stale_while_revalidate(HOUR).lease(HOUR);
            if has_events { builder.events(HOUR) } else { builder }.build().unwrap()
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
        assert!(join_all(calls).await.into_iter().all(|is_equal| is_equal));
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
