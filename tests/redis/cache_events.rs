//! Expiration events of `redis::Cache`: lossless subscriptions of groups, and broadcast to all subscribers.

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
    patience::patience,
    servers::{Cluster, SMALL_ANSWERS, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

async fn cache(url: impl fleeting::redis::Urls) -> Cache<String, u64> {
    let client = connect(url).await;
    build(&client)
}

fn lease() -> Duration {
    ms(3_000)
}

fn build(client: &Client) -> Cache<String, u64> {
    let builder = Cache::builder(client, "c").events(HOUR).lease(lease());
    builder.poll_every(ms(20)).build().unwrap()
}

async fn next(events: &mut LosslessEvents<String, u64>) -> (String, u64) {
    let event = timeout(patience(), events.recv()).await.expect("an event is delivered in time");
    let event = event.expect("the stream has not ended").unwrap();
    (event.key, event.value)
}

/// Returns true if no event is delivered within `time`.
async fn is_quiet(events: &mut LosslessEvents<String, u64>, time: Duration) -> bool {
    timeout(time, events.recv()).await.is_err()
}

/// Returns the keys of the cache on the server.
async fn keys(server: &Server) -> BTreeSet<String> {
    let mut plain = server.plain().await;
    redis::cmd("KEYS").arg("fleeting:cache1:{c:*").query_async(&mut plain).await.unwrap()
}

/// Sets each number as the value of its own key.
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
async fn thousand_expirations_among_a_hundred_thousand_entries_are_delivered_within_a_second() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        // Default settings, other than `build`.
        let cache: Cache<String, u64> = Cache::builder(&client, "c").events(HOUR).build().unwrap();
        fill(&cache, 1_000..101_000, HOUR).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut all = cache.events().await.unwrap();
        let ttl = ms(3_000);
        fill(&cache, 0..1_000, ttl).await;
        let filled = Instant::now();
        let mut received = BTreeSet::new();
        let mut lags = Vec::new();
        while received.len() < 1_000 {
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
            assert_eq!(event.key, event.value.to_string());
            lags.push(event.lag().unwrap());
            assert!(received.insert(event.value), "{} is delivered twice", event.value);
        }
        let late = filled.elapsed().saturating_sub(ttl);
        lags.sort();
        println!("all after {late:?}; lag p50 {:?}, max {:?}", lags[500], lags[999]);
        assert!(late < ms(1_000), "{late:?}");
        assert!(lags[999] < ms(1_000), "{:?}", lags[999]);
        assert_eq!(received, (0..1_000).collect());
        let mut broadcast = BTreeSet::new();
        while broadcast.len() < 1_000 {
            broadcast
                .insert(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value);
        }
        assert_eq!(broadcast, received);
    })
    .await;
}

#[tokio::test]
async fn event_is_delivered_to_one_subscriber_of_each_group() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        // A client of its own, as in another process.
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
        let mut received = BTreeSet::new();
        for _ in 0..4_000 {
            let event = timeout(patience(), receiver.recv()).await.unwrap().unwrap();
            assert!(received.insert(event.clone()), "{event:?} is delivered twice");
        }
        // Longer than a lease.
        assert!(
            timeout(lease() + ms(500), receiver.recv()).await.is_err(),
            "an event is delivered twice"
        );
    })
    .await;
}

/// Runtime that ends without waiting for its tasks, also if the test panics.
struct Victim(Option<Runtime>);

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

