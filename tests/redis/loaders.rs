//! Values that are loaded once in the whole fleet, whatever becomes of those who load them; and many keys at once.

use std::{
    env,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{
    Ttl,
    redis::{Cache, Client, Error, Format},
};
use futures::{StreamExt, future::join_all, stream::iter};
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use redis::AsyncCommands;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    clock::{in_time, ms},
    servers::{Cluster, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Each test has a name of its own on the server that they share.
async fn cache(server: &Server, name: &str) -> Cache<String, u64> {
    Cache::new(&connect(server.url()).await, name).unwrap()
}

/// Of each kind: plain, with events, and with what is stale.
async fn kinds(server: &Server, name: &str) -> [Cache<String, u64>; 3] {
    let client = connect(server.url()).await;
    let told = Cache::builder(&client, &format!("{name}-told")).events(HOUR);
    let stale = Cache::builder(&client, &format!("{name}-stale")).stale_while_revalidate(HOUR);
    [Cache::new(&client, name).unwrap(), told.build().unwrap(), stale.build().unwrap()]
}

/// A loader that says when it has begun, and goes on when it is told.
#[derive(Clone, Default)]
struct Gate(Arc<(Notify, Notify, AtomicU32)>);

impl Gate {
    async fn load(self, value: u64) -> u64 {
        self.0.2.fetch_add(1, Relaxed);
        self.0.0.notify_one();
        self.0.1.notified().await;
        value
    }

    async fn has_begun(&self) {
        timeout(PATIENCE, self.0.0.notified()).await.expect("a loader begins");
    }

    fn open(&self) {
        self.0.1.notify_one();
    }

    fn loads(&self) -> u32 {
        self.0.2.load(Relaxed)
    }
}

/// A call that loads, in a task of its own: so the future of the verb is `Send`.
fn begin(
    cache: &Cache<String, u64>,
    key: &str,
    gate: &Gate,
    value: u64,
) -> tokio::task::JoinHandle<Result<u64, Error>> {
    let (cache, key, gate) = (cache.clone(), key.to_owned(), gate.clone());
    tokio::spawn(async move { cache.get_or_set_with(&key, HOUR, move || gate.load(value)).await })
}

#[tokio::test]
async fn what_is_there_is_not_loaded_and_what_is_not_is_put() {
    let server = Server::shared();
    for cache in kinds(&server, "there").await {
        let load = cache.get_or_set_with("ada", HOUR, async || 1).await.unwrap();
        assert_eq!((load, cache.get("ada").await.unwrap()), (1, Some(1)));
        let again = cache.get_or_set_with("ada", HOUR, async || unreachable!("it is there"));
        assert_eq!(again.await.unwrap(), 1);
        assert!(matches!(cache.ttl("ada").await.unwrap(), Ttl::Remaining(left) if left <= HOUR));
        let ttl = |value: &u64| Duration::from_secs(*value);
        cache.get_or_set_with("bob", ttl, async || 60).await.unwrap();
        assert!(cache.ttl("bob").await.unwrap().as_secs() <= 60);
        let dead = cache.get_or_set_with("eve", Duration::ZERO, async || 7).await.unwrap();
        assert_eq!((dead, cache.get("eve").await.unwrap()), (7, None));
        let stats = cache.stats();
        assert_eq!((stats.loads, stats.failed_loads), (3, 0));
    }
}

#[tokio::test]
async fn one_loads_for_all_who_ask_in_this_process_and_in_others() {
    let server = Server::shared();
    let here = cache(&server, "one").await;
    let elsewhere = [cache(&server, "one").await, cache(&server, "one").await];
    let gate = Gate::default();
    let first = begin(&here, "ada", &gate, 1);
    gate.has_begun().await;
    let rest: Vec<_> = (0..100)
        .flat_map(|_| {
            [&here, &elsewhere[0], &elsewhere[1]].map(|cache| begin(cache, "ada", &gate, 2))
        })
        .collect();
    sleep(Duration::from_millis(50)).await;
    gate.open();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    for other in rest {
        assert_eq!(timeout(PATIENCE, other).await.unwrap().unwrap().unwrap(), 1);
    }
    assert_eq!(gate.loads(), 1);
}

#[tokio::test]
async fn what_is_written_while_it_is_loaded_wins() {
    let server = Server::shared();
    let moment = Duration::from_millis(1);
    for cache in kinds(&server, "wins").await {
        for way in 0..11 {
            let key = format!("key-{way}");
            let gate = Gate::default();
            let load = begin(&cache, &key, &gate, 1);
            gate.has_begun().await;
            match way {
                0 => drop(cache.set(key.clone(), 2).await.unwrap()),
                1 => drop(cache.set_ex(key.clone(), 2, moment).await.unwrap()),
                2 => drop(cache.set_ex(key.clone(), 2, HOUR).await.unwrap()),
                3 => assert!(cache.set_nx(key.clone(), 2, Some(moment)).await.unwrap()),
                4 => drop(cache.set_keep_ttl(key.clone(), 2).await.unwrap()),
                5 => drop(cache.remove(&key).await.unwrap()),
                6 => cache.clear().await.unwrap(),
                7 => cache.set_many([(key.clone(), 2)], Some(moment)).await.unwrap(),
                8 => {
                    cache.set(key.clone(), 2).await.unwrap();
                    assert!(cache.expire(&key, moment).await.unwrap());
                }
                9 => {
                    cache.set(key.clone(), 2).await.unwrap();
                    assert_eq!(cache.get_ex(&key, moment).await.unwrap(), Some(2));
                }
                _ => drop(cache.expire_now(&key).await.unwrap()),
            }
            let stays = matches!(way, 0 | 2 | 4);
            while !stays && cache.get(&key).await.unwrap().is_some() {}
            // Who comes after the write gets nothing that is older.
            let after = begin(&cache, &key, &gate, 3);
            sleep(Duration::from_millis(5)).await;
            gate.open();
            assert_eq!(load.await.unwrap().unwrap(), 1, "{way}");
            if stays {
                assert_eq!(cache.get(&key).await.unwrap(), Some(2), "{way}");
                gate.open();
                assert_eq!(after.await.unwrap().unwrap(), 2, "{way}");
            } else {
                gate.has_begun().await;
                assert_eq!(cache.get(&key).await.unwrap(), None, "{way}");
                gate.open();
                assert_eq!(timeout(PATIENCE, after).await.unwrap().unwrap().unwrap(), 3, "{way}");
                assert_eq!(cache.get(&key).await.unwrap(), Some(3), "{way}");
            }
        }
    }
}

#[tokio::test]
async fn who_is_dropped_or_panics_leaves_the_load_to_another_here_or_elsewhere() {
    let server = Server::shared();
    let (here, elsewhere) = (cache(&server, "leaves").await, cache(&server, "leaves").await);
    for (way, next) in [(0, &here), (0, &elsewhere), (1, &here), (1, &elsewhere)] {
        let key = format!("key-{way}");
        here.remove(&key).await.unwrap();
        let (first, second) = (Gate::default(), Gate::default());
        let leader = {
            let (here, key, first) = (here.clone(), key.clone(), first.clone());
            tokio::spawn(async move {
                let loader = async move || {
                    first.clone().load(0).await;
                    panic!("of the loader");
                };
                here.get_or_set_with(&key, HOUR, loader).await
            })
        };
        first.has_begun().await;
        let waiter = begin(next, &key, &second, 2);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(second.loads(), 0);
        let begin = Instant::now();
        match way {
            0 => leader.abort(),
            _ => first.open(),
        }
        assert!(leader.await.is_err());
        second.has_begun().await;
        // A lease is 10 s.
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
        second.open();
        assert_eq!(waiter.await.unwrap().unwrap(), 2);
    }
}

/// At whatever await a call is dropped, it keeps the key from nobody.
#[tokio::test]
async fn a_call_that_is_dropped_at_any_time_leaves_no_lease() {
    let server = Server::shared();
    let cache = cache(&server, "dropped").await;
    let mut random = SmallRng::seed_from_u64(15);
    for n in 0..200 {
        let key = n.to_string();
        let load = cache.get_or_set_with(&key, HOUR, async || {
            sleep(Duration::from_micros(300)).await;
            1
        });
        let _ = timeout(Duration::from_micros(random.random_range(0..3_000)), load).await;
    }
    let begin = Instant::now();
    let loads =
        (0..200).map(async |n| cache.get_or_set_with(&n.to_string(), HOUR, async || 1).await);
    assert!(join_all(loads).await.into_iter().all(|loaded| loaded.is_ok_and(|value| value == 1)));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn an_error_is_for_all_who_wait_here_and_is_not_kept() {
    let server = Server::shared();
    let cache = cache(&server, "errors").await;
    let loads = Arc::new(AtomicU32::new(0));
    let calls = (0..50).map(|_| {
        let loads = loads.clone();
        cache.get_or_try_set_with("ada", HOUR, async move || {
            loads.fetch_add(1, Relaxed);
            sleep(Duration::from_millis(100)).await;
            Err::<u64, _>("no such user")
        })
    });
    for failed in join_all(calls).await {
        assert_eq!(*failed.unwrap().unwrap_err(), "no such user");
    }
    assert_eq!(loads.load(Relaxed), 1);
    assert_eq!(cache.stats().failed_loads, 1);
    // Of another type: each goes on with its own.
    let gate = Gate::default();
    let failing = {
        let (cache, gate) = (cache.clone(), gate.clone());
        tokio::spawn(async move {
            let loader = async move || Err::<u64, u64>(gate.load(1).await);
            cache.get_or_try_set_with("ada", HOUR, loader).await
        })
    };
    gate.has_begun().await;
    let other = cache.get_or_try_set_with("ada", HOUR, async || Ok::<_, String>(2));
    let other = async { (gate.open(), other.await.unwrap().unwrap()).1 };
    assert_eq!(other.await, 2);
    assert_eq!(*failing.await.unwrap().unwrap().unwrap_err(), 1);
}

#[tokio::test]
async fn a_loader_may_ask_for_other_keys_and_for_its_own() {
    let server = Server::shared();
    let cache = cache(&server, "nested").await;
    let inner = cache.clone();
    let loader = async move || {
        let other = inner.get_or_set_with("bob", HOUR, async || 1).await.unwrap();
        let own = inner.get_or_set_with("ada", HOUR, async || 2).await.unwrap();
        10 * other + own
    };
    let load = cache.get_or_set_with("ada", HOUR, loader);
    assert_eq!(timeout(PATIENCE, load).await.unwrap().unwrap(), 12);
    assert_eq!(cache.get("ada").await.unwrap(), Some(12));
    assert_eq!(cache.get("bob").await.unwrap(), Some(1));
}

#[tokio::test]
async fn a_load_that_takes_longer_than_a_lease_keeps_it() {
    let server = Server::shared();
    in_time(async || {
        let clients = [connect(server.url()).await, connect(server.url()).await];
        let name = format!("long-{}", ms(1).as_millis());
        let [here, elsewhere] = clients.map(|client| {
            Cache::<String, u64>::builder(&client, &name).lease(ms(200)).build().unwrap()
        });
        let slow = async || {
            sleep(ms(700)).await;
            1
        };
        let other = async {
            sleep(ms(50)).await;
            elsewhere.get_or_set_with("ada", HOUR, async || 2).await
        };
        let (first, second) = tokio::join!(here.get_or_set_with("ada", HOUR, slow), other);
        assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn what_is_stale_is_returned_and_loaded_anew_once() {
    let server = Server::shared();
    in_time(async || {
        let name = format!("stale-{}", ms(1).as_millis());
        let mut caches = Vec::new();
        for _ in 0..3 {
            let client = connect(server.url()).await;
            let builder = Cache::<String, u64>::builder(&client, &name);
            caches.push(builder.stale_while_revalidate(ms(2_000)).build().unwrap());
        }
        let [cache, ..] = &caches[..] else { unreachable!() };
        cache.get_or_set_with("ada", ms(100), async || 1).await.unwrap();
        while cache.get("ada").await.unwrap().is_some() {}
        let gate = Gate::default();
        for _ in 0..5 {
            for cache in &caches {
                let gate = gate.clone();
                let stale = cache.get_or_set_with("ada", ms(100), move || gate.load(2));
                assert_eq!(stale.await.unwrap(), 1);
            }
        }
        gate.has_begun().await;
        assert_eq!(cache.get("ada").await.unwrap(), None, "only those who load see it");
        gate.open();
        while cache.get("ada").await.unwrap() != Some(2) {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(gate.loads(), 1);
        // A refresh that fails is not tried again at once, and what is stale stays so.
        while cache.get("ada").await.unwrap().is_some() {}
        for cache in caches.iter().cycle().take(12) {
            let failing = async || Err::<u64, _>(());
            let stale = cache.get_or_try_set_with("ada", ms(100), failing).await.unwrap();
            assert_eq!(stale, Ok(2));
            sleep(Duration::from_millis(10)).await;
        }
        let loads: u64 = caches.iter().map(|cache| cache.stats().failed_loads).sum();
        assert_eq!(loads, 1);
        // A write ends it, and so does the window.
        cache.remove("ada").await.unwrap();
        let anew = caches[1].get_or_set_with("ada", ms(1), async || 3).await.unwrap();
        assert_eq!(anew, 3);
        sleep(ms(2_100)).await;
        assert_eq!(cache.get_or_set_with("ada", ms(1), async || 4).await.unwrap(), 4);
        cache.clear().await.unwrap();
        assert_eq!(cache.get_or_set_with("ada", ms(1), async || 5).await.unwrap(), 5);
    })
    .await;
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
        .args(["--exact", "loaders::a_fleet_loads_each_key_once_though_some_are_killed"])
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

async fn many(cache: &Cache<String, u64>) {
    let keys: Vec<String> = (0..300).map(|n| format!("key-{n}")).collect();
    let entries = || keys.iter().cloned().zip(0..);
    cache.set_many(entries(), Some(HOUR)).await.unwrap();
    let mut wanted: Vec<Option<u64>> = (0..300).map(Some).collect();
    let get = async || cache.get_many(keys.iter().map(String::as_str)).await.unwrap();
    assert_eq!(get().await, wanted);
    assert!(matches!(cache.ttl("key-7").await.unwrap(), Ttl::Remaining(left) if left <= HOUR));
    cache.set_many(entries(), None).await.unwrap();
    assert_eq!(cache.ttl("key-7").await.unwrap(), Ttl::Persistent);
    for n in [0, 7, 299] {
        cache.remove(&keys[n]).await.unwrap();
        wanted[n] = None;
    }
    assert_eq!(get().await, wanted);
    let twice = [("key-7", 1), ("a", 2), ("key-7", 3)].map(|(key, n)| (key.to_owned(), n));
    cache.set_many(twice, None).await.unwrap();
    let same = cache.get_many(["key-7", "b", "key-7", "a"]).await.unwrap();
    assert_eq!(same, [Some(3), None, Some(3), Some(2)]);
    cache.set_many([("a".to_owned(), 9)], Some(Duration::ZERO)).await.unwrap();
    assert_eq!(cache.get("a").await.unwrap(), None);
    assert_eq!(cache.get_many::<str>([]).await.unwrap(), []);
    cache.set_many([], None).await.unwrap();
}

#[tokio::test]
async fn many_keys_are_read_and_written_in_their_order() {
    let server = Server::shared();
    for cache in kinds(&server, "many").await {
        many(&cache).await;
        let spawned = {
            let cache = cache.clone();
            tokio::spawn(async move {
                let keys = ["key-1".to_owned(), "key-2".to_owned()];
                cache.get_many(&keys).await
            })
        };
        assert_eq!(spawned.await.unwrap().unwrap(), [Some(1), Some(2)]);
    }
    let told = &kinds(&server, "many").await[1];
    let mut events = told.events().await.unwrap();
    told.set_many([("dead".to_owned(), 7)], Some(Duration::from_millis(1))).await.unwrap();
    let event = timeout(PATIENCE, events.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!((&event.key[..], event.value), ("dead", 7));
}

#[tokio::test]
async fn values_of_a_mebibyte_are_read_and_written_by_parts() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let builder = Cache::<u64, String>::builder(&client, "large").format(Format::Raw);
    let cache = builder.build().unwrap();
    let large = |n: u64| n.to_string().repeat(1 << 19);
    cache.set_many((0..40).map(|n| (n, large(n))), None).await.unwrap();
    let keys: Vec<u64> = (0..40).collect();
    let values = cache.get_many(&keys).await.unwrap();
    assert!(values.into_iter().zip(0..).all(|(value, n)| value == Some(large(n))));
    cache.clear().await.unwrap();
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
