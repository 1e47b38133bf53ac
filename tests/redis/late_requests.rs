//! Requests that a network delivers late, after the client has sent them again over another connection.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fleeting::redis::{Cache, CacheBuilder};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    loaders::{Gate, begin},
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Factor with which every hit is refreshed ahead.
const DUE: f64 = 1e15;

/// A proxy that records all requests.
struct Recorder {
    url: String,
    server: u16,
    requests: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<u8>>>::default();
        let recorded = requests.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((mut from, mut to_near), (mut replies, mut to)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(async move { copy(&mut replies, &mut to_near).await });
                let recorded = recorded.clone();
                tokio::spawn(async move {
                    let mut bytes = [0; 4 << 10];
                    while let Ok(n @ 1..) = from.read(&mut bytes).await {
                        recorded.lock().unwrap().extend(&bytes[..n]);
                        to.write_all(&bytes[..n]).await.unwrap();
                    }
                });
            }
        });
        Self { url, server, requests }
    }

    /// Sends all recorded requests to the server again, as if a network had delivered copies of them late.
    async fn deliver_late(&self) {
        let mut socket = TcpStream::connect(("127.0.0.1", self.server)).await.unwrap();
        let requests = self.requests.lock().unwrap().clone();
        socket.write_all(&requests).await.unwrap();
        socket.write_all(b"*2\r\n$4\r\nPING\r\n$4\r\nlast\r\n").await.unwrap();
        let mut replies = Vec::new();
        while !replies.ends_with(b"$4\r\nlast\r\n") {
            let read = timeout(patience(), socket.read_buf(&mut replies)).await;
            assert_ne!(read.expect("the server replies").unwrap(), 0);
        }
    }
}

/// Returns builders of a plain cache, one with events, and one with a stale window.
async fn builders(url: &str, name: &str) -> [CacheBuilder<String, u64>; 3] {
    let client = connect(url).await;
    // Longer than the test, so that the lease is not renewed.
    let builder = |kind: &str| Cache::builder(&client, &format!("{name}-{kind}")).lease(HOUR);
    [
        builder("plain"),
        builder("events").events(HOUR),
        builder("stale").stale_while_revalidate(HOUR),
    ]
}

#[tokio::test]
async fn lease_requested_late_does_not_let_a_load_undo_a_write() {
    let server = Server::shared();
    let recorder = Recorder::to(server.port()).await;
    let direct = builders(&server.url(), "late").await;
    for (builder, other) in builders(&recorder.url, "late").await.into_iter().zip(direct) {
        let (cache, other) = (builder.build().unwrap(), other.build().unwrap());
        let gate = Gate::default();
        let load = begin(&cache, "ada", &gate, 1);
        gate.has_begun().await;
        assert_eq!(other.remove("ada").await.unwrap(), None);
        recorder.deliver_late().await;
        gate.open();
        assert_eq!(load.await.unwrap().unwrap(), 1);
        assert_eq!(other.get("ada").await.unwrap(), None, "the load began before the removal");
        // The lease that was granted late does not delay the next load.
        let next = timeout(patience(), other.get_or_set_with("ada", HOUR, async || 2)).await;
        assert_eq!(next.expect("no lease is held").unwrap(), 2);
    }
}

#[tokio::test]
async fn refresh_requested_late_does_not_undo_a_write() {
    let server = Server::shared();
    let recorder = Recorder::to(server.port()).await;
    let direct = builders(&server.url(), "late-ahead").await;
    for (builder, other) in builders(&recorder.url, "late-ahead").await.into_iter().zip(direct) {
        let cache = builder.refresh_ahead(DUE).build().unwrap();
        let other = other.build().unwrap();
        // So that the process knows the duration of loads.
        cache.get_or_set_with("warm", HOUR, async || 1).await.unwrap();
        for write in ["persistent", "short"] {
            other.set_ex("ada".into(), 1, HOUR).await.unwrap();
            let gate = Gate::default();
            let loader = {
                let gate = gate.clone();
                move || gate.load(2)
            };
            assert_eq!(cache.get_or_set_with("ada", HOUR, loader).await.unwrap(), 1);
            gate.has_begun().await;
            match write {
                "persistent" => other.set("ada".into(), 3).await.unwrap(),
                _ => other.set_ex("ada".into(), 3, HOUR / 120).await.unwrap(),
            };
            recorder.deliver_late().await;
            gate.open();
            sleep(Duration::from_millis(30)).await;
            assert_eq!(other.get("ada").await.unwrap(), Some(3), "{write}");
        }
    }
}
