//! Tests of the example `graceful_shutdown`, over real sockets.

use std::fs;

use axum::http::{Method, header::RETRY_AFTER};
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;

use crate::{
    directory::{elements, scratch},
    guide::shown,
    http::Client,
    server::Server,
};

#[tokio::test]
async fn sigterm_ends_requests_waiters_and_streams_and_loses_no_event() {
    let dir = scratch();
    let queue = dir.path().join("ended");
    let mut server =
        Server::start("graceful_shutdown", &["127.0.0.1:0", queue.to_str().expect("UTF-8")]);
    let client = Client::new();
    let put = async |user: &str| {
        let url = format!("{}/sessions/{user}", server.url);
        assert_eq!(client.request(Method::PUT, url).send().await.status(), 200, "{user}");
    };

    let mut events = client.get(format!("{}/events", server.url)).send().await;
    put("ada").await;
    let event = events.chunk().await.expect("the stream has not ended");
    assert_eq!(event, "data: ada\n\n");

    // This session expires within one second, and so while a report is still being written.
    put("bob").await;
    let report = async || client.get(format!("{}/reports/eve", server.url)).send().await;
    let mut reports: FuturesUnordered<_> = (0..3).map(|_| report()).collect();
    // Of three requests, one is in flight, one waits for its turn, and one is denied because another waits. So when it
    // is denied, the others have arrived.
    let mut statuses = Vec::new();
    while let Some(response) = reports.next().await {
        match response.status().as_u16() {
            429 => server.terminate(),
            503 => assert!(response.headers().contains_key(RETRY_AFTER)),
            _ => {}
        }
        statuses.push(response.status().as_u16());
    }
    drop(reports);
    statuses.sort();
    assert_eq!(statuses, [200, 429, 503], "the request in flight ends, the waiter is answered");
    while let Some(event) = events.chunk().await {
        assert_eq!(event, "data: bob\n\n", "the stream ends");
    }

    assert_eq!(server.wait().code(), Some(0));
    let mut keys: Vec<_> = elements(&queue)
        .into_iter()
        .map(|path| fs::read(path).expect("the element is a file"))
        .map(|element| serde_json::from_slice::<Value>(&element).expect("JSON")["key"].clone())
        .collect();
    keys.sort_by_key(Value::to_string);
    assert_eq!(keys, ["ada", "bob"], "the spool has written all events");
}

/// The page shows `serve` and everything that it uses, with hidden lines that run it as a doc test.
#[test]
fn guide_shows_the_program_of_the_example() {
    let page = include_str!("../../src/guide/graceful_shutdown.md");
    let example = include_str!("../../examples/graceful_shutdown.rs");
    assert!(example.contains(&shown(page, 0)), "the page and the example differ");
}
