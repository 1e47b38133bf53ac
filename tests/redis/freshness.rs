//! `jitter`, `negative_ttl`, `refresh_ahead` and `on_refresh_error` of `redis::Cache`, also with a near cache.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{
    Ttl, When,
    redis::{Cache, CacheBuilder},
};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms},
    loaders::Gate,
    near::until,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Factor with which every hit is due: it is above any TTL divided by the duration of a load.
const DUE: f64 = 1e15;

/// Returns builders of a plain cache, one with events, one with a stale window, and one with a near cache.
async fn builders(server: &Server, name: &str) -> [CacheBuilder<String, u64>; 4] {
    let client = connect(server.url()).await;
    let builder = |kind: &str| Cache::builder(&client, &format!("{name}-{kind}"));
    [
        builder("plain"),
        builder("events").events(HOUR),
        builder("stale").stale_while_revalidate(HOUR),
        builder("near").near(1_000).near_max_age(HOUR),
    ]
}

async fn remaining(cache: &Cache<String, u64>, key: &str) -> Duration {
    match cache.ttl(key).await.unwrap() {
        Ttl::Remaining(ttl) => ttl,
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test]
async fn jitter_shortens_the_ttl_of_written_and_loaded_values() {
    let server = Server::shared();
    let minute = Duration::from_secs(60);
    for builder in builders(&server, "jitter").await {
        let cache = builder.time_to_live(HOUR).jitter(0.5).build().unwrap();
        let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        cache.set_many(keys.iter().cloned().zip(0..), None).await.unwrap();
        let mut ttls = BTreeSet::new();
        for key in &keys {
            let ttl = remaining(&cache, key).await;
            assert!(HOUR / 2 - minute < ttl && ttl <= HOUR, "{ttl:?}");
            ttls.insert(ttl.as_secs() / 60);
        }
        assert!(ttls.len() > 10, "values that are written together do not expire together");
        // Each is shortened by more than a minute of thirty, with a probability of 29 in 30. None of ten is: once in
        // 10^14.
        let mut shortened = [0; 6];
        for n in 0..10 {
            let verbs = ["set", "set_ex", "set_nx", "keep", "loaded", "default"];
            let keys = verbs.map(|verb| format!("{verb}{n}"));
            let [set, set_ex, set_nx, keep, loaded, default] = keys.clone();
            cache.set(set, 1).await.unwrap();
            cache.set_ex(set_ex, 1, HOUR).await.unwrap();
            cache.set_nx(set_nx, 1, Some(HOUR)).await.unwrap();
            cache.set_keep_ttl(keep, 1).await.unwrap();
            cache.get_or_set_with(loaded.as_str(), HOUR, async || 1).await.unwrap();
            cache.get_or_set_with(default.as_str(), None, async || 1).await.unwrap();
            for (key, shortened) in keys.iter().zip(&mut shortened) {
                *shortened += u32::from(remaining(&cache, key).await < HOUR - minute);
                cache.expire(key, HOUR).await.unwrap();
                assert!(remaining(&cache, key).await > HOUR - minute, "{key}: no jitter");
            }
        }
        assert!(shortened.iter().all(|shortened| *shortened > 0), "{shortened:?}");
        cache.set_ex("forever".into(), 1, Duration::MAX).await.unwrap();
        assert_eq!(cache.ttl("forever").await.unwrap(), Ttl::Persistent);
    }
}

#[tokio::test]
async fn error_is_kept_for_the_negative_ttl() {
    let server = Server::shared();
    in_time(async || {
        for builder in builders(&server, &format!("negative-{}", ms(1).as_millis())).await {
            let cache = builder.negative_ttl(ms(2_000)).build().unwrap();
            let loads = Arc::new(AtomicU32::new(0));
            let fail = async |key: &str| {
                let loads = loads.clone();
                let loader = async move || Err::<u64, _>(loads.fetch_add(1, Relaxed));
                *cache.get_or_try_set_with(key, HOUR, loader).await.unwrap().unwrap_err()
            };
            assert_eq!((fail("ada").await, fail("ada").await, fail("bob").await), (0, 0, 1));
            // A loader with another type of error runs, and so does one that cannot fail.
            let other = cache.get_or_try_set_with("ada", HOUR, async || Err::<u64, _>("no"));
            assert_eq!(*other.await.unwrap().unwrap_err(), "no");
            assert_eq!(cache.get_or_set_with("bob", HOUR, async || 7).await.unwrap(), 7);
            assert_eq!(cache.remove("bob").await.unwrap(), Some(7));
            assert_eq!(fail("bob").await, 2, "a loaded value ends the failure");
            // A write or a removal discards the error, even if there was no value.
            for (way, n) in (0..7).zip(3..) {
                let owned = || "bob".to_owned();
                match way {
                    0 => drop(cache.remove("bob").await.unwrap()),
                    1 => assert_eq!(cache.remove_many(["bob"]).await.unwrap(), 0),
                    2 => cache.clear().await.unwrap(),
                    3 => drop(cache.set_nx(owned(), 1, Some(Duration::ZERO)).await.unwrap()),
                    4 => drop(cache.set_ex(owned(), 1, Duration::ZERO).await.unwrap()),
                    5 => drop(cache.expire_now("bob").await.unwrap()),
                    _ => cache.set_many([(owned(), 1)], Some(Duration::ZERO)).await.unwrap(),
                }
                assert_eq!((fail("bob").await, fail("bob").await), (n, n), "way {way}");
            }
            sleep(ms(2_000)).await;
            assert_eq!(fail("bob").await, 10, "the negative TTL has ended");
        }
    })
    .await;
}

#[tokio::test]
async fn error_of_a_load_during_which_the_key_was_written_is_not_kept() {
    let server = Server::shared();
    for builder in builders(&server, "negative-race").await {
        let cache = builder.negative_ttl(HOUR).build().unwrap();
        let gate = Gate::default();
        let load = {
            let (cache, gate) = (cache.clone(), gate.clone());
            let loader = async move || Err::<u64, u64>(gate.load(1).await);
            tokio::spawn(async move { cache.get_or_try_set_with("ada", HOUR, loader).await })
        };
        gate.has_begun().await;
        cache.remove("ada").await.unwrap();
        gate.open();
        assert_eq!(*load.await.unwrap().unwrap().unwrap_err(), 1);
        let next = cache.get_or_try_set_with("ada", HOUR, async || Err::<u64, u64>(2)).await;
        assert_eq!(*next.unwrap().unwrap_err(), 2);
    }
}

#[tokio::test]
async fn error_of_a_load_during_which_other_keys_were_written_is_kept() {
    let server = Server::shared();
    for builder in builders(&server, "negative-others").await {
        let cache = builder.negative_ttl(HOUR).build().unwrap();
        let gate = Gate::default();
        let load = {
            let (cache, gate) = (cache.clone(), gate.clone());
            let loader = async move || Err::<u64, u64>(gate.load(1).await);
            tokio::spawn(async move { cache.get_or_try_set_with("ada", HOUR, loader).await })
        };
        gate.has_begun().await;
        // Many, as failures are kept in stripes, of which each key has one.
        cache.set_many((0..2_000).map(|n| (n.to_string(), n)), None).await.unwrap();
        cache.remove("bob").await.unwrap();
        gate.open();
        assert_eq!(*load.await.unwrap().unwrap().unwrap_err(), 1);
        let next = cache.get_or_try_set_with("ada", HOUR, async || Err::<u64, u64>(2)).await;
        assert_eq!(*next.unwrap().unwrap_err(), 1, "the error is kept");
        cache.clear().await.unwrap();
        let next = cache.get_or_try_set_with("ada", HOUR, async || Err::<u64, u64>(3)).await;
        assert_eq!(*next.unwrap().unwrap_err(), 3);
    }
}

#[tokio::test]
async fn refresh_ahead_replaces_a_live_value_that_callers_still_get() {
    let server = Server::shared();
    for builder in builders(&server, "ahead").await {
        let cache = builder.refresh_ahead(DUE).build().unwrap();
        assert_eq!(cache.get_or_set_with("ada", HOUR, async || 1).await.unwrap(), 1);
        let gate = Gate::default();
        let begin = |n: u64| {
            let gate = gate.clone();
            cache.get_or_set_with("ada", HOUR, move || gate.load(n))
        };
        for n in 2..10 {
            assert_eq!(begin(n).await.unwrap(), 1, "the live value is returned");
        }
        gate.has_begun().await;
        assert_eq!(cache.get("ada").await.unwrap(), Some(1));
        gate.open();
        until("the refresh", async || cache.get("ada").await.unwrap() == Some(2)).await;
        assert_eq!(gate.loads(), 1, "one refresh runs at a time");
        // A persistent value is not refreshed.
        cache.persist("ada").await.unwrap();
        assert_eq!(begin(3).await.unwrap(), 2);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(gate.loads(), 1);
    }
}

/// Makes calls right after a loader method has returned the live value, and so started to refresh it.
async fn calls_after_a_hit_that_is_due(name: &str) {
    let server = Server::shared();
    for verb in ["remove", "expire", "expire_now", "persist", "set"] {
        for builder in builders(&server, &format!("{name}-{verb}")).await {
            let cache = builder.refresh_ahead(DUE).build().unwrap();
            let load = |n: u64| {
                cache.get_or_set_with("ada", HOUR, async move || {
                    sleep(Duration::from_millis(10)).await;
                    n
                })
            };
            assert_eq!(load(1).await.unwrap(), 1);
            assert_eq!(load(2).await.unwrap(), 1, "the live value is returned");
            match verb {
                "remove" => assert_eq!(cache.remove("ada").await.unwrap(), Some(1)),
                "expire" => assert!(cache.expire("ada", HOUR / 2).await.unwrap()),
                "expire_now" => assert_eq!(cache.expire_now("ada").await.unwrap(), Some(1)),
                "persist" => assert!(cache.persist("ada").await.unwrap()),
                _ => assert_eq!(cache.set("ada".into(), 9).await.unwrap(), Some(1)),
            }
            // As long as a refresh takes that does not respect the call.
            sleep(Duration::from_millis(60)).await;
            let found = cache.get_with_ttl("ada").await.unwrap();
            let is_kept = match (verb, found) {
                ("remove" | "expire_now", found) => found.is_none(),
                ("expire", Some((_, Ttl::Remaining(ttl)))) => ttl <= HOUR / 2,
                ("persist", Some((_, ttl))) => ttl == Ttl::Persistent,
                ("set", Some((value, _))) => value == 9,
                _ => false,
            };
            assert!(is_kept, "{verb}, {cache:?}: {found:?}");
        }
    }
}

#[tokio::test]
async fn call_after_a_hit_takes_precedence_over_its_refresh() {
    calls_after_a_hit_that_is_due("hit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_after_a_hit_takes_precedence_over_its_refresh_on_another_thread() {
    calls_after_a_hit_that_is_due("hit-threads").await;
}

/// Begins to refresh the value 1, which is due, and returns the gate of the loader of 2.
async fn begin_refresh(cache: &Cache<String, u64>, key: &str, ttl: Duration) -> Gate {
    let gate = Gate::default();
    let loader = gate.clone();
    let hit = cache.get_or_set_with(key, ttl, move || loader.load(2)).await;
    assert_eq!(hit.unwrap(), 1);
    gate.has_begun().await;
    gate
}

#[tokio::test]
async fn one_process_refreshes_ahead_at_a_time() {
    let server = Server::shared();
    let mut caches = Vec::new();
    for _ in 0..3 {
        let client = connect(server.url()).await;
        let builder = Cache::<String, u64>::builder(&client, "ahead-processes").lease(HOUR);
        caches.push(builder.refresh_ahead(DUE).build().unwrap());
    }
    for (cache, n) in caches.iter().zip(0..) {
        // So that each process knows the duration of loads.
        cache.get_or_set_with(&format!("warm-{n}"), HOUR, async || 1).await.unwrap();
    }
    caches[0].set_ex("ada".into(), 1, HOUR).await.unwrap();
    let gate = Gate::default();
    for cache in caches.iter().cycle().take(12) {
        let gate = gate.clone();
        let hit = cache.get_or_set_with("ada", HOUR, move || gate.load(2));
        assert_eq!(hit.await.unwrap(), 1);
        sleep(Duration::from_millis(5)).await;
    }
    gate.has_begun().await;
    gate.open();
    until("the refresh", async || caches[1].get("ada").await.unwrap() == Some(2)).await;
    assert_eq!(gate.loads(), 1);
}

#[tokio::test]
async fn write_during_a_refresh_takes_precedence_over_the_loaded_value() {
    let server = Server::shared();
    for builder in builders(&server, "ahead-writes").await {
        let cache = builder.refresh_ahead(DUE).build().unwrap();
        cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
        for way in 0..7 {
            let key = &*format!("key-{way}");
            let owned = || key.to_owned();
            cache.set_ex(owned(), 1, HOUR).await.unwrap();
            let gate = begin_refresh(&cache, key, HOUR).await;
            let expected = match way {
                0 => (cache.set(owned(), 3).await.unwrap(), Some(3)).1,
                1 => (cache.set_ex(owned(), 3, HOUR).await.unwrap(), Some(3)).1,
                2 => (cache.remove(key).await.unwrap(), None).1,
                3 => (cache.clear().await.unwrap(), None).1,
                4 => (cache.update(key, |n| *n = 3).await.unwrap(), Some(3)).1,
                5 => (cache.set_keep_ttl(owned(), 3).await.unwrap(), Some(3)).1,
                _ => (cache.remove_many([key]).await.unwrap(), None).1,
            };
            gate.open();
            sleep(Duration::from_millis(30)).await;
            assert_eq!(cache.get(key).await.unwrap(), expected, "way {way}");
        }
    }
}

#[tokio::test]
async fn value_and_its_ttl_are_returned_together() {
    let server = Server::shared();
    for builder in builders(&server, "with-ttl").await {
        let cache = builder.build().unwrap();
        assert_eq!(cache.get_with_ttl("ada").await.unwrap(), None);
        cache.set("ada".into(), 1).await.unwrap();
        assert_eq!(cache.get_with_ttl("ada").await.unwrap(), Some((1, Ttl::Persistent)));
        cache.set_tagged("ada".into(), 2, HOUR, ["t"]).await.unwrap();
        let (value, ttl) = cache.get_with_ttl("ada").await.unwrap().unwrap();
        assert_eq!(value, 2);
        assert!(matches!(ttl, Ttl::Remaining(left) if left <= HOUR && left > HOUR / 2), "{ttl:?}");
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses), (2, 1));
        cache.remove_tag("t").await.unwrap();
        assert_eq!(cache.get_with_ttl("ada").await.unwrap(), None);
    }
}

