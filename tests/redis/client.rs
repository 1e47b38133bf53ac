//! Connecting to servers and clusters, and temporary and permanent failures of servers.

use std::time::{Duration, Instant};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, ExpiringSet, OnError, RateLimiter, TimeoutDict},
};
use redis::{aio::MultiplexedConnection, cmd};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Proxy, Server, connect, plain},
};

/// Timeout of the client, short because the tests wait for it.
fn short_timeout() -> Duration {
    ms(200)
}

/// Returns a client with the default timeout.
async fn with_default_timeout(url: &str) -> Client {
    Client::builder(url).timeout(ms(1_000)).connect().await.unwrap()
}

async fn cache_with_short_timeout(server: &Server) -> Cache<String, u32> {
    let client = Client::builder(server.url()).timeout(short_timeout()).connect().await.unwrap();
    Cache::new(&client, "numbers").unwrap()
}

#[tokio::test]
async fn client_with_one_url_is_a_server_and_with_several_a_cluster() {
    let server = Server::start();
    let client = connect(server.url()).await;
    assert!(format!("{client:?}").contains("cluster: false"));
    let cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    assert!(format!("{client:?}").contains("cluster: true"));
}

#[tokio::test]
async fn cluster_node_as_a_single_server_is_a_permanent_error() {
    let cluster = Cluster::start();
    let client = Client::builder(&*cluster.urls()[0]).timeout(patience());
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
        assert!((1..50).contains(&refused), "{refused} of 50 keys were refused");
    }
}

#[tokio::test]
async fn timeout_of_duration_max_is_accepted() {
    let (server, cluster) = (Server::start(), Cluster::start());
    for client in [Client::builder(server.url()), Client::builder(cluster.urls())] {
        let client = client.timeout(Duration::MAX).connect_timeout(Duration::MAX);
        let client = client.connect().await.unwrap();
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        assert_eq!(cache.get("a").await.unwrap(), Some(1));
    }
}

#[tokio::test]
async fn url_may_name_a_unix_socket_and_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = Server::start_with(&["--unixsocket", path.to_str().unwrap()]);
    let path = path.display();
    for (url, database) in [
        (format!("unix://{path}"), 0),
        (format!("unix://{path}?db=4"), 4),
        (format!("{}/3", server.url()), 3),
    ] {
        let client = connect(&url).await;
        let near = Cache::<String, u32>::builder(&client, "numbers").near(10).build().unwrap();
        assert_eq!(near.set("a".into(), 7).await.unwrap(), None);
        let begin = Instant::now();
        while near.stats().near_hits == 0 {
            assert_eq!(near.get("a").await.unwrap(), Some(7));
            assert!(begin.elapsed() < patience(), "no answer is cached");
        }
        assert_eq!(near.len().await.unwrap(), 1);
        assert!(server.ask("INFO keyspace").contains(&format!("db{database}:keys=1,")));
    }
}

#[tokio::test]
async fn address_error_does_not_contain_the_password() {
    let error = Client::connect("postgres://user:secret@localhost").await.unwrap_err();
    assert!(matches!(error, Error::Address(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("secret"));
    let none: [&str; 0] = [];
    assert!(matches!(Client::connect(none).await, Err(Error::Address(_))));
}

#[tokio::test]
async fn connect_without_a_server_fails_after_one_attempt() {
    in_time(async || {
        let port = {
            let server = Server::start();
            server.port()
        };
        let begin = Instant::now();
        let error = Client::connect(format!("redis://127.0.0.1:{port}")).await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error:?}");
        assert!(begin.elapsed() < ms(5_000));
        let urls = [format!("redis://127.0.0.1:{port}"), format!("redis://localhost:{port}")];
        assert!(matches!(Client::connect(urls).await, Err(Error::Connect(_))));
    })
    .await;
}

#[tokio::test]
async fn prefix_with_braces_is_refused() {
    let server = Server::start();
    let client = Client::builder(server.url()).prefix("a{b}").connect().await;
    assert!(matches!(client, Err(Error::Name(name)) if name == "a{b}"));
}

#[tokio::test]
async fn rediss_url_connects_over_tls_with_the_given_authority() {
    let (_server, port) = Server::start_encrypted();
    let url = format!("rediss://localhost:{port}");
    let authority = std::fs::read("tests/data/tls/authority.pem").unwrap();
    let client = Client::builder(&*url).authority(authority).timeout(patience()).connect().await;
    assert!(client.is_ok(), "{client:?}");
    let error = Client::connect(url).await.unwrap_err();
    assert!(
        matches!(error, Error::Connect(_)),
        "the system does not trust this authority: {error:?}"
    );
}

#[tokio::test]
async fn client_certificate_is_presented_over_tls_to_a_server_that_requires_one() {
    let (_server, port) = Server::start_with_client_certificates();
    let builder = || {
        Client::builder(format!("rediss://localhost:{port}"))
            .authority(tls_file("authority.pem"))
            .timeout(patience())
    };
    // Issued by an intermediate authority, which the server does not know.
    let client = builder().client_certificate(tls_file("client.pem"), tls_file("client.key"));
    let client = client.connect().await.unwrap();
    let cache = Cache::<String, u32>::builder(&client, "numbers").near(10).build().unwrap();
    cache.set("a".into(), 1).await.unwrap();
    assert_eq!(cache.get("a").await.unwrap(), Some(1));
    let error = builder().timeout(short_timeout()).connect().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "without a certificate: {error:?}");
}

