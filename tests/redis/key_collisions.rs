//! Names and keys: what is of different types, names or keys never meets on the server.

use std::{collections::BTreeSet, time::Duration};

use fleeting::{
    Limit,
    redis::{Cache, ExpiringSet, RateLimiter, TimeoutDict},
};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::servers::{Server, connect};

const LONG: Duration = Duration::from_secs(600);

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UserId(String);

#[tokio::test]
async fn four_types_have_one_name_to_themselves_each() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache: Cache<String, u32> = Cache::builder(&client, "login").events(LONG).build().unwrap();
    let plain: Cache<String, u32> = Cache::new(&client, "set").unwrap();
    let dict: TimeoutDict<String, u32> = TimeoutDict::new(&client, "login").unwrap();
    let set: ExpiringSet<String> = ExpiringSet::new(&client, "login", LONG).unwrap();
    let limit = || Limit::new(2, LONG);
    let limiter: RateLimiter<String> =
        RateLimiter::builder(&client, "login").limit(limit()).build().unwrap();
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
async fn a_limiter_s_name_ends_where_its_key_begins() {
    let server = Server::start();
    let client = connect(server.url()).await;
    for (name, key) in [("api", "v1:bob"), ("api:v1", "bob"), ("api:v1:bob", "")] {
        let limiter: RateLimiter<String> =
            RateLimiter::builder(&client, name).limit(Limit::new(1, LONG)).build().unwrap();
        assert_eq!(limiter.check(key).await.unwrap().remaining(), 0, "{name} has it to itself");
    }
}

#[tokio::test]
async fn newtypes_of_strings_are_keys() {
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
    let mut told = BTreeSet::new();
    for user in &users {
        assert_eq!(cache.expire_now(user).await.unwrap(), Some(1));
        told.insert(events.recv().await.unwrap().unwrap().key);
    }
    assert_eq!(told, all);
}

#[tokio::test]
async fn no_two_keys_are_one() {
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
