//! Subscriptions to the events of caches, their groups, and the shutdown.

use std::{collections::BTreeSet, time::Duration};

use fleeting::redis::{Cache, Client, Events, LosslessEvents};
use futures::lock::Mutex;
use tokio::time::{sleep, timeout};

use super::{HOUR, checked, fresh, until};
use crate::{
    cancel::{Parts, at_each_poll, calls, has_effect_at_polls, with_effects},
    patience::patience,
    servers::{Server, connect},
};

type Numbers = Cache<String, u64>;

/// Returns a cache with four values.
async fn cache(client: &Client, lease: Duration) -> Numbers {
    let builder = Cache::builder(client, &fresh()).events(HOUR).lease(lease);
    let cache: Numbers = builder.poll_every(Duration::from_millis(5)).build().unwrap();
    cache.set_many((0..4).map(|key| (key.to_string(), key)), Some(HOUR)).await.unwrap();
    cache
}

async fn expire<const N: usize>(cache: &Numbers, keys: [&str; N]) {
    for key in keys {
        assert!(cache.expire_now(key).await.unwrap().is_some());
    }
}

struct Streams {
    events: Events<String, u64>,
    lossless_events: LosslessEvents<String, u64>,
}

impl Streams {
    async fn of(cache: &Numbers) -> Self {
        let lossless_events = cache.events_lossless("group").await.unwrap();
        Self { events: cache.events().await.unwrap(), lossless_events }
    }

    /// Returns the key of the next event, or `None` after the last.
    async fn next(&mut self, is_lossless: bool) -> Option<String> {
        match is_lossless {
            true => self.lossless_events.recv().await.map(|event| event.unwrap().key),
            false => self.events.recv().await.map(|event| event.unwrap().key.clone()),
        }
    }

    /// Receives the events of `keys`, in any order: those of different keys are not ordered.
    async fn receive<const N: usize>(&mut self, is_lossless: bool, keys: [&str; N], promise: &str) {
        let mut left = BTreeSet::from(keys);
        while !left.is_empty() {
            let next = timeout(patience(), self.next(is_lossless)).await;
            let key = next.unwrap_or_else(|_| panic!("{promise}: no event of {left:?}"));
            let key = key.expect("the cache is alive");
            assert!(left.remove(&*key), "{promise}: unexpected event of {key}");
        }
    }
}

