//! Faults of `redis::Cache`: servers that are paused, killed or disconnected, and values that other programs wrote at
//! its keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{
    Ttl, When,
    redis::{Cache, Client, Error, Format},
};
use futures::StreamExt;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Proxy, SMALL_ANSWERS, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a client with a longer timeout than the default second, but shorter than a test's timeout.
async fn patient(url: impl fleeting::redis::Urls) -> Client {
    Client::builder(url).timeout(patience() / 2).connect().await.unwrap()
}

async fn plain(url: impl fleeting::redis::Urls) -> Cache<String, u64> {
    Cache::new(&patient(url).await, "c").unwrap()
}

async fn with_events(url: impl fleeting::redis::Urls) -> Cache<String, u64> {
    let client = patient(url).await;
    let builder = Cache::builder(&client, "c").events(HOUR).lease(ms(2_000));
    builder.poll_every(ms(20)).build().unwrap()
}

/// Asserts that all methods fail with this error, within [`ms`] of 3,000.
macro_rules! assert_all_fail {
    ($cache:ident, $error:pat) => {
        assert_all_fail!(@ $cache, $error =>
            get("ada"), get_ex("ada", HOUR), set_nx("ada".into(), 1, None), remove("ada"),
            ttl("ada"), contains_key("ada"), expire("ada", HOUR), set("ada".into(), 1),
            expire_if("ada", HOUR, When::Later), extend("ada", HOUR), persist("ada"),
            set_ex("ada".into(), 1, HOUR), set_keep_ttl("ada".into(), 1), expire_now("ada"),
            update("ada", |n| *n += 1), len(), clear())
    };
    (@ $cache:ident, $error:pat => $($method:ident($($argument:expr),*)),*) => {$(
        let begin = Instant::now();
        let answer = $cache.$method($($argument),*).await;
        assert!(matches!(answer, Err($error)), "{}: {answer:?}", stringify!($method));
        assert!(begin.elapsed() < ms(3_000), "{}: {:?}", stringify!($method), begin.elapsed());
    )*};
}

#[tokio::test]
async fn unreachable_server_is_a_typed_error_within_the_timeout() {
    in_time(async || {
        let mut server = Server::start();
        let client = Client::builder(server.url()).timeout(ms(200)).connect().await.unwrap();
        let plain: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        let evented: Cache<String, u64> =
            Cache::builder(&client, "d").events(HOUR).build().unwrap();
        plain.set("ada".into(), 1).await.unwrap();
        evented.set("ada".into(), 1).await.unwrap();
        server.pause();
        for cache in [&plain, &evented] {
            assert_all_fail!(cache, Error::Unanswered(_) | Error::Connect(_));
        }
        server.resume();
        let begin = Instant::now();
        while plain.get("ada").await.is_err() || evented.get("ada").await.is_err() {
            assert!(begin.elapsed() < patience());
        }
        server.kill();
        for cache in [&plain, &evented] {
            assert_all_fail!(cache, Error::Unanswered(_) | Error::Connect(_));
        }
        assert!(matches!(evented.events().await, Err(Error::Unanswered(_) | Error::Connect(_))));
        let group = evented.events_lossless("g").await;
        assert!(matches!(group, Err(Error::Unanswered(_) | Error::Connect(_))));
    })
    .await;
}

#[tokio::test]
async fn value_of_another_type_is_contained_and_has_a_ttl() {
    let server = Server::start();
    let cache = plain(server.url()).await;
    cache.set("ada".into(), 1).await.unwrap();
    let mut plain = server.plain().await;
    let [record]: [String; 1] = redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    let () = redis::cmd("DEL").arg(&record).query_async(&mut plain).await.unwrap();
    let () = redis::cmd("LPUSH").arg(&record).arg("x").query_async(&mut plain).await.unwrap();
    assert!(cache.contains_key("ada").await.unwrap());
    assert_eq!(cache.ttl("ada").await.unwrap(), Ttl::Persistent);
    assert!(!cache.set_nx("ada".into(), 1, None).await.unwrap());
    assert!(cache.expire("ada", Duration::from_secs(60)).await.unwrap());
    assert!(matches!(cache.ttl("ada").await.unwrap(), Ttl::Remaining(_)));
    assert!(cache.persist("ada").await.unwrap());
    let kind: String = redis::cmd("TYPE").arg(record).query_async(&mut plain).await.unwrap();
    assert_eq!(kind, "list");
}

