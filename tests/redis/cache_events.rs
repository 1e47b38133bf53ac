//! Expirations on Redis: each to one subscriber of a group, and to all who listen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client, Error, Format, LosslessEvents};
use futures::{StreamExt, future::join_all};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::{
    runtime::Runtime,
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    clock::{in_time, ms},
    servers::{Cluster, SMALL_ANSWERS, Server, connect},
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

/// A value whose code does what it likes.
#[derive(Debug, Serialize)]
struct Wild(u64);

impl<'de> Deserialize<'de> for Wild {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(deserializer)?;
        assert_ne!(value, 13, "it can't be read");
        Ok(Self(value))
    }
}

#[tokio::test]
async fn a_value_that_panics_is_told_as_one_that_does_not_decode() {
    let server = Server::start();
    let numbers = cache(server.url()).await;
    let client = connect(server.url()).await;
    let wild: Cache<String, Wild> =
        Cache::builder(&client, "c").events(HOUR).lease(LEASE).build().unwrap();
    let mut events = wild.events_lossless("g").await.unwrap();
    let mut all = wild.events().await.unwrap();
    for n in [12, 13, 14] {
        numbers.set("ada".into(), n).await.unwrap();
        numbers.expire_now("ada").await.unwrap();
        let event = timeout(PATIENCE, events.recv()).await.unwrap().expect("it goes on");
        let broadcast = timeout(PATIENCE, all.recv()).await.unwrap().expect("it goes on");
        match n {
            13 => {
                assert!(matches!(event, Err(Error::Decode { .. })), "{event:?}");
                assert_eq!(broadcast.unwrap_err(), fleeting::Lagged(1));
            }
            _ => assert_eq!((event.unwrap().value.0, broadcast.unwrap().value.0), (n, n)),
        }
    }
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
    let beside = [".expired", ".groups", ".told"];
    let left = keys(&server).await;
    assert!(left.iter().all(|key| beside.iter().any(|end| key.ends_with(end))), "{left:?}");
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
        assert_eq!(keys(&server).await.iter().filter(|key| key.ends_with("}:ada")).count(), 0);
        let shadows = keys(&server).await;
        assert_eq!(shadows.iter().filter(|key| key.ends_with("}.value:ada")).count(), 1);
        assert_eq!(cache.get("ada").await.unwrap(), None);
        assert_eq!(cache.get_ex("ada", HOUR).await.unwrap(), None);
        assert!(!cache.contains_key("ada").await.unwrap());
        assert_eq!(cache.keys().map(Result::unwrap).collect::<Vec<_>>().await, ["bob"]);
        assert_eq!(cache.len().await.unwrap(), 1);
        // What is dead when all is cleared is told of.
        drop(cache.events_lossless("g").await.unwrap());
        cache.set_ex("eve".into(), 1, ms(30)).await.unwrap();
        sleep(ms(40)).await;
        cache.clear().await.unwrap();
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(next(&mut events).await, ("eve".into(), 1));
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

/// How many scripts the server has run.
async fn scripts(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut server.plain().await)
        .await
        .unwrap();
    let calls = info.lines().filter_map(|line| {
        let (name, stats) = line.split_once(":calls=")?;
        let is_script = ["cmdstat_evalsha", "cmdstat_eval"].contains(&name);
        is_script.then(|| stats.split(',').next().unwrap().parse::<u64>().unwrap())
    });
    calls.sum()
}

