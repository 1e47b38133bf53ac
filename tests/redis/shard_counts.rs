//! Numbers of shards of `redis::Cache`: all work alike, and processes with different numbers cannot share a name.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fleeting::{
    Ttl,
    redis::{Cache, Client, Error},
};
use futures::{StreamExt, future::join_all};
use redis::cmd;
use tokio::time::{sleep, timeout};

use crate::{
    clock::ms,
    near::calls,
    patience::patience,
    servers::{Cluster, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn cache(client: &Client, name: &str, shards: usize) -> Cache<String, u64> {
    Cache::builder(client, name).shards(shards).build().unwrap()
}

async fn keys(server: &Server) -> Vec<String> {
    let mut plain = server.plain().await;
    let mut keys: Vec<String> = cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    keys.sort();
    keys
}

/// Returns the two numbers of the error, in the server and in the cache.
fn numbers<T: std::fmt::Debug>(result: Result<T, Error>) -> (u16, u16) {
    match result {
        Err(Error::ShardCount { recorded, configured, .. }) => (recorded, configured),
        result => panic!("{result:?}"),
    }
}

/// Repeats a call of a cache whose number was not set until it is refused.
async fn refused(cache: &Cache<String, u64>) -> (u16, u16) {
    let begin = Instant::now();
    loop {
        match cache.get("ada").await {
            Ok(_) => assert!(begin.elapsed() < patience(), "the cache is not refused"),
            refused => return numbers(refused),
        }
        sleep(ms(1)).await;
    }
}

/// Uses all kinds of methods, on keys of all shards.
async fn use_cache(cache: &Cache<String, u64>, shards: usize, has_events: bool) {
    let keys: Vec<String> = (0..2_000).map(|n| format!("key-{n}")).collect();
    let entries = || keys.iter().cloned().zip(0..);
    cache.set_many(entries(), Some(HOUR)).await.unwrap();
    let values = cache.get_many(&keys).await.unwrap();
    assert_eq!(values, (0..2_000).map(Some).collect::<Vec<_>>(), "{shards} shards");
    assert_eq!(cache.get("key-7").await.unwrap(), Some(7));
    assert_eq!(cache.set_ex("key-7".into(), 8, HOUR).await.unwrap(), Some(7));
    assert!(matches!(cache.ttl("key-7").await.unwrap(), Ttl::Remaining(_)));
    assert_eq!(cache.len().await.unwrap(), 2_000);
    let scanned: BTreeSet<_> = cache.keys().map(Result::unwrap).collect().await;
    assert_eq!(scanned, keys.iter().cloned().collect());
    assert_eq!(cache.remove_many(&keys[1_000..]).await.unwrap(), 1_000);
    for (key, n) in keys[..100].iter().zip(0..) {
        let tag = if n % 2 == 0 { "even" } else { "odd" };
        cache.set_tagged(key.clone(), n, HOUR, [tag]).await.unwrap();
    }
    cache.remove_tag("even").await.unwrap();
    assert_eq!(cache.get_many(&keys[..4]).await.unwrap(), [None, Some(1), None, Some(3)]);
    assert_eq!(cache.len().await.unwrap(), 950);
    assert_eq!(cache.get_or_set_with("key-0", HOUR, async || 9).await.unwrap(), 9);
    assert_eq!(cache.update("key-0", |n| *n + 1).await.unwrap(), Some(10));
    if has_events {
        let mut events = cache.events().await.unwrap();
        let mut lossless = cache.events_lossless("group").await.unwrap();
        assert_eq!(cache.groups().await.unwrap(), ["group"]);
        let expiring = keys[..100].iter().cloned().zip(0..);
        cache.set_many(expiring, Some(ms(1))).await.unwrap();
        let (mut seen, mut leased) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..100 {
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
            seen.insert(event.key.clone());
            let event = timeout(patience(), lossless.recv()).await.unwrap().unwrap().unwrap();
            leased.insert(event.key);
        }
        assert_eq!((seen.len(), leased.len()), (100, 100), "{shards} shards");
        drop((events, lossless));
        assert!(cache.remove_group("group").await.unwrap());
    }
    cache.clear().await.unwrap();
    assert!(cache.is_empty().await.unwrap());
}

#[tokio::test]
async fn cache_with_any_number_of_shards_has_all_methods() {
    let server = Server::start();
    let client = connect(server.url()).await;
    for shards in [1, 3, 64, 1_024] {
        let name = |kind: &str| format!("{kind}-{shards}");
        use_cache(&cache(&client, &name("plain"), shards), shards, false).await;
        let events = Cache::builder(&client, &name("events")).shards(shards).events(HOUR);
        use_cache(&events.build().unwrap(), shards, true).await;
        let near = Cache::builder(&client, &name("near")).shards(shards).near(100);
        use_cache(&near.build().unwrap(), shards, false).await;
    }
}

#[tokio::test]
async fn cache_with_any_number_of_shards_has_all_methods_in_a_cluster() {
    let cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    for shards in [1, 64] {
        let events = Cache::builder(&client, &format!("events-{shards}"));
        let cache = events.shards(shards).events(HOUR).build().unwrap();
        use_cache(&cache, shards, true).await;
        let near = Cache::builder(&client, &format!("near-{shards}")).shards(shards).near(100);
        use_cache(&near.build().unwrap(), shards, false).await;
    }
    let other: Cache<String, u64> = Cache::new(&client, "near-64").unwrap();
    assert_eq!(refused(&other).await, (64, 16));
}

#[tokio::test]
async fn cache_with_another_number_of_shards_is_refused() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let first = cache(&client, "pages", 64);
    first.set("ada".into(), 1).await.unwrap();
    cache(&client, "pages", 64).set("bob".into(), 2).await.unwrap();
    let before = keys(&server).await;
    let other = cache(&connect(server.url()).await, "pages", 32);
    for result in [
        other.get("ada").await.map(drop),
        other.set("ada".into(), 2).await.map(drop),
        other.get_many(["ada", "bob"]).await.map(drop),
        other.set_many([("ada".into(), 2)], None).await,
        other.remove_tag("even").await,
        other.clear().await,
        other.len().await.map(drop),
        other.iter().next().await.unwrap().map(drop),
        other.get_or_set_with("ada", HOUR, async || 3).await.map(drop),
    ] {
        let text = result.as_ref().unwrap_err().to_string();
        assert!(text.contains("\"pages\"") && text.contains("64") && text.contains("32"), "{text}");
        assert!(!result.as_ref().unwrap_err().is_temporary());
        assert_eq!(numbers(result), (64, 32));
    }
    let near = Cache::<String, u64>::builder(&client, "pages").shards(32).near(10);
    assert_eq!(numbers(near.build().unwrap().get("ada").await), (64, 32));
    let events = Cache::<String, u64>::builder(&client, "pages").shards(32).events(HOUR);
    let events = events.build().unwrap();
    assert_eq!(numbers(events.events().await.map(drop)), (64, 32));
    assert_eq!(numbers(events.events_lossless("group").await.map(drop)), (64, 32));
    assert_eq!(keys(&server).await, before, "nothing was written");
    // No number was given, which means 16.
    let default: Cache<String, u64> = Cache::new(&client, "pages").unwrap();
    assert_eq!(refused(&default).await, (64, 16));
    // Another handle of the process does not send even its first command.
    let default: Cache<String, u64> = Cache::new(&client, "pages").unwrap();
    assert_eq!(numbers(default.set("eve".into(), 1).await), (64, 16));
    assert_eq!(first.get("ada").await.unwrap(), Some(1));
    // It is refused only as long as the numbers differ.
    let () = cmd("SET")
        .arg("fleeting:cache1:{pages:0}.shards")
        .arg(32)
        .query_async(&mut server.plain().await)
        .await
        .unwrap();
    other.get("ada").await.unwrap();
}

#[tokio::test]
async fn one_of_several_numbers_that_are_set_at_the_same_time_wins() {
    let server = Server::start();
    let clients = join_all((0..10).map(|_| connect(server.url()))).await;
    for round in 0..5 {
        let name = format!("race-{round}");
        let sets = clients.iter().zip(0..).map(async |(client, n)| {
            let shards = [1, 32, 64][n % 3];
            (shards, cache(client, &name, shards).set("ada".into(), 1).await)
        });
        let (mut winners, mut others) = (BTreeSet::new(), 0);
        for (shards, result) in join_all(sets).await {
            match result {
                Ok(_) => drop(winners.insert(shards)),
                refused => {
                    assert_eq!(numbers(refused).1 as usize, shards);
                    others += 1;
                }
            }
        }
        assert!(winners.len() == 1 && others >= 6, "{winners:?}, {others}");
    }
}

/// As the previous release has written them, which knows no other number.
#[tokio::test]
async fn cache_without_a_recorded_number_has_16_shards() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let default: Cache<String, u64> = Cache::new(&client, "c").unwrap();
    let names = ["ada", "bob", "eve"];
    default.set_many(names.map(|name| (name.to_owned(), 1)), None).await.unwrap();
    let records =
        ["c:11}:bob", "c:2}:ada", "c:7}:eve"].map(|key| format!("fleeting:cache1:{{{key}"));
    // It writes no number: the data are those of the previous release.
    assert_eq!(keys(&server).await, records);
    for shards in [1, 15, 32, 64, 1_024] {
        assert_eq!(numbers(cache(&client, "c", shards).get("ada").await), (16, shards as u16));
    }
    assert_eq!(keys(&server).await, records);
    let given = cache(&client, "c", 16);
    assert_eq!(given.get_many(names).await.unwrap(), [Some(1); 3]);
    let number = "fleeting:cache1:{c:0}.shards".to_owned();
    assert_eq!(keys(&server).await, [&[number][..], &records].concat());
    assert_eq!(default.len().await.unwrap(), 3);
    // Now even an empty cache is refused to the others.
    given.clear().await.unwrap();
    assert_eq!(numbers(cache(&client, "c", 64).get("ada").await), (16, 64));
    let default: Cache<String, u64> = Cache::new(&connect(server.url()).await, "c").unwrap();
    default.set("ada".into(), 2).await.unwrap();
    assert_eq!(given.get("ada").await.unwrap(), Some(2));
}