#[tokio::test]
async fn value_of_another_type_is_wrong_type_error_and_is_kept() {
    let server = Server::start();
    let cache = plain(server.url()).await;
    let evented = with_events(server.url()).await;
    cache.set("ada".into(), 1).await.unwrap();
    let mut plain = server.plain().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    let record = &keys[0];
    let _: () = redis::cmd("DEL").arg(record).query_async(&mut plain).await.unwrap();
    let _: () = redis::cmd("HSET").arg(record).arg(1).arg(1).query_async(&mut plain).await.unwrap();
    for cache in [&cache, &evented] {
        let error = cache.get("ada").await.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key } if key == record), "{error:?}");
        let error = cache.set("ada".into(), 1).await.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key } if key == record), "{error:?}");
        let error = cache.remove("ada").await.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key } if key == record), "{error:?}");
        let error = cache.update("ada", |n| *n += 1).await.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key } if key == record), "{error:?}");
        assert_eq!(cache.iter().count().await, 0, "the value of another type is skipped");
    }
    let kind: String = redis::cmd("TYPE").arg(record).query_async(&mut plain).await.unwrap();
    assert_eq!(kind, "hash");
}

#[tokio::test]
async fn decode_error_names_the_key_of_the_record() {
    let server = Server::start();
    for cache in [plain(server.url()).await, with_events(server.url()).await] {
        cache.clear().await.unwrap();
        cache.set("ada".into(), 1).await.unwrap();
        let mut plain = server.plain().await;
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*:ada").query_async(&mut plain).await.unwrap();
        let record = &keys[0];
        let _: () = redis::cmd("SET").arg(record).arg("{").query_async(&mut plain).await.unwrap();
        let names = |error: &Error| matches!(error, Error::Decode { key, .. } if key == record);
        let error = cache.get("ada").await.unwrap_err();
        assert!(names(&error), "{error:?}");
        let error = cache.update("ada", |n| *n += 1).await.unwrap_err();
        assert!(names(&error), "{error:?}");
        let error = cache.iter().next().await.unwrap().unwrap_err();
        assert!(names(&error), "{error:?}");
        assert_eq!(cache.keys().next().await.unwrap().unwrap(), "ada");
        assert!(cache.contains_key("ada").await.unwrap());
        // The value is replaced despite the error.
        let error = cache.set("ada".into(), 2).await.unwrap_err();
        assert!(names(&error), "{error:?}");
        assert_eq!(cache.get("ada").await.unwrap(), Some(2));
    }
}

#[tokio::test]
async fn scripts_are_sent_again_after_script_flush() {
    let server = Server::start();
    let cache = with_events(server.url()).await;
    let mut events = cache.events_lossless("g").await.unwrap();
    let mut plain = server.plain().await;
    for n in 0..20 {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut plain).await.unwrap();
        assert_eq!(cache.set_ex("ada".into(), n, HOUR).await.unwrap(), None);
        assert_eq!(cache.get("ada").await.unwrap(), Some(n));
        assert_eq!(cache.expire_now("ada").await.unwrap(), Some(n));
        assert_eq!(timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap().value, n);
    }
}

