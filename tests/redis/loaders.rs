//! Loader methods of `redis::Cache`: one load for all callers in all processes, leases, and stale values.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{
    Ttl,
    redis::{Cache, Error},
};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    runtime::Runtime,
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a cache on the shared server. Each test uses a name of its own.
async fn cache(server: &Server, name: &str) -> Cache<String, u64> {
    Cache::new(&connect(server.url()).await, name).unwrap()
}

/// The same with a lease that is longer than the patience of any test.
async fn leasing(server: &Server, name: &str) -> Cache<String, u64> {
    let builder = Cache::builder(&connect(server.url()).await, name);
    builder.lease(HOUR).build().unwrap()
}

/// Returns three caches: a plain one, one with events, and one with a stale window.
pub(crate) async fn kinds(server: &Server, name: &str) -> [Cache<String, u64>; 3] {
    let client = connect(server.url()).await;
    let with_events = Cache::builder(&client, &format!("{name}-events")).events(HOUR);
    let stale = Cache::builder(&client, &format!("{name}-stale")).stale_while_revalidate(HOUR);
    [Cache::new(&client, name).unwrap(), with_events.build().unwrap(), stale.build().unwrap()]
}

/// A loader that reports when it has begun, and waits until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Notify, Notify, AtomicU32)>);

impl Gate {
    pub(crate) async fn load(self, value: u64) -> u64 {
        self.0.2.fetch_add(1, Relaxed);
        self.0.0.notify_one();
        self.0.1.notified().await;
        value
    }

    pub(crate) async fn has_begun(&self) {
        timeout(patience(), self.0.0.notified()).await.expect("a loader begins in time");
    }

    pub(crate) fn open(&self) {
        self.0.1.notify_one();
    }

    pub(crate) fn loads(&self) -> u32 {
        self.0.2.load(Relaxed)
    }
}

/// Spawns a call that loads. It also shows that the future of the method is `Send`.
pub(crate) fn begin(
    cache: &Cache<String, u64>,
    key: &str,
    gate: &Gate,
    value: u64,
) -> tokio::task::JoinHandle<Result<u64, Error>> {
    let (cache, key, gate) = (cache.clone(), key.to_owned(), gate.clone());
    tokio::spawn(async move { cache.get_or_set_with(&key, HOUR, move || gate.load(value)).await })
}

#[tokio::test]
async fn loader_runs_only_without_a_live_value_and_its_value_is_cached() {
    let server = Server::shared();
    for cache in kinds(&server, "there").await {
        let load = cache.get_or_set_with("ada", HOUR, async || 1).await.unwrap();
        assert_eq!((load, cache.get("ada").await.unwrap()), (1, Some(1)));
        let again =
            cache.get_or_set_with("ada", HOUR, async || unreachable!("the key has a live value"));
        assert_eq!(again.await.unwrap(), 1);
        assert!(matches!(cache.ttl("ada").await.unwrap(), Ttl::Remaining(left) if left <= HOUR));
        let ttl = |value: &u64| Duration::from_secs(*value);
        cache.get_or_set_with("bob", ttl, async || 60).await.unwrap();
        assert!(cache.ttl("bob").await.unwrap().as_secs() <= 60);
        let expired = cache.get_or_set_with("eve", Duration::ZERO, async || 7).await.unwrap();
        assert_eq!((expired, cache.get("eve").await.unwrap()), (7, None));
        let stats = cache.stats();
        assert_eq!((stats.loads, stats.failed_loads), (3, 0));
    }
}

#[tokio::test]
async fn one_load_serves_all_callers_of_all_processes() {
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
        assert_eq!(timeout(patience(), other).await.unwrap().unwrap().unwrap(), 1);
    }
    assert_eq!(gate.loads(), 1);
}

