//! The index of the deadlines of `redis::Cache`: it stays small without subscribers, does not delay those that return,
//! and its deadlines are exact.

use std::{collections::VecDeque, time::Duration};

use fleeting::redis::{Cache, Client, Error, LosslessEvents};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn cache(client: &Client, retention: Duration) -> Cache<String, u64> {
    let builder = Cache::builder(client, "c").events(retention);
    builder.poll_every(ms(20)).build().unwrap()
}

async fn fill(cache: &Cache<String, u64>, numbers: std::ops::Range<u64>, ttl: Duration) {
    let sets = numbers.map(|n| cache.set_ex(n.to_string(), n, ttl));
    join_all(sets).await.into_iter().for_each(|set| assert!(set.is_ok(), "{set:?}"));
}

/// Returns the number of entries of all indexes.
async fn index_len(server: &Server) -> u64 {
    let mut plain = server.plain().await;
    let mut len = 0;
    for shard in 0..16 {
        let index = format!("fleeting:cache1:{{c:{shard}}}");
        len += redis::cmd("ZCARD").arg(index).query_async::<u64>(&mut plain).await.unwrap();
    }
    len
}

/// Adds entries to the indexes that expired a day ago, as old writers have left them.
async fn add_lost(server: &Server, count: u64) {
    let mut plain = server.plain().await;
    for shard in 0..16 {
        for chunk in 0..count / 16 / 1_000 {
            let mut add = redis::cmd("ZADD");
            add.arg(format!("fleeting:cache1:{{c:{shard}}}"));
            for n in 0..1_000 {
                add.arg(1_600_000_000_000_u64 + n).arg(format!("lost-{chunk}-{n}"));
            }
            let () = add.query_async(&mut plain).await.unwrap();
        }
    }
}

#[tokio::test]
async fn index_without_subscribers_has_only_entries_within_the_retention() {
    in_time(async || {
        let server = Server::start();
        let retention = ms(500);
        let cache = cache(&connect(server.url()).await, retention);
        let (mut written, mut recent) = (0, VecDeque::new());
        let begin = Instant::now();
        while begin.elapsed() < 8 * retention {
            fill(&cache, written..written + 200, ms(20)).await;
            written += 200;
            recent.push_back((Instant::now(), written));
            let len = index_len(&server).await;
            while recent.front().is_some_and(|(at, _)| at.elapsed() > 2 * retention) {
                recent.pop_front();
            }
            let expected = written - recent.front().map_or(0, |(_, written)| *written) + 200;
            assert!(len <= expected, "{len} of {written} entries, expected at most {expected}");
        }
        assert!(written > 2_000, "{written}");
    })
    .await;
}

#[tokio::test]
async fn subscriber_that_returns_to_many_lost_events_receives_the_next_event_promptly() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(&connect(server.url()).await, HOUR);
        drop(cache.events_lossless("g").await.unwrap());
        const LOST: u64 = 480_000;
        add_lost(&server, LOST).await;
        let begin = Instant::now();
        let mut events = cache.events_lossless("g").await.unwrap();
        cache.set_ex("ada".into(), 1, ms(50)).await.unwrap();
        let (mut missed, mut lag) = (0, None);
        while missed < LOST || lag.is_none() {
            match timeout(patience(), events.recv()).await.unwrap().unwrap() {
                Ok(_) => lag = Some(begin.elapsed()),
                Err(Error::Missed(events)) => missed += events,
                Err(error) => panic!("{error:?}"),
            }
        }
        println!("delivered after {lag:?}");
        assert_eq!(missed, LOST);
        assert!(lag.unwrap() < ms(3_000), "{lag:?}");
        assert_eq!(index_len(&server).await, 0);
    })
    .await;
}

#[tokio::test]
async fn new_group_does_not_miss_events_from_before_its_creation() {
    let server = Server::start();
    let cache = cache(&connect(server.url()).await, HOUR);
    add_lost(&server, 32_000).await;
    let mut events = cache.events_lossless("g").await.unwrap();
    cache.set_ex("ada".into(), 1, ms(50)).await.unwrap();
    let event = timeout(patience(), events.recv()).await.unwrap().unwrap();
    assert_eq!(event.unwrap().value, 1);
}