#[tokio::test]
async fn closed_connections_neither_lose_nor_duplicate_events() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = with_events(server.url()).await;
        let proxied = with_events(proxy.url()).await;
        let mut events = proxied.events_lossless("g").await.unwrap();
        let mut all = proxied.events().await.unwrap();
        let mut received = BTreeMap::new();
        let begin = Instant::now();
        let mut set = 0_u64;
        // Events of a lost reply are delivered when their lease expires.
        while received.len() < 300 {
            assert!(begin.elapsed() < patience(), "{} events were delivered", received.len());
            if set < 300 {
                cache.set_ex(set.to_string(), set, ms(40)).await.unwrap();
                set += 1;
                if set.is_multiple_of(30) {
                    proxy.cut();
                }
            }
            while let Ok(event) = timeout(ms(5), events.recv()).await {
                if let Ok(event) = event.unwrap() {
                    *received.entry(event.value).or_insert(0) += 1;
                }
            }
        }
        assert!(received.values().all(|times| *times == 1), "{received:?}");
        let mut broadcast = BTreeSet::new();
        while broadcast.len() < 300 {
            broadcast
                .insert(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value);
        }
        // A write whose reply is lost is not sent again.
        assert_eq!(proxied.set("n".into(), 0).await.unwrap(), None);
        let (mut updates, mut unanswered) = (0, 0);
        while updates < 200 || unanswered == 0 {
            assert!(updates < 20_000, "no reply was lost");
            updates += 1;
            let update = async {
                tokio::join!(proxied.set_ex("n".into(), 1, HOUR), async {
                    tokio::task::yield_now().await;
                    proxy.cut();
                })
                .0
            };
            match update.await {
                Ok(_) => {}
                Err(Error::Unanswered(_)) => unanswered += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        println!("{unanswered} of {updates} replies were lost");
    })
    .await;
}

#[tokio::test]
async fn event_streams_continue_after_flushall() {
    in_time(async || {
        let server = Server::start();
        let cache = with_events(server.url()).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        let mut all = cache.events().await.unwrap();
        let mut plain = server.plain().await;
        for n in 0..20 {
            let _: () = redis::cmd("FLUSHALL").query_async(&mut plain).await.unwrap();
            cache.set("ada".into(), n).await.unwrap();
            cache.expire_now("ada").await.unwrap();
            assert_eq!(
                timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap().value,
                n
            );
            assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, n);
        }
        assert!(timeout(ms(100), all.recv()).await.is_err(), "an event is delivered twice");
    })
    .await;
}

#[tokio::test]
async fn events_trimmed_during_a_disconnect_are_reported_as_missed() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let cache = with_events(server.url()).await;
    let proxied = with_events(proxy.url()).await;
    let mut all = proxied.events().await.unwrap();
    let expire = async |n| {
        cache.set("ada".into(), n).await.unwrap();
        cache.expire_now("ada").await.unwrap();
    };
    expire(0).await;
    assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, 0);
    proxy.close(true);
    proxy.cut();
    for n in 1..=5 {
        expire(n).await;
    }
    let mut plain = server.plain().await;
    let streams: Vec<String> =
        redis::cmd("KEYS").arg("*.expired").query_async(&mut plain).await.unwrap();
    assert_eq!(streams.len(), 1);
    let trim = redis::cmd("XTRIM").arg(&streams[0]).arg(&["MAXLEN", "2"]).to_owned();
    let _: () = trim.query_async(&mut plain).await.unwrap();
    proxy.close(false);
    let missed = timeout(patience(), all.recv()).await.unwrap().unwrap();
    assert_eq!(missed.unwrap_err(), fleeting::Lagged(3));
    for n in 4..=5 {
        assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, n);
    }
    assert_eq!(proxied.stats().missed, 3);
}

#[tokio::test]
async fn killed_server_loses_no_event_and_duplicates_none_within_a_lease() {
    in_time(async || {
        let mut server = Server::durable();
        let cache = with_events(server.url()).await;
        let lease = ms(2_000);
        let mut events = cache.events_lossless("g").await.unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let (writer, done) = (cache.clone(), is_done.clone());
        // Writes each key at most once. Only keys whose `set_ex` has returned must be delivered.
        let writes = tokio::spawn(async move {
            let mut written = BTreeSet::new();
            for n in 0.. {
                if done.load(Relaxed) {
                    break;
                }
                match writer.set_ex(n.to_string(), n, ms(100)).await {
                    Ok(_) => assert!(written.insert(n)),
                    Err(_) => sleep(ms(5)).await,
                }
            }
            written
        });
        let mut received: BTreeMap<u64, Vec<Instant>> = BTreeMap::new();
        let mut take = async |events: &mut fleeting::redis::LosslessEvents<String, u64>, time| {
            let begin = Instant::now();
            while begin.elapsed() < time {
                if let Ok(Some(Ok(event))) = timeout(ms(50), events.recv()).await {
                    received.entry(event.value).or_default().push(Instant::now());
                }
            }
        };
        for _ in 0..3 {
            take(&mut events, ms(500)).await;
            server.kill();
            take(&mut events, ms(100)).await;
            server.restart();
        }
        take(&mut events, ms(500)).await;
        is_done.store(true, Relaxed);
        let written = writes.await.unwrap();
        // Events of replies lost by the kill are delivered when their lease expires.
        take(&mut events, lease + ms(2_000)).await;
        assert!(written.len() > 50, "{}", written.len());
        let lost: Vec<_> = written.iter().filter(|n| !received.contains_key(n)).collect();
        assert!(lost.is_empty(), "lost of {}: {lost:?}", written.len());
        for (n, times) in &received {
            // An acknowledgement may be lost with the server. Then the event is delivered again, but after its lease.
            let sooner = times.windows(2).any(|two| two[1] - two[0] < lease * 9 / 10);
            assert!(!sooner, "{n} was delivered twice within its lease");
        }
        println!("{} written, {} delivered", written.len(), received.len());
    })
    .await;
}

