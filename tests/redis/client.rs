//! Connecting to a server, to a cluster, and to none.

use std::time::{Duration, Instant};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, ExpiringSet, OnError, RateLimiter, TimeoutDict},
};
use redis::{aio::MultiplexedConnection, cmd};

use crate::{
    clock::{in_time, ms},
    servers::{Cluster, Proxy, Server},
};

fn soon() -> Duration {
    ms(200)
}

async fn hurried(server: &Server) -> Cache<String, u32> {
    let client = Client::builder(server.url()).timeout(soon()).connect().await.unwrap();
    Cache::new(&client, "numbers").unwrap()
}

#[tokio::test]
async fn one_url_is_a_server_and_several_are_a_cluster() {
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    assert!(format!("{client:?}").contains("cluster: false"));
    let cluster = Cluster::start();
    let client = Client::connect(cluster.urls()).await.unwrap();
    assert!(format!("{client:?}").contains("cluster: true"));
}

#[tokio::test]
async fn who_takes_a_node_for_a_server_is_told_so_at_once() {
    let cluster = Cluster::start();
    let client = Client::builder(&*cluster.urls()[0]).timeout(Duration::from_secs(3_600));
    let client = client.connect().await.unwrap();
    for near in [false, true] {
        let builder = Cache::<String, u64>::builder(&client, "c");
        let cache = if near { builder.near(10) } else { builder }.build().unwrap();
        let mut refused = 0;
        for n in 0..50 {
            match cache.get(&n.to_string()).await {
                Ok(value) => assert_eq!(value, None),
                Err(error) => {
                    assert!(matches!(error, Error::Server(_)), "{error:?}");
                    assert!(!error.is_temporary());
                    refused += 1;
                }
            }
        }
        assert!((1..50).contains(&refused), "{refused}");
    }
}

/// As good as for ever.
#[tokio::test]
async fn no_time_is_too_long() {
    let (server, cluster) = (Server::start(), Cluster::start());
    for client in [Client::builder(server.url()), Client::builder(cluster.urls())] {
        let client = client.timeout(Duration::MAX).connect_timeout(Duration::MAX);
        let client = client.connect().await.unwrap();
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
    }
}

/// A path, and a database that is not the first.
#[tokio::test]
async fn a_url_may_name_a_path_or_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = Server::start_with(&["--unixsocket", path.to_str().unwrap()]);
    let path = path.display();
    for (url, database) in [
        (format!("unix://{path}"), 0),
        (format!("unix://{path}?db=4"), 4),
        (format!("{}/3", server.url()), 3),
    ] {
        let client = Client::connect(&url).await.unwrap();
        let near = Cache::<String, u32>::builder(&client, "numbers").near(10).build().unwrap();
        assert_eq!(near.set("a".into(), 7).await.unwrap(), None);
        let begin = Instant::now();
        while near.stats().near_hits == 0 {
            assert_eq!(near.get("a").await.unwrap(), Some(7));
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing is kept");
        }
        assert_eq!(near.len().await.unwrap(), 1);
        assert!(server.ask("INFO keyspace").contains(&format!("db{database}:keys=1,")));
    }
}