#[tokio::test]
async fn client_certificate_is_ignored_without_tls() {
    let server = Server::start();
    let client = Client::builder(server.url()).client_certificate("not PEM", "not PEM");
    assert!(client.timeout(patience()).connect().await.is_ok());
}

#[tokio::test]
async fn invalid_client_certificate_is_a_permanent_error_of_lazy() {
    let url = "rediss://localhost:1";
    let (chain, key) = (tls_file("client.pem"), tls_file("client.key"));
    let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec();
    assert!(Client::builder(url).client_certificate(&chain, &key).lazy().is_ok());
    for (chain, key) in [(&broken, &key), (&Vec::new(), &key), (&chain, &Vec::new()), (&key, &key)]
    {
        let error = Client::builder(url).client_certificate(chain, key).lazy().unwrap_err();
        assert!(matches!(error, Error::Connect(_)) && !error.is_temporary(), "{error:?}");
    }
}

fn tls_file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/tls/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[tokio::test]
async fn write_to_a_replica_is_retried_until_the_timeout() {
    in_time(async || {
        let server = Server::start();
        let cache = cache_with_short_timeout(&server).await;
        cache.set("a".into(), 1).await.unwrap();
        let mut plain = server.plain().await;
        let mut replica_of = cmd("REPLICAOF");
        replica_of.arg("127.0.0.1").arg(1).exec_async(&mut plain).await.unwrap();
        let begin = Instant::now();
        let error = cache.set("a".into(), 2).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.is_temporary() && begin.elapsed() >= short_timeout() / 2);
        assert_eq!(cache.get("a").await.unwrap(), Some(1), "a replica answers reads");

        let set = tokio::spawn(async move { cache.set("a".into(), 3).await });
        tokio::time::sleep(short_timeout() / 4).await;
        cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut plain).await.unwrap();
        assert_eq!(set.await.unwrap().unwrap(), Some(1));
    })
    .await;
}

#[tokio::test]
async fn call_to_a_loading_server_is_retried_until_the_timeout() {
    in_time(async || {
        let mut server = Server::durable();
        let client = with_default_timeout(&server.url()).await;
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        cache.set("7".into(), 7).await.unwrap();
        // A loading server handles its clients only after every 1,024 commands, about every 0.1 s.
        let fill = "for i = 1, 20000 do redis.call('SET', 'filler:' .. i, i) end";
        let mut plain = server.plain().await;
        plain.set_response_timeout(patience());
        cmd("EVAL").arg(fill).arg(0).exec_async(&mut plain).await.unwrap();
        server.kill();
        server.restart_slowly(ms(50) / 1_000);
        let error = cache.get("7").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        let until = Instant::now() + patience();
        let mut answer = Err(error);
        while answer.is_err() && Instant::now() < until {
            answer = cache.get("7").await;
        }
        assert_eq!(answer.unwrap(), Some(7));
    })
    .await;
}

#[tokio::test]
async fn restarted_server_is_reconnected_to() {
    in_time(async || {
        let mut server = Server::durable();
        let cache = cache_with_short_timeout(&server).await;
        cache.set("a".into(), 1).await.unwrap();
        server.kill();
        let begin = Instant::now();
        let error = cache.get("a").await.unwrap_err();
        assert!(matches!(error, Error::Connect(_) | Error::Unanswered(_)), "{error:?}");
        let error = cache.get("a").await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error:?}");
        assert!(begin.elapsed() < ms(2_000), "{:?}", begin.elapsed());
        server.restart();
        // It was unreachable for longer than the timeout, so that calls fail until an attempt succeeds.
        let begin = Instant::now();
        let value = loop {
            match cache.get("a").await {
                Ok(value) => break value,
                Err(error) => assert!(begin.elapsed() < ms(2_000), "{error:?}"),
            }
            tokio::time::sleep(ms(5)).await;
        };
        assert_eq!(value, Some(1));
    })
    .await;
}

