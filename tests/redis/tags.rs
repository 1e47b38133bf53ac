//! Tags of `redis::Cache`: `set_tagged` and `remove_tag`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{
    Tagged, Ttl, When,
    redis::{Cache, CacheBuilder, Client, Error, Format},
};
use futures::{StreamExt, future::join_all};
use redis::cmd;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    clock::{in_time, ms},
    loaders::Gate,
    near::{read_near, until},
    patience::patience,
    servers::{Cluster, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a plain cache, one with events, one with a stale window, and one with a near cache.
fn kinds(client: &Client, name: &str) -> [Cache<String, u64>; 4] {
    let builder = |kind: &str| Cache::builder(client, &format!("{name}-{kind}"));
    [
        builder("plain"),
        builder("events").events(HOUR),
        builder("stale").stale_while_revalidate(HOUR),
        builder("near").near(1_000).near_max_age(HOUR),
    ]
    .map(|builder: CacheBuilder<String, u64>| builder.build().unwrap())
}

async fn tagged(cache: &Cache<String, u64>, key: &str, n: u64, tags: &[&str]) -> Option<u64> {
    cache.set_tagged(key.to_owned(), n, HOUR, tags.iter().copied()).await.unwrap()
}

/// Checks all methods that read, on keys of many slots.
async fn check_reads(cache: &Cache<String, u64>) {
    let keys: Vec<String> = (0..64).map(|n| format!("key-{n}")).collect();
    for (key, n) in keys.iter().zip(0..) {
        let tags = if n % 2 == 0 { &["even", "all"][..] } else { &["odd", "all"] };
        assert_eq!(tagged(cache, key, n, tags).await, None);
    }
    cache.set("untagged".into(), 99).await.unwrap();
    assert_eq!(cache.len().await.unwrap(), 65);
    for (key, n) in keys.iter().zip(0..) {
        assert_eq!(cache.get(key).await.unwrap(), Some(n));
    }
    let values = cache.get_many(&keys).await.unwrap();
    assert_eq!(values, (0..64).map(Some).collect::<Vec<_>>());
    cache.remove_tag("even").await.unwrap();
    for (key, n) in keys.iter().zip(0..) {
        let expected = (n % 2 == 1).then_some(n);
        assert_eq!(cache.get(key).await.unwrap(), expected, "{key}");
        assert_eq!(cache.contains_key(key).await.unwrap(), expected.is_some(), "{key}");
        assert_eq!(cache.ttl(key).await.unwrap() == Ttl::Missing, expected.is_none(), "{key}");
    }
    let values = cache.get_many(&keys).await.unwrap();
    assert_eq!(values, (0..64).map(|n| (n % 2 == 1).then_some(n)).collect::<Vec<_>>());
    assert_eq!(cache.len().await.unwrap(), 33);
    assert_eq!(cache.iter().count().await, 33);
    assert_eq!(cache.remove_many(&keys[..4]).await.unwrap(), 2);
    cache.remove_tag("all").await.unwrap();
    assert_eq!(cache.get_many(&keys).await.unwrap(), vec![None; 64]);
    assert_eq!(cache.values().map(Result::unwrap).collect::<Vec<_>>().await, [99]);
    cache.remove("untagged").await.unwrap();
    assert!(cache.is_empty().await.unwrap());
    // The tag can be used again.
    assert_eq!(tagged(cache, "key-0", 7, &["even"]).await, None);
    assert_eq!(cache.get("key-0").await.unwrap(), Some(7));
    cache.remove_tag("nobody").await.unwrap();
    assert_eq!(cache.get("key-0").await.unwrap(), Some(7));
}

#[tokio::test]
async fn values_of_a_removed_tag_are_not_returned() {
    let server = Server::shared();
    for cache in kinds(&connect(server.url()).await, "tags-reads") {
        check_reads(&cache).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_work_in_a_cluster() {
    let cluster = Cluster::start();
    for cache in kinds(&connect(cluster.urls()).await, "tags-cluster") {
        check_reads(&cache).await;
    }
}

#[tokio::test]
async fn every_method_treats_a_value_of_a_removed_tag_as_missing() {
    let server = Server::shared();
    for cache in kinds(&connect(server.url()).await, "tags-missing") {
        for way in 0..14 {
            let key = &*format!("key-{way}");
            let owned = || key.to_owned();
            tagged(&cache, key, 1, &["a", "b"]).await;
            cache.remove_tag("b").await.unwrap();
            let after = match way {
                0 => (assert_eq!(cache.set(owned(), 2).await.unwrap(), None), Some(2)).1,
                1 => (assert_eq!(cache.set_ex(owned(), 2, HOUR).await.unwrap(), None), Some(2)).1,
                2 => (assert!(cache.set_nx(owned(), 2, None).await.unwrap()), Some(2)).1,
                3 => {
                    assert_eq!(cache.set_keep_ttl(owned(), 2).await.unwrap(), None);
                    assert_eq!(cache.ttl(key).await.unwrap(), Ttl::Persistent);
                    Some(2)
                }
                4 => (assert_eq!(cache.remove(key).await.unwrap(), None), None).1,
                5 => (assert_eq!(cache.expire_now(key).await.unwrap(), None), None).1,
                6 => (assert!(!cache.expire(key, 2 * HOUR).await.unwrap()), None).1,
                7 => {
                    assert!(!cache.expire_if(key, HOUR, When::HasTtl).await.unwrap());
                    None
                }
                8 => (assert!(!cache.extend(key, HOUR).await.unwrap()), None).1,
                9 => (assert!(!cache.persist(key).await.unwrap()), None).1,
                10 => (assert_eq!(cache.get_ex(key, HOUR).await.unwrap(), None), None).1,
                11 => (assert_eq!(cache.update(key, |n| *n += 1).await.unwrap(), None), None).1,
                12 => {
                    assert_eq!(cache.get_or_set_with(key, HOUR, async || 2).await.unwrap(), 2);
                    Some(2)
                }
                _ => (assert_eq!(tagged(&cache, key, 2, &["a"]).await, None), Some(2)).1,
            };
            assert_eq!(cache.get(key).await.unwrap(), after, "way {way}");
        }
    }
}

#[tokio::test]
async fn new_value_has_only_its_own_tags_and_other_changes_keep_them() {
    let server = Server::shared();
    for cache in kinds(&connect(server.url()).await, "tags-kept") {
        for way in 0..10 {
            let key = &*format!("key-{way}");
            let owned = || key.to_owned();
            tagged(&cache, key, 1, &["old", "other"]).await;
            let is_kept = match way {
                0 => (assert_eq!(cache.set(owned(), 2).await.unwrap(), Some(1)), false).1,
                1 => (assert_eq!(cache.set_keep_ttl(owned(), 2).await.unwrap(), Some(1)), false).1,
                2 => (cache.set_many([(owned(), 2)], None).await.unwrap(), false).1,
                3 => (assert_eq!(tagged(&cache, key, 2, &["new"]).await, Some(1)), false).1,
                4 => (assert_eq!(cache.update(key, |n| *n = 2).await.unwrap(), Some(())), true).1,
                5 => (assert!(cache.expire(key, 2 * HOUR).await.unwrap()), true).1,
                6 => (assert!(cache.persist(key).await.unwrap()), true).1,
                7 => (assert!(cache.extend(key, HOUR).await.unwrap()), true).1,
                8 => (assert_eq!(cache.get_ex(key, HOUR).await.unwrap(), Some(1)), true).1,
                _ => (assert!(!cache.set_nx(owned(), 2, None).await.unwrap()), true).1,
            };
            let before = cache.get(key).await.unwrap();
            assert!(before.is_some(), "way {way}");
            cache.remove_tag("old").await.unwrap();
            let expected = if is_kept { None } else { before };
            assert_eq!(cache.get(key).await.unwrap(), expected, "way {way}");
        }
    }
}

/// The version of a tag must not expire before the values that have it.
#[tokio::test]
async fn value_with_tags_is_live_until_its_ttl_has_elapsed() {
    in_time(async || {
        let server = Server::shared();
        let short = ms(2_000);
        let checks =
            kinds(&connect(server.url()).await, &format!("tags-ttl-{}", ms(1).as_millis())).map(
                async |cache| {
                    for key in ["expire", "extend", "get_ex", "persist", "longer"] {
                        cache.set_tagged(key.to_owned(), 1, short, ["t"]).await.unwrap();
                    }
                    cache.expire("expire", HOUR).await.unwrap();
                    cache.extend("extend", HOUR).await.unwrap();
                    cache.get_ex("get_ex", HOUR).await.unwrap();
                    cache.persist("persist").await.unwrap();
                    tagged(&cache, "longer", 1, &["t"]).await;
                    cache.set_tagged("shorter".into(), 1, short, ["t"]).await.unwrap();
                    // Longer than the version of a tag outlives its last value.
                    sleep(short + ms(1_500)).await;
                    for key in ["expire", "extend", "get_ex", "persist", "longer"] {
                        assert_eq!(cache.get(key).await.unwrap(), Some(1), "{key}");
                    }
                    assert_eq!(cache.get("shorter").await.unwrap(), None);
                    cache.remove_tag("t").await.unwrap();
                    for key in ["expire", "extend", "get_ex", "persist", "longer"] {
                        assert_eq!(cache.get(key).await.unwrap(), None, "{key}");
                    }
                },
            );
        join_all(checks).await;
    })
    .await;
}

#[tokio::test]
async fn keys_of_tags_are_deleted_with_the_tag_or_its_last_value() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache = Cache::<String, u64>::new(&client, "tags-memory").unwrap();
    for n in 0..200 {
        let ttl = Duration::from_millis(if n % 2 == 0 { 100 } else { 3_600_000 });
        cache.set_tagged(n.to_string(), n, ttl, [format!("tag-{}", n % 50)]).await.unwrap();
    }
    for n in 0..50 {
        cache.remove_tag(&format!("tag-{n}")).await.unwrap();
    }
    let mut plain = server.plain().await;
    let keys: Vec<String> = cmd("KEYS").arg("*.tag:*").query_async(&mut plain).await.unwrap();
    assert_eq!(keys, Vec::<String>::new());
    cache.clear().await.unwrap();
    cache.set_tagged("ada".into(), 1, Duration::from_millis(100), ["user"]).await.unwrap();
    // A load keeps the tags of the value that it is to replace, until it ends.
    let builder = Cache::<String, u64>::builder(&client, "tags-kept").refresh_ahead(1e15);
    let cache = builder.lease(Duration::from_millis(400)).build().unwrap();
    cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
    cache.set_tagged("bob".into(), 1, Duration::from_millis(300), ["user"]).await.unwrap();
    let gate = Gate::default();
    let loader = gate.clone();
    let load = async move || Err::<u64, u64>(loader.load(2).await);
    assert_eq!(cache.get_or_try_set_with("bob", HOUR, load).await.unwrap(), Ok(1));
    gate.has_begun().await;
    sleep(Duration::from_millis(2_000)).await;
    let keys: Vec<String> = cmd("KEYS").arg("*.tag:*").query_async(&mut plain).await.unwrap();
    assert_eq!(keys.len(), 1);
    gate.open();
    until("the version of the tag expires", async || {
        let keys: Vec<String> = cmd("KEYS").arg("*.tag:*").query_async(&mut plain).await.unwrap();
        keys.is_empty()
    })
    .await;
}

#[tokio::test]
async fn near_cache_of_another_process_does_not_return_values_of_a_removed_tag() {
    let server = Server::start();
    let (here, there) = (connect(server.url()).await, connect(server.url()).await);
    let near = Cache::builder(&here, "tags-near").near(100).near_max_age(HOUR).build().unwrap();
    let other: Cache<String, u64> = Cache::new(&there, "tags-near").unwrap();
    tagged(&other, "ada", 1, &["t"]).await;
    other.set("bob".into(), 2).await.unwrap();
    for _ in 0..5 {
        assert_eq!(near.get("ada").await.unwrap(), Some(1));
        assert_eq!(near.get_many(["ada", "bob"]).await.unwrap(), [Some(1), Some(2)]);
    }
    other.remove_tag("t").await.unwrap();
    assert_eq!(near.get("ada").await.unwrap(), None);
    assert_eq!(near.get_many(["ada", "bob"]).await.unwrap(), [None, Some(2)]);
    assert_eq!(read_near(&near, "bob").await, Some(2));
    other.set("ada".into(), 3).await.unwrap();
    until("what was set", async || near.get("ada").await.unwrap() == Some(3)).await;
}

#[tokio::test]
async fn removed_tag_takes_precedence_over_a_load_in_progress() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for cache in kinds(&client, "tags-loads") {
        let gate = Gate::default();
        let load = crate::loaders::begin(&cache, "ada", &gate, 1);
        gate.has_begun().await;
        tagged(&cache, "ada", 2, &["t"]).await;
        cache.remove_tag("t").await.unwrap();
        gate.open();
        assert_eq!(load.await.unwrap().unwrap(), 1);
        assert_eq!(cache.get("ada").await.unwrap(), None);
    }
    let builder = Cache::<String, u64>::builder(&client, "tags-ahead").refresh_ahead(1e15);
    let cache = builder.build().unwrap();
    cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
    let is_refreshed = async |key: &str, removes: bool| {
        tagged(&cache, key, 1, &["t"]).await;
        let gate = Gate::default();
        let loader = gate.clone();
        let hit = cache.get_or_set_with(key, HOUR, move || loader.load(2)).await;
        assert_eq!(hit.unwrap(), 1);
        gate.has_begun().await;
        if removes {
            cache.remove_tag("t").await.unwrap();
        }
        gate.open();
        if removes {
            // Time for the refresh to be stored, if it were.
            sleep(Duration::from_millis(50)).await;
        } else {
            until("the refresh", async || cache.get(key).await.unwrap() == Some(2)).await;
        }
        cache.get(key).await.unwrap()
    };
    assert_eq!(is_refreshed("kept", false).await, Some(2));
    assert_eq!(is_refreshed("removed", true).await, None);
}

#[tokio::test]
async fn loaded_values_have_the_tags_of_their_argument() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for cache in kinds(&client, "tags-loaded") {
        let load = async |key: &str, tags: &[&str], n: u64| {
            let tags = Tagged::new(HOUR, tags.iter().copied());
            cache.get_or_set_with(key, tags, async move || n).await.unwrap()
        };
        assert_eq!(load("ada", &["t", "u"], 1).await, 1);
        assert_eq!(load("ada", &["v"], 2).await, 1, "it is live");
        assert_eq!(load("bob", &[], 1).await, 1);
        let by = Tagged::by(|n: &u64| (HOUR, vec![format!("value:{n}")]));
        assert_eq!(cache.get_or_set_with("eve", by, async || 7).await.unwrap(), 7);
        let ttl = cache.ttl("eve").await.unwrap();
        assert!(matches!(ttl, Ttl::Remaining(left) if left <= HOUR), "{ttl:?}");
        cache.remove_tag("v").await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap(), Some(1));
        cache.remove_tag("u").await.unwrap();
        assert_eq!(load("ada", &["v"], 2).await, 2);
        cache.remove_tag("value:7").await.unwrap();
        assert_eq!(cache.get("eve").await.unwrap(), None);
        assert_eq!(cache.get_or_set_with("eve", by, async || 8).await.unwrap(), 8);
        assert_eq!(cache.get("bob").await.unwrap(), Some(1));
        // A value that expires at once has no tags, and no key of them remains.
        let none = Tagged::new(Duration::ZERO, ["none"]);
        assert_eq!(cache.get_or_set_with("kim", none, async || 3).await.unwrap(), 3);
        assert_eq!(cache.get("kim").await.unwrap(), None);
    }
}