#[tokio::test]
async fn cancelled_subscription_takes_no_event_from_others() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for subscribe in ["events", "events_lossless", "on_expired"] {
        at_each_poll(
            // Events that are leased by a subscriber without a reader stay with it.
            async || cache(&client, HOUR).await,
            async |cache| match subscribe {
                "events" => cache.events().await.map(|_| None).unwrap(),
                "events_lossless" => cache.events_lossless("group").await.map(|_| None).unwrap(),
                _ => Some(cache.on_expired("group", async |_| ()).await.unwrap()),
            },
            async |cache, reply, schedule| {
                if let Some(callback) = reply.flatten() {
                    callback.abort();
                    assert!(callback.await.is_err());
                }
                let mut streams = Streams::of(&cache).await;
                expire(&cache, ["0", "1", "2", "3"]).await;
                for is_lossless in [false, true] {
                    let promise = format!("{subscribe}, {schedule:?}, lossless: {is_lossless}");
                    streams.receive(is_lossless, ["0", "1", "2", "3"], &promise).await;
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_recv_on_redis_has_consumed_no_event() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for is_lossless in [false, true] {
        at_each_poll(
            async || {
                let cache = cache(&client, HOUR).await;
                let streams = Streams::of(&cache).await;
                expire(&cache, ["0"]).await;
                (cache, Mutex::new(streams))
            },
            async |(_, streams)| streams.lock().await.next(is_lossless).await.unwrap(),
            async |(cache, streams), reply, schedule| {
                let (mut streams, promise) = (streams.into_inner(), format!("{schedule:?}"));
                expire(&cache, ["1"]).await;
                match reply {
                    Some(key) => {
                        assert_eq!(key, "0");
                        streams.receive(is_lossless, ["1"], &promise).await;
                    }
                    None => streams.receive(is_lossless, ["0", "1"], &promise).await,
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_ack_or_return_of_an_event_may_be_repeated() {
    type Held = (Numbers, Mutex<LosslessEvents<String, u64>>);

    let server = Server::shared();
    let client = connect(server.url()).await;
    let lease = Duration::from_millis(100);
    let new = async || {
        let cache = cache(&client, lease).await;
        let mut events = cache.events_lossless("group").await.unwrap();
        expire(&cache, ["0"]).await;
        assert_eq!(events.recv().await.unwrap().unwrap().key, "0");
        (cache, Mutex::new(events))
    };
    for end in ["ack", "retry_in", "fail"] {
        let call = async |(_, held): &Held| {
            let mut lossless_events = held.lock().await;
            match end {
                "ack" => lossless_events.ack().await.map(|()| true).unwrap(),
                "retry_in" => lossless_events.retry_in(Duration::ZERO).await.unwrap(),
                _ => lossless_events.fail("no reason").await.unwrap(),
            }
        };
        at_each_poll(new, call, async |state, reply, schedule| {
            let promise = format!("{end}, {schedule:?}");
            let has_ended = call(&state).await;
            let (cache, events) = state;
            // Both complete at their first poll, so that a cancelled one has no effect.
            assert_eq!(has_ended, end == "ack" || reply.is_none(), "{promise}");
            drop(events);
            let mut streams = Streams::of(&cache).await;
            if end != "ack" {
                streams.receive(true, ["0"], &promise).await;
            }
            // An event that is not acknowledged is delivered again after its lease.
            streams.lossless_events.ack().await.unwrap();
            sleep(3 * lease).await;
            expire(&cache, ["1"]).await;
            streams.receive(true, ["1"], &promise).await;
        })
        .await;
    }
}

#[tokio::test]
async fn cancelled_removal_of_a_group_may_be_repeated() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let new = async || {
        let cache = cache(&client, HOUR).await;
        drop(cache.events_lossless("group").await.unwrap());
        cache
    };
    let observe = async |cache: &Numbers| {
        Parts::from([("groups".to_owned(), format!("{:?}", cache.groups().await.unwrap()))])
    };
    let changes = calls! { cache: Numbers; cache.remove_group("group") };
    let reads = calls! { cache: Numbers; cache.groups() };
    for (effect, name, call) in with_effects(changes, reads) {
        let call = async |cache: &Numbers| checked(call(cache).await);
        has_effect_at_polls(effect, name, new, call, observe).await;
    }
    // A part of its shards may be left, in which it is no longer listed.
    at_each_poll(
        new,
        async |cache| cache.remove_group("group").await.unwrap(),
        async |cache, _, schedule| {
            cache.remove_group("group").await.unwrap();
            let is_removed = async || cache.groups().await.unwrap().is_empty();
            until(is_removed, &format!("{schedule:?}")).await;
            let mut streams = Streams::of(&cache).await;
            expire(&cache, ["0", "1", "2", "3"]).await;
            streams.receive(true, ["0", "1", "2", "3"], &format!("{schedule:?}")).await;
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_shutdown_on_redis_may_be_called_again() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let new = async || {
        let cache = cache(&client, HOUR).await;
        let streams = Streams::of(&cache).await;
        (cache, Mutex::new(streams))
    };
    at_each_poll(
        new,
        async |(cache, _)| cache.shutdown().await,
        async |(cache, streams), _, schedule| {
            cache.shutdown().await;
            let mut streams = streams.into_inner();
            for is_lossless in [false, true] {
                let end = timeout(patience(), streams.next(is_lossless)).await;
                assert_eq!(end, Ok(None), "{schedule:?}, lossless: {is_lossless}");
            }
            assert_eq!(cache.get("1").await.unwrap(), Some(1), "{schedule:?}");
        },
    )
    .await;
}
