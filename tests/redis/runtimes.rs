//! Clients shared by several runtimes, some of which were shut down or are no longer driven.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use crate::patience::patience;
use crate::servers::Server;

/// Creates a runtime whose tasks run only during `block_on`.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn client_works_after_its_runtime_was_shut_down() {
    let server = Server::start();
    let client = Client::builder(server.url()).timeout(patience()).lazy().unwrap();
    for n in 0..3 {
        runtime().block_on(async {
            let cache: Cache<String, u32> = Cache::new(&client, "numbers").unwrap();
            // The connection was closed with its runtime; the first call may detect that and fail.
            let _ = cache.get("a").await;
            cache.set("a".into(), n).await.unwrap();
            assert_eq!(cache.get("a").await.unwrap(), Some(n));
        });
    }
}

/// Work that was begun on the stopped runtime: an attempt to connect, a probe, a read of a near cache.
#[test]
fn unfinished_work_of_a_stopped_runtime_does_not_block_callers() {
    let server = Server::start();
    let (stopped, other) = (runtime(), runtime());
    for (is_connected, is_near) in [(false, false), (true, false), (true, true)] {
        let limit = Duration::from_millis(300);
        let client = Client::builder(server.url()).timeout(limit).connect_timeout(limit);
        let client = client.lazy().unwrap();
        let builder = Cache::<String, u32>::builder(&client, "numbers");
        let cache = if is_near { builder.near(10) } else { builder }.build().unwrap();
        let begin = Instant::now();
        while is_connected && stopped.block_on(cache.set("a".into(), 1)).is_err() {
            assert!(begin.elapsed() < patience());
        }
        server.pause();
        stopped.block_on(async {
            let moment = Duration::from_millis(20);
            assert!(
                timeout(moment, cache.get("a")).await.is_err(),
                "a stopped server does not answer"
            );
        });
        server.resume();
        other.block_on(async {
            let begin = Instant::now();
            while timeout(patience(), cache.get("a"))
                .await
                .expect("the call has a timeout")
                .is_err()
            {
                assert!(
                    begin.elapsed() < patience(),
                    "no call succeeded; connected: {is_connected}, near: {is_near}"
                );
            }
            while cache.set("a".into(), 2).await.is_err() {
                assert!(
                    begin.elapsed() < patience(),
                    "no call succeeded; connected: {is_connected}, near: {is_near}"
                );
            }
        });
    }
}
