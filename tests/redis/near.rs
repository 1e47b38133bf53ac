//! Near cache of `redis::Cache`: answers without the server, their freshness, and invalidation.

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use fleeting::{
    When,
    redis::{Cache, CacheBuilder, Client, Error, Format},
};
use futures::{FutureExt, StreamExt, future::join_all};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::cmd;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::{
    clock::{in_time, ms},
    many::many,
    patience::patience,
    servers::{Cluster, Proxy, Server, connect},
};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a builder of a near cache whose answers last until they are invalidated.
pub(crate) fn lasting(client: &Client, name: &str) -> CacheBuilder<String, u64> {
    Cache::builder(client, name).near(1_000).near_max_age(HOUR)
}

/// Returns a near cache, and the same cache as another process without a near cache.
pub(crate) async fn pair(server: &Server, name: &str) -> (Cache<String, u64>, Cache<String, u64>) {
    let (here, there) = (connect(server.url()).await, connect(server.url()).await);
    (lasting(&here, name).build().unwrap(), Cache::new(&there, name).unwrap())
}

/// Reads until the key is answered near, and returns that answer.
pub(crate) async fn read_near(near: &Cache<String, u64>, key: &str) -> Option<u64> {
    let begin = Instant::now();
    loop {
        let before = near.stats().near_hits;
        let value = near.get(key).await.unwrap();
        if near.stats().near_hits > before {
            return value;
        }
        assert!(begin.elapsed() < patience(), "{key} is never answered near");
    }
}

/// Waits until `is_so` returns true.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < patience(), "timeout: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Returns how often the server has executed a command.
pub(crate) async fn calls(server: &Server, command: &str) -> u64 {
    let mut plain = server.plain().await;
    let info: String = cmd("INFO").arg("commandstats").query_async(&mut plain).await.unwrap();
    let head = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&*head));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn near_answer_is_returned_without_the_server() {
    let server = Server::start();
    let (near, other) = pair(&server, "hits").await;
    other.set("ada".into(), 1).await.unwrap();
    assert_eq!((read_near(&near, "ada").await, read_near(&near, "bob").await), (Some(1), None));
    let before = (calls(&server, "get").await, near.stats());
    for _ in 0..100 {
        assert_eq!(near.get("ada").await.unwrap(), Some(1));
        assert_eq!(near.get("bob").await.unwrap(), None);
        assert!(
            near.contains_key("ada").await.unwrap() && !near.contains_key("bob").await.unwrap()
        );
        assert_eq!(near.get_many(["bob", "ada"]).await.unwrap(), [None, Some(1)]);
        assert_eq!(near.get_or_set_with("ada", HOUR, async || 2).await.unwrap(), 1);
    }
    let stats = near.stats();
    assert_eq!(calls(&server, "get").await, before.0);
    assert_eq!(stats.near_hits - before.1.near_hits, 700);
    assert_eq!((stats.hits - before.1.hits, stats.misses - before.1.misses), (400, 300));
}