/// A tag that is removed during the load, whether or not it has other values, and one that was removed before.
#[tokio::test]
async fn removed_tag_of_a_loaded_value_takes_precedence_over_its_load() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for cache in kinds(&client, "tags-during-loads") {
        for is_computed in [false, true] {
            for removed in ["t", "other"] {
                let key = format!("{is_computed}-{removed}");
                cache.remove_tag("t").await.unwrap();
                let (gate, caller, owned) = (Gate::default(), cache.clone(), key.clone());
                let loader = gate.clone();
                let load = tokio::spawn(async move {
                    if is_computed {
                        let tags = Tagged::by(|_: &u64| (HOUR, vec!["s".into(), "t".into()]));
                        caller.get_or_set_with(&owned, tags, move || loader.load(1)).await
                    } else {
                        let tags = Tagged::new(HOUR, ["s", "t"]);
                        caller.get_or_set_with(&owned, tags, move || loader.load(1)).await
                    }
                });
                gate.has_begun().await;
                cache.remove_tag(removed).await.unwrap();
                gate.open();
                assert_eq!(load.await.unwrap().unwrap(), 1);
                let expected = (removed == "other").then_some(1);
                assert_eq!(cache.get(&key).await.unwrap(), expected, "{key}");
            }
        }
    }
}