#[test]
fn events_of_a_crashed_subscriber_are_delivered_to_another_after_the_lease() {
    Runtime::new().unwrap().block_on(in_time(async || {
        let server = Server::start();
        let victim = Victim(Some(Runtime::new().unwrap()));
        let cache = cache(server.url()).await;
        // The scale of times belongs to the thread of the case.
        let (url, long) = (server.url(), lease());
        let runtime = victim.0.as_ref().unwrap();
        let mut subscription = runtime
            .spawn(async move {
                let builder = Cache::<String, u64>::builder(&connect(url).await, "c").events(HOUR);
                let cache = builder.lease(long).poll_every(long / 150).build().unwrap();
                let events = cache.events_lossless("g").await.unwrap();
                (events, cache)
            })
            .await
            .unwrap();
        fill(&cache, 0..100, ms(50)).await;
        // One event was received and not acknowledged, the others are read ahead.
        let first = next(&mut subscription.0).await;
        let begin = Instant::now();
        while !format!("{:?}", subscription.0).contains("unread: 99") {
            assert!(begin.elapsed() < patience(), "{:?}", subscription.0);
            sleep(ms(10)).await;
        }
        // Several subscribers: the first one to poll after the end of the lease would get the leased events.
        let join = || async { cache.events_lossless("g").await.unwrap() };
        let mut others = join_all((0..8).map(|_| join())).await;
        // Waits for longer than a lease, which the running subscriber renews.
        let quiet = others.iter_mut().map(|events| is_quiet(events, lease() + ms(500)));
        assert_eq!(join_all(quiet).await, [true; 8], "leased events are not delivered to others");
        let mut events = others.swap_remove(0);
        drop(others);
        let crashed_at = Instant::now();
        // Like a crash: none of its tasks runs any more, so that it cannot give anything back.
        drop(victim);
        let mut received = BTreeMap::new();
        for _ in 0..100 {
            let (key, value) = next(&mut events).await;
            assert!(received.insert(key, value).is_none());
        }
        println!("all delivered {:?} after the crash", crashed_at.elapsed());
        assert!(
            crashed_at.elapsed() >= lease() / 2,
            "the lease was renewed less than a third of its length before the crash"
        );
        assert_eq!(received[&first.0], first.1);
        assert!(is_quiet(&mut events, ms(500)).await);
    }));
}

#[tokio::test]
async fn dropped_subscription_gives_back_unread_events_immediately() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let builder = Cache::<String, u64>::builder(&client, "c").events(HOUR).lease(HOUR);
    let cache = builder.poll_every(ms(20)).build().unwrap();
    let mut leaving = cache.events_lossless("g").await.unwrap();
    fill(&cache, 0..50, ms(50)).await;
    let done = next(&mut leaving).await;
    let held = next(&mut leaving).await;
    // Waits until the other events are read ahead.
    while !format!("{leaving:?}").contains("unread: 48") {
        sleep(ms(10)).await;
    }
    drop(leaving);
    let mut events = cache.events_lossless("g").await.unwrap();
    let mut received = BTreeSet::new();
    for _ in 0..48 {
        received.insert(next(&mut events).await.1);
    }
    assert_eq!(received.len(), 48);
    assert!(
        !received.contains(&done.1) && !received.contains(&held.1),
        "the first event is acknowledged and the second still leased"
    );
    assert!(
        is_quiet(&mut events, ms(300)).await,
        "the last event is leased until its lease expires"
    );
}

#[tokio::test]
async fn only_unacknowledged_event_is_delivered_again() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        cache.set("ada".into(), 1).await.unwrap();
        cache.expire_now("ada").await.unwrap();
        assert_eq!(next(&mut events).await, ("ada".into(), 1));
        drop(events);
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(
            next(&mut events).await,
            ("ada".into(), 1),
            "the unacknowledged event is delivered again"
        );
        events.ack().await.unwrap();
        events.ack().await.unwrap();
        drop(events);
        let mut events = cache.events_lossless("g").await.unwrap();
        assert!(is_quiet(&mut events, lease() + ms(200)).await);
        cache.set("bob".into(), 2).await.unwrap();
        cache.expire_now("bob").await.unwrap();
        assert_eq!(next(&mut events).await, ("bob".into(), 2));
    })
    .await;
}

#[tokio::test]
async fn events_of_a_group_without_subscribers_wait_for_the_next_one() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        cache.set("before".into(), 0).await.unwrap();
        cache.expire_now("before").await.unwrap();
        drop(cache.events_lossless("g").await.unwrap());
        fill(&cache, 0..10, ms(30)).await;
        sleep(ms(60)).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut received = BTreeSet::new();
        for _ in 0..10 {
            received.insert(next(&mut events).await.0);
        }
        assert_eq!(
            received,
            (0..10).map(|n| n.to_string()).collect(),
            "events from before the group was created are not delivered"
        );
    })
    .await;
}