#[tokio::test]
async fn slot_migration_does_not_fail_calls() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
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
    assert_eq!(cache.get("a").await.unwrap(), Some(1), "the key is still on the source");
    let mut migrate = cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(ports[to]).arg(&key).arg(0).arg(5_000);
    migrate.exec_async(&mut nodes[from]).await.unwrap();
    assert_eq!(cache.get("a").await.unwrap(), Some(1), "the read follows ASK to the destination");
    assert_eq!(cache.set("a".into(), 2).await.unwrap(), Some(1), "a script follows ASK too");

    for node in [to, from] {
        set_slot("NODE", &ids[to]).exec_async(&mut nodes[node]).await.unwrap();
    }
    assert_eq!(cache.set("a".into(), 3).await.unwrap(), Some(2), "the write follows MOVED");
    assert_eq!(cache.get("a").await.unwrap(), Some(3));
}

#[test]
fn lazy_client_connects_on_first_use() {
    // It does not even need a runtime.
    assert!(Client::lazy("redis://127.0.0.1:1").is_ok());
    assert!(Client::lazy(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]).is_ok());
    assert!(Client::lazy("redis+sentinel://127.0.0.1:1/main").is_ok());
    let error = Client::lazy("redis+sentinel://user:secret@127.0.0.1:1").unwrap_err();
    assert!(matches!(error, Error::Address(_)), "the service name is missing: {error:?}");
    assert!(!format!("{error} {error:?}").contains("secret"));
}

#[tokio::test]
async fn lazy_client_connects_to_a_server_that_starts_later() {
    in_time(async || {
        let mut server = Server::start();
        server.kill();
        let client = Client::builder(server.url()).timeout(short_timeout()).lazy().unwrap();
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
async fn concurrent_first_calls_of_a_lazy_client_share_one_connection() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder(proxy.url()).timeout(patience()).connect_timeout(patience());
    let client = builder.lazy().unwrap();
    let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let cache = cache.clone();
        callers.spawn(async move { cache.set(n.to_string(), n).await.unwrap() });
        // Calls that are cancelled at different points.
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
async fn set_credentials_changes_the_login_without_failing_calls() {
    in_time(async || {
        let server = Server::start_with(&["--requirepass", "one"]);
        let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
        let client = with_default_timeout(&url("one")).await;
        let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        let mut admin = plain(&url("one")).await;
        let mut change = cmd("CONFIG");
        change.arg("SET").arg("requirepass").arg("two").exec_async(&mut admin).await.unwrap();
        assert_eq!(cache.get("a").await.unwrap(), Some(1), "existing connections stay logged in");

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
        assert!(!error.is_temporary(), "a refused login is permanent: {error:?}");
        assert!(
            begin.elapsed() < ms(500),
            "a permanent error must not be retried: {:?}",
            begin.elapsed()
        );

        client.set_credentials(None, "two");
        assert_eq!(cache.set("a".into(), 3).await.unwrap(), Some(1));
        // Another user, during calls.
        let mut user = cmd("ACL");
        user.arg(&["SETUSER", "ada", "on", ">three", "~*", "&*", "+@all"]);
        user.exec_async(&mut admin).await.unwrap();
        client.set_credentials(Some("ada"), "three");
        let client_list = async || -> String {
            let mut list = cmd("CLIENT");
            list.arg("LIST").query_async(&mut admin.clone()).await.unwrap()
        };
        while !client_list().await.contains("user=ada") {
            cache.set("a".into(), 4).await.unwrap();
            assert!(begin.elapsed() < ms(5_000));
        }
        assert_eq!(cache.get("a").await.unwrap(), Some(4));
    })
    .await;
}

#[tokio::test]
async fn server_that_refuses_resp3_is_used_with_resp2() {
    in_time(async || {
        let without_hello = Server::start_with(&["--rename-command", "HELLO", ""]);
        let with_parameter = Server::start();
        for url in [without_hello.url(), format!("{}?protocol=2", with_parameter.url())] {
            let client = with_default_timeout(&url).await;
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
            until_limiter_reaches_server(&limiter).await;
            let list =
                cmd("CLIENT").arg("LIST").query_async(&mut with_parameter.plain().await).await;
            let list: String = list.unwrap();
            assert!(list.lines().all(|line| !line.contains("resp=3")), "{list}");
        }
    })
    .await;
}

async fn until_limiter_reaches_server(limiter: &RateLimiter<String>) {
    let begin = Instant::now();
    while limiter.peek("ada").await.is_err() {
        assert!(begin.elapsed() < ms(2_000));
    }
}