#[tokio::test]
async fn refreshed_values_keep_their_tags() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for (name, stale) in [("kept", Duration::ZERO), ("kept-stale", HOUR)] {
        let builder = Cache::<String, u64>::builder(&client, &format!("tags-{name}"));
        let cache = builder.refresh_ahead(1e15).stale_while_revalidate(stale).build().unwrap();
        cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
        for key in ["kept", "replaced"] {
            tagged(&cache, key, 1, &["t"]).await;
            let hit = match key {
                "kept" => cache.get_or_set_with(key, HOUR, async || 2).await,
                _ => cache.get_or_set_with(key, Tagged::new(HOUR, ["u"]), async || 2).await,
            };
            assert_eq!(hit.unwrap(), 1);
            until("the refresh", async || cache.get(key).await.unwrap() == Some(2)).await;
        }
        cache.remove_tag("t").await.unwrap();
        assert_eq!(cache.get("kept").await.unwrap(), None);
        assert_eq!(cache.get("replaced").await.unwrap(), Some(2));
        cache.remove_tag("u").await.unwrap();
        assert_eq!(cache.get("replaced").await.unwrap(), None);
    }
    // A stale value, too: its tag ends staleness, and its refresh keeps it.
    let builder = Cache::<String, u64>::builder(&client, "tags-stale-loads");
    let cache = builder.stale_while_revalidate(HOUR).build().unwrap();
    for removes in [false, true] {
        let key = if removes { "removed" } else { "kept" };
        let short = Tagged::new(Duration::from_millis(1), ["t"]);
        cache.get_or_set_with(key, short, async || 1).await.unwrap();
        until("the expiry", async || cache.get(key).await.unwrap().is_none()).await;
        if removes {
            cache.remove_tag("t").await.unwrap();
            assert_eq!(cache.get_or_set_with(key, HOUR, async || 2).await.unwrap(), 2);
            continue;
        }
        assert_eq!(cache.get_or_set_with(key, HOUR, async || 2).await.unwrap(), 1);
        until("the refresh", async || cache.get(key).await.unwrap() == Some(2)).await;
        cache.remove_tag("t").await.unwrap();
        assert_eq!(cache.get(key).await.unwrap(), None);
    }
}