#[tokio::test]
async fn on_expired_continues_after_a_panic_of_the_callback() {
    let server = Server::start();
    let cache = cache(server.url()).await;
    let called = Arc::new(Mutex::new(BTreeSet::new()));
    let calls = called.clone();
    let task = cache
        .on_expired("g", async move |event| {
            calls.lock().unwrap().insert(event.value);
            assert_ne!(event.value, 3, "expected panic of the callback");
        })
        .await
        .unwrap();
    fill(&cache, 0..10, ms(30)).await;
    let begin = Instant::now();
    while called.lock().map_or_else(|error| error.into_inner().len(), |called| called.len()) < 10 {
        assert!(begin.elapsed() < patience());
        sleep(ms(10)).await;
    }
    cache.shutdown().await;
    timeout(patience(), task).await.expect("the task ends with the cache").unwrap();
}

#[tokio::test]
async fn cache_without_events_returns_no_events_error() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
    assert!(matches!(cache.events().await, Err(Error::NoEvents)));
    assert!(matches!(cache.events_lossless("g").await, Err(Error::NoEvents)));
    assert!(matches!(cache.on_expired("g", async |_| ()).await, Err(Error::NoEvents)));
}

/// A number whose `Deserialize` panics on 13.
#[derive(Debug, Serialize)]
struct PanicsOn13(u64);

impl<'de> Deserialize<'de> for PanicsOn13 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(deserializer)?;
        assert_ne!(value, 13, "expected panic of the deserializer");
        Ok(Self(value))
    }
}

#[tokio::test]
async fn panic_in_deserialize_is_reported_as_decode_error() {
    let server = Server::start();
    let numbers = cache(server.url()).await;
    let client = connect(server.url()).await;
    let panicking: Cache<String, PanicsOn13> =
        Cache::builder(&client, "c").events(HOUR).lease(HOUR).build().unwrap();
    let mut events = panicking.events_lossless("g").await.unwrap();
    let mut all = panicking.events().await.unwrap();
    for n in [12, 13, 14] {
        numbers.set("ada".into(), n).await.unwrap();
        numbers.expire_now("ada").await.unwrap();
        let event =
            timeout(patience(), events.recv()).await.unwrap().expect("the stream continues");
        let broadcast =
            timeout(patience(), all.recv()).await.unwrap().expect("the stream continues");
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
async fn key_overwritten_by_another_program_has_no_event() {
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
        let mut received = BTreeSet::new();
        for _ in 0..100 {
            received.insert(next(&mut events).await.0);
        }
        assert!(!received.contains("ada"));
        assert_eq!(received.len(), 100);
        assert!(keys(&server).await.contains(&record), "the other program's value is kept");
    })
    .await;
}