#[tokio::test]
async fn write_during_a_load_takes_precedence_over_the_loaded_value() {
    let server = Server::shared();
    let moment = Duration::from_millis(1);
    for cache in kinds(&server, "wins").await {
        for way in 0..12 {
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
                10 => drop(cache.remove_many([&key]).await.unwrap()),
                _ => drop(cache.expire_now(&key).await.unwrap()),
            }
            let is_present = matches!(way, 0 | 2 | 4);
            while !is_present && cache.get(&key).await.unwrap().is_some() {}
            // A call that begins after the write does not get the older loaded value.
            let after = begin(&cache, &key, &gate, 3);
            sleep(Duration::from_millis(5)).await;
            gate.open();
            assert_eq!(load.await.unwrap().unwrap(), 1, "{way}");
            if is_present {
                assert_eq!(cache.get(&key).await.unwrap(), Some(2), "{way}");
                gate.open();
                assert_eq!(after.await.unwrap().unwrap(), 2, "{way}");
            } else {
                gate.has_begun().await;
                assert_eq!(cache.get(&key).await.unwrap(), None, "{way}");
                gate.open();
                assert_eq!(timeout(patience(), after).await.unwrap().unwrap().unwrap(), 3, "{way}");
                assert_eq!(cache.get(&key).await.unwrap(), Some(3), "{way}");
            }
        }
    }
}

/// Each load is superseded by a write. A caller gets the value of the first load that began after its call.
#[tokio::test]
async fn callers_wait_for_two_loads_at_most_while_the_key_is_removed_again_and_again() {
    const CALLERS: usize = 20;
    let server = Server::shared();
    for cache in kinds(&server, "removed-again").await {
        let gate = Gate::default();
        let first = begin(&cache, "ada", &gate, 1);
        gate.has_begun().await;
        let callers = (0..CALLERS).map(|_| begin(&cache, "ada", &gate, 2)).collect::<Vec<_>>();
        // Until all of them wait for the first load.
        sleep(ms(50)).await;
        cache.remove("ada").await.unwrap();
        gate.open();
        assert_eq!(first.await.unwrap().unwrap(), 1);
        gate.has_begun().await;
        cache.remove("ada").await.unwrap();
        gate.open();
        for caller in callers {
            assert_eq!(caller.await.unwrap().unwrap(), 2);
        }
        assert_eq!(gate.loads(), 2);
        assert_eq!(cache.get("ada").await.unwrap(), None);
    }
}

#[tokio::test]
async fn call_that_changes_nothing_leaves_a_load_in_progress() {
    let server = Server::shared();
    let moment = Duration::from_millis(1);
    for cache in kinds(&server, "unchanged").await {
        for way in 0..4 {
            let key = format!("key-{way}");
            let gate = Gate::default();
            let load = begin(&cache, &key, &gate, 1);
            gate.has_begun().await;
            match way {
                0 => assert_eq!(cache.get_ex(&key, moment).await.unwrap(), None),
                1 => assert_eq!(cache.get_ex(&key, Duration::MAX).await.unwrap(), None),
                2 => assert!(!cache.expire(&key, moment).await.unwrap()),
                _ => assert!(!cache.persist(&key).await.unwrap()),
            }
            gate.open();
            assert_eq!(load.await.unwrap().unwrap(), 1, "{way}");
            assert_eq!(cache.get(&key).await.unwrap(), Some(1), "{way}");
        }
    }
}

#[tokio::test]
async fn call_that_changes_nothing_leaves_the_stale_value() {
    let server = Server::shared();
    let [.., cache] = kinds(&server, "unchanged").await;
    let ttl = Duration::from_millis(100);
    for number in 0.. {
        let key = format!("set_nx-{number}");
        cache.get_or_set_with(&key, ttl, async || 1).await.unwrap();
        // Again if the value had expired, because the machine was late.
        if cache.set_nx(key.clone(), 2, Some(HOUR)).await.unwrap() {
            continue;
        }
        while cache.contains_key(&key).await.unwrap() {}
        assert_eq!(cache.get_or_set_with(&key, ttl, async || 3).await.unwrap(), 1);
        break;
    }
    for way in 0..3 {
        let key = format!("expired-{way}");
        cache.get_or_set_with(&key, ttl, async || 1).await.unwrap();
        while cache.contains_key(&key).await.unwrap() {}
        match way {
            0 => assert_eq!(cache.get_ex(&key, Duration::from_secs(1)).await.unwrap(), None),
            1 => assert_eq!(cache.get_ex(&key, Duration::MAX).await.unwrap(), None),
            _ => assert!(!cache.expire(&key, HOUR).await.unwrap()),
        }
        assert_eq!(cache.get_or_set_with(&key, ttl, async || 3).await.unwrap(), 1, "{way}");
    }
}