#[tokio::test]
async fn methods_iteration_and_update_work_in_a_cluster() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let plain: Cache<String, u64> = Cache::new(&client, "c").unwrap();
    let evented: Cache<String, u64> = Cache::builder(&client, "d").events(HOUR).build().unwrap();
    // Another cache with a similar name.
    let similar_name: Cache<String, u64> = Cache::new(&client, "c:c").unwrap();
    similar_name.set("1".into(), 1).await.unwrap();
    for cache in [&plain, &evented] {
        for n in 0..200 {
            cache.set_ex(n.to_string(), n, HOUR).await.unwrap();
        }
        assert_eq!(cache.update("7", |n| *n += 1).await.unwrap(), Some(()));
        assert_eq!(cache.get("7").await.unwrap(), Some(8));
        assert_eq!(cache.remove("7").await.unwrap(), Some(8));
        assert!(matches!(cache.ttl("8").await.unwrap(), Ttl::Remaining(_)));
        assert_eq!(cache.len().await.unwrap(), 199);
        let keys: BTreeSet<_> = cache.keys().map(Result::unwrap).collect().await;
        assert_eq!(keys.len(), 199);
        cache.clear().await.unwrap();
        assert!(cache.is_empty().await.unwrap());
    }
    assert_eq!(similar_name.len().await.unwrap(), 1);
    for node in cluster.nodes() {
        node.kill();
    }
    assert!(matches!(
        plain.len().await,
        Err(Error::Connect(_) | Error::Unanswered(_) | Error::Unavailable(_))
    ));
}

#[tokio::test]
async fn invalid_names_and_unencodable_values_are_errors() {
    let server = Server::start();
    let client = connect(server.url()).await;
    assert!(matches!(Cache::<String, u64>::new(&client, "a{b"), Err(Error::Name(_))));
    let cache: Cache<String, u64> =
        Cache::builder(&client, "c").format(Format::Raw).build().unwrap();
    assert!(matches!(cache.set("ada".into(), 1).await, Err(Error::Encode(_))));
    let cache: Cache<Vec<(u64, String)>, u64> = Cache::new(&client, "*[?]").unwrap();
    let key = vec![(1, "a}{:".to_owned())];
    cache.set(key.clone(), 1).await.unwrap();
    assert_eq!(cache.get(&key[..]).await.unwrap(), Some(1));
    assert_eq!(cache.keys().next().await.unwrap().unwrap(), key);
}

#[tokio::test]
async fn update_gives_up_as_contended_after_the_timeout() {
    in_time(async || {
        let server = Server::start();
        let client = Client::builder(server.url()).timeout(ms(300)).connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("n".into(), 0).await.unwrap();
        let fast = redis::Client::open(server.url()).unwrap();
        let mut fast = fast.get_connection().unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut fast).unwrap();
        let mut calls = 0;
        let answer = cache
            .update("n", |n| {
                // Another client writes the key between the read and the write of this update.
                let _: i64 = redis::cmd("INCR").arg(&keys[0]).query(&mut fast).unwrap();
                calls += 1;
                *n = 1_000_000;
            })
            .await;
        assert!(matches!(answer, Err(Error::Contended)), "{answer:?}");
        assert!(calls > 1);
        assert_eq!(cache.get("n").await.unwrap(), Some(calls));
    })
    .await;
}