#[tokio::test]
async fn deadline_is_at_most_a_millisecond_after_the_ttl_and_never_before() {
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
async fn events_without_subscribers_are_deleted_after_the_retention() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let builder = Cache::<String, u64>::builder(&client, "c").events(ms(300));
        let cache = builder.build().unwrap();
        fill(&cache, 0..100, ms(50)).await;
        // The next writer of the key publishes the event.
        sleep(ms(60)).await;
        cache.set_ex("1".into(), 1, ms(50)).await.unwrap();
        assert!(keys(&server).await.iter().any(|key| key.ends_with(".expired")));
        let begin = Instant::now();
        while !keys(&server).await.is_empty() {
            assert!(begin.elapsed() < patience(), "{:?}", keys(&server).await);
            sleep(ms(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn only_stream_keys_remain_after_delivery() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(server.url()).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        fill(&cache, 0..1_000, ms(50)).await;
        for _ in 0..1_000 {
            next(&mut events).await;
        }
        let remaining_keys = [".counts", ".expired", ".groups", ".told"];
        let keys_left = keys(&server).await;
        assert!(
            keys_left.iter().all(|key| remaining_keys.iter().any(|end| key.ends_with(end))),
            "{keys_left:?}"
        );
        assert_eq!(cache.len().await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn expired_value_waiting_for_its_event_is_not_returned() {
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
        // `clear` publishes the events of entries that have expired already.
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
async fn cluster_delivers_events_and_lossless_events() {
    in_time(async || {
        let cluster = Cluster::start();
        let cache = cache(cluster.urls()).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut all = cache.events().await.unwrap();
        fill(&cache, 0..500, ms(500)).await;
        let mut received = BTreeSet::new();
        for _ in 0..500 {
            assert!(received.insert(next(&mut events).await.1));
        }
        let mut broadcast = BTreeSet::new();
        for _ in 0..500 {
            broadcast
                .insert(timeout(patience(), all.next()).await.unwrap().unwrap().unwrap().value);
        }
        assert_eq!(received, broadcast);
        assert_eq!(received, (0..500).collect());
    })
    .await;
}

#[tokio::test]
async fn raw_bytes_of_an_event_are_unchanged() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let builder = Cache::<u64, Vec<u8>>::builder(&client, "c").format(Format::Raw).events(HOUR);
    let cache = builder.build().unwrap();
    let mut events = cache.events_lossless("g").await.unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    cache.set(7, bytes.clone()).await.unwrap();
    cache.expire_now(&7).await.unwrap();
    let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!((event.key, event.value), (7, bytes));
}

#[tokio::test]
async fn event_with_an_empty_value_is_announced_like_any_other() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let builder = Cache::<u64, Vec<u8>>::builder(&client, "c").format(Format::Raw).events(HOUR);
    let cache = builder.build().unwrap();
    let mut events = cache.events().await.unwrap();
    cache.set_ex(7, Vec::new(), Duration::from_millis(50)).await.unwrap();
    let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!((event.key, event.value.len()), (7, 0));
    // The version that all subscribers poll, and the time for which late subscribers find the event.
    let keys = keys(&server).await;
    assert!(keys.iter().any(|key| key.ends_with(".told")), "{keys:?}");
    let stream = keys.iter().find(|key| key.ends_with(".expired")).expect("the event is kept");
    let mut plain = server.plain().await;
    let kept: i64 = redis::cmd("PTTL").arg(stream).query_async(&mut plain).await.unwrap();
    assert!(kept > 3_500_000, "{kept}");
}

#[tokio::test]
async fn reserved_group_is_refused() {
    let server = Server::shared();
    let cache = cache(server.url()).await;
    let refused = cache.events_lossless("fleeting:restored").await.err();
    assert!(
        matches!(&refused, Some(Error::Name(name)) if name == "fleeting:restored"),
        "{refused:?}"
    );
}

/// Returns the number of scripts that the server has executed.
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
async fn idle_subscriber_sends_at_most_two_scripts_per_second() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        // Default settings, other than `build`.
        let cache: Cache<String, u64> = Cache::builder(&client, "c").events(HOUR).build().unwrap();
        fill(&cache, 0..100, HOUR).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut all = cache.events().await.unwrap();
        sleep(ms(500)).await;
        let (begin, before) = (Instant::now(), scripts(&server).await);
        sleep(ms(2_500)).await;
        let (sent, passed) = (scripts(&server).await - before, begin.elapsed());
        println!("{sent} scripts of two subscribers in {passed:?}");
        assert!(sent as f64 <= 4.0 * passed.as_secs_f64(), "{sent} in {passed:?}");
        // Events still arrive promptly: by a deadline, by a writer, and from another client.
        let other = self::cache(server.url()).await;
        let begin = Instant::now();
        other.set_ex("1000".into(), 1_000, ms(50)).await.unwrap();
        assert_eq!(next(&mut events).await.1, 1_000);
        assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, 1_000);
        other.set_ex("1001".into(), 1_001, HOUR).await.unwrap();
        other.expire_now("1001").await.unwrap();
        assert_eq!(next(&mut events).await.1, 1_001);
        assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, 1_001);
        // An earlier deadline than before is noticed, too.
        other.expire("7", ms(50)).await.unwrap();
        assert_eq!(next(&mut events).await.1, 7);
        assert!(begin.elapsed() < ms(1_000), "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test]
async fn events_with_values_of_two_megabytes_are_delivered() {
    in_time(async || {
        let server = Server::start_with(&SMALL_ANSWERS);
        let client = connect(server.url()).await;
        let builder = Cache::<u64, String>::builder(&client, "c").format(Format::Raw).events(HOUR);
        let cache = builder.lease(lease()).build().unwrap();
        let mut events = cache.events_lossless("g").await.unwrap();
        let large = "x".repeat(2 << 20);
        let ttl = Duration::from_secs(1);
        for n in 0..48 {
            cache.set_ex(n, large.clone(), ttl).await.unwrap();
        }
        let mut received = BTreeSet::new();
        while received.len() < 48 {
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap();
            // On a busy machine a reply may time out, which is reported as an error.
            if let Ok(event) = event {
                assert!(
                    event.value == large && received.insert(event.key),
                    "{} is delivered twice",
                    event.key
                );
            }
        }
        // A broadcast subscriber gets all events, or the number of missed ones. These 16 fit into its buffer.
        let all = cache.events().await.unwrap();
        for n in 0..16 {
            cache.set_ex(n, large.clone(), ms(1)).await.unwrap();
        }
        let seen = timeout(
            patience(),
            all.take(16).map(|event| event.unwrap().key).collect::<BTreeSet<_>>(),
        );
        assert_eq!(seen.await.unwrap(), (0..16).collect());
    })
    .await;
}

#[tokio::test]
async fn group_without_events_for_longer_than_the_retention_misses_no_later_event() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let retention = ms(1_000);
        let build = |poll_every| {
            let builder = Cache::<String, u64>::builder(&client, "c").events(retention);
            builder.lease(lease()).poll_every(poll_every).build().unwrap()
        };
        let cache = build(ms(20));
        let mut present = cache.events_lossless("present").await.unwrap();
        drop(cache.events_lossless("absent").await.unwrap());
        // Longer than the retention: the streams expire with their groups.
        sleep(2 * retention).await;
        let expire = async |n: u64| {
            cache.set(n.to_string(), n).await.unwrap();
            cache.expire_now(&n.to_string()).await.unwrap();
        };
        for n in 0..5 {
            expire(n).await;
        }
        for _ in 0..5 {
            next(&mut present).await;
        }
        let mut absent = cache.events_lossless("absent").await.unwrap();
        let mut received = BTreeSet::new();
        for _ in 0..5 {
            received.insert(next(&mut absent).await.1);
        }
        assert_eq!(received, (0..5).collect());
        // A new group gets later events only, and each group gets each event once.
        let mut new = cache.events_lossless("new").await.unwrap();
        expire(9).await;
        for events in [&mut present, &mut absent, &mut new] {
            assert_eq!(next(events).await.1, 9);
            assert!(is_quiet(events, ms(100)).await);
        }
    })
    .await;
}