#[tokio::test]
async fn stale_copy_of_a_value_with_a_long_ttl_stays_valid() {
    let server = Server::start();
    let builder = Cache::<String, u64>::builder(&connect(server.url()).await, "c");
    let cache = builder.stale_while_revalidate(HOUR).build().unwrap();
    cache.get_or_set_with("ada", 48 * HOUR, async || 1).await.unwrap();
    let mut plain = server.plain().await;
    let mut expiry_of = async |pattern| -> i64 {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(pattern).query_async(&mut plain).await.unwrap();
        let [key] = &keys[..] else { panic!("{keys:?}") };
        redis::cmd("PEXPIRETIME").arg(key).query_async(&mut plain).await.unwrap()
    };
    let value = expiry_of("*}:ada").await;
    let copy = expiry_of("*.load:*").await;
    assert_eq!(copy - value, 3_600_001, "the stale copy is kept for the stale window");
    // Without this key, the copy is not valid.
    let cleared = expiry_of("*.cleared").await;
    assert!(cleared >= copy, "{cleared}, {copy}");
}

#[tokio::test]
async fn waiter_of_any_process_loads_after_a_cancelled_or_panicked_load() {
    let server = Server::shared();
    let (here, elsewhere) = (leasing(&server, "leaves").await, leasing(&server, "leaves").await);
    for (way, next) in [(0, &here), (0, &elsewhere), (1, &here), (1, &elsewhere)] {
        let key = format!("key-{way}");
        here.remove(&key).await.unwrap();
        let (first, second) = (Gate::default(), Gate::default());
        let leader = {
            let (here, key, first) = (here.clone(), key.clone(), first.clone());
            tokio::spawn(async move {
                let loader = async move || {
                    first.clone().load(0).await;
                    panic!("expected panic of the loader");
                };
                here.get_or_set_with(&key, HOUR, loader).await
            })
        };
        first.has_begun().await;
        let waiter = begin(next, &key, &second, 2);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(second.loads(), 0);
        match way {
            0 => leader.abort(),
            _ => first.open(),
        }
        assert!(leader.await.is_err());
        // Long before the lease expires.
        second.has_begun().await;
        second.open();
        assert_eq!(waiter.await.unwrap().unwrap(), 2);
    }
}

/// Otherwise the key would be blocked until the lease expires.
#[tokio::test]
async fn call_dropped_at_any_await_releases_its_lease() {
    let server = Server::shared();
    let cache = leasing(&server, "dropped").await;
    let mut random = SmallRng::seed_from_u64(15);
    for n in 0..200 {
        let key = n.to_string();
        let load = cache.get_or_set_with(&key, HOUR, async || {
            sleep(Duration::from_micros(300)).await;
            1
        });
        let _ = timeout(Duration::from_micros(random.random_range(0..3_000)), load).await;
    }
    let loads =
        (0..200).map(async |n| cache.get_or_set_with(&n.to_string(), HOUR, async || 1).await);
    let loaded = timeout(patience(), join_all(loads)).await.expect("no key is blocked");
    assert!(loaded.into_iter().all(|loaded| loaded.is_ok_and(|value| value == 1)));
}