/// On one server and in a cluster, with each way to replace a value in the background. The version of its tag would
/// expire about a second after the value, and after the end of a lease that is not renewed.
#[tokio::test]
async fn load_that_ends_long_after_the_replaced_value_is_stored_unless_a_tag_is_removed() {
    let (server, cluster) = (Server::shared(), Cluster::start());
    let clients = [connect(server.url()).await, connect(cluster.urls()).await];
    in_time(async || {
        let mut loads = Vec::new();
        for client in &clients {
            for lease in [ms(500), HOUR] {
                for is_stale in [false, true] {
                    for tags in [&[][..], &["t"], &["u"]] {
                        for removed in ["none", "t", "u"] {
                            let name = format!("tags-long-{}-{}", ms(1).as_millis(), loads.len());
                            let builder = Cache::builder(client, &name).lease(lease);
                            let cache = match is_stale {
                                true => builder.stale_while_revalidate(ms(600)).build(),
                                false => builder.refresh_ahead(1e15).build(),
                            };
                            loads.push(check_long_load(cache.unwrap(), is_stale, tags, removed));
                        }
                    }
                }
            }
        }
        join_all(loads).await;
    })
    .await;
}

/// Loads a value in the background. Without `tags`, it keeps that of the replaced value.
async fn check_long_load(
    cache: Cache<String, u64>,
    is_stale: bool,
    tags: &'static [&'static str],
    removed: &str,
) {
    cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
    let first = Tagged::new(ms(300), ["t"]);
    assert_eq!(cache.get_or_set_with("ada", first, async || 1).await.unwrap(), 1);
    if is_stale {
        until("the expiry", async || cache.get("ada").await.unwrap().is_none()).await;
    }
    let gate = Gate::default();
    let loader = gate.clone();
    let hit = async {
        if tags.is_empty() {
            return cache.get_or_set_with("ada", HOUR, move || loader.load(2)).await;
        }
        let tags = Tagged::new(HOUR, tags.iter().copied());
        cache.get_or_set_with("ada", tags, move || loader.load(2)).await
    };
    // If the old value is away by now, the call waits for the load.
    assert_eq!(timeout(ms(1_000), hit).await.expect("the old value is returned").unwrap(), 1);
    gate.has_begun().await;
    sleep(ms(2_500)).await;
    cache.remove_tag(removed).await.unwrap();
    gate.open();
    if removed == "t" || tags.contains(&removed) {
        // Time for the value to be stored, if it were.
        sleep(ms(100)).await;
        assert_eq!(cache.get("ada").await.unwrap(), None, "{tags:?}, {removed} was removed");
    } else {
        let (begin, mut got) = (Instant::now(), None);
        while got.is_none() && begin.elapsed() < ms(2_000) {
            got = cache.get("ada").await.unwrap();
        }
        let context = format!("{tags:?}, {removed} was removed, in the stale window: {is_stale}");
        assert_eq!(got, Some(2), "{context}, {:?}", cache.stats());
    }
}