#[tokio::test]
async fn shard_of_a_key_is_its_crc16_modulo_the_number() {
    let server = Server::start();
    let client = connect(server.url()).await;
    for (shards, key) in [(1, 0), (16, 2), (64, 50), (1_024, 818)] {
        let name = format!("c{shards}");
        cache(&client, &name, shards).set("ada".into(), 1).await.unwrap();
        let [of, number] = [format!("{{{name}:{key}}}:ada"), format!("{{{name}:0}}.shards")]
            .map(|key| format!("fleeting:cache1:{key}"));
        let keys = keys(&server).await;
        assert!(keys.contains(&of) && keys.contains(&number), "{of}: {keys:?}");
        let recorded: u64 =
            cmd("GET").arg(number).query_async(&mut server.plain().await).await.unwrap();
        assert_eq!(recorded, shards as u64);
    }
}

#[tokio::test]
async fn lost_number_is_written_again_by_the_next_cache() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let number = "fleeting:cache1:{pages:0}.shards";
    let pages = cache(&client, "pages", 64);
    pages.set_many((0..100).map(|n| (n.to_string(), n)), None).await.unwrap();
    server.ask(&format!("DEL {number}"));
    // The values are in the shards of neither.
    assert_eq!(numbers(cache(&client, "pages", 32).get("7").await).1, 32);
    assert_eq!(cache(&client, "pages", 64).get("7").await.unwrap(), Some(7));
    assert!(keys(&server).await.iter().any(|key| key == number));
    server.ask("FLUSHALL");
    // The running process continues, and the next one writes the number.
    assert_eq!(pages.get("7").await.unwrap(), None);
    cache(&client, "pages", 64).set("7".into(), 8).await.unwrap();
    assert_eq!(keys(&server).await[0], number);
    assert_eq!(pages.get("7").await.unwrap(), Some(8));
}

