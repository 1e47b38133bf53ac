//! Expirations of `redis::Cache` whose processing fails: they are delivered again, a limited number of times.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client, Error, LosslessEvents};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::Level;

use crate::{
    clock::{in_time, ms},
    log::Log,
    patience::patience,
    servers::{Cluster, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn cache<V: serde::Serialize + DeserializeOwned>(
    client: &Client,
    retention: Duration,
    lease: Duration,
) -> Cache<String, V> {
    let builder = Cache::builder(client, "c").events(retention).lease(lease);
    builder.poll_every(ms(20)).build().unwrap()
}

async fn recv<V: DeserializeOwned + Send + Sync + 'static>(
    events: &mut LosslessEvents<String, V>,
) -> Result<V, Error> {
    let item = timeout(patience(), events.recv()).await.expect("an item is delivered in time");
    item.expect("the stream continues").map(|event| event.value)
}

async fn is_quiet<V: DeserializeOwned + Send + Sync + 'static>(
    events: &mut LosslessEvents<String, V>,
    time: Duration,
) -> bool {
    timeout(time, events.recv()).await.is_err()
}

async fn expire_text(client: &Client, text: &str) {
    let texts = cache::<String>(client, HOUR, HOUR);
    texts.set("ada".into(), text.into()).await.unwrap();
    texts.expire_now("ada").await.unwrap();
}

async fn assert_undecodable_event_reaches_another_release(client: Client) {
    let lease = ms(500);
    // The old release reads numbers, the new one texts.
    let old = cache::<u64>(&client, HOUR, lease);
    let mut olds = old.events_lossless("g").await.unwrap();
    expire_text(&client, "not a number").await;
    let error = recv(&mut olds).await.unwrap_err();
    let Error::Decode { key, .. } = error else { panic!("{error:?}") };
    assert!(key.starts_with("fleeting:cache1:{c:") && key.ends_with("}:ada"), "{key}");
    drop(olds);
    let new = cache::<String>(&client, HOUR, lease);
    let mut news = new.events_lossless("g").await.unwrap();
    assert_eq!(recv(&mut news).await.unwrap(), "not a number");
    news.ack().await.unwrap();
    assert!(is_quiet(&mut news, 3 * lease).await);
}

#[tokio::test]
async fn undecodable_event_is_delivered_to_another_release_after_its_lease() {
    in_time(async || {
        let server = Server::start();
        assert_undecodable_event_reaches_another_release(connect(server.url()).await).await;
    })
    .await;
}

#[tokio::test]
async fn undecodable_event_is_delivered_to_another_release_in_a_cluster() {
    in_time(async || {
        let cluster = Cluster::start();
        assert_undecodable_event_reaches_another_release(connect(cluster.urls()).await).await;
    })
    .await;
}

#[tokio::test]
async fn undecodable_event_is_missed_by_broadcast_subscribers() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let numbers = cache::<u64>(&client, HOUR, HOUR);
    let mut all = numbers.events().await.unwrap();
    expire_text(&client, "not a number").await;
    let event = timeout(patience(), all.recv()).await.unwrap().unwrap();
    assert_eq!(event.unwrap_err(), fleeting::Lagged(1));
}

#[tokio::test]
async fn event_is_dead_after_sixteen_failed_attempts() {
    let (log, _guard) = Log::start(Level::ERROR);
    let server = Server::start();
    let client = connect(server.url()).await;
    let lease = ms(50);
    let cache = cache::<u64>(&client, HOUR, lease);
    let mut events = cache.events_lossless("g").await.unwrap();
    expire_text(&client, "not a number").await;
    for attempt in 1..=16 {
        let error = recv(&mut events).await.unwrap_err();
        assert!(matches!(error, Error::Decode { .. }), "{attempt}: {error:?}");
    }
    assert!(is_quiet(&mut events, 5 * lease).await, "a dead event is not delivered");
    let lines = log.lines("expiration is not delivered again");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("attempts=16") && lines[0].contains("group=\"g\""), "{lines:?}");
}