#[tokio::test]
async fn what_is_no_address_is_an_error_that_hides_the_password() {
    let error = Client::connect("postgres://user:secret@localhost").await.unwrap_err();
    assert!(matches!(error, Error::Address(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("secret"));
    let none: [&str; 0] = [];
    assert!(matches!(Client::connect(none).await, Err(Error::Address(_))));
}

#[tokio::test]
async fn no_server_is_an_error_and_takes_no_longer_than_one_attempt() {
    in_time(async || {
        let port = {
            let server = Server::start();
            server.port()
        };
        let begin = Instant::now();
        let error = Client::connect(format!("redis://127.0.0.1:{port}")).await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error:?}");
        assert!(begin.elapsed() < Duration::from_secs(5));
        let urls = [format!("redis://127.0.0.1:{port}"), format!("redis://localhost:{port}")];
        assert!(matches!(Client::connect(urls).await, Err(Error::Connect(_))));
    })
    .await;
}

#[tokio::test]
async fn a_prefix_that_means_something_to_a_cluster_is_refused() {
    let server = Server::start();
    let client = Client::builder(server.url()).prefix("a{b}").connect().await;
    assert!(matches!(client, Err(Error::Name(name)) if name == "a{b}"));
}

#[tokio::test]
async fn a_connection_may_be_encrypted() {
    let (_server, port) = Server::start_encrypted();
    let url = format!("rediss://localhost:{port}");
    let authority = std::fs::read("tests/data/tls/authority.pem").unwrap();
    let client = Client::builder(&*url).authority(authority).connect().await;
    assert!(client.is_ok(), "{client:?}");
    let error = Client::connect(url).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "the system trusts no such authority: {error:?}");
}

