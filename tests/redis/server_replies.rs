//! Error replies of servers and the errors that they are mapped to.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client, Error};
use redis::cmd;

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::Server,
};

/// Timeout of the client, short because the tests wait for it.
fn short_timeout() -> Duration {
    ms(200)
}

/// Returns the error of a call. It is repeated while its last attempt had no reply before the timeout, as on a late
/// machine.
async fn error_of<T: Debug>(call: impl AsyncFn() -> Result<T, Error>) -> Error {
    let begin = Instant::now();
    loop {
        match call().await.unwrap_err() {
            Error::Unanswered(_) => assert!(begin.elapsed() < patience()),
            error => return error,
        }
    }
}

/// See the table in the docs of [`Error`].
#[tokio::test]
async fn error_replies_map_to_the_documented_errors() {
    in_time(async || {
        let unavailable = |error: &Error| matches!(error, Error::Unavailable(_));
        let refused = |error: &Error| matches!(error, Error::Server(_));
        let connect = async |server: &Server, cluster| {
            let client = Client::builder(server.url()).timeout(short_timeout()).cluster(cluster);
            let client = client.connect().await.unwrap();
            Cache::<String, u32>::new(&client, "numbers").unwrap()
        };

        let server = Server::start_with(&["--min-replicas-to-write", "1"]);
        let cache = connect(&server, false).await;
        let error = error_of(async || cache.set("a".into(), 1).await).await;
        assert!(unavailable(&error) && error.is_temporary(), "NOREPLICAS: {error:?}");

        let server = Server::start_with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
        let cache = connect(&server, false).await;
        let error = error_of(async || cache.set("a".into(), 1).await).await;
        assert!(refused(&error) && !error.is_temporary(), "OOM: {error:?}");

        let server = Server::start_with(&["--save", "3600 1", "--dbfilename", "taken"]);
        let cache = connect(&server, false).await;
        cache.set("a".into(), 1).await.unwrap();
        let folder = server.ask("CONFIG GET dir").lines().last().unwrap().to_owned();
        std::fs::create_dir_all(format!("{folder}/taken/by this")).unwrap();
        server.ask("BGSAVE");
        let begin = Instant::now();
        let error = loop {
            match cache.set("a".into(), 1).await {
                Ok(_) => assert!(begin.elapsed() < patience()),
                Err(error) => break error,
            }
        };
        assert!(refused(&error) && !error.is_temporary(), "MISCONF: {error:?}");

        let server = Server::start();
        server.ask("ACL SETUSER default -set");
        let cache = connect(&server, false).await;
        let error = error_of(async || cache.set("a".into(), 1).await).await;
        assert!(refused(&error) && !error.is_temporary(), "NOPERM: {error:?}");

        let server = Server::start_with(&["--replica-serve-stale-data", "no"]);
        let cache = connect(&server, false).await;
        server.ask("REPLICAOF 127.0.0.1 1");
        let error = error_of(async || cache.get("a").await).await;
        assert!(unavailable(&error) && error.is_temporary(), "MASTERDOWN: {error:?}");

        let server = Server::start_with(&["--lua-time-limit", "10"]);
        let cache = connect(&server, false).await;
        cache.set("a".into(), 1).await.unwrap();
        let port = server.port();
        let busy = std::thread::spawn(move || {
            let mut plain = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
            cmd("EVAL").arg("while true do end").arg(0).exec(&mut plain)
        });
        while !server.ask("PING").starts_with("-BUSY") {
            tokio::time::sleep(ms(5)).await;
        }
        let error = error_of(async || cache.set("a".into(), 1).await).await;
        assert!(unavailable(&error) && error.is_temporary(), "BUSY: {error:?}");
        let set = tokio::spawn({
            let cache = cache.clone();
            async move { cache.set("a".into(), 3).await }
        });
        tokio::time::sleep(short_timeout() / 4).await;
        server.ask("SCRIPT KILL");
        assert_eq!(
            set.await.unwrap().unwrap(),
            Some(1),
            "the call is retried until the script ends"
        );
        assert!(busy.join().unwrap().is_err());

        // A cluster with a single node.
        let server = Server::start_with(&["--cluster-enabled", "yes"]);
        server.ask("CLUSTER ADDSLOTSRANGE 0 16383");
        let begin = Instant::now();
        while !server.ask("CLUSTER INFO").contains("state:ok") {
            assert!(begin.elapsed() < patience());
        }
        let cache = connect(&server, true).await;
        cache.set("a".into(), 1).await.unwrap();
        server.ask("CLUSTER DELSLOTSRANGE 0 100");
        while server.ask("CLUSTER INFO").contains("state:ok") {
            assert!(begin.elapsed() < patience());
        }
        let error = error_of(async || cache.set("a".into(), 2).await).await;
        assert!(unavailable(&error) && error.is_temporary(), "CLUSTERDOWN: {error:?}");

        let server = Server::start_with(&["--requirepass", "secret"]);
        let error = Client::builder(server.url()).timeout(patience()).connect().await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)) && !error.is_temporary(), "NOAUTH: {error:?}");
        let wrong = format!("redis://:wrong@127.0.0.1:{}", server.port());
        let error = Client::builder(wrong).timeout(patience()).connect().await.unwrap_err();
        assert!(
            matches!(error, Error::Connect(_)) && !error.is_temporary(),
            "WRONGPASS: {error:?}"
        );

        let server = Server::start_with(&["--maxclients", "1"]);
        let _only = server.plain().await;
        for _ in 0..30 {
            let error =
                Client::builder(server.url()).timeout(patience()).connect().await.unwrap_err();
            assert!(
                matches!(&error, Error::Connect(cause) if cause.to_string().contains("max number of clients"))
                    && error.is_temporary(),
                "max number of clients: {error:?}"
            );
        }
        // A call whose timeout ends before its last attempt.
        let client = Client::builder(server.url()).timeout(short_timeout()).lazy().unwrap();
        let cache = Cache::<String, u32>::new(&client, "numbers").unwrap();
        let error = cache.get("a").await.unwrap_err();
        assert!(format!("{error:?}").contains("max number of clients"), "{error:?}");
    })
    .await;
}