#[tokio::test]
async fn removed_values_expire_without_an_event_and_events_have_no_tags() {
    in_time(async || {
        let server = Server::shared();
        let client = connect(server.url()).await;
        let cache =
            Cache::<String, u64>::builder(&client, &format!("tags-events-{}", ms(1).as_millis()))
                .events(HOUR);
        let cache = cache.build().unwrap();
        let mut events = cache.events().await.unwrap();
        let short = ms(1_500);
        cache.set_tagged("removed".into(), 1, short, ["gone"]).await.unwrap();
        cache.remove_tag("gone").await.unwrap();
        cache.set_tagged("expired".into(), 2, short, ["stays"]).await.unwrap();
        cache.set_tagged("now".into(), 3, HOUR, ["stays"]).await.unwrap();
        assert_eq!(cache.expire_now("now").await.unwrap(), Some(3));
        let mut received = Vec::new();
        for _ in 0..2 {
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
            received.push((event.key.clone(), event.value));
        }
        assert_eq!(received, [("now".to_owned(), 3), ("expired".to_owned(), 2)]);
        assert!(timeout(short / 3, events.recv()).await.is_err(), "no further event");
    })
    .await;
}

#[tokio::test]
async fn raw_value_that_begins_like_a_tagged_one_is_returned_unchanged() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let cache = Cache::<String, Vec<u8>>::builder(&client, "tags-raw").format(Format::Raw);
    let cache = cache.build().unwrap();
    let header = b"\xC1tag\x01\0\0\0\x01\0\0\0a0123456789abcdef";
    for value in [&b"\xC1tag"[..], b"\xC1tag\0\0\0\0", header, b"\xC1tag\xFF\xFF\xFF\xFF"] {
        cache.set("ada".into(), value.to_vec()).await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap().as_deref(), Some(value));
        assert_eq!(cache.get_many(["ada"]).await.unwrap(), [Some(value.to_vec())]);
        cache.set_tagged("ada".into(), value.to_vec(), HOUR, ["t"]).await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap().as_deref(), Some(value));
        cache.remove_tag("t").await.unwrap();
        let loaded = cache.get_or_set_with("ada", HOUR, async || header.to_vec()).await.unwrap();
        assert_eq!(loaded, header);
        assert_eq!(cache.remove("ada").await.unwrap().as_deref(), Some(&header[..]));
    }
}