#[tokio::test]
async fn subscriber_keeps_its_read_ahead_events_after_shutdown() {
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
        // One event every 15 ms, in total longer than a lease.
        let mut received = BTreeSet::new();
        while let Some(event) = events.recv().await {
            assert!(received.insert(event.unwrap().value));
            sleep(lease * 3 / 2 / 100).await;
        }
        assert_eq!(received.len(), 100);
        assert!(is_quiet(&mut others, lease).await, "events are delivered twice");
    })
    .await;
}

#[tokio::test]
async fn leases_are_renewed_between_rare_polls() {
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
        assert!(is_quiet(&mut others, 3 * lease).await, "the event is leased");
        seldom.shutdown().await;
        assert!(is_quiet(&mut others, 3 * lease).await, "the event is still leased after shutdown");
        drop(held);
        assert_eq!(next(&mut others).await.1, 1);
    })
    .await;
}

#[tokio::test]
async fn subscription_with_the_largest_event_capacity_receives_events() {
    let server = Server::start();
    let builder = Cache::<String, u64>::builder(&connect(server.url()).await, "c").events(HOUR);
    let cache = builder.event_capacity(usize::MAX).poll_every(ms(20)).build().unwrap();
    let mut events = cache.events().await.unwrap();
    cache.set("ada".into(), 1).await.unwrap();
    cache.expire_now("ada").await.unwrap();
    let event = timeout(patience(), events.recv()).await.unwrap().unwrap();
    assert_eq!(event.unwrap().value, 1);
}
