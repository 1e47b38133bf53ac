//! Clients that several runtimes share, of which some are gone, or are not driven any more.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use crate::servers::Server;

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// Its tasks run while somebody blocks on it, and no longer.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_client_lives_longer_than_the_runtime_it_was_made_on() {
    let server = Server::start();
    let client = Client::lazy(server.url()).unwrap();
    for n in 0..3 {
        runtime().block_on(async {
            let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
            // The connection is gone with its runtime, which the first call finds out.
            let _ = cache.get("a").await;
            cache.set("a".into(), n).await.unwrap();
            assert_eq!(cache.get("a").await.unwrap(), Some(n));
        });
    }
}

/// What was begun there and not ended: an attempt to connect, a doubt, a question of a near cache.
#[test]
fn what_a_runtime_left_undone_keeps_nobody_waiting_for_ever() {
    let server = Server::start();
    let (left, other) = (runtime(), runtime());
    for (is_connected, is_near) in [(false, false), (true, false), (true, true)] {
        let limit = Duration::from_millis(300);
        let client = Client::builder(server.url()).timeout(limit).connect_timeout(limit);
        let client = client.lazy().unwrap();
        let builder = Cache::<String, u32>::builder(&client, "numbers");
        let cache = if is_near { builder.near(10) } else { builder }.build().unwrap();
        let begin = Instant::now();
        while is_connected && left.block_on(cache.set("a".into(), 1)).is_err() {
            assert!(begin.elapsed() < PATIENCE);
        }
        server.pause();
        left.block_on(async {
            let moment = Duration::from_millis(20);
            assert!(timeout(moment, cache.get("a")).await.is_err(), "nobody answers");
        });
        server.resume();
        other.block_on(async {
            let begin = Instant::now();
            while timeout(PATIENCE, cache.get("a")).await.expect("it has a timeout").is_err() {
                assert!(begin.elapsed() < PATIENCE, "{is_connected}, {is_near}: never");
            }
            while cache.set("a".into(), 2).await.is_err() {
                assert!(begin.elapsed() < PATIENCE, "{is_connected}, {is_near}: never");
            }
        });
    }
}
