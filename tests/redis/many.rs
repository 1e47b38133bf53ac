//! `get_many` and `set_many` of `redis::Cache`.

use std::time::Duration;

use fleeting::{
    Ttl,
    redis::{Cache, Format},
};
use tokio::time::timeout;

use crate::{
    loaders::kinds,
    near::calls,
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Checks `get_many` and `set_many` of a cache. Also used on other servers.
pub(crate) async fn many(cache: &Cache<String, u64>) {
    let keys: Vec<String> = (0..300).map(|n| format!("key-{n}")).collect();
    let entries = || keys.iter().cloned().zip(0..);
    cache.set_many(entries(), Some(HOUR)).await.unwrap();
    let mut expected: Vec<Option<u64>> = (0..300).map(Some).collect();
    let get = async || cache.get_many(keys.iter().map(String::as_str)).await.unwrap();
    assert_eq!(get().await, expected);
    assert!(matches!(cache.ttl("key-7").await.unwrap(), Ttl::Remaining(left) if left <= HOUR));
    cache.set_many(entries(), None).await.unwrap();
    assert_eq!(cache.ttl("key-7").await.unwrap(), Ttl::Persistent);
    for n in [0, 7, 299] {
        cache.remove(&keys[n]).await.unwrap();
        expected[n] = None;
    }
    assert_eq!(get().await, expected);
    let duplicate_keys = [("key-7", 1), ("a", 2), ("key-7", 3)].map(|(key, n)| (key.to_owned(), n));
    cache.set_many(duplicate_keys, None).await.unwrap();
    let values = cache.get_many(["key-7", "b", "key-7", "a"]).await.unwrap();
    assert_eq!(values, [Some(3), None, Some(3), Some(2)]);
    cache.set_many([("a".to_owned(), 9)], Some(Duration::ZERO)).await.unwrap();
    assert_eq!(cache.get("a").await.unwrap(), None);
    assert_eq!(cache.get_many::<str>([]).await.unwrap(), []);
    cache.set_many([], None).await.unwrap();
    let keys = ["key-1", "key-2", "nobody", "key-1", "key-100"];
    assert_eq!(cache.remove_many(keys).await.unwrap(), 3, "a key is removed once");
    assert_eq!(cache.get_many(["key-1", "key-3"]).await.unwrap(), [None, Some(3)]);
    assert_eq!(cache.remove_many::<str>([]).await.unwrap(), 0);
    let all: Vec<String> = (0..2_000).map(|n| format!("key-{n}")).collect();
    cache.set_many(all.iter().cloned().zip(0..), None).await.unwrap();
    assert_eq!(cache.remove_many(&all).await.unwrap(), 2_000);
    assert_eq!(cache.get_many(&all).await.unwrap(), vec![None; 2_000]);
    cache.set_many(entries(), None).await.unwrap();
}

#[tokio::test]
async fn get_many_and_set_many_keep_the_order_of_the_keys() {
    let server = Server::shared();
    for cache in kinds(&server, "many").await {
        many(&cache).await;
        let spawned = {
            let cache = cache.clone();
            tokio::spawn(async move {
                let keys = ["key-1".to_owned(), "key-2".to_owned()];
                cache.get_many(&keys).await
            })
        };
        assert_eq!(spawned.await.unwrap().unwrap(), [Some(1), Some(2)]);
    }
    let with_events = &kinds(&server, "many").await[1];
    let mut events = with_events.events().await.unwrap();
    with_events
        .set_many([("expired".to_owned(), 7)], Some(Duration::from_millis(1)))
        .await
        .unwrap();
    let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!((&event.key[..], event.value), ("expired", 7));
}

#[tokio::test]
async fn get_many_and_set_many_split_large_values_into_batches() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let builder = Cache::<u64, String>::builder(&client, "large").format(Format::Raw);
    let cache = builder.build().unwrap();
    let large = |n: u64| n.to_string().repeat(1 << 19);
    cache.set_many((0..40).map(|n| (n, large(n))), None).await.unwrap();
    let keys: Vec<u64> = (0..40).collect();
    let values = cache.get_many(&keys).await.unwrap();
    assert!(values.into_iter().zip(0..).all(|(value, n)| value == Some(large(n))));
    cache.clear().await.unwrap();
}

/// The server executes nothing else while a script runs.
#[tokio::test]
async fn get_many_reads_at_most_a_thousand_keys_per_script() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache: Cache<u64, u64> = Cache::new(&client, "many").unwrap();
    cache.get_many(&[0]).await.unwrap();
    let before = calls(&server, "evalsha").await;
    let keys: Vec<u64> = (0..20_000).collect();
    assert_eq!(cache.get_many(&keys).await.unwrap(), vec![None; keys.len()]);
    // Each of the 16 shards takes two scripts: a thousand keys, and the rest.
    assert_eq!(calls(&server, "evalsha").await - before, 32);
}