#[tokio::test]
async fn iteration_returns_a_hundred_megabytes() {
    let server = Server::start_with(&SMALL_ANSWERS);
    let client = connect(server.url()).await;
    for events in [false, true] {
        let mut builder = Cache::<u64, String>::builder(&client, "c").format(Format::Raw);
        if events {
            builder = builder.events(HOUR);
        }
        let cache = builder.build().unwrap();
        let large = "x".repeat(1 << 20);
        let count = if events { 20 } else { 120 };
        for n in 0..count {
            cache.set(n, large.clone()).await.unwrap();
        }
        let is_whole =
            cache.values().map(|value| value.unwrap() == large).collect::<Vec<_>>().await;
        assert_eq!(is_whole, vec![true; count as usize]);
        let keys: BTreeSet<_> = cache.keys().map(Result::unwrap).collect().await;
        assert_eq!(keys, (0..count).collect());
        cache.clear().await.unwrap();
        assert!(cache.is_empty().await.unwrap());
    }
}

#[tokio::test]
async fn index_of_another_type_prevents_all_changes() {
    let server = Server::start();
    let cache = with_events(server.url()).await;
    cache.set_ex("ada".into(), 1, HOUR).await.unwrap();
    let mut plain = server.plain().await;
    let keys = async || {
        let mut plain = server.plain().await;
        let keys: BTreeSet<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
        keys
    };
    let index = keys().await.into_iter().find(|key| key.ends_with('}')).unwrap();
    for is_there in [true, false] {
        let _: () = redis::cmd("DEL").arg(&index).query_async(&mut plain).await.unwrap();
        let _: () =
            redis::cmd("SET").arg(&index).arg("theirs").query_async(&mut plain).await.unwrap();
        if !is_there {
            let record = format!("{index}:ada");
            let _: () = redis::cmd("DEL").arg(record).query_async(&mut plain).await.unwrap();
        }
        let before = keys().await;
        let value = is_there.then_some(1);
        // The expiry time must not change by a millisecond.
        let mut expire_time = redis::cmd("PEXPIRETIME");
        expire_time.arg(format!("{index}:ada"));
        let expires_at: i64 = expire_time.query_async(&mut plain).await.unwrap();
        for outcome in [
            cache.set_ex("ada".into(), 2, HOUR).await.map(drop),
            cache.set("ada".into(), 2).await.map(drop),
            cache.set_nx("ada".into(), 2, Some(HOUR)).await.map(drop),
            cache.set_keep_ttl("ada".into(), 2).await.map(drop),
            cache.set_ex("ada".into(), 2, Duration::ZERO).await.map(drop),
            cache.expire("ada", 2 * HOUR).await.map(drop),
            cache.persist("ada").await.map(drop),
            cache.get_ex("ada", HOUR).await.map(drop),
            cache.remove("ada").await.map(drop),
            cache.expire_now("ada").await.map(drop),
        ] {
            assert!(matches!(&outcome, Err(Error::WrongType { .. })), "{outcome:?}");
            assert_eq!(cache.get("ada").await.unwrap(), value);
            assert_eq!(keys().await, before);
            assert_eq!(expire_time.query_async::<i64>(&mut plain).await.unwrap(), expires_at);
        }
    }
}

