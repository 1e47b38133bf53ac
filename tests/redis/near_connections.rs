//! Near caches over other connections than plain TCP: TLS and Sentinel.

use std::time::Instant;

use fleeting::redis::{Cache, Client};

use crate::{
    clock::{in_time, ms},
    near::{lasting, read_near, until},
    patience::patience,
    servers::{Proxy, Sentinel, Server, connect},
};

#[tokio::test]
async fn near_cache_works_over_tls() {
    let (server, port) = Server::start_encrypted();
    let proxy = Proxy::to(port).await;
    let port = proxy.url().rsplit(':').next().unwrap().to_owned();
    let client = Client::builder(format!("rediss://localhost:{port}"))
        .authority(std::fs::read("tests/data/tls/authority.pem").unwrap())
        .timeout(patience())
        .connect()
        .await
        .unwrap();
    let near = lasting(&client, "tls").build().unwrap();
    let other: Cache<String, u64> = Cache::new(&connect(server.url()).await, "tls").unwrap();
    let keys = ["ada", "bob"];
    for n in 0..20 {
        other.set("ada".into(), n).await.unwrap();
        until("what was set", async || read_near(&near, "ada").await == Some(n)).await;
        near.set("bob".into(), n).await.unwrap();
        assert_eq!(near.get("bob").await.unwrap(), Some(n));
        assert_eq!(near.get_many(keys).await.unwrap(), [Some(n), Some(n)]);
    }
    assert!(near.stats().invalidations >= 20);
    // A closed connection, and one that goes silent.
    for (n, is_cut) in [(100, true), (101, false)] {
        assert!(read_near(&near, "ada").await.is_some());
        if is_cut {
            proxy.cut()
        } else {
            proxy.silence()
        }
        other.set("ada".into(), n).await.unwrap();
        until("the change", async || near.get("ada").await.unwrap() == Some(n)).await;
        assert_eq!(read_near(&near, "ada").await, Some(n));
    }
}

#[tokio::test]
async fn near_cache_follows_a_sentinel_failover() {
    in_time(async || check_failover("demoted").await).await;
}

#[tokio::test]
async fn near_cache_follows_a_failover_from_a_killed_master() {
    in_time(async || check_failover("killed").await).await;
}

/// The stopped master resumes as if it were still the master.
#[tokio::test]
async fn near_cache_follows_a_failover_from_a_stopped_master() {
    in_time(async || check_failover("stopped").await).await;
}

async fn check_failover(way: &str) {
    let mut master = Server::start();
    let replica = Server::replica_of(&master);
    let sentinel = Sentinel::of(&master);
    sentinel.knows_replicas(1);
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    let near = lasting(&connect(url).await, "s").build().unwrap();
    let other = Cache::<String, u64>::new(&connect(master.url()).await, "s").unwrap();
    other.set("ada".into(), 1).await.unwrap();
    near.set("bob".into(), 1).await.unwrap();
    for key in ["ada", "bob"] {
        until(key, async || read_near(&near, key).await == Some(1)).await;
    }
    // Writes that were not replicated yet would be lost with the master.
    until("the replica", async || replica.ask("DBSIZE") == ":2\r\n").await;
    match way {
        "demoted" => sentinel.fail_over(),
        "killed" => master.kill(),
        _ => master.pause(),
    }
    until("a new master", async || sentinel.master() == replica.port()).await;
    if way == "demoted" {
        // The sentinel does so too, but only after 8 s, and closes the connections.
        assert!(master.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port())).starts_with("+OK"));
    }
    let other = Cache::<String, u64>::new(&connect(replica.url()).await, "s").unwrap();
    other.set("ada".into(), 2).await.unwrap();
    let begin = Instant::now();
    loop {
        // Until the client notices the silence, the near answer may be returned.
        match near.get("ada").await {
            Ok(Some(2)) => break,
            Ok(value) => assert_eq!(value, Some(1), "{way}"),
            Err(error) => assert!(error.is_temporary(), "{way}: {error:?}"),
        }
        assert!(begin.elapsed() < patience(), "{way}");
        tokio::time::sleep(ms(1)).await;
    }
    if way == "stopped" {
        master.resume();
    }
    for n in 3..50 {
        assert_eq!(near.get("ada").await.unwrap(), Some(n - 1), "{way}");
        other.set("ada".into(), n).await.unwrap();
        until("the change", async || near.get("ada").await.unwrap() == Some(n)).await;
        assert_eq!(read_near(&near, "ada").await, Some(n), "{way}");
        near.set("bob".into(), n).await.unwrap();
        assert_eq!(near.get("bob").await.unwrap(), Some(n), "{way}");
    }
    assert_eq!(other.get("bob").await.unwrap(), Some(49), "{way}");
}