/// The deadline that a caller sets during a refresh is that of the loaded value.
#[tokio::test]
async fn deadline_that_is_set_during_a_refresh_takes_precedence_over_that_of_the_loaded_value() {
    let server = Server::shared();
    for builder in builders(&server, "ahead-deadlines").await {
        let cache = builder.refresh_ahead(DUE).build().unwrap();
        cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
        for (way, set) in
            [HOUR, HOUR / 120].into_iter().flat_map(|set| (0..8).map(move |n| (n, set)))
        {
            let key = &*format!("key-{way}-{set:?}");
            let (now, day) = (tokio::time::Instant::now(), 24 * HOUR);
            cache.set_ex(key.to_owned(), 1, set).await.unwrap();
            // The loader's TTL is two hours.
            let gate = begin_refresh(&cache, key, 2 * HOUR).await;
            let expected = match way {
                0 => (cache.expire(key, day).await.unwrap(), Some(day)).1,
                1 => (cache.expire_at(key, now + day).await.unwrap(), Some(day)).1,
                2 => (cache.expire_if(key, day, When::Later).await.unwrap(), Some(day)).1,
                3 => (cache.extend(key, day).await.unwrap(), Some(day + set)).1,
                4 => (cache.get_ex(key, day).await.unwrap(), Some(day)).1,
                5 => (cache.persist(key).await.unwrap(), None).1,
                6 => (cache.get_ex(key, Duration::MAX).await.unwrap(), None).1,
                // A condition that does not hold sets nothing.
                _ => (cache.expire_if(key, day, When::Sooner).await.unwrap(), Some(2 * HOUR)).1,
            };
            assert_eq!(cache.get(key).await.unwrap(), Some(1), "way {way}");
            gate.open();
            until("the refresh", async || cache.get(key).await.unwrap() == Some(2)).await;
            match (cache.ttl(key).await.unwrap(), expected) {
                (Ttl::Persistent, None) => {}
                (Ttl::Remaining(left), Some(ttl)) => {
                    assert!(left <= ttl && left > ttl - HOUR / 60, "way {way}: {left:?}");
                }
                (ttl, _) => panic!("way {way}: {ttl:?}"),
            }
        }
        // Expired by the caller, or by the deadline that it has set: the loaded value is not stored.
        for way in 0..4 {
            let key = &*format!("expired-{way}");
            cache.set_ex(key.to_owned(), 1, HOUR).await.unwrap();
            let gate = begin_refresh(&cache, key, HOUR).await;
            match way {
                0 => assert!(cache.expire(key, Duration::ZERO).await.unwrap()),
                1 => assert!(cache.expire(key, Duration::from_millis(5)).await.unwrap()),
                2 => assert_eq!(cache.get_ex(key, Duration::ZERO).await.unwrap(), Some(1)),
                _ => assert_eq!(cache.expire_now(key).await.unwrap(), Some(1)),
            }
            until("the expiry", async || cache.get(key).await.unwrap().is_none()).await;
            gate.open();
            sleep(ms(30)).await;
            assert_eq!(cache.get(key).await.unwrap(), None, "way {way}");
        }
    }
}