#[tokio::test]
async fn near_cache_sees_all_changes_by_other_clients() {
    let server = Server::start();
    let (near, other) = pair(&server, "others").await;
    let mut plain = server.plain().await;
    let key = "ada";
    for round in 0..3 {
        for (way, expected) in
            [Some(2), Some(3), Some(4), Some(5), Some(6), None, None, None, None, None, None, None]
                .into_iter()
                .enumerate()
        {
            other.set(key.into(), 1).await.unwrap();
            until("what was set", async || read_near(&near, key).await == Some(1)).await;
            let owned = || key.to_owned();
            match way {
                0 => drop(other.set(owned(), 2).await.unwrap()),
                1 => drop(other.set_ex(owned(), 3, HOUR).await.unwrap()),
                2 => drop(other.set_keep_ttl(owned(), 4).await.unwrap()),
                3 => drop(other.update(key, |value| *value = 5).await.unwrap()),
                4 => other.set_many([(owned(), 6)], None).await.unwrap(),
                5 => drop(other.remove(key).await.unwrap()),
                6 => drop(other.expire(key, Duration::ZERO).await.unwrap()),
                7 => drop(other.expire(key, Duration::from_millis(5)).await.unwrap()),
                8 => drop(other.get_ex(key, Duration::from_millis(5)).await.unwrap()),
                9 => other.clear().await.unwrap(),
                10 => cmd("FLUSHALL").exec_async(&mut plain).await.unwrap(),
                _ => {
                    let keys: Vec<String> =
                        cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
                    cmd("DEL").arg(keys).exec_async(&mut plain).await.unwrap();
                }
            }
            let what = format!("way {way} of round {round}");
            until(&what, async || near.get(key).await.unwrap() == expected).await;
            // A missing key is answered near, too, and invalidated.
            until(&what, async || read_near(&near, key).await == expected).await;
        }
        let loaded = other.get_or_set_with(key, HOUR, async || 7).await.unwrap();
        until("what was loaded", async || near.get(key).await.unwrap() == Some(loaded)).await;
    }
    assert!(near.stats().invalidations > 30);
}

/// Every method that reads or changes a key discards its older near answer, with or without events.
#[tokio::test]
async fn near_cache_sees_own_changes_immediately() {
    let server = Server::start();
    check_own_methods(&connect(server.url()).await, &connect(server.url()).await).await;
    // Own changes do not depend on invalidations by the server.
    let push_less = proxy_without_pushes(server.port()).await;
    check_own_methods(&connect(push_less).await, &connect(server.url()).await).await;
}

async fn check_own_methods(client: &Client, other: &Client) {
    for with_events in [false, true] {
        let name = if with_events { "own-events" } else { "own" };
        let builder = lasting(client, name);
        let near = if with_events { builder.events(HOUR) } else { builder }.build().unwrap();
        let other = Cache::<String, u64>::builder(other, name);
        let other = if with_events { other.events(HOUR) } else { other }.build().unwrap();
        let key = "ada";
        let owned = || key.to_owned();
        for way in 0..17 {
            near.set(owned(), 1).await.unwrap();
            until("what was set", async || read_near(&near, key).await == Some(1)).await;
            let expected = match way {
                0 => (near.set(owned(), 2).await.unwrap(), Some(2)).1,
                1 => (near.set_ex(owned(), 3, HOUR).await.unwrap(), Some(3)).1,
                2 => (near.set_keep_ttl(owned(), 4).await.unwrap(), Some(4)).1,
                3 => (near.update(key, |value| *value = 5).await.unwrap(), Some(5)).1,
                4 => (near.set_many([(owned(), 6)], Some(HOUR)).await.unwrap(), Some(6)).1,
                5 => (near.remove(key).await.unwrap(), None).1,
                6 => (near.expire(key, Duration::ZERO).await.unwrap(), None).1,
                7 => (near.expire_if(key, Duration::ZERO, When::NoTtl).await.unwrap(), None).1,
                8 => (near.expire_now(key).await.unwrap(), None).1,
                9 => (near.get_ex(key, Duration::ZERO).await.unwrap(), None).1,
                10 => (near.clear().await.unwrap(), None).1,
                11 => (near.set_ex(owned(), 7, Duration::ZERO).await.unwrap(), None).1,
                12 => {
                    near.remove(key).await.unwrap();
                    assert_eq!(read_near(&near, key).await, None);
                    assert!(near.set_nx(owned(), 8, None).await.unwrap());
                    Some(8)
                }
                13 => {
                    near.remove(key).await.unwrap();
                    assert_eq!(read_near(&near, key).await, None);
                    near.get_or_set_with(key, HOUR, async || 9).await.unwrap();
                    Some(9)
                }
                // The process learns about another client's change by a method other than `get`.
                14 => {
                    other.set(owned(), 10).await.unwrap();
                    let seen: Vec<_> = near.values().collect().await;
                    assert_eq!(*seen[0].as_ref().unwrap(), 10);
                    Some(10)
                }
                15 => {
                    other.remove(key).await.unwrap();
                    assert!(near.ttl(key).await.unwrap() == fleeting::Ttl::Missing);
                    None
                }
                _ => {
                    other.remove(key).await.unwrap();
                    assert!(near.is_empty().await.unwrap());
                    None
                }
            };
            assert_eq!(near.get(key).await.unwrap(), expected, "way {way}");
            assert_eq!(near.contains_key(key).await.unwrap(), expected.is_some(), "way {way}");
            assert_eq!(near.get_many([key]).await.unwrap(), [expected], "way {way}");
        }
        many(&near).await;
        near.clear().await.unwrap();
    }
}

