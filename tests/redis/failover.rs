//! Failover: masters that stop or are replaced, behind sentinels and in a cluster.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client, Error};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Sentinel, Server},
};

/// Time within which a client finds the new master, once there is one.
fn recovery() -> Duration {
    ms(2_000)
}

/// The default timeout of a client.
fn client_timeout() -> Duration {
    ms(1_000)
}

async fn cache(urls: impl fleeting::redis::Urls) -> Cache<String, u64> {
    let client = Client::builder(urls).timeout(client_timeout()).connect().await.unwrap();
    Cache::new(&client, "c").unwrap()
}

/// Repeats a `set` until it succeeds. Returns the time that this took from the moment at which `since` returned true.
async fn until_set(cache: &Cache<String, u64>, key: &str, since: impl Fn() -> bool) -> Duration {
    let mut begin = None;
    loop {
        if begin.is_none() && since() {
            begin = Some(Instant::now());
        }
        match cache.set(key.into(), 7).await {
            Ok(_) => return begin.map_or(Duration::ZERO, |begin| begin.elapsed()),
            Err(error) => assert!(error.is_temporary(), "{error:?}"),
        }
        assert!(begin.is_none_or(|begin| begin.elapsed() < patience()), "no call succeeded");
        sleep(ms(5)).await;
    }
}

#[tokio::test]
async fn client_finds_the_new_master_through_sentinels() {
    in_time(async || {
        let master = Server::start();
        let replica = Server::replica_of(&master);
        let sentinel = Sentinel::of(&master);
        sentinel.knows_replicas(1);
        // The first sentinel is down.
        let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/main", sentinel.port());
        let lazy = Client::builder(&*url).timeout(client_timeout()).lazy().unwrap();
        let lazy: Cache<String, u64> = Cache::new(&lazy, "c").unwrap();
        let cache = cache(url).await;
        cache.set("a".into(), 1).await.unwrap();
        // Waits for the replica: writes that the old master accepts after the failover are lost.
        while replica.ask("KEYS *") == "*0\r\n" {
            sleep(ms(10)).await;
        }
        sentinel.fail_over();
        let took = until_set(&cache, "a", || sentinel.master() == replica.port()).await;
        assert!(took < recovery(), "{took:?}");
        assert_eq!(lazy.get("a").await.unwrap(), Some(7));
        assert_ne!(replica.ask("KEYS *"), "*0\r\n");
    })
    .await;
}

#[tokio::test]
async fn service_unknown_to_the_sentinels_is_an_error() {
    let master = Server::start();
    let sentinel = Sentinel::of(&master);
    let url = format!("redis+sentinel://127.0.0.1:{}/other", sentinel.port());
    let error = Client::connect(url).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error:?}");
    // A server in place of a sentinel.
    let url = format!("redis+sentinel://127.0.0.1:{}/main", master.port());
    let error = Client::connect(url).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error:?}");
}