/// Written by a release without tags, or by another program.
#[tokio::test]
async fn value_of_another_program_that_begins_like_a_tagged_one_is_not_an_error() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let builder = |events| {
        let name = format!("tags-foreign-{events}");
        let builder = Cache::<String, Vec<u8>>::builder(&client, &name).format(Format::Raw);
        if events { builder.events(HOUR) } else { builder }.build().unwrap()
    };
    let mut plain = server.plain().await;
    for has_events in [false, true] {
        let cache = builder(has_events);
        cache.set("ada".into(), b"own".to_vec()).await.unwrap();
        let pattern = format!("*tags-foreign-{has_events}*:ada");
        let record: Vec<String> = cmd("KEYS").arg(pattern).query_async(&mut plain).await.unwrap();
        for value in [
            &b"\xC1tag"[..],
            b"\xC1tag\x01\0\0",
            b"\xC1tag\x01\0\0\0",
            b"\xC1tag\xFF\xFF\xFF\xFF",
            b"\xC1tag\x01\0\0\0\xFF\xFF\xFF\xFF",
            b"\xC1tag\x01\0\0\0\x01\0\0\0a0123456789abcde",
            b"\xC1tag\x02\0\0\0\x01\0\0\0a0123456789abcdef\x01",
        ] {
            let write = async || {
                let mut plain = plain.clone();
                cmd("SET").arg(&record[0]).arg(value).exec_async(&mut plain).await.unwrap();
            };
            write().await;
            assert_eq!(cache.get("ada").await.unwrap().as_deref(), Some(value));
            assert_eq!(cache.get_many(["ada"]).await.unwrap(), [Some(value.to_vec())]);
            assert_eq!(cache.ttl("ada").await.unwrap(), Ttl::Persistent);
            assert_eq!(cache.len().await.unwrap(), 1);
            assert!(cache.expire("ada", HOUR).await.unwrap());
            assert!(cache.persist("ada").await.unwrap());
            assert_eq!(cache.get_ex("ada", HOUR).await.unwrap().as_deref(), Some(value));
            let loaded = cache.get_or_set_with("ada", HOUR, async || unreachable!()).await;
            assert_eq!(loaded.unwrap(), value);
            assert_eq!(cache.update("ada", |value| value.push(1)).await.unwrap(), Some(()));
            write().await;
            let old = cache.set_tagged("ada".into(), Vec::new(), HOUR, ["t"]).await.unwrap();
            assert_eq!(old.as_deref(), Some(value));
            write().await;
            assert_eq!(cache.remove("ada").await.unwrap().as_deref(), Some(value));
            write().await;
            cache.clear().await.unwrap();
            assert!(cache.is_empty().await.unwrap());
        }
    }
}