#[tokio::test]
async fn set_keep_ttl_during_a_refresh_takes_precedence_even_if_its_value_has_expired() {
    let server = Server::shared();
    let mut plain = server.plain().await;
    for builder in builders(&server, "ahead-keep").await {
        let cache = builder.refresh_ahead(DUE).build().unwrap();
        cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
        cache.set_ex("ada".into(), 1, HOUR / 120).await.unwrap();
        let gate = begin_refresh(&cache, "ada", HOUR).await;
        assert_eq!(cache.set_keep_ttl("ada".into(), 3).await.unwrap(), Some(1));
        // As if half a minute had passed.
        let records = redis::cmd("KEYS").arg("*{ahead-keep-*}:ada").to_owned();
        for record in records.query_async::<Vec<String>>(&mut plain).await.unwrap() {
            let mut expire = redis::cmd("PEXPIRE");
            expire.arg(record).arg(1).exec_async(&mut plain).await.unwrap();
        }
        until("the expiry", async || cache.get("ada").await.unwrap().is_none()).await;
        gate.open();
        sleep(Duration::from_millis(30)).await;
        assert_eq!(cache.get("ada").await.unwrap(), None, "the load began before the write");
    }
}

/// Calls of a hook: the keys and the errors.
type Reports = Arc<Mutex<Vec<(String, String)>>>;