/// The login of the sentinels stays when that of the master changes.
#[tokio::test]
async fn sentinel_login_is_separate_from_the_master_login() {
    in_time(async || {
        let master = Server::start_with(&["--requirepass", "one"]);
        let sentinel = Sentinel::with(&master, "requirepass two/2+2==\nsentinel auth-pass main one");
        let url = |master_login: &str, sentinel_password: &str| {
            let port = sentinel.port();
            format!(
                "redis+sentinel://{master_login}127.0.0.1:{port}/main?sentinel_password={sentinel_password}"
            )
        };
        for wrong in [url(":one@", "one"), url(":two@", "two/2+2=="), url("", "two/2+2==")] {
            let error = Client::builder(&*wrong).timeout(client_timeout()).connect().await.unwrap_err();
            assert!(matches!(error, Error::Connect(_)) && !error.is_temporary(), "{error:?}");
        }
        let client = Client::builder(url(":one@", "two/2+2==")).timeout(client_timeout());
        let client = client.connect().await.unwrap();
        let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        let plain = redis::Client::open(format!("redis://:one@127.0.0.1:{}", master.port()));
        let mut plain = plain.unwrap().get_connection().unwrap();
        let set = ["SET", "requirepass", "three"];
        let () = redis::cmd("CONFIG").arg(&set).query(&mut plain).unwrap();
        client.set_credentials(None, "three");
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut plain).unwrap();
        let took = until_set(&cache, "a", || true).await;
        assert!(took < recovery(), "{took:?}");
        // The sentinels get the same password as the master.
        let url = format!("redis://:two%2F2+2==@127.0.0.1:{}", sentinel.port());
        let mut plain_sentinel = redis::Client::open(url).unwrap().get_connection().unwrap();
        let set = ["SETUSER", "default", "resetpass", ">three"];
        let () = redis::cmd("ACL").arg(&set).query(&mut plain_sentinel).unwrap();
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut plain).unwrap();
        let took = until_set(&cache, "a", || true).await;
        assert!(took < recovery(), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn cluster_client_finds_a_promoted_replica() {
    let mut cluster = Cluster::start();
    let replicas = cluster.add_replicas(2);
    let cache = cache(cluster.urls()).await;
    let mut keys: Vec<Option<String>> = vec![None; 3];
    for n in 0.. {
        let key = format!("k{n}");
        cache.set(key.clone(), n).await.unwrap();
        for (at, node) in cluster.nodes().iter().enumerate() {
            if keys[at].is_none() && node.ask("KEYS *").contains(&format!(":{key}\r\n")) {
                keys[at] = Some(key.clone());
            }
        }
        if keys.iter().all(Option::is_some) {
            break;
        }
    }
    let keys: Vec<String> = keys.into_iter().map(Option::unwrap).collect();
    for (master, replica) in replicas.iter().enumerate() {
        // A killed node closes its connections; a stopped one behaves like a network that drops all packets.
        if master == 0 {
            cluster.nodes()[master].kill();
        } else {
            cluster.nodes()[master].pause();
        }
        let error = cache.set(keys[master].clone(), 1).await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
        for key in keys.iter().filter(|key| **key != keys[master]) {
            cache.get(key.as_str()).await.expect("other nodes are not affected");
        }
        assert!(replica.ask("CLUSTER FAILOVER TAKEOVER").starts_with("+OK"));
        until_set(&cache, &keys[master], || true).await;
        assert_eq!(cache.get(keys[master].as_str()).await.unwrap(), Some(7));
    }
}

#[tokio::test]
async fn cluster_client_finds_a_promoted_replica_without_a_call() {
    in_time(async || {
        let mut cluster = Cluster::start();
        let replica = cluster.add_replicas(1).remove(0);
        let cache = cache(cluster.urls()).await;
        let mut key = None;
        for n in 0.. {
            let candidate = format!("k{n}");
            cache.set(candidate.clone(), n).await.unwrap();
            if cluster.nodes()[0].ask("KEYS *").contains(&format!(":{candidate}\r\n")) {
                key = Some(candidate);
            }
            // All nodes have been used.
            if n > 30 && key.is_some() {
                break;
            }
        }
        cluster.nodes()[0].kill();
        // Longer than the timeout, so that the server counts as unreachable.
        sleep(ms(1_500)).await;
        // Unless it has become the master by itself.
        replica.ask("CLUSTER FAILOVER TAKEOVER");
        let port = format!(":{}@", replica.port());
        let is_master = |line: &str| line.contains(&port) && line.contains("master");
        let begin = Instant::now();
        for node in &cluster.nodes()[1..] {
            while !node.ask("CLUSTER NODES").lines().any(is_master) {
                assert!(begin.elapsed() < patience(), "the replica is not known as a master");
                sleep(ms(10)).await;
            }
        }
        sleep(recovery()).await;
        cache.set(key.unwrap(), 7).await.unwrap();
    })
    .await;
}