/// Starts a proxy to a server that drops all push messages, and returns its URL.
async fn proxy_without_pushes(port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let ((mut requests, mut to_near), (mut replies, mut to_far)) =
                (near.into_split(), far.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_far).await });
            tokio::spawn(async move {
                let mut held = Vec::new();
                while let Ok(1..) = replies.read_buf(&mut held).await {
                    let forwarded = without_pushes(&mut held);
                    if to_near.write_all(&forwarded).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// Removes from `held` all bytes that are not part of a push message, and returns them. A partial message stays, and so
/// does a possible beginning of one.
fn without_pushes(held: &mut Vec<u8>) -> Vec<u8> {
    const HEAD: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";
    let mut forwarded = Vec::new();
    while let Some(at) = held.iter().position(|byte| *byte == b'>') {
        forwarded.extend(held.drain(..at));
        let len = held.len().min(HEAD.len());
        if held[..len] != HEAD[..len] {
            forwarded.extend(held.drain(..1));
            continue;
        }
        // The keys follow, each in two lines (no key of these tests contains a newline), or none.
        let lines: Vec<_> = held.split_inclusive(|byte| *byte == b'\n').collect();
        let names = lines.get(3).filter(|line| line.ends_with(b"\n"));
        let Some(names) = names.and_then(|line| str::from_utf8(line).ok()) else {
            return forwarded;
        };
        let names: usize = names.trim_start_matches('*').trim().parse().unwrap_or(0);
        let push = lines.iter().take(4 + 2 * names);
        if push.clone().count() < 4 + 2 * names || !push.clone().all(|line| line.ends_with(b"\n")) {
            return forwarded;
        }
        let len: usize = push.map(|line| line.len()).sum();
        held.drain(..len);
    }
    forwarded.append(held);
    forwarded
}

#[tokio::test]
async fn near_cache_does_not_return_a_value_after_its_event() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let build = |builder: CacheBuilder<String, u64>| {
        builder.events(HOUR).poll_every(Duration::from_millis(5)).build().unwrap()
    };
    let near = build(lasting(&client, "near-events"));
    let other = build(Cache::builder(&connect(server.url()).await, "near-events"));
    let mut all = near.events().await.unwrap();
    let mut lossless = near.events_lossless("g").await.unwrap();
    for n in 0..50 {
        other.set("ada".into(), n).await.unwrap();
        until("what was set", async || read_near(&near, "ada").await == Some(n)).await;
        other.expire_now("ada").await.unwrap();
        if n % 2 == 0 {
            assert_eq!(all.recv().await.unwrap().unwrap().value, n);
        } else {
            all.recv().await.unwrap().unwrap();
            assert_eq!(lossless.recv().await.unwrap().unwrap().value, n - 1);
            lossless.recv().await.unwrap().unwrap();
        }
        assert_eq!(near.get("ada").await.unwrap(), None);
    }
}

#[tokio::test]
async fn concurrent_misses_of_a_key_share_one_request() {
    let server = Server::start();
    let (near, other) = pair(&server, "shared").await;
    other.set("ada".into(), 1).await.unwrap();
    near.get("missing").await.unwrap();
    let before = calls(&server, "get").await;
    server.pause();
    let reads: Vec<_> = (0..200)
        .map(|_| {
            let near = near.clone();
            tokio::spawn(async move { near.get("ada").await.unwrap() })
        })
        .collect();
    // Dropped callers do not affect the others, not even the one that sent the request.
    reads[0].abort();
    reads[7].abort();
    tokio::task::yield_now().await;
    server.resume();
    for (n, read) in reads.into_iter().enumerate() {
        match n {
            0 | 7 => drop(read.await),
            _ => assert_eq!(read.await.unwrap(), Some(1)),
        }
    }
    assert_eq!(calls(&server, "get").await - before, 1);
}

#[tokio::test]
async fn near_value_expires_at_its_deadline_without_invalidation() {
    let server = Server::start();
    let (near, other) = pair(&server, "ttl").await;
    let mut plain = server.plain().await;
    // Otherwise the server would send an invalidation when the value expires.
    let debug: Result<(), _> =
        cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).query_async(&mut plain).await;
    debug.unwrap();
    // On a busy machine, a value may expire before its first read.
    let (mut hits, mut n) = (0, 0);
    while n < 20 || hits == 0 {
        assert!(n < 1_000, "no value was answered near");
        let ttl = Duration::from_millis(60);
        other.set_ex("ada".into(), n, ttl).await.unwrap();
        let set = Instant::now();
        loop {
            let (before, begin) = (near.stats().near_hits, Instant::now());
            let value = near.get("ada").await.unwrap();
            hits += near.stats().near_hits - before;
            match value {
                Some(value) => {
                    assert_eq!(value, n);
                    // A value lives less than a millisecond longer than its TTL.
                    assert!(begin - set < ttl + Duration::from_millis(1), "{:?}", begin - set);
                }
                None => break,
            }
        }
        n += 1;
    }
}

#[tokio::test]
async fn near_answer_is_never_older_than_near_max_age() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let (client, other) = (connect(proxy.url()).await, connect(server.url()).await);
    let max_age = Duration::from_millis(100);
    let near: Cache<String, u64> =
        Cache::builder(&client, "age").near(10).near_max_age(max_age).build().unwrap();
    let other: Cache<String, u64> = Cache::new(&other, "age").unwrap();
    for n in 0..3 {
        other.set("ada".into(), n).await.unwrap();
        until("what was set", async || near.get("ada").await.unwrap() == Some(n)).await;
        // Invalidations no longer arrive, and the client does not notice it.
        proxy.silence();
        other.set("ada".into(), n + 1).await.unwrap();
        sleep(max_age).await;
        assert_eq!(near.get("ada").await.unwrap(), Some(n + 1));
    }
    // With a maximum age of zero, nothing is cached near.
    let builder = Cache::builder(&client, "age").near(10).near_max_age(Duration::ZERO);
    let near: Cache<String, u64> = builder.build().unwrap();
    for _ in 0..10 {
        assert_eq!(near.get("ada").await.unwrap(), Some(3));
    }
    assert_eq!(near.stats().near_hits, 0);
}

