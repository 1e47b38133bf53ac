//! Connecting to a server, to a cluster, and to none.

#[path = "common/redis.rs"]
mod servers;

use std::time::{Duration, Instant};

use fleeting::redis::{Client, Error};
use servers::{Cluster, Server};

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
