//! Expirations on Redis: each to one subscriber of a group, and to all who listen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client, Error, Format, LosslessEvents};
use futures::{StreamExt, future::join_all};
use tokio::{
    runtime::Runtime,
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    clock::{in_time, ms},
    servers::{Cluster, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

async fn cache(url: impl fleeting::redis::Urls) -> Cache<String, u64> {
    let client = connect(url).await;
    build(&client)
}

/// Soon over, but not while this process waits for its share of a busy machine.
const LEASE: Duration = Duration::from_secs(3);

fn build(client: &Client) -> Cache<String, u64> {
    let builder = Cache::builder(client, "c").events(HOUR).lease(LEASE);
    builder.poll_every(ms(20)).build().unwrap()
}

async fn next(events: &mut LosslessEvents<String, u64>) -> (String, u64) {
    let event = timeout(PATIENCE, events.recv()).await.expect("no event comes");
    let event = event.expect("the stream has ended").unwrap();
    (event.key, event.value)
}

/// That no more events come for a while.
async fn is_quiet(events: &mut LosslessEvents<String, u64>, time: Duration) -> bool {
    timeout(time, events.recv()).await.is_err()
}

/// The keys of one name on the server.
async fn keys(server: &Server) -> BTreeSet<String> {
    let mut plain = server.plain().await;
    redis::cmd("KEYS").arg("fleeting:cache1:{c:*").query_async(&mut plain).await.unwrap()
}

/// Sets numbers under themselves.
async fn fill(cache: &Cache<String, u64>, keys: std::ops::Range<u64>, ttl: Duration) {
    let keys: Vec<_> = keys.collect();
    for keys in keys.chunks(500) {
        join_all(keys.iter().map(|n| cache.set_ex(n.to_string(), *n, ttl)))
            .await
            .into_iter()
            .for_each(|set| assert!(set.is_ok(), "{set:?}"));
    }
}

#[tokio::test]
async fn a_thousand_due_beside_a_hundred_thousand_are_told_within_a_second() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        // As built by default.
        let cache: Cache<String, u64> = Cache::builder(&client, "c").events(HOUR).build().unwrap();
        fill(&cache, 1_000..101_000, HOUR).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut all = cache.events().await.unwrap();
        let ttl = ms(3_000);
        fill(&cache, 0..1_000, ttl).await;
        let filled = Instant::now();
        let mut told = BTreeSet::new();
        let mut lags = Vec::new();
        while told.len() < 1_000 {
            let event = timeout(PATIENCE, events.recv()).await.unwrap().unwrap().unwrap();
            assert_eq!(event.key, event.value.to_string());
            lags.push(event.lag().unwrap());
            assert!(told.insert(event.value), "{} comes twice", event.value);
        }
        let late = filled.elapsed().saturating_sub(ttl);
        lags.sort();
        println!("all after {late:?}; lag p50 {:?}, max {:?}", lags[500], lags[999]);
        assert!(late < Duration::from_secs(1), "{late:?}");
        assert!(lags[999] < Duration::from_secs(1), "{:?}", lags[999]);
        assert_eq!(told, (0..1_000).collect());
        let mut broadcast = BTreeSet::new();
        while broadcast.len() < 1_000 {
            broadcast.insert(timeout(PATIENCE, all.recv()).await.unwrap().unwrap().unwrap().value);
        }
        assert_eq!(broadcast, told);
    })
    .await;
}

#[tokio::test]
async fn each_event_comes_to_one_of_a_group_and_to_each_group() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        // Each with a client of its own, as in another process.
        let other = self::cache(server.url()).await;
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for (group, cache) in [("a", &cache), ("a", &other), ("b", &cache), ("b", &other)] {
            let mut events = cache.events_lossless(group).await.unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                while let Some(event) = events.recv().await {
                    let event = event.unwrap();
                    sender.send((group, event.key, event.value)).unwrap();
                }
            });
        }
        fill(&cache, 0..2_000, ms(300)).await;
        let mut told = BTreeSet::new();
        for _ in 0..4_000 {
            let event = timeout(PATIENCE, receiver.recv()).await.unwrap().unwrap();
            assert!(told.insert(event.clone()), "{event:?} comes twice");
        }
        // Longer than a lease.
        assert!(timeout(LEASE + ms(500), receiver.recv()).await.is_err(), "more than once");
    })
    .await;
}

