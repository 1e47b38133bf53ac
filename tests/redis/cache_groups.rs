//! Groups of subscribers to the expirations of `redis::Cache`: their names, and their removal.

use std::{collections::BTreeSet, time::Duration};

use fleeting::redis::{Cache, Client, Error, LosslessEvents};
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Proxy, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn cache(client: &Client, retention: Duration) -> Cache<String, u64> {
    let builder = Cache::builder(client, "c").events(retention).lease(HOUR);
    builder.poll_every(ms(20)).build().unwrap()
}

async fn expire(cache: &Cache<String, u64>, numbers: std::ops::Range<u64>) {
    for n in numbers {
        cache.set(n.to_string(), n).await.unwrap();
        cache.expire_now(&n.to_string()).await.unwrap();
    }
}

async fn recv(events: &mut LosslessEvents<String, u64>) -> Option<Result<u64, Error>> {
    let item = timeout(patience(), events.recv()).await.expect("an item is delivered in time");
    item.map(|event| event.map(|event| event.value))
}

async fn receive(events: &mut LosslessEvents<String, u64>, count: usize) -> BTreeSet<u64> {
    let mut received = BTreeSet::new();
    for _ in 0..count {
        received.insert(recv(events).await.unwrap().unwrap());
    }
    received
}

async fn is_quiet(events: &mut LosslessEvents<String, u64>) -> bool {
    timeout(ms(300), events.recv()).await.is_err()
}

#[tokio::test]
async fn groups_are_listed_until_they_are_removed() {
    let server = Server::start();
    let cache = cache(&connect(server.url()).await, HOUR);
    assert_eq!(cache.groups().await.unwrap(), Vec::<String>::new());
    assert!(!cache.remove_group("mailers").await.unwrap());
    for group in ["mailers", "auditors", "mailers"] {
        drop(cache.events_lossless(group).await.unwrap());
    }
    assert_eq!(cache.groups().await.unwrap(), ["auditors", "mailers"]);
    assert!(cache.remove_group("mailers").await.unwrap());
    assert!(!cache.remove_group("mailers").await.unwrap());
    assert_eq!(cache.groups().await.unwrap(), ["auditors"]);
    let without_events: Cache<String, u64> = Cache::new(&connect(server.url()).await, "d").unwrap();
    assert!(matches!(without_events.groups().await, Err(Error::NoEvents)));
    assert!(matches!(without_events.remove_group("g").await, Err(Error::NoEvents)));
}

async fn assert_removed_group_starts_at_the_present(client: Client) {
    let cache = cache(&client, HOUR);
    let mut kept = cache.events_lossless("kept").await.unwrap();
    drop(cache.events_lossless("removed").await.unwrap());
    expire(&cache, 0..40).await;
    assert!(cache.remove_group("removed").await.unwrap());
    expire(&cache, 40..60).await;
    let mut removed = cache.events_lossless("removed").await.unwrap();
    expire(&cache, 60..80).await;
    assert_eq!(receive(&mut removed, 20).await, (60..80).collect());
    assert!(is_quiet(&mut removed).await);
    assert_eq!(receive(&mut kept, 80).await, (0..80).collect());
    assert_eq!(cache.groups().await.unwrap(), ["kept", "removed"]);
}

#[tokio::test]
async fn subscription_to_a_removed_group_starts_at_the_present() {
    let server = Server::start();
    assert_removed_group_starts_at_the_present(connect(server.url()).await).await;
}

#[tokio::test]
async fn subscription_to_a_removed_group_starts_at_the_present_in_a_cluster() {
    let cluster = Cluster::start();
    assert_removed_group_starts_at_the_present(connect(cluster.urls()).await).await;
}

#[tokio::test]
async fn removed_group_stays_removed_after_its_stream_has_expired() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(&connect(server.url()).await, ms(500));
        drop(cache.events_lossless("removed").await.unwrap());
        let mut kept = cache.events_lossless("kept").await.unwrap();
        expire(&cache, 0..20).await;
        assert_eq!(receive(&mut kept, 20).await.len(), 20);
        assert!(cache.remove_group("removed").await.unwrap());
        sleep(ms(1_500)).await;
        expire(&cache, 20..40).await;
        assert_eq!(receive(&mut kept, 20).await, (20..40).collect());
        let mut removed = cache.events_lossless("removed").await.unwrap();
        assert!(is_quiet(&mut removed).await);
    })
    .await;
}

#[tokio::test]
async fn all_keys_expire_after_the_last_group_was_removed() {
    let server = Server::start();
    let cache = cache(&connect(server.url()).await, HOUR);
    let persistent = async || {
        let mut plain = server.plain().await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
        let mut persistent = 0;
        for key in &keys {
            let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut plain).await.unwrap();
            persistent += usize::from(ttl == -1);
        }
        persistent
    };
    // The names of the group, and the counts: in each of the 16 shards.
    let with_a_group = 2 * 16;
    for group in ["first", "second"] {
        let mut events = cache.events_lossless(group).await.unwrap();
        expire(&cache, 0..40).await;
        assert_eq!(receive(&mut events, 40).await, (0..40).collect());
        assert_eq!(persistent().await, with_a_group);
        assert!(cache.remove_group(group).await.unwrap());
        assert_eq!(persistent().await, 0);
    }
    let mut events = cache.events().await.unwrap();
    expire(&cache, 0..1).await;
    events.recv().await.unwrap().unwrap();
    assert_eq!(persistent().await, 0);
}