#[tokio::test]
async fn first_removal_of_all_by_a_cache_with_the_default_awaits_the_number() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let cache = cache(&client, "pages", 64);
    for n in 0..60 {
        cache.set_tagged(n.to_string(), n, HOUR, ["t"]).await.unwrap();
    }
    for _ in 0..20 {
        // A new client has checked nothing.
        let other = connect(server.url()).await;
        let default: Cache<String, u64> = Cache::new(&other, "pages").unwrap();
        assert_eq!(numbers(default.remove_tag("t").await), (64, 16));
        let other = connect(server.url()).await;
        let default: Cache<String, u64> = Cache::new(&other, "pages").unwrap();
        assert_eq!(numbers(default.clear().await), (64, 16));
        assert_eq!(cache.len().await.unwrap(), 60);
    }
    cache.remove_tag("t").await.unwrap();
    assert_eq!(cache.len().await.unwrap(), 0);
}

#[tokio::test]
async fn cache_with_the_default_does_not_depend_on_the_check() {
    let server = Server::start();
    let client = connect(server.url()).await;
    server.ask("SET fleeting:cache1:{c:0}.shards many");
    let default: Cache<String, u64> = Cache::new(&client, "c").unwrap();
    let given = cache(&client, "c", 16);
    for _ in 0..10 {
        default.set("ada".into(), 1).await.unwrap();
        assert!(matches!(given.get("ada").await, Err(Error::Server(_))));
        sleep(ms(1)).await;
    }
    // A full server cannot store a number.
    server.refuse_memory();
    let default: Cache<String, u64> = Cache::new(&client, "d").unwrap();
    assert_eq!(default.get("ada").await.unwrap(), None);
    assert!(matches!(cache(&client, "d", 16).get("ada").await, Err(Error::Server(_))));
    server.allow_memory();
    assert_eq!(cache(&client, "d", 16).get("ada").await.unwrap(), None);
}