#[tokio::test]
async fn silent_connection_is_noticed_beyond_near_max_age() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let near = lasting(&connect(proxy.url()).await, "silent").build().unwrap();
        let other: Cache<String, u64> = Cache::new(&connect(server.url()).await, "silent").unwrap();
        other.set("ada".into(), 1).await.unwrap();
        assert_eq!(read_near(&near, "ada").await, Some(1));
        // The probes keep an idle connection alive for longer than the silence limit.
        sleep(ms(1_500)).await;
        let hits = near.stats().near_hits;
        assert_eq!(near.get("ada").await.unwrap(), Some(1));
        assert_eq!(near.stats().near_hits, hits + 1);
        proxy.silence();
        other.set("ada".into(), 2).await.unwrap();
        until("the change", async || near.get("ada").await.unwrap() == Some(2)).await;
    })
    .await;
}

#[tokio::test]
async fn near_answers_are_dropped_when_the_connection_closes() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let client = Client::builder(proxy.url()).timeout(ms(200)).connect().await.unwrap();
        let near = lasting(&client, "cut").build().unwrap();
        let other: Cache<String, u64> = Cache::new(&connect(server.url()).await, "cut").unwrap();
        for n in 0..10 {
            other.set("ada".into(), n).await.unwrap();
            until("what was set", async || near.get("ada").await.is_ok_and(|it| it == Some(n)))
                .await;
            proxy.close(true);
            proxy.cut();
            // Without a connection, the near answer must not be used.
            until("an error", async || near.get("ada").await.is_err()).await;
            other.set("ada".into(), n + 100).await.unwrap();
            assert!(near.get("ada").await.is_err());
            proxy.close(false);
            until("an answer", async || near.get("ada").await.is_ok()).await;
            assert_eq!(near.get("ada").await.unwrap(), Some(n + 100));
        }
    })
    .await;
}