#[tokio::test]
async fn loader_error_is_returned_to_all_waiters_of_the_process_and_not_cached() {
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
    // A waiter whose loader has another error type runs its own loader.
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
async fn loader_may_request_other_keys_and_its_own() {
    let server = Server::shared();
    let cache = cache(&server, "nested").await;
    let inner = cache.clone();
    let loader = async move || {
        let other = inner.get_or_set_with("bob", HOUR, async || 1).await.unwrap();
        let own = inner.get_or_set_with("ada", HOUR, async || 2).await.unwrap();
        10 * other + own
    };
    let load = cache.get_or_set_with("ada", HOUR, loader);
    assert_eq!(timeout(patience(), load).await.unwrap().unwrap(), 12);
    assert_eq!(cache.get("ada").await.unwrap(), Some(12));
    assert_eq!(cache.get("bob").await.unwrap(), Some(1));
}

#[tokio::test]
async fn load_longer_than_its_lease_keeps_the_lease() {
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
async fn stale_value_is_returned_and_refreshed_once() {
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
        assert_eq!(
            cache.get("ada").await.unwrap(),
            None,
            "only loader methods return a stale value"
        );
        gate.open();
        while cache.get("ada").await.unwrap() != Some(2) {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(gate.loads(), 1);
        // A failed refresh is not retried immediately, and the stale value is still returned.
        while cache.get("ada").await.unwrap().is_some() {}
        let failed = Instant::now();
        // The pause before the next attempt lasts a second.
        let is_paused = || failed.elapsed() < Duration::from_millis(500);
        for cache in caches.iter().cycle().take(12).take_while(|_| is_paused()) {
            let failing = async || Err::<u64, _>(());
            let stale = cache.get_or_try_set_with("ada", ms(100), failing).await.unwrap();
            assert_eq!(stale, Ok(2));
            sleep(Duration::from_millis(10)).await;
        }
        let loads: u64 = caches.iter().map(|cache| cache.stats().failed_loads).sum();
        assert_eq!(loads, 1);
        // A write ends the staleness, and so does the end of the window.
        cache.remove("ada").await.unwrap();
        let reloaded = caches[1].get_or_set_with("ada", ms(1), async || 3).await.unwrap();
        assert_eq!(reloaded, 3);
        sleep(ms(2_100)).await;
        assert_eq!(cache.get_or_set_with("ada", ms(1), async || 4).await.unwrap(), 4);
        cache.clear().await.unwrap();
        assert_eq!(cache.get_or_set_with("ada", ms(1), async || 5).await.unwrap(), 5);
    })
    .await;
}

#[tokio::test]
async fn lease_of_unlimited_length_is_released_after_the_load() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let cache = Cache::<String, u64>::builder(&client, "for-ever").lease(Duration::MAX);
    let cache = cache.stale_while_revalidate(Duration::MAX).build().unwrap();
    assert_eq!(cache.get_or_set_with("ada", HOUR, async || 1).await.unwrap(), 1);
    let failed = cache.get_or_try_set_with("bob", HOUR, async || Err(())).await.unwrap();
    assert_eq!(failed, Err(Arc::new(())));
    // The failed load has released the lease.
    let again = cache.get_or_set_with("bob", HOUR, async || 2);
    assert_eq!(timeout(patience(), again).await.unwrap().unwrap(), 2);
}

/// As after a failover from a master whose clock was ahead to one whose clock is right.
#[test]
fn lease_of_a_clock_that_was_ahead_does_not_block_the_key() {
    let server = Server::start_with_clock();
    let build = async || {
        let client = connect(server.url()).await;
        let lease = Duration::from_millis(300);
        Cache::<String, u64>::builder(&client, "ahead").lease(lease).build().unwrap()
    };
    let (crashing, surviving) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let gate = Gate::default();
    server.set_clock(HOUR);
    crashing.block_on(async {
        begin(&build().await, "ada", &gate, 1);
        gate.has_begun().await;
    });
    // As in a crash, the lease is not released.
    crashing.shutdown_background();
    server.set_clock(Duration::ZERO);
    surviving.block_on(async {
        let cache = build().await;
        let load = cache.get_or_set_with("ada", HOUR, async || 2);
        assert_eq!(
            timeout(patience() / 4, load)
                .await
                .expect("the key is not blocked for an hour")
                .unwrap(),
            2
        );
    });
}