fn reporting(reports: &Reports) -> impl Fn(&String, &dyn Debug) + Send + Sync + 'static {
    let reports = reports.clone();
    move |key, error| reports.lock().unwrap().push((key.clone(), format!("{error:?}")))
}

#[tokio::test]
async fn failed_refresh_is_reported_with_its_key_and_error_and_tried_again_later() {
    in_time(async || {
        let server = Server::shared();
        for builder in builders(&server, &format!("reported-{}", ms(1).as_millis())).await {
            let reports = Reports::default();
            let cache = builder.refresh_ahead(DUE).on_refresh_error(reporting(&reports));
            let cache = cache.build().unwrap();
            let key = "12";
            // A load that a caller waits for is not reported.
            let failed =
                cache.get_or_try_set_with(key, HOUR, async || Err::<u64, _>("first")).await;
            assert_eq!(*failed.unwrap().unwrap_err(), "first");
            cache.set_ex(key.into(), 1, HOUR).await.unwrap();
            let failed = Instant::now();
            // The pause before the next attempt lasts a second.
            let is_paused = || failed.elapsed() < Duration::from_millis(500);
            for _ in (0..20).take_while(|_| is_paused()) {
                let hit =
                    cache.get_or_try_set_with(key, HOUR, async || Err::<u64, _>("down")).await;
                assert_eq!(hit.unwrap(), Ok(1));
                sleep(Duration::from_millis(2)).await;
            }
            until("the report", async || !reports.lock().unwrap().is_empty()).await;
            assert_eq!(*reports.lock().unwrap(), [("12".to_owned(), "\"down\"".to_owned())]);
            cache.set_ex("bob".into(), 1, HOUR).await.unwrap();
            let panics = async || -> u64 { panic!("oops") };
            assert_eq!(cache.get_or_set_with("bob", HOUR, panics).await.unwrap(), 1);
            until("the panic", async || reports.lock().unwrap().len() == 2).await;
            assert!(reports.lock().unwrap()[1].1.contains("oops"), "{reports:?}");
            assert_eq!(cache.stats().failed_loads, 3);
        }
    })
    .await;
}

