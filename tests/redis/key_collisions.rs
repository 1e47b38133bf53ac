//! Data of different types, names or keys never collides on the server.

use std::{collections::BTreeSet, time::Duration};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, ExpiringSet, RateLimiter, TimeoutDict},
};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::servers::{Server, connect};

use crate::patience::patience;

const LONG: Duration = Duration::from_secs(600);

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UserId(String);

#[tokio::test]
async fn types_with_the_same_name_do_not_share_keys() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache: Cache<String, u32> = Cache::builder(&client, "login").events(LONG).build().unwrap();
    let plain: Cache<String, u32> = Cache::new(&client, "set").unwrap();
    let dict: TimeoutDict<String, u32> = TimeoutDict::new(&client, "login").unwrap();
    let set: ExpiringSet<String> = ExpiringSet::new(&client, "login", LONG).unwrap();
    let limit = || Limit::new(2, LONG);
    let limiter: RateLimiter<String> =
        RateLimiter::builder(&client, "login").limit(limit()).timeout(patience()).build().unwrap();
    for key in ["ada", "7", "set", "2", ""] {
        cache.set_ex(key.into(), 1, LONG).await.unwrap();
        plain.set(key.into(), 4).await.unwrap();
        dict.set(key.into(), 2, LONG).await.unwrap();
        set.push(key.into()).await.unwrap();
        limiter.check(key).await.unwrap();
    }
    for key in ["ada", "7", "set", "2", ""] {
        assert_eq!(cache.get(key).await.unwrap(), Some(1));
        assert_eq!(plain.get(key).await.unwrap(), Some(4));
        assert_eq!(dict.get(key).await.unwrap(), Some(2));
        assert!(set.contains(key).await.unwrap());
        assert_eq!(limiter.check(key).await.unwrap().remaining(), 0);
    }
    assert_eq!((cache.len().await.unwrap(), dict.len().await.unwrap()), (5, 5));
    cache.clear().await.unwrap();
    assert_eq!((dict.len().await.unwrap(), set.len().await.unwrap()), (5, 5));
}

#[tokio::test]
async fn limiter_names_and_keys_with_colons_do_not_collide() {
    let server = Server::start();
    let client = connect(server.url()).await;
    for (name, key) in [("api", "v1:bob"), ("api:v1", "bob"), ("api:v1:bob", "")] {
        let limiter: RateLimiter<String> = RateLimiter::builder(&client, name)
            .limit(Limit::new(1, LONG))
            .timeout(patience())
            .build()
            .unwrap();
        assert_eq!(
            limiter.check(key).await.unwrap().remaining(),
            0,
            "{name} shares the key {key:?} with another limiter"
        );
    }
}

/// They would be limiters with the same keys.
#[tokio::test]
async fn prefix_that_ends_like_the_name_of_a_limiter_is_refused() {
    let server = Server::start();
    let builder = |prefix: &str| Client::builder(server.url()).timeout(patience()).prefix(prefix);
    for prefix in ["shop:limit1:x", "shop:limit1"] {
        assert!(matches!(builder(prefix).lazy(), Err(Error::Name(name)) if name == prefix));
    }
    let client = builder("shop").connect().await.unwrap();
    for (name, key) in [("x:limit1:y", "k"), ("limit1:y", "k"), ("limit1", "k")] {
        let limiter = RateLimiter::<String>::builder(&client, name).limit(Limit::new(1, LONG));
        let limiter = limiter.timeout(patience()).build().unwrap();
        assert_eq!(limiter.check(key).await.unwrap().remaining(), 0, "{name} is a name of its own");
    }
}

#[tokio::test]
async fn newtypes_of_strings_may_be_keys() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let users = ["ada", "7", "null", "\"ada\""].map(|id| UserId(id.into()));
    let all: BTreeSet<_> = users.iter().cloned().collect();
    let cache: Cache<UserId, u32> = Cache::builder(&client, "users").events(LONG).build().unwrap();
    let mut events = cache.events_lossless("g").await.unwrap();
    let dict: TimeoutDict<UserId, u32> = TimeoutDict::new(&client, "users").unwrap();
    for user in &users {
        cache.set(user.clone(), 1).await.unwrap();
        dict.set(user.clone(), 1, Duration::ZERO).await.unwrap();
    }
    assert_eq!(cache.keys().map(Result::unwrap).collect::<BTreeSet<_>>().await, all);
    let taken = dict.take_expired(9).await.unwrap();
    assert!(taken.into_iter().map(|entry| entry.0).eq(users.iter().cloned()));
    let mut reported = BTreeSet::new();
    for user in &users {
        assert_eq!(cache.expire_now(user).await.unwrap(), Some(1));
        reported.insert(events.recv().await.unwrap().unwrap().key);
    }
    assert_eq!(reported, all);
}

#[tokio::test]
async fn none_and_strings_that_look_like_json_are_distinct_keys() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache: Cache<Option<String>, u32> = Cache::new(&client, "names").unwrap();
    let dict: TimeoutDict<Option<String>, u32> = TimeoutDict::new(&client, "names").unwrap();
    let keys = [None, Some("null"), Some("\"null\""), Some(""), Some("7")];
    for (key, value) in keys.iter().map(|key| key.map(String::from)).zip(0..) {
        assert_eq!(cache.set(key.clone(), value).await.unwrap(), None);
        assert_eq!(dict.set(key, value, Duration::ZERO).await.unwrap(), None);
    }
    assert_eq!(cache.keys().count().await, 5);
    let taken = dict.take_expired(9).await.unwrap();
    assert!(taken.iter().map(|(key, _)| key.as_deref()).eq(keys));
}