#[tokio::test]
async fn deadline_is_exact_if_retentions_differ() {
    let server = Server::start();
    let client = connect(server.url()).await;
    // As two releases with different settings.
    let (long, short) = (cache(&client, HOUR), cache(&client, HOUR / 6));
    let mut events: LosslessEvents<String, u64> = long.events_lossless("g").await.unwrap();
    drop(events);
    // Without a subscriber, the next writer of the key publishes the event.
    for (first, second) in [(&long, &short), (&short, &long), (&long, &long)] {
        first.set_ex("ada".into(), 1, ms(50)).await.unwrap();
        sleep(ms(100)).await;
        second.set_ex("ada".into(), 2, HOUR).await.unwrap();
        events = long.events_lossless("g").await.unwrap();
        let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
        assert_eq!(event.value, 1);
        let lag = event.lag().unwrap();
        assert!(lag >= ms(40) && lag < patience(), "{lag:?}");
        events.ack().await.unwrap();
        drop(events);
        second.remove("ada").await.unwrap();
    }
}

#[tokio::test]
async fn removal_and_events_work_on_a_full_server() {
    let server = Server::start();
    let cache = cache(&connect(server.url()).await, HOUR);
    let mut all = cache.events().await.unwrap();
    let mut events = cache.events_lossless("g").await.unwrap();
    drop(cache.events_lossless("other").await.unwrap());
    for (n, key) in ["ada", "bob", "eve"].into_iter().enumerate() {
        cache.set_ex(key.into(), n as u64, HOUR).await.unwrap();
    }
    // It expires when the server is full, and no subscriber is quick enough to publish it.
    let rare = Cache::<String, u64>::builder(&connect(server.url()).await, "rare").events(HOUR);
    let rare = rare.poll_every(HOUR).build().unwrap();
    rare.set_ex("ada".into(), 1, ms(50)).await.unwrap();
    cache.set_ex("due".into(), 3, ms(300)).await.unwrap();
    server.refuse_memory();
    sleep(ms(350)).await;
    assert!(matches!(cache.set_ex("new".into(), 1, HOUR).await, Err(Error::Server(_))));
    assert_eq!(rare.remove("ada").await.unwrap(), None, "it has expired");
    assert_eq!(cache.remove("ada").await.unwrap(), Some(0));
    assert_eq!(cache.expire_now("bob").await.unwrap(), Some(1));
    let mut received = [0, 0];
    for value in &mut received {
        *value = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap().value;
    }
    events.ack().await.unwrap();
    received.sort_unstable();
    assert_eq!(received, [1, 3]);
    for _ in 0..2 {
        timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap();
    }
    assert!(cache.remove_group("other").await.unwrap());
    cache.clear().await.unwrap();
    assert!(cache.is_empty().await.unwrap());
}

/// With nothing due, no removal of an entry precedes the subscribers' own writes.
#[tokio::test]
async fn subscriptions_to_a_full_server_receive_all_events() {
    let server = Server::start();
    let caches =
        [cache(&connect(server.url()).await, HOUR), cache(&connect(server.url()).await, HOUR)];
    // In each shard.
    fill(&caches[0], 0..100, HOUR).await;
    server.refuse_memory();
    let (mut all, mut groups) = (Vec::new(), Vec::new());
    for (cache, group) in caches.iter().zip(["g", "h"]) {
        all.push(cache.events().await.unwrap());
        groups.push(cache.events_lossless(group).await.unwrap());
    }
    assert_eq!(caches[0].expire_now("7").await.unwrap(), Some(7));
    // Published by one of the subscribers.
    server.allow_memory();
    caches[0].set_ex("due".into(), 100, ms(200)).await.unwrap();
    server.refuse_memory();
    for value in [7, 100] {
        for events in &mut all {
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
            assert_eq!(event.value, value);
        }
        for events in &mut groups {
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
            assert_eq!(event.value, value);
            events.ack().await.unwrap();
        }
    }
}

#[tokio::test]
async fn full_server_refuses_values_with_events() {
    let server = Server::start();
    let cache = cache(&connect(server.url()).await, HOUR);
    cache.set("old".into(), 1).await.unwrap();
    server.refuse_memory();
    let full = |outcome: Result<(), Error>, verb| {
        let error = outcome.expect_err(verb);
        assert!(matches!(&error, Error::Server(error) if error.code() == Some("OOM")), "{error:?}");
    };
    full(cache.set("a".into(), 1).await.map(drop), "set");
    full(cache.set_ex("b".into(), 1, HOUR).await.map(drop), "set_ex");
    full(cache.set_nx("c".into(), 1, Some(HOUR)).await.map(drop), "set_nx");
    full(cache.set_many([("d".into(), 1)], Some(HOUR)).await, "set_many");
    full(cache.set_keep_ttl("old".into(), 2).await.map(drop), "set_keep_ttl");
    assert_eq!(cache.len().await.unwrap(), 1);
    assert_eq!(cache.get("old").await.unwrap(), Some(1));
}