#[tokio::test]
async fn subscribers_of_a_removed_group_end_with_group_removed() {
    let server = Server::start();
    let client = connect(server.url()).await;
    // As in another process.
    let (cache, other) = (cache(&client, HOUR), cache(&connect(server.url()).await, HOUR));
    let mut events = cache.events_lossless("g").await.unwrap();
    let mut others = other.events_lossless("g").await.unwrap();
    let mut kept = cache.events_lossless("kept").await.unwrap();
    assert!(cache.remove_group("g").await.unwrap());
    for events in [&mut events, &mut others] {
        let item = recv(events).await;
        assert!(matches!(item, Some(Err(Error::GroupRemoved))), "{item:?}");
        assert!(recv(events).await.is_none());
    }
    expire(&cache, 0..5).await;
    assert_eq!(receive(&mut kept, 5).await.len(), 5);
    assert_eq!(cache.groups().await.unwrap(), ["kept"]);
}

#[tokio::test]
async fn group_destroyed_by_another_program_starts_at_the_present() {
    let server = Server::start();
    let cache = cache(&connect(server.url()).await, HOUR);
    drop(cache.events_lossless("g").await.unwrap());
    let mut kept = cache.events_lossless("kept").await.unwrap();
    expire(&cache, 0..40).await;
    let mut plain = server.plain().await;
    let streams: Vec<String> =
        redis::cmd("KEYS").arg("*.expired").query_async(&mut plain).await.unwrap();
    assert_eq!(streams.len(), 16);
    for stream in streams {
        let destroy = redis::cmd("XGROUP").arg(&["DESTROY", &stream, "g"]).to_owned();
        assert_eq!(destroy.query_async::<u8>(&mut plain).await.unwrap(), 1);
    }
    assert_eq!(cache.groups().await.unwrap(), ["kept"]);
    let mut events = cache.events_lossless("g").await.unwrap();
    expire(&cache, 40..60).await;
    assert_eq!(receive(&mut events, 20).await, (40..60).collect());
    assert!(is_quiet(&mut events).await);
    assert_eq!(receive(&mut kept, 60).await, (0..60).collect());
}

#[tokio::test]
async fn group_is_joined_again_after_acks_reached_a_server_that_lost_its_data() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        // Between two reads, the subscriber only renews leases and sends acknowledgements, every 50 ms.
        let cache: Cache<String, u64> = Cache::builder(&client, "c")
            .events(HOUR)
            .lease(ms(150))
            .poll_every(ms(1_000))
            .build()
            .unwrap();
        let mut events = cache.events_lossless("g").await.unwrap();
        expire(&cache, 0..1).await;
        assert_eq!(recv(&mut events).await.unwrap().unwrap(), 0);
        let () = redis::cmd("FLUSHALL").query_async(&mut server.plain().await).await.unwrap();
        events.ack().await.unwrap();
        sleep(ms(300)).await;
        // Of the same shard.
        expire(&cache, 0..1).await;
        assert_eq!(recv(&mut events).await.unwrap().unwrap(), 0);
        assert_eq!(cache.groups().await.unwrap(), ["g"]);
    })
    .await;
}

/// The first subscriber stalls for longer than its lease, and gives its unread events back after another one has acked
/// them and they have left the stream.
#[tokio::test]
async fn event_acked_by_another_subscriber_is_not_missed_when_the_first_gives_it_back() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = async |url: String| -> Cache<String, u64> {
            let client = Client::builder(url).timeout(ms(500)).connect().await.unwrap();
            let builder = Cache::builder(&client, "c").events(HOUR).lease(ms(300));
            builder.poll_every(ms(20)).build().unwrap()
        };
        let (stalled, other) = (cache(proxy.url()).await, cache(server.url()).await);
        let mut events = stalled.events_lossless("g").await.unwrap();
        expire(&other, 0..20).await;
        assert!(recv(&mut events).await.unwrap().is_ok());
        sleep(ms(100)).await;
        proxy.hole(true);
        let mut others = other.events_lossless("g").await.unwrap();
        assert_eq!(receive(&mut others, 20).await.len(), 20);
        others.ack().await.unwrap();
        sleep(ms(100)).await;
        let mut plain = server.plain().await;
        let streams: Vec<String> =
            redis::cmd("KEYS").arg("*.expired").query_async(&mut plain).await.unwrap();
        for stream in streams {
            let trim = redis::cmd("XTRIM").arg(&[&*stream, "MAXLEN", "0"]).to_owned();
            let () = trim.query_async(&mut plain).await.unwrap();
        }
        proxy.hole(false);
        drop(events);
        let next = timeout(ms(3_000), others.recv()).await;
        assert!(next.is_err(), "{next:?}");
    })
    .await;
}