#[tokio::test]
async fn undecodable_dead_event_is_missed_when_its_retention_has_passed() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let (lease, retention) = (ms(20), Duration::from_secs(3));
    let cache = cache::<u64>(&client, retention, lease);
    let mut events = cache.events_lossless("g").await.unwrap();
    let texts = self::cache::<String>(&client, retention, lease);
    texts.set("ada".into(), "not a number".into()).await.unwrap();
    // Read before the event is published, as the reply may be late.
    let begin = Instant::now();
    texts.expire_now("ada").await.unwrap();
    let missed = loop {
        assert!(begin.elapsed() < patience());
        // Later events trim the stream.
        texts.set("ada".into(), "0".into()).await.unwrap();
        match timeout(ms(100), events.recv()).await {
            Ok(Some(Err(Error::Missed(missed)))) => break missed,
            Ok(Some(Err(Error::Decode { .. }))) | Err(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((missed, cache.stats().missed), (1, 1));
    assert!(begin.elapsed() >= retention - ms(100));
}

/// Delivered events and missed ones add up to all events.
#[tokio::test]
async fn delivered_dead_event_is_not_missed() {
    in_time(async || {
        let server = Server::start();
        let retention = ms(2_000);
        let cache = cache::<u64>(&connect(server.url()).await, retention, ms(300));
        let mut events = cache.events_lossless("g").await.unwrap();
        let expire = async |value| {
            cache.set("ada".into(), value).await.unwrap();
            cache.expire_now("ada").await.unwrap();
        };
        expire(1).await;
        for _ in 0..16 {
            assert_eq!(recv(&mut events).await.unwrap(), 1);
            assert!(events.retry_in(Duration::ZERO).await.unwrap());
        }
        assert!(is_quiet(&mut events, retention + ms(500)).await);
        expire(2).await;
        assert_eq!(recv(&mut events).await.unwrap(), 2);
        assert!(is_quiet(&mut events, ms(500)).await);
        assert_eq!(cache.stats().missed, 0);
    })
    .await;
}

#[tokio::test]
async fn event_given_back_by_retry_in_is_delivered_again_after_the_delay() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let cache = cache::<u64>(&client, HOUR, ms(600));
        let mut events = cache.events_lossless("g").await.unwrap();
        assert!(!events.retry_in(Duration::ZERO).await.unwrap(), "there is no event");
        cache.set("ada".into(), 1).await.unwrap();
        cache.expire_now("ada").await.unwrap();
        // Shorter and longer than a lease.
        for delay in [ms(0), ms(200), ms(1_500)] {
            assert_eq!(recv(&mut events).await.unwrap(), 1);
            let given_back = Instant::now();
            assert!(events.retry_in(delay).await.unwrap());
            assert!(!events.retry_in(delay).await.unwrap(), "it is given back already");
            if !delay.is_zero() {
                assert!(is_quiet(&mut events, delay * 9 / 10).await);
            }
            assert_eq!(recv(&mut events).await.unwrap(), 1);
            let late = given_back.elapsed();
            assert!(late >= delay && late < delay + ms(400), "{late:?} instead of {delay:?}");
            // Due immediately.
            assert!(events.retry_in(Duration::ZERO).await.unwrap());
        }
        // Delivered to another subscriber, too.
        drop(events);
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(recv(&mut events).await.unwrap(), 1);
        events.ack().await.unwrap();
        assert!(!events.fail("late").await.unwrap(), "it is acknowledged");
        assert!(is_quiet(&mut events, ms(1_500)).await);
    })
    .await;
}

#[tokio::test]
async fn failed_event_is_delivered_again_after_a_backoff() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let cache = cache::<u64>(&client, HOUR, HOUR);
        let mut events = cache.events_lossless("g").await.unwrap();
        for n in [1, 2] {
            cache.set("ada".into(), n).await.unwrap();
            cache.expire_now("ada").await.unwrap();
        }
        assert_eq!(recv(&mut events).await.unwrap(), 1);
        let failed = Instant::now();
        assert!(events.fail("the mail server is down").await.unwrap());
        assert_eq!(recv(&mut events).await.unwrap(), 2);
        assert_eq!(recv(&mut events).await.unwrap(), 1);
        // One second, with jitter.
        assert!(failed.elapsed() >= Duration::from_millis(500), "{:?}", failed.elapsed());
    })
    .await;
}

#[tokio::test]
async fn failed_attempt_counts_even_if_the_subscription_ends_before_the_delay() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let cache = cache::<u64>(&client, HOUR, HOUR);
        let events = cache.events_lossless("g").await.unwrap();
        cache.set("ada".into(), 1).await.unwrap();
        cache.expire_now("ada").await.unwrap();
        drop(events);
        for attempt in 1..=16 {
            let mut events = cache.events_lossless("g").await.unwrap();
            let begin = Instant::now();
            assert_eq!(recv(&mut events).await.unwrap(), 1);
            if attempt == 2 {
                assert!(begin.elapsed() >= ms(200), "{:?}", begin.elapsed());
            }
            let delay = if attempt == 1 { ms(300) } else { Duration::from_millis(1) };
            assert!(events.retry_in(delay).await.unwrap());
        }
        let mut events = cache.events_lossless("g").await.unwrap();
        assert!(is_quiet(&mut events, ms(300)).await, "the event is dead");
    })
    .await;
}

#[tokio::test]
async fn subscriber_renews_the_leases_of_many_events_of_a_shard() {
    const EVENTS: u64 = 9_000;
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let cache = cache::<u64>(&client, HOUR, ms(2_000));
        let mut events = cache.events_lossless("g").await.unwrap();
        cache.set("ada".into(), 1).await.unwrap();
        cache.expire_now("ada").await.unwrap();
        let mut plain = server.plain().await;
        let streams = redis::cmd("KEYS").arg("*}.expired").to_owned();
        let streams: Vec<String> = streams.query_async(&mut plain).await.unwrap();
        let copy = "for _, stream in ipairs(KEYS) do \
                        local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1] \
                        for n = 2, last and ARGV[1] or 0 do \
                            redis.call('XADD', stream, '*', unpack(last[2])) \
                        end \
                    end";
        let mut script = redis::cmd("EVAL");
        script.arg(copy).arg(streams.len()).arg(streams).arg(EVENTS);
        script.exec_async(&mut plain).await.unwrap();
        for _ in 0..EVENTS {
            assert_eq!(recv(&mut events).await.unwrap(), 1);
            assert!(events.retry_in(HOUR).await.unwrap());
        }
        assert!(is_quiet(&mut events, ms(4_000)).await, "the leases are renewed");
        cache.set("ada".into(), 2).await.unwrap();
        cache.expire_now("ada").await.unwrap();
        assert_eq!(recv(&mut events).await.unwrap(), 2);
    })
    .await;
}
