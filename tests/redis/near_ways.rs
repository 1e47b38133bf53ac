//! A near cache on other ways to its server than a plain connection: encrypted, and by sentinels.

use std::time::Instant;

use fleeting::redis::{Cache, Client};

use crate::{
    clock::ms,
    near::{PATIENCE, keep, lasting, until},
    servers::{Proxy, Sentinel, Server, connect},
};

#[tokio::test]
async fn what_is_encrypted_is_kept_and_told_of_too() {
    let (server, port) = Server::start_encrypted();
    let proxy = Proxy::to(port).await;
    let port = proxy.url().rsplit(':').next().unwrap().to_owned();
    let client = Client::builder(format!("rediss://localhost:{port}"))
        .authority(std::fs::read("tests/data/tls/authority.pem").unwrap())
        .timeout(PATIENCE)
        .connect()
        .await
        .unwrap();
    let near = lasting(&client, "tls").build().unwrap();
    let other: Cache<String, u64> = Cache::new(&connect(server.url()).await, "tls").unwrap();
    let keys = ["ada", "bob"];
    for n in 0..20 {
        other.set("ada".into(), n).await.unwrap();
        until("what was set", async || keep(&near, "ada").await == Some(n)).await;
        near.set("bob".into(), n).await.unwrap();
        assert_eq!(near.get("bob").await.unwrap(), Some(n));
        assert_eq!(near.get_many(keys).await.unwrap(), [Some(n), Some(n)]);
    }
    assert!(near.stats().invalidations >= 20);
    // What is cut, and what goes silent.
    for (n, is_cut) in [(100, true), (101, false)] {
        assert!(keep(&near, "ada").await.is_some());
        if is_cut {
            proxy.cut()
        } else {
            proxy.silence()
        }
        other.set("ada".into(), n).await.unwrap();
        until("the change", async || near.get("ada").await.unwrap() == Some(n)).await;
        assert_eq!(keep(&near, "ada").await, Some(n));
    }
}

#[tokio::test]
async fn the_new_master_of_sentinels_tells() {
    a_new_master_tells("demoted").await;
}

#[tokio::test]
async fn that_of_a_master_that_is_killed_tells() {
    a_new_master_tells("killed").await;
}

/// It comes back, as if it were the master still.
#[tokio::test]
async fn that_of_a_master_that_is_stopped_tells() {
    a_new_master_tells("stopped").await;
}

async fn a_new_master_tells(way: &str) {
    let mut master = Server::start();
    let replica = Server::replica_of(&master);
    let sentinel = Sentinel::of(&master);
    sentinel.knows_replicas(1);
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    let near = lasting(&connect(url).await, "s").build().unwrap();
    let there = Cache::<String, u64>::new(&connect(master.url()).await, "s").unwrap();
    there.set("ada".into(), 1).await.unwrap();
    near.set("bob".into(), 1).await.unwrap();
    for key in ["ada", "bob"] {
        until(key, async || keep(&near, key).await == Some(1)).await;
    }
    // What is not there yet is lost with the master.
    until("the replica", async || replica.ask("DBSIZE") == ":2\r\n").await;
    match way {
        "demoted" => sentinel.fail_over(),
        "killed" => master.kill(),
        _ => master.pause(),
    }
    until("a new master", async || sentinel.master() == replica.port()).await;
    if way == "demoted" {
        // The sentinel says so too, after 8 s, and cuts the connections.
        assert!(master.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port())).starts_with("+OK"));
    }
    let there = Cache::<String, u64>::new(&connect(replica.url()).await, "s").unwrap();
    there.set("ada".into(), 2).await.unwrap();
    let begin = Instant::now();
    loop {
        // Until the silence is noticed it may be answered from what is kept.
        match near.get("ada").await {
            Ok(Some(2)) => break,
            Ok(value) => assert_eq!(value, Some(1), "{way}"),
            Err(error) => assert!(error.is_temporary(), "{way}: {error:?}"),
        }
        assert!(begin.elapsed() < PATIENCE, "{way}");
        tokio::time::sleep(ms(1)).await;
    }
    if way == "stopped" {
        master.resume();
    }
    for n in 3..50 {
        assert_eq!(near.get("ada").await.unwrap(), Some(n - 1), "{way}");
        there.set("ada".into(), n).await.unwrap();
        until("the change", async || near.get("ada").await.unwrap() == Some(n)).await;
        assert_eq!(keep(&near, "ada").await, Some(n), "{way}");
        near.set("bob".into(), n).await.unwrap();
        assert_eq!(near.get("bob").await.unwrap(), Some(n), "{way}");
    }
    assert_eq!(there.get("bob").await.unwrap(), Some(49), "{way}");
}