/// The value with the tag is replaced between the read of a value and the check of its tags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_with_a_live_value_at_all_times_is_never_missing() {
    let server = Server::shared();
    let url = server.url();
    let (here, there) = (connect(&*url).await, connect(&*url).await);
    for (cache, other) in
        kinds(&here, "tags-replaced").into_iter().zip(kinds(&there, "tags-replaced"))
    {
        cache.set("ada".into(), 0).await.unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let stop = is_done.clone();
        let reader = tokio::spawn(async move {
            let mut reads = 0;
            while !stop.load(Relaxed) || reads < 100 {
                assert!(other.get("ada").await.unwrap().is_some(), "after {reads} reads");
                assert!(other.get_many(["ada"]).await.unwrap()[0].is_some());
                assert!(other.contains_key("ada").await.unwrap());
                reads += 1;
            }
        });
        for n in 0..300 {
            tagged(&cache, "ada", n, &["t"]).await;
            cache.set("ada".into(), n).await.unwrap();
            cache.remove_tag("t").await.unwrap();
        }
        is_done.store(true, Relaxed);
        reader.await.unwrap();
    }
}

#[tokio::test]
async fn full_server_refuses_set_tagged_and_removes_tags() {
    let server = Server::start();
    for cache in kinds(&connect(server.url()).await, "tags-full") {
        tagged(&cache, "ada", 1, &["t"]).await;
        server.refuse_memory();
        for tags in [["t"], ["new"]] {
            let refused = cache.set_tagged("ada".into(), 2, HOUR, tags).await;
            assert!(matches!(refused, Err(Error::Server(_))), "{refused:?}");
        }
        assert_eq!(cache.get("ada").await.unwrap(), Some(1));
        cache.remove_tag("t").await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap(), None);
        let loaded = cache.get_or_set_with("ada", HOUR, async || 3).await;
        assert_eq!(loaded.unwrap(), 3);
        assert_eq!(cache.remove("ada").await.unwrap(), None);
        server.allow_memory();
    }
}