#[tokio::test]
async fn a_replica_takes_no_writes_and_is_waited_for() {
    in_time(async || {
        let server = Server::start();
        let cache = hurried(&server).await;
        cache.set("a".into(), 1).await.unwrap();
        let mut plain = server.plain().await;
        let mut replica_of = cmd("REPLICAOF");
        replica_of.arg("127.0.0.1").arg(1).exec_async(&mut plain).await.unwrap();
        let begin = Instant::now();
        let error = cache.set("a".into(), 2).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.is_temporary() && begin.elapsed() >= soon() / 2);
        assert_eq!(cache.get("a").await.unwrap(), Some(1), "it is read all the same");

        let set = tokio::spawn(async move { cache.set("a".into(), 3).await });
        tokio::time::sleep(soon() / 4).await;
        cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut plain).await.unwrap();
        assert_eq!(set.await.unwrap().unwrap(), Some(1));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_loads_is_waited_for() {
    in_time(async || {
        let mut server = Server::durable();
        let client = Client::connect(server.url()).await.unwrap();
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        cache.set("7".into(), 7).await.unwrap();
        // While it loads it looks at its clients after every 1,024 commands, some 0.1 s.
        let fill = "for i = 1, 20000 do redis.call('SET', 'filler:' .. i, i) end";
        let mut plain = server.plain().await;
        plain.set_response_timeout(Duration::from_secs(30));
        cmd("EVAL").arg(fill).arg(0).exec_async(&mut plain).await.unwrap();
        server.kill();
        server.restart_slowly(ms(50) / 1_000);
        let error = cache.get("7").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        let until = Instant::now() + Duration::from_secs(30);
        let mut answer = Err(error);
        while answer.is_err() && Instant::now() < until {
            answer = cache.get("7").await;
        }
        assert_eq!(answer.unwrap(), Some(7));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_away_is_reached_again_when_it_is_back() {
    in_time(async || {
        let mut server = Server::durable();
        let cache = hurried(&server).await;
        cache.set("a".into(), 1).await.unwrap();
        server.kill();
        let begin = Instant::now();
        let error = cache.get("a").await.unwrap_err();
        assert!(matches!(error, Error::Connect(_) | Error::Unanswered(_)), "{error:?}");
        let error = cache.get("a").await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error:?}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        server.restart();
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
    })
    .await;
}

#[tokio::test]
async fn a_slot_of_a_cluster_may_move_while_it_is_used() {
    let mut cluster = Cluster::start();
    let client = Client::connect(cluster.urls()).await.unwrap();
    let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
    cache.set("a".into(), 1).await.unwrap();

    let mut nodes: Vec<MultiplexedConnection> = Vec::new();
    let mut ids: Vec<String> = Vec::new();
    for node in cluster.nodes() {
        let mut plain = node.plain().await;
        ids.push(cmd("CLUSTER").arg("MYID").query_async(&mut plain).await.unwrap());
        nodes.push(plain);
    }
    let ports: Vec<u16> = cluster.nodes().iter().map(Server::port).collect();
    let mut found = None;
    for (node, plain) in nodes.iter_mut().enumerate() {
        let keys: Vec<String> = cmd("KEYS").arg("*").query_async(plain).await.unwrap();
        found = found.or(keys.into_iter().next().map(|key| (node, key)));
    }
    let (from, key) = found.unwrap();
    let to = (from + 1) % 3;
    let slot: u16 =
        cmd("CLUSTER").arg("KEYSLOT").arg(&key).query_async(&mut nodes[from]).await.unwrap();

    let set_slot = |state: &str, id: &str| {
        let mut set_slot = cmd("CLUSTER");
        set_slot.arg("SETSLOT").arg(slot).arg(state).arg(id);
        set_slot
    };
    set_slot("IMPORTING", &ids[from]).exec_async(&mut nodes[to]).await.unwrap();
    set_slot("MIGRATING", &ids[to]).exec_async(&mut nodes[from]).await.unwrap();
    assert_eq!(cache.get("a").await.unwrap(), Some(1), "it is still where it was");
    let mut migrate = cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(ports[to]).arg(&key).arg(0).arg(5_000);
    migrate.exec_async(&mut nodes[from]).await.unwrap();
    assert_eq!(cache.get("a").await.unwrap(), Some(1), "it is asked for where it is now");
    assert_eq!(cache.set("a".into(), 2).await.unwrap(), Some(1), "a script, too");

    for node in [to, from] {
        set_slot("NODE", &ids[to]).exec_async(&mut nodes[node]).await.unwrap();
    }
    assert_eq!(cache.set("a".into(), 3).await.unwrap(), Some(2), "it has moved");
    assert_eq!(cache.get("a").await.unwrap(), Some(3));
}

#[test]
fn a_lazy_client_asks_nobody_until_it_is_used() {
    // Not even a runtime.
    assert!(Client::lazy("redis://127.0.0.1:1").is_ok());
    assert!(Client::lazy(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]).is_ok());
    assert!(Client::lazy("redis+sentinel://127.0.0.1:1/main").is_ok());
    let error = Client::lazy("redis+sentinel://user:secret@127.0.0.1:1").unwrap_err();
    assert!(matches!(error, Error::Address(_)), "no service is named: {error:?}");
    assert!(!format!("{error} {error:?}").contains("secret"));
}

#[tokio::test]
async fn a_lazy_client_finds_a_server_that_starts_later() {
    in_time(async || {
        let mut server = Server::start();
        server.kill();
        let client = Client::builder(server.url()).timeout(soon()).lazy().unwrap();
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        let limiter: RateLimiter<String> = RateLimiter::builder(&client, "l")
            .limit(Limit::per_hour(2))
            .on_error(OnError::Allow)
            .build()
            .unwrap();
        let error = cache.set("a".into(), 1).await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)) && error.is_temporary(), "{error:?}");
        for _ in 0..5 {
            limiter.check("ada").await.unwrap();
        }
        server.restart();
        let begin = Instant::now();
        while cache.set("a".into(), 1).await.is_err() || limiter.peek("ada").await.is_err() {
            assert!(begin.elapsed() < ms(2_000));
        }
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
    })
    .await;
}

#[tokio::test]
async fn many_who_ask_a_lazy_client_at_once_make_one_connection() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let client = Client::lazy(proxy.url()).unwrap();
    let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let cache = cache.clone();
        callers.spawn(async move { cache.set(n.to_string(), n).await.unwrap() });
        // Some give up, each somewhere else.
        let cache = client.clone();
        callers.spawn(async move {
            let cache: Cache<String, u32> = Cache::new(&cache, "numbers").unwrap();
            let _ = tokio::time::timeout(Duration::from_micros(n.into()), cache.get("a")).await;
            None
        });
    }
    callers.join_all().await;
    assert_eq!(proxy.made(), 1);
}