#[tokio::test]
async fn failed_refresh_of_a_stale_value_is_reported() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let reports = Reports::default();
    let builder = Cache::<String, u64>::builder(&client, "reported-stale-value");
    let builder = builder.stale_while_revalidate(HOUR).on_refresh_error(reporting(&reports));
    let cache = builder.build().unwrap();
    cache.get_or_set_with("ada", Duration::from_millis(20), async || 1).await.unwrap();
    until("the expiry", async || cache.get("ada").await.unwrap().is_none()).await;
    let stale = cache.get_or_try_set_with("ada", HOUR, async || Err::<u64, _>("down")).await;
    assert_eq!(stale.unwrap(), Ok(1));
    until("the report", async || reports.lock().unwrap().len() == 1).await;
    assert_eq!(reports.lock().unwrap()[0], ("ada".to_owned(), "\"down\"".to_owned()));
}

#[tokio::test]
async fn invalid_freshness_settings_panic_with_the_value() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let panic_of = |build: &dyn Fn(CacheBuilder<String, u64>) -> CacheBuilder<String, u64>| {
        let builder = Cache::builder(&client, "invalid");
        let build = std::panic::AssertUnwindSafe(|| drop(build(builder)));
        *std::panic::catch_unwind(build).unwrap_err().downcast::<String>().unwrap()
    };
    assert!(panic_of(&|builder| builder.jitter(1.0)).contains("got 1"));
    assert!(panic_of(&|builder| builder.jitter(f64::NAN)).contains("got NaN"));
    assert!(panic_of(&|builder| builder.refresh_ahead(-1.0)).contains("got -1"));
    assert!(panic_of(&|builder| builder.negative_ttl(Duration::ZERO)).contains("got 0ns"));
}

