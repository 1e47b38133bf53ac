//! Connecting to a server, to a cluster, and to none.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client, Error};
use redis::{aio::MultiplexedConnection, cmd};

use crate::{
    clock::{in_time, ms},
    servers::{Cluster, Server},
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
