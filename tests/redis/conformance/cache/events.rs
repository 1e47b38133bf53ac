//! Events of caches in memory, and of caches with events on Redis.

use fleeting::{Cause, Lagged};
use futures::StreamExt;
use tokio::time::{Instant, sleep};

use super::{Backend, Cache, Embedded, EventStream, HOUR, OnRedisWithEvents, Verbs, short};
use crate::clock::ms;

cases! {
    embedded: Embedded,
    on_redis: OnRedisWithEvents => {
        expired_event_has_key_value_and_deadline,
        write_to_an_expired_key_publishes_the_old_value_first,
        removed_replaced_or_persisted_value_has_no_expired_event,
        slow_subscriber_gets_the_number_of_missed_events,
        event_streams_end_with_the_cache,
    }
}

async fn expired_event_has_key_value_and_deadline<B: Backend>() {
    let cache = B::cache("expired").await;
    let mut events = cache.events().await;
    cache.set("bob".into(), 7).await;
    let given = Instant::now();
    cache.set_ex("ada".into(), 42, short()).await;
    let event = events.recv().await.unwrap().unwrap();
    assert_eq!((event.key.as_str(), event.value), ("ada", 42));
    assert_eq!(event.cause, Cause::Expired);
    let deadline = event.deadline.unwrap();
    assert!(deadline >= given + short() - ms(5), "{:?}", deadline - given);
    assert!(event.lag().unwrap() <= ms(2_000));
    assert_eq!(cache.get("ada").await, None);
    let before = Instant::now();
    assert_eq!(cache.expire_now("bob").await, Some(7));
    let event = events.recv().await.unwrap().unwrap();
    assert_eq!((event.key.as_str(), event.value), ("bob", 7));
    assert!(event.deadline.unwrap() + ms(20) >= before);
}

async fn write_to_an_expired_key_publishes_the_old_value_first<B: Backend>() {
    let cache = B::cache("order").await;
    let mut events = cache.events().await;
    for n in 1..=10_u64 {
        assert_eq!(cache.set_ex("ada".into(), n, ms(2)).await, None);
        sleep(ms(4)).await;
    }
    for n in 1..=10_u64 {
        let event = events.recv().await.unwrap().unwrap();
        assert_eq!((event.key.as_str(), event.value), ("ada", n));
    }
}

async fn removed_replaced_or_persisted_value_has_no_expired_event<B: Backend>() {
    let cache = B::cache("no event").await;
    let mut events = cache.events().await;
    cache.set_ex("removed".into(), 1, short()).await;
    cache.remove("removed").await;
    cache.set_ex("replaced".into(), 1, short()).await;
    cache.set("replaced".into(), 2).await;
    cache.set_ex("persisted".into(), 1, short()).await;
    cache.persist("persisted").await;
    cache.set_ex("put off".into(), 1, short()).await;
    cache.expire("put off", HOUR).await;
    cache.set_ex("cleared".into(), 1, short()).await;
    cache.set("alive".into(), 1).await;
    cache.update("alive", |n| *n += 1).await;
    sleep(ms(1)).await;
    let last = 2 * short();
    cache.remove("cleared").await;
    cache.set_ex("last".into(), 9, last).await;
    let event = events.recv().await.unwrap().unwrap();
    assert_eq!(event.key, "last");
}

async fn slow_subscriber_gets_the_number_of_missed_events<B: Backend>() {
    let cache = B::cache("slow").await;
    let mut events = cache.events().await;
    for n in 0..100_u64 {
        cache.set(n.to_string(), n).await;
        cache.expire_now(&n.to_string()).await;
    }
    sleep(ms(1_500)).await;
    let mut missed = 0;
    let mut seen = 0;
    while missed + seen < 100 {
        match events.recv().await.unwrap() {
            Ok(_) => seen += 1,
            Err(Lagged(n)) => missed += n,
        }
    }
    assert_eq!((seen, missed), (16, 84));
}

async fn event_streams_end_with_the_cache<B: Backend>() {
    let cache = B::cache("end").await;
    let mut events = cache.events().await;
    let mut others = cache.events().await;
    cache.shutdown().await;
    assert!(events.recv().await.is_none());
    assert!(others.next().await.is_none());
    cache.set("ada".into(), 1).await;
    assert_eq!(cache.get("ada").await, Some(1));

    let cache = B::cache("drop").await;
    let mut events = cache.events().await;
    drop(cache);
    assert!(events.recv().await.is_none());
}