#[tokio::test]
async fn record_of_another_type_keeps_its_pending_event() {
    let server = Server::start();
    let cache = with_events(server.url()).await;
    let mut plain = server.plain().await;
    cache.set_ex("ada".into(), 1, HOUR).await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    let index = keys.iter().find(|key| key.ends_with('}')).unwrap();
    let mut zscore = redis::cmd("ZSCORE");
    zscore.arg(index).arg("ada");
    let deadline: f64 = zscore.query_async(&mut plain).await.unwrap();
    let record = format!("{index}:ada");
    let _: () = redis::cmd("DEL").arg(&record).query_async(&mut plain).await.unwrap();
    let _: () =
        redis::cmd("HSET").arg(&record).arg(1).arg(1).query_async(&mut plain).await.unwrap();
    let error = cache.set_ex("ada".into(), 2, 2 * HOUR).await.unwrap_err();
    assert!(matches!(&error, Error::WrongType { .. }), "{error:?}");
    assert_eq!(zscore.query_async::<f64>(&mut plain).await.unwrap(), deadline);
    // The same for an entry without a deadline, which is not in the index.
    cache.set("eve".into(), 1).await.unwrap();
    let records: Vec<String> =
        redis::cmd("KEYS").arg("*:eve").query_async(&mut plain).await.unwrap();
    let _: () = redis::cmd("DEL").arg(&records).query_async(&mut plain).await.unwrap();
    let _: () = redis::cmd("LPUSH").arg(&records[0]).arg(1).query_async(&mut plain).await.unwrap();
    let before: BTreeSet<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    let error = cache.set_ex("eve".into(), 2, HOUR).await.unwrap_err();
    assert!(matches!(&error, Error::WrongType { .. }), "{error:?}");
    let after: BTreeSet<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut plain).await.unwrap();
    assert_eq!(before, after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clear_of_a_full_server_succeeds() {
    let server = Server::start();
    let (plain, with_events) = (plain(server.url()).await, with_events(server.url()).await);
    for n in 0..100 {
        plain.set(n.to_string(), n).await.unwrap();
    }
    server.refuse_memory();
    assert!(matches!(plain.set("ada".into(), 1).await, Err(Error::Server(_))));
    plain.clear().await.unwrap();
    assert!(plain.is_empty().await.unwrap());

    server.allow_memory();
    for n in 0..100 {
        with_events.set_ex(n.to_string(), n, HOUR).await.unwrap();
    }
    server.refuse_memory();
    with_events.clear().await.unwrap();
    assert!(with_events.is_empty().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loader_runs_without_a_lease_on_a_full_server() {
    let server = Server::start();
    let cache = plain(server.url()).await;
    server.refuse_memory();
    let runs = Arc::new(AtomicUsize::new(0));
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let load = || {
        let (cache, runs) = (cache.clone(), runs.clone());
        let (started, release) = (started.clone(), release.clone());
        tokio::spawn(async move {
            let loader = async move || {
                started.notify_one();
                release.notified().await;
                runs.fetch_add(1, Relaxed) as u64
            };
            cache.get_or_set_with("ada", HOUR, loader).await
        })
    };
    let first = load();
    timeout(patience(), started.notified()).await.expect("the loader runs");
    release.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), 0);
    assert_eq!(cache.get("ada").await.unwrap(), None, "the value is not cached");
    assert_eq!(cache.stats().failed_loads, 1);

    // The error of a loader is returned, too.
    let failing = async || Err::<u64, _>("no such user");
    let error = cache.get_or_try_set_with("bob", HOUR, failing).await.unwrap().unwrap_err();
    assert_eq!(*error, "no such user");

    server.allow_memory();
    let cached = load();
    timeout(patience(), started.notified()).await.expect("the loader runs");
    release.notify_one();
    assert_eq!(cached.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get("ada").await.unwrap(), Some(1), "cached when there is memory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_value_replaces_the_error_of_a_loader_on_a_full_server() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let builder = Cache::<String, u64>::builder(&client, "stale").stale_while_revalidate(HOUR);
    let cache = builder.build().unwrap();
    cache.get_or_set_with("ada", Duration::from_millis(1), async || 1).await.unwrap();
    let until = Instant::now() + patience();
    while cache.get("ada").await.unwrap().is_some() {
        assert!(Instant::now() < until);
    }
    server.refuse_memory();
    let failing = async || Err::<u64, _>("down");
    assert_eq!(cache.get_or_try_set_with("ada", HOUR, failing).await.unwrap(), Ok(1));
    assert_eq!(cache.get_or_set_with("ada", HOUR, async || 2).await.unwrap(), 2);
    let failed = cache.get_or_try_set_with("bob", HOUR, failing).await.unwrap();
    assert_eq!(*failed.unwrap_err(), "down", "without a stale value");
}