#[test]
fn what_a_dead_subscriber_held_comes_to_another_after_its_lease() {
    let server = Server::start();
    let survivor = Runtime::new().unwrap();
    let victim = Runtime::new().unwrap();
    survivor.block_on(async {
        let cache = cache(server.url()).await;
        let url = server.url();
        let mut doomed = victim
            .spawn(async move {
                let cache = self::cache(url).await;
                let events = cache.events_lossless("g").await.unwrap();
                (events, cache)
            })
            .await
            .unwrap();
        fill(&cache, 0..100, ms(50)).await;
        // One was told and not acknowledged, others wait to be.
        let first = next(&mut doomed.0).await;
        while !format!("{:?}", doomed.0).contains("unread: 99") {
            sleep(ms(10)).await;
        }
        // Many, since of all who look, the first one after the end of a lease would get what was held.
        let join = || async { cache.events_lossless("g").await.unwrap() };
        let mut others = join_all((0..8).map(|_| join())).await;
        // Held for longer than a lease, and renewed, as it lives.
        let quiet = others.iter_mut().map(|events| is_quiet(events, LEASE + ms(500)));
        assert_eq!(join_all(quiet).await, [true; 8], "what is held comes to nobody else");
        let mut events = others.swap_remove(0);
        drop(others);
        let death = Instant::now();
        // As dead as after a kill: none of its tasks runs any more. It can't say good-bye.
        victim.shutdown_background();
        let mut told = BTreeMap::new();
        for _ in 0..100 {
            let (key, value) = next(&mut events).await;
            assert!(told.insert(key, value).is_none());
        }
        println!("all came {:?} after the death", death.elapsed());
        assert!(
            death.elapsed() >= LEASE / 2,
            "the lease was renewed less than a third of it before"
        );
        assert_eq!(told[&first.0], first.1);
        assert!(is_quiet(&mut events, ms(500)).await);
    });
}

#[tokio::test]
async fn who_leaves_gives_back_what_it_has_not_looked_at() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let builder = Cache::<String, u64>::builder(&client, "c").events(HOUR).lease(HOUR);
    let cache = builder.poll_every(ms(20)).build().unwrap();
    let mut leaving = cache.events_lossless("g").await.unwrap();
    fill(&cache, 0..50, ms(50)).await;
    let done = next(&mut leaving).await;
    let held = next(&mut leaving).await;
    // Time to read ahead.
    while !format!("{leaving:?}").contains("unread: 48") {
        sleep(ms(10)).await;
    }
    drop(leaving);
    let mut events = cache.events_lossless("g").await.unwrap();
    let mut told = BTreeSet::new();
    for _ in 0..48 {
        told.insert(next(&mut events).await.1);
    }
    assert_eq!(told.len(), 48);
    assert!(!told.contains(&done.1) && !told.contains(&held.1), "acknowledged, or held");
    assert!(is_quiet(&mut events, ms(300)).await, "the last one is held until its lease is over");
}

#[tokio::test]
async fn what_was_not_acknowledged_comes_again_and_what_was_does_not() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    let mut events = cache.events_lossless("g").await.unwrap();
    cache.set("ada".into(), 1).await.unwrap();
    cache.expire_now("ada").await.unwrap();
    assert_eq!(next(&mut events).await, ("ada".into(), 1));
    drop(events);
    let mut events = cache.events_lossless("g").await.unwrap();
    assert_eq!(next(&mut events).await, ("ada".into(), 1), "once more");
    events.ack().await.unwrap();
    events.ack().await.unwrap();
    drop(events);
    let mut events = cache.events_lossless("g").await.unwrap();
    assert!(is_quiet(&mut events, LEASE + ms(200)).await);
    cache.set("bob".into(), 2).await.unwrap();
    cache.expire_now("bob").await.unwrap();
    assert_eq!(next(&mut events).await, ("bob".into(), 2));
}