/// The value may also be removed by an eviction or by another program, at any time.
#[tokio::test]
async fn value_replaced_by_any_method_is_not_returned_as_stale() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = connect(server.url()).await;
    let builder = Cache::<String, u64>::builder(&client, "replaced-stale");
    let cache = builder.stale_while_revalidate(HOUR).build().unwrap();
    for way in 0..9 {
        let key = &*format!("key-{way}");
        let owned = || key.to_owned();
        cache.get_or_set_with(key, HOUR, async || 1).await.unwrap();
        match way {
            0 => assert_eq!(cache.set_keep_ttl(owned(), 2).await.unwrap(), Some(1)),
            1 => assert!(cache.persist(key).await.unwrap()),
            2 => assert_eq!(cache.get_ex(key, Duration::MAX).await.unwrap(), Some(1)),
            3 => assert_eq!(cache.get_ex(key, HOUR).await.unwrap(), Some(1)),
            4 => assert!(cache.expire(key, HOUR).await.unwrap()),
            5 => assert!(cache.extend(key, HOUR).await.unwrap()),
            6 => assert_eq!(cache.set(owned(), 2).await.unwrap(), Some(1)),
            7 => cache.update(key, |n| *n = 2).await.map(drop).unwrap(),
            _ => cache.set_many([(owned(), 2)], None).await.unwrap(),
        }
        let records = redis::cmd("KEYS").arg(format!("*}}:{key}")).to_owned();
        for record in records.query_async::<Vec<String>>(&mut plain).await.unwrap() {
            redis::cmd("DEL").arg(record).exec_async(&mut plain).await.unwrap();
        }
        let loaded = cache.get_or_set_with(key, HOUR, async || 3).await.unwrap();
        assert_eq!(loaded, 3, "way {way}");
    }
}
