//! Tests of the example `service`: two instances on one Redis server are one service.

use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::sleep;

use crate::{clock::in_time, example::Service, http::Client, patience::patience, servers::Server};

struct Instance {
    service: Service,
    client: Client,
}

impl Instance {
    fn start(server: &Server, args: &[&str]) -> Self {
        let url = server.url();
        let args = [&["--redis", &url], args].concat();
        Self { service: Service::start_with(&args), client: Client::new() }
    }

    async fn send(&self, method: Method, path: &str, body: &'static str) -> (StatusCode, String) {
        let request = self.client.request(method, format!("{}{path}", self.service.url));
        let response = request.body(body).send().await;
        (response.status(), response.text().await)
    }

    async fn put(&self, path: &str, body: &'static str) -> StatusCode {
        self.send(Method::PUT, path, body).await.0
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.send(Method::GET, path, "").await
    }

    async fn stats(&self) -> Value {
        let (status, stats) = self.get("/stats").await;
        assert_eq!(status, StatusCode::OK, "{stats}");
        serde_json::from_str(&stats).expect("stats are JSON")
    }

    async fn handled(&self) -> u64 {
        self.stats().await["expired"].as_u64().expect("a number")
    }
}

async fn until_handled(instances: [&Instance; 2], expected: u64) -> [u64; 2] {
    let begin = Instant::now();
    loop {
        let handled = [instances[0].handled().await, instances[1].handled().await];
        if handled[0] + handled[1] >= expected {
            return handled;
        }
        assert!(begin.elapsed() < 5 * patience(), "{handled:?} of {expected}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn sessions_are_shared_by_both_instances() {
    let server = Server::start();
    let (a, b) = (Instance::start(&server, &[]), Instance::start(&server, &[]));
    assert_eq!(a.put("/sessions/ada?ttl=3600", "hello").await, StatusCode::CREATED);
    assert_eq!(b.put("/sessions/ada?ttl=3600", "hullo").await, StatusCode::NO_CONTENT);
    assert_eq!(a.get("/sessions/ada").await, (StatusCode::OK, "hullo".into()));
    assert_eq!(a.get("/sessions/ada/ttl").await, (StatusCode::OK, r#"{"ttl":3600}"#.into()));
    assert_eq!(b.put("/sessions/eve", "for long").await, StatusCode::CREATED);
    assert_eq!(a.get("/sessions/eve").await, (StatusCode::OK, "for long".into()));
    assert_eq!(a.get("/sessions/eve/ttl").await.1, r#"{"ttl":31536000}"#);
    assert_eq!(b.send(Method::DELETE, "/sessions/ada", "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(a.get("/sessions/ada").await.0, StatusCode::NOT_FOUND);
    assert_eq!(a.send(Method::DELETE, "/sessions/ada", "").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn each_expiration_is_streamed_by_both_instances_and_handled_by_one() {
    in_time(async || {
        let server = Server::start();
        let (a, mut b) = (Instance::start(&server, &[]), Instance::start(&server, &[]));
        let streams = [&a, &b].map(|instance| format!("{}/events", instance.service.url));
        let mut streams = {
            let [a, b] = streams.map(|url| Client::new().get(url).send());
            [a.await, b.await]
        };
        for n in 0..100 {
            let path = format!("/sessions/{n}?ttl=0.5");
            let instance = if n % 2 == 0 { &a } else { &b };
            assert_eq!(instance.put(&path, "x").await, StatusCode::CREATED);
        }
        let handled = until_handled([&a, &b], 100).await;
        println!("handled: {handled:?}");
        for stream in &mut streams {
            let mut text = String::new();
            while text.matches("event: expired").count() < 100 {
                let piece = tokio::time::timeout(5 * patience(), stream.chunk()).await.unwrap();
                text += std::str::from_utf8(&piece.expect("the stream has not ended")).unwrap();
            }
            assert!((0..100).all(|n| text.contains(&format!("\"key\":\"{n}\""))));
        }
        sleep(Duration::from_millis(500)).await;
        assert_eq!(
            until_handled([&a, &b], 100).await.iter().sum::<u64>(),
            100,
            "an event was handled twice"
        );

        // After a kill, the other instance handles the expirations.
        let before = a.handled().await;
        for n in 0..20 {
            assert_eq!(a.put(&format!("/sessions/{n}?ttl=1"), "x").await, StatusCode::CREATED);
        }
        b.service.signal("KILL");
        b.service.wait(5 * patience());
        let begin = Instant::now();
        while a.handled().await < before + 20 {
            assert!(begin.elapsed() < 5 * patience(), "{} of 20", a.handled().await - before);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(a.handled().await, before + 20);
    })
    .await;
}

#[tokio::test]
async fn limits_are_shared_by_both_instances() {
    in_time(async || {
        let server = Server::start();
        let args = ["--per-session", "50", "--per-client", "130"];
        let (a, b) = (Instance::start(&server, &args), Instance::start(&server, &args));
        let mut passed = 0;
        for n in 0..80 {
            let instance = if n % 2 == 0 { &a } else { &b };
            match instance.get("/sessions/ada").await.0 {
                StatusCode::NOT_FOUND => passed += 1,
                status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
            }
        }
        assert_eq!(passed, 50, "requests for the session");
        // The client has already sent 80 of its 130 requests.
        let mut passed = 0;
        for n in 0..80 {
            let instance = if n % 2 == 0 { &a } else { &b };
            match instance.get(&format!("/sessions/{n}")).await.0 {
                StatusCode::NOT_FOUND => passed += 1,
                status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
            }
        }
        assert_eq!(passed, 50, "requests of the client");
    })
    .await;
}

#[tokio::test]
async fn unreachable_server_is_a_503_until_it_is_back() {
    in_time(async || {
        let mut server = Server::durable();
        let instance = Instance::start(&server, &[]);
        assert_eq!(instance.put("/sessions/ada", "hello").await, StatusCode::CREATED);
        server.kill();
        let (status, body) = instance.get("/sessions/ada").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
        assert!(body.contains("error"), "{body}");
        server.restart();
        let begin = Instant::now();
        while instance.get("/sessions/ada").await != (StatusCode::OK, "hello".into()) {
            assert!(begin.elapsed() < 5 * patience());
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}