#[tokio::test]
async fn server_without_tracking_caches_nothing_near() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let mut user = cmd("ACL");
    user.arg(&["SETUSER", "app", "on", ">secret", "allkeys", "+@all", "-client|tracking"]);
    user.exec_async(&mut plain).await.unwrap();
    let other: Cache<String, u64> = Cache::new(&connect(server.url()).await, "mute").unwrap();
    let urls = [
        format!("{}/?protocol=resp2", server.url()),
        server.url().replace("redis://", "redis://app:secret@"),
    ];
    for url in urls {
        let near = lasting(&connect(url).await, "mute").build().unwrap();
        for n in 0..20 {
            other.set("ada".into(), n).await.unwrap();
            assert_eq!(near.get("ada").await.unwrap(), Some(n));
            assert_eq!(near.set("bob".into(), n).await.unwrap(), n.checked_sub(1));
            assert_eq!(near.get("bob").await.unwrap(), Some(n));
        }
        near.remove("bob").await.unwrap();
        let stats = near.stats();
        assert_eq!((stats.near_hits, stats.invalidations), (0, 0));
        assert!(stats.bypassed >= 40);
    }
}

#[tokio::test]
async fn near_cache_is_bounded_by_max_entries() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let builder = Cache::builder(&client, "bound").near(50).near_max_age(HOUR);
    let near: Cache<u64, Vec<u8>> = builder.format(Format::Raw).build().unwrap();
    near.set_many((0..1_000).map(|n| (n, vec![7; 1_000])), None).await.unwrap();
    let keys: Vec<u64> = (0..1_000).collect();
    assert!(near.get_many(&keys).await.unwrap().iter().all(Option::is_some));
    let before = near.stats().near_hits;
    for key in &keys {
        assert_eq!(near.get(key).await.unwrap(), Some(vec![7; 1_000]));
    }
    assert!(near.stats().near_hits - before <= 100);
    let large = vec![7; 1 << 20];
    near.set(0, large.clone()).await.unwrap();
    assert_eq!(near.get(&0).await.unwrap(), Some(large.clone()));
    assert_eq!(near.get(&0).await.unwrap(), Some(large));
    near.clear().await.unwrap();
}

/// A number whose `Clone` panics on 13 and whose `Deserialize` panics on 14.
#[derive(Debug, PartialEq, Serialize)]
struct Panics(u64);

impl Clone for Panics {
    fn clone(&self) -> Self {
        assert_ne!(self.0, 13, "expected panic of the clone");
        Self(self.0)
    }
}

impl<'de> Deserialize<'de> for Panics {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(deserializer)?;
        assert_ne!(value, 14, "expected panic of the deserializer");
        Ok(Self(value))
    }
}