#[tokio::test]
async fn credentials_may_change_while_calls_go_on() {
    in_time(async || {
        let server = Server::start_with(&["--requirepass", "one"]);
        let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
        let client = Client::connect(url("one")).await.unwrap();
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        let admin = redis::Client::open(url("one")).unwrap();
        let mut admin = admin.get_multiplexed_async_connection().await.unwrap();
        let mut change = cmd("CONFIG");
        change.arg("SET").arg("requirepass").arg("two").exec_async(&mut admin).await.unwrap();
        assert_eq!(cache.get("a").await.unwrap(), Some(1), "who is in stays in");

        let mut kill = cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        kill.exec_async(&mut admin).await.unwrap();
        let begin = Instant::now();
        let error = loop {
            match cache.set("a".into(), 2).await {
                Err(error @ Error::Connect(_)) => break error,
                Err(Error::Unanswered(_)) => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(!error.is_temporary(), "it stays so until somebody changes it: {error:?}");
        assert!(begin.elapsed() < ms(500), "nobody waits for what stays: {:?}", begin.elapsed());

        client.set_credentials(None, "two");
        assert_eq!(cache.set("a".into(), 3).await.unwrap(), Some(1));
        // A user of another name, while calls go on.
        let mut user = cmd("ACL");
        user.arg(&["SETUSER", "ada", "on", ">three", "~*", "&*", "+@all"]);
        user.exec_async(&mut admin).await.unwrap();
        client.set_credentials(Some("ada"), "three");
        let who = async || -> String {
            let mut list = cmd("CLIENT");
            list.arg("LIST").query_async(&mut admin.clone()).await.unwrap()
        };
        while !who().await.contains("user=ada") {
            cache.set("a".into(), 4).await.unwrap();
            assert!(begin.elapsed() < ms(5_000));
        }
        assert_eq!(cache.get("a").await.unwrap(), Some(4));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_refuses_resp3_is_spoken_to_in_resp2() {
    in_time(async || {
        let refuses = Server::start_with(&["--rename-command", "HELLO", ""]);
        let chosen = Server::start();
        for url in [refuses.url(), format!("{}?protocol=2", chosen.url())] {
            let client = Client::connect(&*url).await.unwrap();
            let cache: Cache<String, u32> =
                Cache::builder(&client, "numbers").events(Duration::from_secs(60)).build().unwrap();
            let mut events = cache.events_lossless("g").await.unwrap();
            cache.set_ex("a".into(), 1, ms(50)).await.unwrap();
            cache.set("b".into(), 2).await.unwrap();
            assert_eq!(events.recv().await.unwrap().unwrap().key, "a");
            assert_eq!(cache.get("b").await.unwrap(), Some(2));
            assert_eq!(cache.len().await.unwrap(), 1);
            let dict: TimeoutDict<String, u32> = TimeoutDict::new(&client, "d").unwrap();
            dict.set("a".into(), 1, Duration::ZERO).await.unwrap();
            assert_eq!(dict.take_expired(9).await.unwrap(), [("a".to_owned(), 1)]);
            let set: ExpiringSet<u32> =
                ExpiringSet::new(&client, "s", Duration::from_secs(60)).unwrap();
            set.push(7).await.unwrap();
            assert_eq!(set.elements().await.unwrap(), [7]);
            let limiter: RateLimiter<String> =
                RateLimiter::builder(&client, "l").limit(Limit::per_hour(2)).build().unwrap();
            until_by_server(&limiter).await;
            let list = cmd("CLIENT").arg("LIST").query_async(&mut chosen.plain().await).await;
            let list: String = list.unwrap();
            assert!(list.lines().all(|line| !line.contains("resp=3")), "{list}");
        }
    })
    .await;
}

async fn until_by_server(limiter: &RateLimiter<String>) {
    let begin = Instant::now();
    while limiter.peek("ada").await.is_err() {
        assert!(begin.elapsed() < ms(2_000));
    }
}
