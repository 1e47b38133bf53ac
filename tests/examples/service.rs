//! Tests of the example `service`, over real sockets and on the real clock.

use std::{collections::HashSet, process::Command, time::Duration};

use axum::{
    body::Bytes,
    http::{Method, StatusCode, header},
};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};

use crate::{
    clock::{in_time, ms},
    example::{Service, example},
    http::{Client, Response},
    patience::patience,
    promtool::ask_promtool,
};

const SECOND: Duration = Duration::from_secs(1);

/// The running service and a client.
struct TestService {
    process: Service,
    client: Client,
}

impl TestService {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Self {
        Self { process: Service::start_with(args), client: Client::new() }
    }

    async fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Response {
        let url = format!("{}{path}", self.process.url);
        self.client.request(method, url).body(body).send().await
    }

    async fn put(&self, path: &str, body: impl Into<Bytes>) -> StatusCode {
        self.send(Method::PUT, path, body).await.status()
    }

    async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path, "").await
    }

    async fn delete(&self, path: &str) -> StatusCode {
        self.send(Method::DELETE, path, "").await.status()
    }

    /// Returns the session's body, or `None` if there is no session.
    async fn body(&self, path: &str) -> Option<Vec<u8>> {
        let response = self.get(path).await;
        match response.status() {
            StatusCode::OK => Some(response.bytes().await.to_vec()),
            StatusCode::NOT_FOUND => None,
            status => panic!("GET {path} returned {status}"),
        }
    }

    async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "GET {path}");
        response.json().await
    }

    async fn ttl(&self, id: &str) -> i64 {
        let ttl = self.json(&format!("/sessions/{id}/ttl")).await;
        ttl["ttl"].as_i64().unwrap_or_else(|| panic!("no integer ttl in {ttl}"))
    }

    /// Polls `/stats` until they fulfill `condition`.
    async fn wait_for_stats(&self, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let stats = self.json("/stats").await;
            if condition(&stats) {
                return stats;
            }
            assert!(
                start.elapsed() < 5 * patience(),
                "the stats never fulfilled the condition: {stats}"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Opens a stream of all expirations from now on.
    async fn events(&self) -> EventStream {
        let response = Client::new().get(format!("{}/events", self.process.url)).send().await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        EventStream { response, text: Vec::new() }
    }

    /// Opens a raw TCP connection.
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.process.address()).await.expect("the service accepts connections")
    }
}

/// A stream of Server-Sent Events.
struct EventStream {
    response: Response,
    text: Vec<u8>,
}

impl EventStream {
    /// Returns the name and the data of the next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(event) = take_event(&mut self.text) {
                return Some(event);
            }
            let piece = timeout(5 * patience(), self.response.chunk()).await;
            match piece.expect("an event arrives in time") {
                Some(piece) => self.text.extend(piece),
                None => {
                    assert_eq!(self.text, b"", "the stream ends within an event");
                    return None;
                }
            }
        }
    }

    async fn expired(&mut self) -> Value {
        let (name, data) = self.next().await.expect("the stream has not ended");
        assert_eq!(name, "expired", "with {data}");
        data
    }
}

/// Removes the first complete event from `text`, and the keep-alive comments before it.
fn take_event(text: &mut Vec<u8>) -> Option<(String, Value)> {
    loop {
        let end = text.windows(2).position(|two| two == b"\n\n")? + 2;
        let event: Vec<u8> = text.drain(..end).collect();
        let event = String::from_utf8(event).expect("events are UTF-8");
        let field = |name| event.lines().find_map(|line| line.strip_prefix(name));
        let (Some(name), Some(data)) = (field("event: "), field("data: ")) else {
            assert!(event.starts_with(':'), "neither an event nor a comment: {event:?}");
            continue;
        };
        let data = serde_json::from_str(data).expect("event data is JSON");
        return Some((name.to_owned(), data));
    }
}