#[tokio::test]
async fn an_idle_subscriber_sends_two_scripts_a_second_at_most() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        // As built by default.
        let cache: Cache<String, u64> = Cache::builder(&client, "c").events(HOUR).build().unwrap();
        fill(&cache, 0..100, HOUR).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut all = cache.events().await.unwrap();
        sleep(ms(500)).await;
        let before = scripts(&server).await;
        sleep(ms(2_500)).await;
        let sent = scripts(&server).await - before;
        println!("{sent} scripts of two subscribers in two and a half seconds");
        assert!(sent <= 10, "{sent}");
        // Whatever comes is told as soon as ever: by a writer, by a deadline, and of another client.
        let other = self::cache(server.url()).await;
        let begin = Instant::now();
        other.set_ex("1000".into(), 1_000, ms(50)).await.unwrap();
        assert_eq!(next(&mut events).await.1, 1_000);
        assert_eq!(timeout(PATIENCE, all.recv()).await.unwrap().unwrap().unwrap().value, 1_000);
        other.set_ex("1001".into(), 1_001, HOUR).await.unwrap();
        other.expire_now("1001").await.unwrap();
        assert_eq!(next(&mut events).await.1, 1_001);
        assert_eq!(timeout(PATIENCE, all.recv()).await.unwrap().unwrap().unwrap().value, 1_001);
        // What was to live for long, and is sooner now.
        other.expire("7", ms(50)).await.unwrap();
        assert_eq!(next(&mut events).await.1, 7);
        assert!(begin.elapsed() < ms(1_000), "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test]
async fn events_of_two_megabytes_come() {
    let server = Server::start_with(&SMALL_ANSWERS);
    // As a client is by default.
    let client = Client::connect(server.url()).await.unwrap();
    let builder = Cache::<u64, String>::builder(&client, "c").format(Format::Raw).events(HOUR);
    let cache = builder.lease(LEASE).build().unwrap();
    let mut events = cache.events_lossless("g").await.unwrap();
    let large = "x".repeat(2 << 20);
    let ttl = Duration::from_secs(1);
    for n in 0..48 {
        cache.set_ex(n, large.clone(), ttl).await.unwrap();
    }
    let mut told = BTreeSet::new();
    while told.len() < 48 {
        let event = timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
        // Of a machine that does much else, an answer may be late.
        if let Ok(event) = event {
            assert!(event.value == large && told.insert(event.key), "{} comes twice", event.key);
        }
    }
    // Of those who listen without a group each is told all, or how many it missed; not all of them are kept here.
    let all = cache.events().await.unwrap();
    for n in 0..16 {
        cache.set_ex(n, large.clone(), ms(1)).await.unwrap();
    }
    let seen =
        timeout(PATIENCE, all.take(16).map(|event| event.unwrap().key).collect::<BTreeSet<_>>());
    assert_eq!(seen.await.unwrap(), (0..16).collect());
}

#[tokio::test]
async fn a_group_that_joins_again_after_a_silence_misses_nothing() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let retention = ms(1_000);
        let build = |poll_every| {
            let builder = Cache::<String, u64>::builder(&client, "c").events(retention);
            builder.lease(LEASE).poll_every(poll_every).build().unwrap()
        };
        let cache = build(ms(20));
        let mut stays = cache.events_lossless("stays").await.unwrap();
        drop(cache.events_lossless("comes again").await.unwrap());
        // Longer than the streams are kept, with all groups that are on them.
        sleep(2 * retention).await;
        let expire = async |n: u64| {
            cache.set(n.to_string(), n).await.unwrap();
            cache.expire_now(&n.to_string()).await.unwrap();
        };
        for n in 0..5 {
            expire(n).await;
        }
        for _ in 0..5 {
            next(&mut stays).await;
        }
        let mut again = cache.events_lossless("comes again").await.unwrap();
        let mut told = BTreeSet::new();
        for _ in 0..5 {
            told.insert(next(&mut again).await.1);
        }
        assert_eq!(told, (0..5).collect());
        // One that is new is told what comes from now on, and each is told once.
        let mut new = cache.events_lossless("new").await.unwrap();
        expire(9).await;
        for events in [&mut stays, &mut again, &mut new] {
            assert_eq!(next(events).await.1, 9);
            assert!(is_quiet(events, ms(100)).await);
        }
    })
    .await;
}

#[tokio::test]
async fn after_a_shutdown_who_reads_fast_has_all_to_itself() {
    in_time(async || {
        let server = Server::start();
        let lease = ms(1_000);
        let build = async || {
            let builder = Cache::<String, u64>::builder(&connect(server.url()).await, "c");
            builder.events(HOUR).lease(lease).poll_every(lease / 5).build().unwrap()
        };
        let cache = build().await;
        let mut events = cache.events_lossless("g").await.unwrap();
        fill(&cache, 0..100, ms(50)).await;
        while !format!("{events:?}").contains("unread: 100") {
            sleep(ms(10)).await;
        }
        let other = build().await;
        let mut others = other.events_lossless("g").await.unwrap();
        cache.shutdown().await;
        // One each few milliseconds, for longer than a lease.
        let mut told = BTreeSet::new();
        while let Some(event) = events.recv().await {
            assert!(told.insert(event.unwrap().value));
            sleep(lease * 3 / 2 / 100).await;
        }
        assert_eq!(told.len(), 100);
        assert!(is_quiet(&mut others, lease).await, "they come twice");
    })
    .await;
}

#[tokio::test]
async fn who_looks_seldom_keeps_what_it_holds() {
    in_time(async || {
        let server = Server::start();
        let lease = ms(400);
        let build = async |poll_every| {
            let builder = Cache::<String, u64>::builder(&connect(server.url()).await, "c");
            builder.events(HOUR).lease(lease).poll_every(poll_every).build().unwrap()
        };
        let (seldom, often) = (build(Duration::MAX).await, build(ms(20)).await);
        drop(often.events_lossless("g").await.unwrap());
        often.set("ada".into(), 1).await.unwrap();
        often.expire_now("ada").await.unwrap();
        let mut held = seldom.events_lossless("g").await.unwrap();
        assert_eq!(next(&mut held).await.1, 1);
        let mut others = often.events_lossless("g").await.unwrap();
        assert!(is_quiet(&mut others, 3 * lease).await, "it is held");
        seldom.shutdown().await;
        assert!(is_quiet(&mut others, 3 * lease).await, "it is held after a shutdown");
        drop(held);
        assert_eq!(next(&mut others).await.1, 1);
    })
    .await;
}