#[tokio::test]
async fn a_group_waits_while_it_has_no_subscriber() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        cache.set("before".into(), 0).await.unwrap();
        cache.expire_now("before").await.unwrap();
        drop(cache.events_lossless("g").await.unwrap());
        fill(&cache, 0..10, ms(30)).await;
        sleep(ms(60)).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut told = BTreeSet::new();
        for _ in 0..10 {
            told.insert(next(&mut events).await.0);
        }
        assert_eq!(
            told,
            (0..10).map(|n| n.to_string()).collect(),
            "what came before the group is not"
        );
    })
    .await;
}

#[tokio::test]
async fn the_callback_is_called_for_each_also_after_a_panic() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    let called = Arc::new(Mutex::new(BTreeSet::new()));
    let calls = called.clone();
    let task = cache
        .on_expired("g", async move |event| {
            calls.lock().unwrap().insert(event.value);
            assert_ne!(event.value, 3, "as it happens");
        })
        .await
        .unwrap();
    fill(&cache, 0..10, ms(30)).await;
    let begin = Instant::now();
    while called.lock().map_or_else(|error| error.into_inner().len(), |called| called.len()) < 10 {
        assert!(begin.elapsed() < PATIENCE);
        sleep(ms(10)).await;
    }
    cache.shutdown().await;
    timeout(PATIENCE, task).await.expect("it ends with the cache").unwrap();
}

#[tokio::test]
async fn a_cache_without_events_says_so() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
    assert!(matches!(cache.events().await, Err(Error::NoEvents)));
    assert!(matches!(cache.events_lossless("g").await, Err(Error::NoEvents)));
    assert!(matches!(cache.on_expired("g", async |_| ()).await, Err(Error::NoEvents)));
}

#[tokio::test]
async fn a_value_that_does_not_decode_is_told_as_an_error_once() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    let mut events = cache.events_lossless("g").await.unwrap();
    let mut all = cache.events().await.unwrap();
    let client = connect(server.url()).await;
    let texts: Cache<String, String> = Cache::builder(&client, "c").events(HOUR).build().unwrap();
    texts.set("ada".into(), "no number".into()).await.unwrap();
    texts.expire_now("ada").await.unwrap();
    let event = timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
    let Err(Error::Decode { key, .. }) = event else { panic!("{event:?}") };
    assert!(key.starts_with("fleeting:cache1:{c:") && key.ends_with("}:ada"), "{key}");
    let event = timeout(PATIENCE, all.recv()).await.unwrap().unwrap();
    assert_eq!(event.unwrap_err(), fleeting::Lagged(1));
    assert!(is_quiet(&mut events, LEASE + ms(200)).await, "it does not come again");
}

#[tokio::test]
async fn what_another_program_put_under_a_key_is_passed_over() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        cache.set_ex("ada".into(), 1, ms(100)).await.unwrap();
        let record = keys(&server).await.into_iter().find(|key| key.ends_with("}:ada")).unwrap();
        let mut plain = server.plain().await;
        let _: () = redis::cmd("DEL").arg(&record).query_async(&mut plain).await.unwrap();
        let _: () = redis::cmd("LPUSH").arg(&record).arg(1).query_async(&mut plain).await.unwrap();
        for n in 0..100 {
            cache.set_ex(n.to_string(), n, ms(100)).await.unwrap();
        }
        let mut told = BTreeSet::new();
        for _ in 0..100 {
            told.insert(next(&mut events).await.0);
        }
        assert!(!told.contains("ada"));
        assert_eq!(told.len(), 100);
        assert!(keys(&server).await.contains(&record), "it is not ours to take away");
    })
    .await;
}