#[tokio::test]
async fn panic_in_clone_or_deserialize_affects_only_its_callers() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let near: Cache<String, Panics> = lasting_of(&client, "panicking");
    near.set("good".into(), Panics(1)).await.unwrap();
    for value in [13, 14] {
        let mut plain: Cache<String, u64> = Cache::new(&client, "panicking").unwrap();
        plain.set("bad".into(), value).await.unwrap();
        for _ in 0..3 {
            let read = AssertUnwindSafe(near.get("bad")).catch_unwind().await;
            match value {
                // A value that is not cached need not be cloned.
                13 => assert_eq!(read.unwrap().unwrap(), Some(Panics(13))),
                _ => assert!(read.is_err()),
            }
            assert_eq!(near.get("good").await.unwrap(), Some(Panics(1)));
            let names: Vec<String> = (0..20).map(|n| format!("{value}-{n}")).collect();
            let keys = names.iter().map(|name| &**name).chain(["bad"]);
            let read = AssertUnwindSafe(near.get_many(keys)).catch_unwind().await;
            assert_eq!(read.is_ok(), value == 13);
            for name in &names {
                assert_eq!(near.get(name.as_str()).await.unwrap(), None);
            }
        }
        plain.set("bad".into(), 2).await.unwrap();
        until("the good value", async || near.get("bad").await.unwrap() == Some(Panics(2))).await;
        plain = Cache::new(&client, "panicking").unwrap();
        plain.remove("bad").await.unwrap();
    }
}

fn lasting_of<V: Clone + Serialize + serde::de::DeserializeOwned + Send + Sync + 'static>(
    client: &Client,
    name: &str,
) -> Cache<String, V> {
    Cache::builder(client, name).near(100).near_max_age(HOUR).build().unwrap()
}

#[tokio::test]
async fn read_errors_are_shared_by_waiters_and_not_cached() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let (near, other) = pair(&server, "errors").await;
    other.set("ada".into(), 1).await.unwrap();
    let keys: Vec<String> = cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    cmd("DEL").arg(&keys).exec_async(&mut plain).await.unwrap();
    cmd("LPUSH").arg(&keys).arg("x").exec_async(&mut plain).await.unwrap();
    for error in join_all((0..20).map(|_| near.get("ada"))).await {
        assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
    }
    assert_eq!(near.get_many(["ada", "bob"]).await.unwrap(), [None, None]);
    cmd("DEL").arg(&keys).exec_async(&mut plain).await.unwrap();
    cmd("SET").arg(&keys).arg("not a number").exec_async(&mut plain).await.unwrap();
    let error = near.get("ada").await;
    assert!(matches!(error, Err(Error::Decode { .. })), "{error:?}");
    cmd("SET").arg(&keys).arg("2").exec_async(&mut plain).await.unwrap();
    until("what was set", async || near.get("ada").await.is_ok_and(|it| it == Some(2))).await;
}

#[tokio::test]
async fn dropped_calls_leave_no_outdated_near_answer() {
    let server = Server::start();
    let (near, _) = pair(&server, "dropped").await;
    let mut random = SmallRng::seed_from_u64(21);
    let (mut dropped, mut done, mut seen) = (0, 0, 0);
    for n in 1.. {
        let polls = random.random_range(0..40);
        let is_done = tokio::select! {
            biased;
            set = near.set("ada".into(), n) => set.is_ok(),
            () = async { for _ in 0..polls { tokio::task::yield_now().await } } => false,
        };
        if is_done {
            (done, seen) = (done + 1, n);
        } else {
            dropped += 1;
        }
        for _ in 0..3 {
            let read = near.get("ada");
            let polls = random.random_range(0..60);
            tokio::select! {
                biased;
                value = read => {
                    let value = value.unwrap().unwrap_or(0);
                    assert!(value >= seen && value <= n, "{value} after {seen}");
                    seen = value;
                }
                () = async { for _ in 0..polls { tokio::task::yield_now().await } } => {}
            }
        }
        if dropped > 200 && done > 200 {
            return;
        }
        assert!(n < 100_000, "{dropped} writes were dropped, and {done} completed");
    }
}