#[tokio::test]
async fn check_is_one_get_per_process_or_handle() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let number = "fleeting:cache1:{c:0}.shards";
    let default = || Cache::<String, u64>::new(&client, "c").unwrap();
    default().ttl("ada").await.unwrap();
    let begin = Instant::now();
    while calls(&server, "get").await == 0 {
        assert!(begin.elapsed() < patience());
    }
    // The reply has arrived with that of a later command.
    sleep(ms(50)).await;
    for _ in 0..20 {
        default().ttl("ada").await.unwrap();
    }
    assert_eq!(calls(&server, "get").await, 1);
    let given = cache(&client, "c", 16);
    given.ttl("ada").await.unwrap();
    assert_eq!(keys(&server).await, [number]);
    for _ in 0..20 {
        given.ttl("ada").await.unwrap();
    }
    assert_eq!((calls(&server, "get").await, calls(&server, "set").await), (2, 1));
    cache(&client, "c", 16).ttl("ada").await.unwrap();
    assert_eq!((calls(&server, "get").await, calls(&server, "set").await), (3, 1));
}

/// The numbers of the documentation of `shards`.
#[tokio::test]
async fn methods_on_all_shards_send_the_documented_number_of_commands() {
    for shards in [1, 16, 64] {
        let server = Server::start();
        let client = connect(server.url()).await;
        let cache = Cache::<String, u64>::builder(&client, "c").shards(shards).events(HOUR);
        let cache = cache.poll_every(HOUR).build().unwrap();
        cache.set("ada".into(), 1).await.unwrap();
        let sent = async |command: &str| calls(&server, command).await;
        // Sends the scripts themselves, which the server did not have.
        cache.remove_tag("even").await.unwrap();
        cache.clear().await.unwrap();
        cache.groups().await.unwrap();
        let all = shards as u64;
        let unlinks = sent("unlink").await;
        let mut scripts = vec![sent("evalsha").await];
        cache.remove_tag("even").await.unwrap();
        assert_eq!(sent("unlink").await - unlinks, all, "{shards} shards");
        scripts.push(sent("evalsha").await);
        cache.clear().await.unwrap();
        scripts.push(sent("evalsha").await);
        cache.groups().await.unwrap();
        scripts.push(sent("evalsha").await);
        assert_eq!(scripts, [0, 1, 2, 3].map(|calls| scripts[0] + calls * all), "{shards} shards");
        let before = sent("evalsha").await;
        let _events = cache.events().await.unwrap();
        let begin = Instant::now();
        while sent("evalsha").await < before + 2 * all {
            assert!(begin.elapsed() < patience());
        }
        // The first poll follows the subscription, and there is no second one.
        sleep(ms(20)).await;
        assert_eq!((sent("evalsha").await - before, sent("mget").await), (2 * all, 1));
    }
}

#[tokio::test]
async fn poll_in_a_cluster_is_one_command_per_shard() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    for shards in [16, 64] {
        let cache = Cache::<String, u64>::builder(&client, &format!("c{shards}"));
        let cache = cache.shards(shards).events(HOUR).poll_every(HOUR).build().unwrap();
        let mut sent = async || {
            let counts = cluster.nodes().iter().map(|node| calls(node, "mget"));
            join_all(counts).await.into_iter().sum::<u64>()
        };
        let before = sent().await;
        let _events = cache.events().await.unwrap();
        let begin = Instant::now();
        while sent().await - before < shards as u64 {
            assert!(begin.elapsed() < patience());
        }
        sleep(ms(20)).await;
        assert_eq!(sent().await - before, shards as u64);
    }
}

#[tokio::test]
async fn number_of_shards_out_of_range_panics() {
    let client = Client::lazy("redis://127.0.0.1:1").unwrap();
    for shards in [0, 1_025, usize::MAX] {
        let client = client.clone();
        let panic = std::thread::spawn(move || drop(cache(&client, "c", shards))).join();
        let panic = panic.unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert_eq!(text, &format!("shards must be 1 to 1024, got {shards}"));
    }
}