#[tokio::test]
async fn a_deadline_is_no_sooner_than_the_ttl_and_less_than_a_millisecond_later() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    let mut plain = server.plain().await;
    for n in 0..50 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(&mut plain).await.unwrap();
        let before = seconds * 1_000_000 + micros;
        let ttl = 1_000_000 + n;
        cache.set_ex("a".into(), 1, Duration::from_millis(ttl)).await.unwrap();
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(&mut plain).await.unwrap();
        let after = seconds * 1_000_000 + micros;
        let index = keys(&server).await.into_iter().find(|key| key.ends_with('}')).unwrap();
        let deadline: u64 =
            redis::cmd("ZSCORE").arg(index).arg("a").query_async(&mut plain).await.unwrap();
        let due = deadline * 1_000 - ttl * 1_000;
        assert!(before <= due && due < after + 1_000, "{before} {due} {after}");
    }
}

#[tokio::test]
async fn without_subscribers_all_leaves_by_itself() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let builder = Cache::<String, u64>::builder(&client, "c").events(ms(300));
        let cache = builder.build().unwrap();
        fill(&cache, 0..100, ms(50)).await;
        // Told by a writer.
        sleep(ms(60)).await;
        cache.set_ex("1".into(), 1, ms(50)).await.unwrap();
        assert!(keys(&server).await.iter().any(|key| key.ends_with(".expired")));
        let begin = Instant::now();
        while !keys(&server).await.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "{:?}", keys(&server).await);
            sleep(ms(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_stays_of_what_was_told_but_the_ends_of_streams() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    let mut events = cache.events_lossless("g").await.unwrap();
    fill(&cache, 0..1_000, ms(50)).await;
    for _ in 0..1_000 {
        next(&mut events).await;
    }
    assert!(keys(&server).await.iter().all(|key| key.ends_with(".expired")));
    assert_eq!(cache.len().await.unwrap(), 0);
}

#[tokio::test]
async fn a_value_of_a_dead_key_is_never_read_though_it_waits() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        cache.set_ex("ada".into(), 1, ms(30)).await.unwrap();
        cache.set_ex("bob".into(), 1, HOUR).await.unwrap();
        sleep(ms(40)).await;
        assert_eq!(keys(&server).await.iter().filter(|key| key.ends_with("}:ada")).count(), 1);
        assert_eq!(cache.get("ada").await.unwrap(), None);
        assert_eq!(cache.get_ex("ada", HOUR).await.unwrap(), None);
        assert!(!cache.contains_key("ada").await.unwrap());
        assert_eq!(cache.keys().map(Result::unwrap).collect::<Vec<_>>().await, ["bob"]);
        assert_eq!(cache.len().await.unwrap(), 2, "both are on the server");
        // What a clear finds dead is told of.
        let mut events = cache.events_lossless("g").await.unwrap();
        cache.clear().await.unwrap();
        assert_eq!(next(&mut events).await, ("ada".into(), 1));
        assert!(is_quiet(&mut events, ms(200)).await);
    })
    .await;
}

#[tokio::test]
async fn streams_of_both_kinds_come_from_a_cluster() {
    let cluster = Cluster::start();
    let cache = cache(cluster.urls()).await;
    let mut events = cache.events_lossless("g").await.unwrap();
    let mut all = cache.events().await.unwrap();
    fill(&cache, 0..500, ms(500)).await;
    let mut told = BTreeSet::new();
    for _ in 0..500 {
        assert!(told.insert(next(&mut events).await.1));
    }
    let mut broadcast = BTreeSet::new();
    for _ in 0..500 {
        broadcast.insert(timeout(PATIENCE, all.next()).await.unwrap().unwrap().unwrap().value);
    }
    assert_eq!(told, broadcast);
    assert_eq!(told, (0..500).collect());
}

#[tokio::test]
async fn bytes_come_as_they_are() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let builder = Cache::<u64, Vec<u8>>::builder(&client, "c").format(Format::Raw).events(HOUR);
    let cache = builder.build().unwrap();
    let mut events = cache.events_lossless("g").await.unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    cache.set(7, bytes.clone()).await.unwrap();
    cache.expire_now(&7).await.unwrap();
    let event = timeout(PATIENCE, events.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!((event.key, event.value), (7, bytes));
}