#[tokio::test]
async fn near_connection_uses_changed_credentials() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let near = lasting(&client, "login").build().unwrap();
    near.set("ada".into(), 1).await.unwrap();
    assert_eq!(read_near(&near, "ada").await, Some(1));
    server.ask("CONFIG SET requirepass secret");
    client.set_credentials(None, "secret");
    near.set("ada".into(), 2).await.unwrap();
    server.ask("CLIENT KILL TYPE normal");
    until("the near connection logs in", async || {
        near.get("ada").await.is_ok_and(|it| it == Some(2))
    })
    .await;
    assert_eq!(read_near(&near, "ada").await, Some(2));
}

/// It also shows that no task keeps the cache alive.
#[tokio::test]
async fn dropped_near_cache_closes_its_connections() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let other: Cache<String, u64> = Cache::new(&client, "gone").unwrap();
    other.set("ada".into(), 1).await.unwrap();
    let connected = || server.ask("CLIENT LIST TYPE normal").matches("resp=3").count();
    let before = connected();
    for _ in 0..5 {
        let near = lasting(&client, "gone").events(HOUR).build().unwrap();
        assert_eq!(read_near(&near, "ada").await, Some(1));
        let _all = near.events().await.unwrap();
        let _lossless = near.events_lossless("g").await.unwrap();
        assert!(connected() > before);
    }
    until("the connections close", async || connected() == before).await;
}

#[tokio::test]
async fn every_master_of_a_cluster_invalidates_near_answers() {
    let mut cluster = Cluster::start();
    let (client, other) = (connect(cluster.urls()).await, connect(cluster.urls()).await);
    let near = lasting(&client, "c").build().unwrap();
    let other: Cache<String, u64> = Cache::new(&other, "c").unwrap();
    let keys: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    for round in 0..3 {
        for key in &keys {
            other.set(key.clone(), round).await.unwrap();
            until(key, async || near.get(key).await.unwrap() == Some(round)).await;
            assert_eq!(read_near(&near, key).await, Some(round));
        }
        for key in &keys {
            near.set(key.clone(), 100 + round).await.unwrap();
            assert_eq!(near.get(key).await.unwrap(), Some(100 + round));
        }
    }
    many(&near).await;
    // After a slot has moved, its new master sends the invalidations.
    let record = cluster.nodes()[0].ask("KEYS *");
    let record = record.lines().find(|line| line.contains(":k")).unwrap().to_owned();
    let key = record.rsplit(':').next().unwrap().to_owned();
    let slot = cluster.nodes()[0].ask(&format!("CLUSTER KEYSLOT {record}"));
    let slot = slot.trim().trim_start_matches(':').to_owned();
    let ids: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|node| node.ask("CLUSTER MYID").lines().nth(1).unwrap().to_owned())
        .collect();
    assert!(read_near(&near, &key).await.is_some());
    cluster.nodes()[1].ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    cluster.nodes()[0].ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    let mut version = 1_000;
    let mut change = async || {
        version += 1;
        other.set(key.clone(), version).await.unwrap();
        until("the change", async || near.get(&key).await.unwrap() == Some(version)).await;
        version += 1;
        near.set(key.clone(), version).await.unwrap();
        assert_eq!(near.get(&key).await.unwrap(), Some(version));
    };
    change().await;
    // While it moves, its keys are divided between two masters.
    let expected: Vec<_> = other.get_many(&keys).await.unwrap();
    let to = cluster.nodes()[1].port();
    let begin = Instant::now();
    loop {
        assert_eq!(near.get_many(&keys).await.unwrap(), expected);
        let first_record = cluster.nodes()[0].ask(&format!("CLUSTER GETKEYSINSLOT {slot} 1"));
        let Some(record) = first_record.lines().nth(2) else { break };
        let moved = cluster.nodes()[0].ask(&format!("MIGRATE 127.0.0.1 {to} {record} 0 5000"));
        assert!(moved.starts_with("+OK"), "{moved}");
    }
    assert!(
        begin.elapsed() < patience(),
        "reads of a divided slot must not wait for the end of the move"
    );
    change().await;
    for node in [1, 0, 2] {
        cluster.nodes()[node].ask(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
        change().await;
    }
}