#[tokio::test]
async fn removal_of_a_tag_is_not_a_missed_event() {
    in_time(async || {
        let server = Server::shared();
        let client = connect(server.url()).await;
        let builder =
            Cache::<String, u64>::builder(&client, &format!("tags-lossless-{}", ms(1).as_millis()))
                .events(HOUR);
        let cache = builder.build().unwrap();
        let mut events = cache.events_lossless("group").await.unwrap();
        let short = ms(300);
        for way in ["polled", "set", "set_nx", "remove", "set_tagged"] {
            cache.set_tagged(way.into(), 1, short, ["gone"]).await.unwrap();
        }
        cache.remove_tag("gone").await.unwrap();
        sleep(short).await;
        cache.set("set".into(), 2).await.unwrap();
        cache.set_nx("set_nx".into(), 2, None).await.unwrap();
        cache.remove("remove").await.unwrap();
        tagged(&cache, "set_tagged", 2, &["t"]).await;
        cache.set_ex("expired".into(), 3, short).await.unwrap();
        let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
        assert_eq!((event.key.as_str(), event.value), ("expired", 3));
        assert!(timeout(short, events.recv()).await.is_err(), "no further event, and none missed");
    })
    .await;
}

#[tokio::test]
async fn value_written_without_tags_is_that_of_set_ex() {
    let server = Server::shared();
    for cache in kinds(&connect(server.url()).await, "tags-none") {
        tagged(&cache, "ada", 1, &["t"]).await;
        assert_eq!(tagged(&cache, "ada", 2, &[]).await, Some(1));
        cache.remove_tag("t").await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap(), Some(2));
        tagged(&cache, "twice", 1, &["t", "t", "", "t}:{"]).await;
        assert_eq!(cache.get("twice").await.unwrap(), Some(1));
        cache.remove_tag("t}:{").await.unwrap();
        assert_eq!(cache.get("twice").await.unwrap(), None);
        let old = cache.set_tagged("zero".into(), 1, Duration::ZERO, ["t"]).await.unwrap();
        assert_eq!((old, cache.get("zero").await.unwrap()), (None, None));
    }
}

/// A call that begins after a removal gets no value loaded before it, even if the tag is removed again.
#[tokio::test]
async fn call_between_two_removals_of_a_tag_loads_again() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for cache in kinds(&client, "tags-removed-twice") {
        let (gate, caller) = (Gate::default(), cache.clone());
        let loader = gate.clone();
        let load = tokio::spawn(async move {
            let tags = Tagged::new(HOUR, ["t"]);
            caller.get_or_set_with("ada", tags, move || loader.load(1)).await
        });
        gate.has_begun().await;
        cache.remove_tag("t").await.unwrap();
        let caller = cache.clone();
        let late =
            tokio::spawn(async move { caller.get_or_set_with("ada", HOUR, async || 2).await });
        // Long enough to join the wait for the load, usually.
        sleep(ms(50)).await;
        cache.remove_tag("t").await.unwrap();
        gate.open();
        assert_eq!(load.await.unwrap().unwrap(), 1);
        assert_eq!(late.await.unwrap().unwrap(), 2);
    }
}