/// Reads a raw connection to its end.
async fn rest(mut connection: TcpStream) -> String {
    let mut text = String::new();
    let read = timeout(5 * patience(), connection.read_to_string(&mut text)).await;
    read.expect("the connection is closed in time").expect("the connection is not reset");
    text
}

#[test]
fn first_lines_are_the_address_and_curl_commands() {
    let service = Service::start();
    for _ in 0..3 {
        let line = service.line();
        assert!(line.starts_with("curl "), "{line:?} is not a curl command");
        assert!(line.contains(&service.url), "{line:?} does not request {}", service.url);
    }
}

#[tokio::test]
async fn sessions_can_be_put_read_replaced_and_deleted() {
    let service = TestService::start();
    assert_eq!(service.body("/sessions/ada").await, None);
    let put = Instant::now();
    assert_eq!(service.put("/sessions/ada?ttl=100", "first").await, StatusCode::CREATED);
    assert_eq!(service.body("/sessions/ada").await.as_deref(), Some(&b"first"[..]));
    let (ttl, late) = (service.ttl("ada").await, put.elapsed().as_secs() as i64);
    assert!((100 - late..=100).contains(&ttl), "{ttl} s left, {late} s after the put");

    assert_eq!(service.put("/sessions/ada", "second").await, StatusCode::NO_CONTENT);
    assert_eq!(service.body("/sessions/ada").await.as_deref(), Some(&b"second"[..]));
    let ttl = service.ttl("ada").await;
    assert!((31_535_000..=31_536_000).contains(&ttl), "{ttl} s, expected the longest TTL");

    assert_eq!(service.delete("/sessions/ada").await, StatusCode::NO_CONTENT);
    assert_eq!(service.delete("/sessions/ada").await, StatusCode::NOT_FOUND);
    assert_eq!(service.get("/sessions/ada/ttl").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(service.body("/sessions/ada").await, None);
    assert_eq!(service.put("/sessions/ada", "third").await, StatusCode::CREATED);
}

#[tokio::test]
async fn bodies_are_returned_unchanged() {
    let service = TestService::start();
    let every_byte: Vec<u8> = (0..=255).collect();
    for body in [vec![], vec![0], every_byte.clone(), every_byte.repeat(4_096)] {
        service.put("/sessions/bytes?ttl=100", body.clone()).await;
        let back = service.body("/sessions/bytes").await;
        assert!(
            back.is_some_and(|back| back == body),
            "a body of {} bytes was changed",
            body.len()
        );
    }
    let response = service.get("/sessions/bytes").await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/octet-stream");
    assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
}

#[tokio::test]
async fn session_ids_are_any_text_up_to_256_bytes() {
    let service = TestService::start();
    let longest = "x".repeat(256);
    let ids = ["a%2Fb", "a%20b", "%E2%82%AC", "%00", "..%2F..", "%22", "ttl", &longest];
    for id in ids {
        let path = format!("/sessions/{id}");
        assert_eq!(
            service.put(&path, id.to_owned()).await,
            StatusCode::CREATED,
            "{id} is an id of its own"
        );
    }
    for id in ids {
        let body = service.body(&format!("/sessions/{id}")).await;
        assert_eq!(body.as_deref(), Some(id.as_bytes()));
    }
}

#[tokio::test]
async fn one_of_many_concurrent_puts_creates_the_session() {
    let service = TestService::start();
    let puts =
        join_all((0..40).map(|n| service.put("/sessions/race?ttl=100", n.to_string()))).await;
    let created = puts.iter().filter(|&&status| status == StatusCode::CREATED).count();
    let replaced = puts.iter().filter(|&&status| status == StatusCode::NO_CONTENT).count();
    assert_eq!((created, replaced), (1, 39));
}

#[tokio::test]
async fn read_restarts_the_ttl_of_the_put() {
    let service = TestService::start();
    service.put("/sessions/long?ttl=1000", "").await;
    service.put("/sessions/long?ttl=100", "").await;
    service.put("/sessions/endless?ttl=100", "").await;
    service.put("/sessions/endless", "").await;
    sleep(Duration::from_millis(1_100)).await;
    let before = service.ttl("long").await;
    assert!(before < 100, "{before} s left after 1 of 100");

    let read = Instant::now();
    assert!(service.body("/sessions/long").await.is_some());
    let (after, late) = (service.ttl("long").await, read.elapsed().as_secs() as i64);
    assert!((100 - late..=100).contains(&after), "{after} s left, {late} s after the read");
    assert!(service.body("/sessions/endless").await.is_some());
    assert!(service.ttl("endless").await > 31_535_000);
}

#[tokio::test]
async fn reads_keep_a_session_and_unread_sessions_expire_on_time() {
    in_time(async || {
        let service = TestService::start();
        // `ms` scales the TTLs on a slow machine.
        let (ttl, short) = (ms(3_000), ms(1_500));
        service.put(&format!("/sessions/read?ttl={}", ttl.as_secs_f64()), "").await;
        let before = Instant::now();
        service.put(&format!("/sessions/unread?ttl={}", short.as_secs_f64()), "").await;
        let after = Instant::now();
        let mut expired = None;
        while before.elapsed() < ttl * 4 / 3 {
            assert!(
                service.body("/sessions/read").await.is_some(),
                "a session expired although it was read"
            );
            // Requests of the TTL do not restart it.
            let requested = after.elapsed();
            if service.get("/sessions/unread/ttl").await.status() == StatusCode::NOT_FOUND {
                expired = expired.or(Some(before.elapsed()));
            }
            assert!(
                expired.is_some() || requested < short,
                "live {requested:?} after a put with a TTL of {short:?}"
            );
            sleep(short / 15).await;
        }
        let expired = expired.expect("the unread session has expired");
        assert!(expired >= short, "expired {expired:?} after a put with a TTL of {short:?}");
        assert_eq!(service.body("/sessions/unread").await, None);
    })
    .await;
}

#[tokio::test]
async fn every_ttl_in_the_range_is_accepted() {
    let service = TestService::start();
    for (given, left) in [("31536000", 31_536_000), ("99.5", 100), ("1e2", 100), ("100.000", 100)] {
        let put = Instant::now();
        assert_eq!(
            service.put(&format!("/sessions/{given}?ttl={given}"), "").await,
            StatusCode::CREATED
        );
        // The TTL is rounded up to seconds, so the given number is exact only within the first second.
        let (ttl, late) = (service.ttl(given).await, put.elapsed().as_secs() as i64);
        assert!(
            (left - 2 - late..=left).contains(&ttl),
            "{ttl} s left after a put with a TTL of {given}"
        );
    }
    assert_eq!(service.put("/sessions/short?ttl=0.001", "").await, StatusCode::CREATED);
}

#[tokio::test]
async fn invalid_requests_are_refused_with_a_message() {
    let service = TestService::start();
    let (put, get, delete, post) = (Method::PUT, Method::GET, Method::DELETE, Method::POST);
    let bad = StatusCode::BAD_REQUEST;
    let missing = StatusCode::NOT_FOUND;
    let not_allowed = StatusCode::METHOD_NOT_ALLOWED;
    let too_long = format!("/sessions/{}", "x".repeat(257));
    let too_long_in_utf8 = format!("/sessions/{}", "%E2%82%AC".repeat(86));
    let cases = [
        (&get, "/sessions/unknown", missing, "unknown"),
        (&delete, "/sessions/unknown", missing, "unknown"),
        (&get, "/sessions/unknown/ttl", missing, "unknown"),
        (&put, "/sessions/a?ttl=abc", bad, "abc"),
        (&put, "/sessions/a?ttl=-1", bad, "-1"),
        (&put, "/sessions/a?ttl=0", bad, "\"0\""),
        (&put, "/sessions/a?ttl=-0", bad, "-0"),
        (&put, "/sessions/a?ttl=0.0009", bad, "0.0009"),
        (&put, "/sessions/a?ttl=1e-300", bad, "1e-300"),
        (&put, "/sessions/a?ttl=1e30", bad, "1e30"),
        (&put, "/sessions/a?ttl=31536001", bad, "31536000 seconds"),
        (&put, "/sessions/a?ttl=NaN", bad, "NaN"),
        (&put, "/sessions/a?ttl=inf", bad, "inf"),
        (&put, "/sessions/a?ttl=", bad, "ttl"),
        (&put, "/sessions/a?ttl", bad, "ttl"),
        (&put, "/sessions/a?ttl=1%200", bad, "1 0"),
        (&put, "/sessions/a?ttl=%FF", bad, "ttl"),
        (&put, "/sessions/a?ttl=30&ttl=40", bad, "duplicate"),
        (&put, "/sessions/a?tll=30", bad, "tll"),
        (&put, "/sessions/a?ttl=30&x=1", bad, "x"),
        (&get, "/sessions/a?ttl=30", bad, "query"),
        (&delete, "/sessions/a?x", bad, "query"),
        (&get, "/stats?x=1", bad, "query"),
        (&put, &too_long, bad, "256 bytes"),
        (&get, &too_long, bad, "256 bytes"),
        (&put, &too_long_in_utf8, bad, "256 bytes"),
        (&put, "/sessions/%FF", bad, "UTF-8"),
        (&get, "/sessions/a%C3%28/ttl", bad, "UTF-8"),
        (&get, "/nowhere", missing, "/nowhere"),
        (&get, "/sessions", missing, "/sessions"),
        (&put, "/sessions/", missing, "/sessions/"),
        (&get, "/sessions/a/b", missing, "/sessions/a/b"),
        (&get, "/sessions/a/ttl/", missing, "/ttl/"),
        (&post, "/sessions/a", not_allowed, "POST"),
        (&put, "/sessions/a/ttl", not_allowed, "PUT"),
        (&delete, "/stats", not_allowed, "DELETE"),
        (&post, "/events", not_allowed, "POST"),
        (&put, "/", not_allowed, "PUT"),
    ];
    for (method, path, status, part) in cases {
        let case = format!("{method} {path}");
        let response = service.send(method.clone(), path, "body").await;
        assert_eq!(response.status(), status, "{case}");
        let has_allow = response.headers().contains_key(header::ALLOW);
        assert_eq!(has_allow, status == not_allowed, "{case}: the Allow field");
        assert_error(response, part, &case).await;
    }
    assert_eq!(service.json("/stats").await["entries"], 0, "a refused request stored a session");
}

#[tokio::test]
async fn body_over_the_limit_is_refused() {
    let service = TestService::start();
    let limit = 1024 * 1024;
    let over = service.send(Method::PUT, "/sessions/a", vec![7; limit + 1]).await;
    assert_eq!(over.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_error(over, "1048576 bytes", "a PUT with one byte too many").await;
    assert_eq!(service.body("/sessions/a").await, None);
    assert_eq!(service.put("/sessions/a", vec![7; limit]).await, StatusCode::CREATED);
}

/// Asserts that the response is a JSON object with the single field `error`, a message that contains `part`.
async fn assert_error(response: Response, part: &str, case: &str) {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json", "{case}");
    let error: Value = response.json().await;
    let fields = error.as_object().map_or(0, |object| object.len());
    let message = error["error"].as_str().unwrap_or_else(|| panic!("{case}: {error}"));
    assert!(fields == 1 && message.contains(' '), "{case}: not a message alone: {error}");
    assert!(message.contains(part), "{case}: {part:?} is not in {message:?}");
}

#[tokio::test]
async fn each_expiration_is_sent_to_every_subscriber_once() {
    in_time(async || {
        let service = TestService::start();
        let mut streams = [service.events().await, service.events().await, service.events().await];
        let short = ms(500).as_secs_f64();
        service.put(&format!("/sessions/deleted?ttl={short}"), "").await;
        service.delete("/sessions/deleted").await;
        service.put(&format!("/sessions/replaced?ttl={short}"), "").await;
        service.put("/sessions/replaced?ttl=1000", "").await;
        let keys = ["ada", "grace%0Ahopper", "%3Cb%3E%22"];
        for key in keys {
            service.put(&format!("/sessions/{key}?ttl={short}"), "body").await;
        }
        for stream in &mut streams {
            let mut seen = HashSet::new();
            for _ in keys {
                let event = stream.expired().await;
                assert_eq!(event["cause"], "expired");
                let lag = event["lag_ms"].as_f64().expect("lag_ms is a number");
                assert!((0.0..3_000.0 * short).contains(&lag), "a lag of {lag} ms");
                seen.insert(event["key"].as_str().expect("key is a string").to_owned());
            }
            let seen: HashSet<_> = seen.iter().map(String::as_str).collect();
            assert_eq!(seen, HashSet::from(["ada", "grace\nhopper", "<b>\""]));
        }
        // The next event is of this session, so no event was sent twice.
        service.put(&format!("/sessions/last?ttl={}", 2.0 * short), "").await;
        for stream in &mut streams {
            assert_eq!(stream.expired().await["key"], "last");
        }
    })
    .await;
}

#[tokio::test]
async fn slow_subscriber_is_sent_the_number_of_missed_events() {
    const SESSIONS: u64 = 16_000;

    let service = TestService::start_with(&["--per-client", "100000"]);
    // A small receive buffer, so that the service soon cannot send more.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("the receive buffer can be set");
    let address = service.process.address().parse().expect("a socket address");
    let mut slow = socket.connect(address).await.expect("the service accepts connections");
    // HTTP/1.0: the response is not chunked, and ends with the connection.
    slow.write_all(b"GET /events HTTP/1.0\r\n\r\n").await.expect("the request is sent");
    service.wait_for_stats(|stats| stats["subscribers"] == 1).await;

    let (mut answers, mut requests) = service.connect().await.into_split();
    let send = async {
        for number in 0..SESSIONS {
            let request = format!(
                "PUT /sessions/{number:0256}?ttl=0.001 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\
                 connection: {}\r\n\r\n",
                if number + 1 == SESSIONS { "close" } else { "keep-alive" }
            );
            requests.write_all(request.as_bytes()).await.expect("the requests are sent");
        }
    };
    let mut answer = Vec::new();
    let (_, read) = tokio::join!(send, timeout(5 * patience(), answers.read_to_end(&mut answer)));
    read.expect("the responses arrive in time").expect("the connection is not reset");
    let created = answer.windows(12).filter(|line| line == b"HTTP/1.1 201").count() as u64;
    assert_eq!(created, SESSIONS);
    service.wait_for_stats(|stats| stats["expired"] == SESSIONS).await;

    let (mut text, mut seen, mut missed) = (Vec::new(), 0, 0);
    let mut head = true;
    while seen + missed < SESSIONS {
        let read = timeout(5 * patience(), slow.read_buf(&mut text)).await;
        let read = read.expect("events arrive in time").expect("the connection is not reset");
        assert_ne!(read, 0, "the stream ended after {seen} events and {missed} missed ones");
        if head {
            let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            text.drain(..end + 4);
            head = false;
        }
        while let Some((name, data)) = take_event(&mut text) {
            match name.as_str() {
                "lagged" => missed += data["missed"].as_u64().expect("missed is a number"),
                _ => seen += 1,
            }
        }
    }
    assert_eq!(seen + missed, SESSIONS, "seen and missed events are all events");
    assert!(missed > 0, "no event was missed");
}

#[tokio::test]
async fn client_above_its_limit_gets_429_with_retry_after() {
    let service = TestService::start_with(&["--per-client", "5"]);
    for left in (0..5).rev() {
        let response = service.get("/sessions/ada").await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let fields = response.headers()["ratelimit"].to_str().expect("fields are ASCII");
        assert!(fields.starts_with(&format!("\"client\";r={left};t=")), "{fields}");
    }
    // The limit also holds for another path and another connection.
    let service = TestService { client: Client::new(), ..service };
    let response = service.get("/sessions/eve").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let error: serde_json::Value = response.json().await;
    let message = error["error"].as_str().expect("error is a string");
    assert!(message.starts_with("over the limit of 5 in 60s (client)"), "{message}");
    // The routes for operators have no limit.
    for path in [
        "/",
        "/page.js",
        "/stats",
        "/metrics",
        "/healthz",
        "/fleeting",
        "/fleeting/",
        "/fleeting/style.css",
        "/fleeting/script.js",
        "/fleeting/metrics",
        "/fleeting/sample",
        "/fleeting/stream",
    ] {
        let response = service.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert!(!response.headers().contains_key("ratelimit"), "{path}");
    }
}

#[tokio::test]
async fn admin_token_closes_the_pages_for_operators() {
    let service = TestService::start_with(&["--admin-token", "s3cret:more", "--per-client", "30"]);
    let closed = [
        "/",
        "/page.js",
        "/stats",
        "/metrics",
        "/events",
        "/fleeting",
        "/fleeting/script.js",
        "/fleeting/metrics",
        "/fleeting/sample",
        "/fleeting/stream",
    ];
    let get = async |path: &str, authorization: &str| {
        let request = service.client.get(format!("{}{path}", service.process.url));
        request.header("authorization", authorization).send().await
    };
    for path in closed {
        let response = service.get(path).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
        let challenge = response.headers()["www-authenticate"].to_str().expect("fields are ASCII");
        assert!(challenge.starts_with("Basic "), "{challenge}");
        assert_error(response, "--admin-token", path).await;
        // `:s3cret:more` and `ada:s3cret:more` in Base64.
        for right in ["Bearer s3cret:more", "Basic OnMzY3JldDptb3Jl", "basic YWRhOnMzY3JldDptb3Jl"]
        {
            assert_eq!(get(path, right).await.status(), StatusCode::OK, "{path} with {right}");
        }
    }
    // The sessions and the health check stay open.
    assert_eq!(service.put("/sessions/ada", "x").await, StatusCode::CREATED);
    assert_eq!(service.get("/healthz").await.status(), StatusCode::OK);
    // `ada:wrong` in Base64, and others. Guesses are limited, and requests with the token are not.
    for wrong in ["Basic YWRhOndyb25n", "Bearer s3cret", "Bearer", "Basic !", "Basic YWRh", "x y"] {
        assert_eq!(get("/stats", wrong).await.status(), StatusCode::UNAUTHORIZED, "{wrong}");
    }
    while service.get("/stats").await.status() != StatusCode::TOO_MANY_REQUESTS {}
    assert_eq!(get("/stats", "Bearer s3cret:more").await.status(), StatusCode::OK);
}

#[test]
fn help_lists_the_pages_that_are_open() {
    let (code, stdout, _) = run_service(&["--help"], "");
    assert_eq!(code, Some(0));
    let (_, pages) = stdout.split_once("open to everybody:").expect("the help lists the pages");
    for part in ["/sessions/ID", "/healthz", "/fleeting", "/stats", "/metrics", "/events"] {
        assert!(pages.contains(part), "{part} is not in {stdout}");
    }
    assert!(stdout.contains("--admin-token <TOKEN>"), "{stdout}");
}

#[tokio::test]
async fn metrics_are_in_the_format_of_prometheus() {
    let service = TestService::start_with(&["--per-session", "3"]);
    assert_eq!(service.put("/sessions/ada?ttl=0.05", "x").await, StatusCode::CREATED);
    assert_eq!(service.put("/sessions/eve", "x").await, StatusCode::CREATED);
    for _ in 0..4 {
        service.get("/sessions/eve").await;
    }
    service.wait_for_stats(|stats| stats["expired"] == 1).await;
    let response = service.get("/metrics").await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let page = response.text().await;
    for line in [
        "# HELP fleeting_cache_hits_total Reads that found a live value.",
        "# TYPE fleeting_cache_hits_total counter",
        "fleeting_cache_hits_total{name=\"sessions\"} 2",
        "fleeting_cache_sets_total{name=\"sessions\"} 2",
        "fleeting_cache_resident{name=\"sessions\"} 1",
        "fleeting_cache_departures_total{name=\"sessions\",cause=\"expired\"} 1",
        "fleeting_cache_event_lag_seconds_bucket{name=\"sessions\",le=\"+Inf\"} 1",
        "fleeting_cache_event_lag_seconds_bucket{name=\"sessions\",le=\"60\"} 1",
        "fleeting_cache_event_lag_seconds_count{name=\"sessions\"} 1",
        "fleeting_limiter_denied_total{name=\"requests\"} 2",
        "fleeting_limiter_keys{name=\"clients\"} 1",
    ] {
        assert!(page.lines().any(|other| other == line), "no {line} in:\n{page}");
    }
    ask_promtool(&page);
}

#[tokio::test]
async fn limit_of_one_session_does_not_affect_others() {
    let service = TestService::start_with(&["--per-session", "3"]);
    assert_eq!(service.put("/sessions/ada", "").await, StatusCode::CREATED);
    assert_eq!(service.get("/sessions/ada").await.status(), StatusCode::OK);
    assert_eq!(service.get("/sessions/ada/ttl").await.status(), StatusCode::OK);
    let response = service.get("/sessions/ada").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let policy = response.headers()["ratelimit-policy"].to_str().expect("fields are ASCII");
    assert!(policy.contains("\"session\";q=3;w=60"), "{policy}");
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(service.delete("/sessions/ada").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(service.put("/sessions/grace", "").await, StatusCode::CREATED);
    service.wait_for_stats(|stats| stats["limited"] == 2).await;
}

#[tokio::test]
async fn stats_count_reads_removals_and_subscribers() {
    let service = TestService::start();
    assert_eq!(service.json("/stats").await["hit_ratio"], Value::Null, "before the first read");
    let mut events = service.events().await;
    service.put("/sessions/a?ttl=100", "").await;
    service.put("/sessions/a?ttl=100", "").await;
    service.put("/sessions/b", "").await;
    service.put("/sessions/c", "").await;
    for path in ["/sessions/a", "/sessions/a", "/sessions/b", "/sessions/x", "/sessions/y"] {
        service.body(path).await;
    }
    service.delete("/sessions/c").await;
    service.delete("/sessions/x").await;
    service.put("/sessions/brief?ttl=0.05", "").await;
    let lag = events.expired().await["lag_ms"].clone();

    let stats = service.wait_for_stats(|stats| stats["last_lag_ms"] == lag).await;
    let expected = json!({
        "entries": 2, "hits": 3, "misses": 2, "hit_ratio": 0.6, "expired": 1, "removed": 1,
        "replaced": 1, "subscribers": 1, "last_lag_ms": lag, "max_lag_ms": lag,
    });
    for (name, value) in expected.as_object().expect("a JSON object") {
        assert_eq!(&stats[name], value, "{name} in {stats}");
    }
    assert!(stats["uptime_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{stats}");
    let sweeps = stats["sweeps"].as_u64().expect("sweeps is a number");
    service.wait_for_stats(|stats| stats["sweeps"].as_u64() > Some(sweeps)).await;

    drop(events);
    service.wait_for_stats(|stats| stats["subscribers"] == 0).await;
}

#[tokio::test]
async fn page_loads_nothing_from_other_origins_and_accepts_a_query() {
    let service = TestService::start();
    let response = service.get("/?utm_source=x&y").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str();
    let policy = policy.expect("header fields are ASCII");
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    let page = response.text().await;
    let script = service.get("/page.js").await;
    assert_eq!(script.headers()[header::CONTENT_TYPE], "text/javascript; charset=utf-8");
    let script = script.text().await;
    for needed in ["<!doctype html>", "fleeting/style.css", "fleeting/script.js", "page.js"] {
        assert!(page.contains(needed), "the page has no {needed}");
    }
    for danger in ["http:", "https:", "\"//", "=\"/", "url(", "@import", "innerHTML", "style="] {
        assert!(!page.contains(danger), "the page has {danger}");
        assert!(!script.contains(danger), "its script has {danger}");
    }
    assert_eq!(service.get("/healthz?probe=1").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn ctrl_c_ends_the_event_streams_and_the_service() {
    in_time(async || {
        let mut service = TestService::start();
        let (mut first, mut second) = (service.events().await, service.events().await);
        service.put("/sessions/brief?ttl=0.001", "").await;
        first.expired().await;
        let silent = service.connect().await;
        let mut idle = service.connect().await;
        idle.write_all(b"GET /stats HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .expect("the request is sent");
        let mut answer = [0; 12];
        idle.read_exact(&mut answer).await.expect("the service responds");
        assert_eq!(&answer, b"HTTP/1.1 200");

        let stopped = Instant::now();
        service.process.signal("INT");
        assert_eq!(first.next().await, None);
        second.expired().await;
        assert_eq!(second.next().await, None);
        assert!(
            rest(idle).await.ends_with('}'),
            "the idle connection received more than its response"
        );
        assert_eq!(rest(silent).await, "");
        let left = (5 * SECOND).saturating_sub(stopped.elapsed());
        assert_eq!(service.process.wait(left).code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn sigterm_ends_the_service_despite_unfinished_requests() {
    in_time(async || {
        let mut service = TestService::start();
        let mut half = service.connect().await;
        half.write_all(b"PUT /sessions/a HTTP/1.1\r\nhost: x\r\n")
            .await
            .expect("half a request is sent");
        // A response on a later connection: the service has received the half request by now.
        service.json("/stats").await;
        let _dashboard = service.get("/fleeting/stream").await;
        service.process.signal("TERM");
        assert_eq!(service.process.wait(5 * SECOND).code(), Some(0));
    })
    .await;
}

#[test]
fn address_in_use_is_reported_with_a_remedy() {
    let service = Service::start();
    let second = Command::new(example("service"))
        .args(["--listen", service.address()])
        .output()
        .expect("the service runs");
    assert!(!second.status.success());
    assert_eq!(String::from_utf8_lossy(&second.stdout), "");
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.starts_with("error: cannot listen on 127.0.0.1:"), "{stderr}");
    assert!(stderr.contains("--listen"), "{stderr}");
}

/// Runs the service with `RUST_LOG` set to `log`. Returns its exit code, stdout and stderr.
fn run_service(args: &[&str], log: &str) -> (Option<i32>, String, String) {
    let mut service = Command::new(example("service"));
    let output = service.args(["--listen", "127.0.0.1:0"]).args(args).env("RUST_LOG", log).output();
    let output = output.expect("the service runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn version_option_prints_the_version() {
    let (code, stdout, _) = run_service(&["--version"], "");
    assert_eq!((code, &*stdout), (Some(0), "service 0.1.0\n"));
}

#[test]
fn invalid_options_are_reported() {
    for (args, log, parts) in [
        (&["--trust", "10.0.0.0/99"][..], "", &["invalid --trust", "10.0.0.0/99"][..]),
        (&[], "fleeting=loud", &["invalid RUST_LOG \"fleeting=loud\"", "info,fleeting=debug"]),
        (&["--spool", "/dev/null/queue"], "", &["/dev/null/queue"]),
        (&["--snapshot", "/nowhere/file"], "", &["cannot write /nowhere/file"]),
        (
            // No server listens on port 1, which the system does not assign.
            &["--redis", "redis://ada:secret@127.0.0.1:1"],
            "",
            &["the Redis server of --redis redis://***@127.0.0.1:1", "check that it is running"],
        ),
        (&["--admin-token", ""], "", &["--admin-token must not be empty"]),
        (&["--redis", "127.0.0.1 6379"], "", &["redis://HOST:PORT"]),
    ] {
        let (code, _, stderr) = run_service(args, log);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(' '), "{args:?}: {stderr}");
        assert!(parts.iter().all(|part| last.contains(part)), "{args:?}: {last}");
        assert!(!stderr.contains("secret"), "{args:?}: {stderr}");
    }
}
