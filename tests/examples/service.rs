//! The example `service`, through real sockets, on the real clock.

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
    promtool::ask_promtool,
};

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(600);

const SECOND: Duration = Duration::from_secs(1);

/// The service and a client of it.
struct Talk {
    service: Service,
    client: Client,
}

impl Talk {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Self {
        Self { service: Service::start_with(args), client: Client::new() }
    }

    async fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Response {
        let url = format!("{}{path}", self.service.url);
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

    /// The session's body; `None` where it is not found.
    async fn body(&self, path: &str) -> Option<Vec<u8>> {
        let response = self.get(path).await;
        match response.status() {
            StatusCode::OK => Some(response.bytes().await.to_vec()),
            StatusCode::NOT_FOUND => None,
            status => panic!("GET {path} answered {status}"),
        }
    }

    async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "GET {path}");
        response.json().await
    }

    async fn ttl(&self, id: &str) -> i64 {
        let ttl = self.json(&format!("/sessions/{id}/ttl")).await;
        ttl["ttl"].as_i64().unwrap_or_else(|| panic!("no whole ttl in {ttl}"))
    }

    /// Asks for the figures until they are as wanted.
    async fn stats_where(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let stats = self.json("/stats").await;
            if wanted(&stats) {
                return stats;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the figures never came to what was wanted: {stats}"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A stream of events. What expires from now on is on it.
    async fn events(&self) -> EventStream {
        let response = Client::new().get(format!("{}/events", self.service.url)).send().await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        EventStream { response, text: Vec::new() }
    }

    /// A connection below HTTP.
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.service.address()).await.expect("the service takes no connection")
    }
}

/// Server-Sent Events, as they come.
struct EventStream {
    response: Response,
    text: Vec<u8>,
}

impl EventStream {
    /// The next event's name and data; `None` at a clean end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(event) = take_event(&mut self.text) {
                return Some(event);
            }
            let piece = timeout(PATIENCE, self.response.chunk()).await;
            match piece.expect("no event came for too long") {
                Some(piece) => self.text.extend(piece),
                None => {
                    assert_eq!(self.text, b"", "the event stream ends inside of an event");
                    return None;
                }
            }
        }
    }

    async fn expired(&mut self) -> Value {
        let (name, data) = self.next().await.expect("the event stream has ended");
        assert_eq!(name, "expired", "with {data}");
        data
    }
}

/// Takes a whole event off the front of `text`, past the comments that keep the stream alive.
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
        let data = serde_json::from_str(data).expect("the data of events is JSON");
        return Some((name.to_owned(), data));
    }
}

/// Reads a raw connection to its end.
async fn rest(mut connection: TcpStream) -> String {
    let mut text = String::new();
    let read = timeout(PATIENCE, connection.read_to_string(&mut text)).await;
    read.expect("the connection stays open").expect("the connection breaks off");
    text
}

#[test]
fn says_its_address_and_what_to_try_first() {
    let service = Service::start();
    for _ in 0..3 {
        let line = service.line();
        assert!(line.starts_with("curl "), "{line:?} is not to be tried");
        assert!(line.contains(&service.url), "{line:?} does not go to {}", service.url);
    }
}

#[tokio::test]
async fn a_session_from_put_to_delete() {
    let talk = Talk::start();
    assert_eq!(talk.body("/sessions/ada").await, None);
    assert_eq!(talk.put("/sessions/ada?ttl=100", "first").await, StatusCode::CREATED);
    assert_eq!(talk.body("/sessions/ada").await.as_deref(), Some(&b"first"[..]));
    assert_eq!(talk.ttl("ada").await, 100);

    assert_eq!(talk.put("/sessions/ada", "second").await, StatusCode::NO_CONTENT);
    assert_eq!(talk.body("/sessions/ada").await.as_deref(), Some(&b"second"[..]));
    assert_eq!(talk.ttl("ada").await, -1, "put without a ttl it is persistent");

    assert_eq!(talk.delete("/sessions/ada").await, StatusCode::NO_CONTENT);
    assert_eq!(talk.delete("/sessions/ada").await, StatusCode::NOT_FOUND);
    assert_eq!(talk.get("/sessions/ada/ttl").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(talk.body("/sessions/ada").await, None);
    assert_eq!(talk.put("/sessions/ada", "third").await, StatusCode::CREATED);
}

#[tokio::test]
async fn bodies_come_back_as_they_were() {
    let talk = Talk::start();
    let every_byte: Vec<u8> = (0..=255).collect();
    for body in [vec![], vec![0], every_byte.clone(), every_byte.repeat(4_096)] {
        talk.put("/sessions/bytes?ttl=100", body.clone()).await;
        let back = talk.body("/sessions/bytes").await;
        assert!(back.is_some_and(|back| back == body), "{} bytes were changed", body.len());
    }
    let response = talk.get("/sessions/bytes").await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/octet-stream");
    assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
}

#[tokio::test]
async fn ids_are_any_text_up_to_256_bytes() {
    let talk = Talk::start();
    let longest = "x".repeat(256);
    let ids = ["a%2Fb", "a%20b", "%E2%82%AC", "%00", "..%2F..", "%22", "ttl", &longest];
    for id in ids {
        let path = format!("/sessions/{id}");
        assert_eq!(talk.put(&path, id.to_owned()).await, StatusCode::CREATED, "{id} is another");
    }
    for id in ids {
        let body = talk.body(&format!("/sessions/{id}")).await;
        assert_eq!(body.as_deref(), Some(id.as_bytes()));
    }
}

#[tokio::test]
async fn one_of_many_puts_at_once_is_the_new_one() {
    let talk = Talk::start();
    let puts = join_all((0..40).map(|n| talk.put("/sessions/race?ttl=100", n.to_string()))).await;
    let created = puts.iter().filter(|&&status| status == StatusCode::CREATED).count();
    let replaced = puts.iter().filter(|&&status| status == StatusCode::NO_CONTENT).count();
    assert_eq!((created, replaced), (1, 39));
}

#[tokio::test]
async fn a_read_gives_the_ttl_of_the_put_anew() {
    let talk = Talk::start();
    talk.put("/sessions/long?ttl=1000", "").await;
    talk.put("/sessions/long?ttl=100", "").await;
    talk.put("/sessions/endless?ttl=100", "").await;
    talk.put("/sessions/endless", "").await;
    sleep(Duration::from_millis(1_100)).await;
    let before = talk.ttl("long").await;
    assert!(before < 100, "{before} s are left after one of 100");

    let read = Instant::now();
    assert!(talk.body("/sessions/long").await.is_some());
    let (after, late) = (talk.ttl("long").await, read.elapsed().as_secs() as i64);
    assert!((100 - late..=100).contains(&after), "{after} s are left, {late} s after the read");
    assert!(talk.body("/sessions/endless").await.is_some());
    assert_eq!(talk.ttl("endless").await, -1);
}

#[tokio::test]
async fn what_is_read_lives_on_and_what_is_not_dies_in_time() {
    in_time(async || {
        let talk = Talk::start();
        // 3 s on a machine that is in time.
        let (ttl, short) = (ms(3_000), ms(1_500));
        talk.put(&format!("/sessions/read?ttl={}", ttl.as_secs_f64()), "").await;
        let before = Instant::now();
        talk.put(&format!("/sessions/unread?ttl={}", short.as_secs_f64()), "").await;
        let after = Instant::now();
        let mut died = None;
        while before.elapsed() < ttl * 4 / 3 {
            assert!(talk.body("/sessions/read").await.is_some(), "a session died that was read");
            // To ask for the TTL is not to read.
            let asked = after.elapsed();
            if talk.get("/sessions/unread/ttl").await.status() == StatusCode::NOT_FOUND {
                died = died.or(Some(before.elapsed()));
            }
            assert!(died.is_some() || asked < short, "alive {asked:?} after {short:?} were given");
            sleep(short / 15).await;
        }
        let died = died.expect("an unread session outlived its TTL");
        assert!(died >= short, "dead {died:?} after {short:?} were given");
        assert_eq!(talk.body("/sessions/unread").await, None);
    })
    .await;
}

#[tokio::test]
async fn every_ttl_in_the_range_is_taken() {
    let talk = Talk::start();
    for (given, left) in [("31536000", 31_536_000), ("99.5", 100), ("1e2", 100), ("100.000", 100)] {
        let put = Instant::now();
        assert_eq!(
            talk.put(&format!("/sessions/{given}?ttl={given}"), "").await,
            StatusCode::CREATED
        );
        // The seconds are rounded up: exact within the first of them.
        let (ttl, late) = (talk.ttl(given).await, put.elapsed().as_secs() as i64);
        assert!((left - 2 - late..=left).contains(&ttl), "put for {given}, {ttl} are left");
    }
    assert_eq!(talk.put("/sessions/short?ttl=0.001", "").await, StatusCode::CREATED);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_with_a_sentence() {
    let talk = Talk::start();
    let (put, get, delete, post) = (Method::PUT, Method::GET, Method::DELETE, Method::POST);
    let bad = StatusCode::BAD_REQUEST;
    let missing = StatusCode::NOT_FOUND;
    let not_allowed = StatusCode::METHOD_NOT_ALLOWED;
    let too_long = format!("/sessions/{}", "x".repeat(257));
    let too_long_in_utf8 = format!("/sessions/{}", "%E2%82%AC".repeat(86));
    let cases = [
        (&get, "/sessions/nobody", missing, "nobody"),
        (&delete, "/sessions/nobody", missing, "nobody"),
        (&get, "/sessions/nobody/ttl", missing, "nobody"),
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
        let response = talk.send(method.clone(), path, "body").await;
        assert_eq!(response.status(), status, "{case}");
        let has_allow = response.headers().contains_key(header::ALLOW);
        assert_eq!(has_allow, status == not_allowed, "{case}: the Allow field");
        assert_sentence(response, part, &case).await;
    }
    assert_eq!(talk.json("/stats").await["entries"], 0, "something refused was stored");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let talk = Talk::start();
    let limit = 1024 * 1024;
    let over = talk.send(Method::PUT, "/sessions/a", vec![7; limit + 1]).await;
    assert_eq!(over.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_sentence(over, "1048576 bytes", "a PUT of a byte too many").await;
    assert_eq!(talk.body("/sessions/a").await, None);
    assert_eq!(talk.put("/sessions/a", vec![7; limit]).await, StatusCode::CREATED);
}

/// Checks for JSON of one field, `error`: a sentence in which `part` is.
async fn assert_sentence(response: Response, part: &str, case: &str) {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json", "{case}");
    let error: Value = response.json().await;
    let fields = error.as_object().map_or(0, |object| object.len());
    let sentence = error["error"].as_str().unwrap_or_else(|| panic!("{case}: {error}"));
    assert!(fields == 1 && sentence.contains(' '), "{case}: no sentence alone in {error}");
    assert!(sentence.contains(part), "{case}: {part:?} is not in {sentence:?}");
}

#[tokio::test]
async fn what_expires_comes_to_every_subscriber_once() {
    in_time(async || {
        let talk = Talk::start();
        let mut streams = [talk.events().await, talk.events().await, talk.events().await];
        let short = ms(500).as_secs_f64();
        talk.put(&format!("/sessions/deleted?ttl={short}"), "").await;
        talk.delete("/sessions/deleted").await;
        talk.put(&format!("/sessions/replaced?ttl={short}"), "").await;
        talk.put("/sessions/replaced?ttl=1000", "").await;
        let keys = ["ada", "grace%0Ahopper", "%3Cb%3E%22"];
        for key in keys {
            talk.put(&format!("/sessions/{key}?ttl={short}"), "body").await;
        }
        for stream in &mut streams {
            let mut seen = HashSet::new();
            for _ in keys {
                let event = stream.expired().await;
                assert_eq!(event["cause"], "expired");
                let lag = event["lag_ms"].as_f64().expect("lag_ms is a number");
                assert!((0.0..3_000.0 * short).contains(&lag), "{lag} ms late");
                seen.insert(event["key"].as_str().expect("key is text").to_owned());
            }
            let seen: HashSet<_> = seen.iter().map(String::as_str).collect();
            assert_eq!(seen, HashSet::from(["ada", "grace\nhopper", "<b>\""]));
        }
        // Long after the others: nothing but it comes.
        talk.put(&format!("/sessions/last?ttl={}", 2.0 * short), "").await;
        for stream in &mut streams {
            assert_eq!(stream.expired().await["key"], "last");
        }
    })
    .await;
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_told_what_it_missed() {
    const SESSIONS: u64 = 16_000;

    let talk = Talk::start_with(&["--per-client", "100000"]);
    // With little room on its way, so that the service has to wait for it soon.
    let socket = TcpSocket::new_v4().expect("no socket can be made");
    socket.set_recv_buffer_size(4_096).expect("the receive buffer can't be made small");
    let address = talk.service.address().parse().expect("the address is one of a socket");
    let mut slow = socket.connect(address).await.expect("the service takes no connection");
    // HTTP/1.0: the stream comes without chunks, and ends with the connection.
    slow.write_all(b"GET /events HTTP/1.0\r\n\r\n").await.expect("the request can't be sent");
    talk.stats_where(|stats| stats["subscribers"] == 1).await;

    let (mut answers, mut requests) = talk.connect().await.into_split();
    let send = async {
        for number in 0..SESSIONS {
            let request = format!(
                "PUT /sessions/{number:0256}?ttl=0.001 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\
                 connection: {}\r\n\r\n",
                if number + 1 == SESSIONS { "close" } else { "keep-alive" }
            );
            requests.write_all(request.as_bytes()).await.expect("the requests can't be sent");
        }
    };
    let mut answer = Vec::new();
    let (_, read) = tokio::join!(send, timeout(PATIENCE, answers.read_to_end(&mut answer)));
    read.expect("the answers take too long").expect("the answers break off");
    let created = answer.windows(12).filter(|line| line == b"HTTP/1.1 201").count() as u64;
    assert_eq!(created, SESSIONS);
    talk.stats_where(|stats| stats["expired"] == SESSIONS).await;

    let (mut text, mut seen, mut missed) = (Vec::new(), 0, 0);
    let mut head = true;
    while seen + missed < SESSIONS {
        let read = timeout(PATIENCE, slow.read_buf(&mut text)).await;
        let read = read.expect("the events stop").expect("the event stream breaks off");
        assert_ne!(read, 0, "the event stream ends after {seen} events and {missed} missed");
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
    assert_eq!(seen + missed, SESSIONS, "seen and missed are not all");
    assert!(missed > 0, "it read nothing, and missed nothing of {seen}");
}

#[tokio::test]
async fn a_client_that_asks_too_often_is_told_when_to_come_again() {
    let talk = Talk::start_with(&["--per-client", "5"]);
    for left in (0..5).rev() {
        let response = talk.get("/sessions/ada").await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let fields = response.headers()["ratelimit"].to_str().expect("fields are ASCII");
        assert!(fields.starts_with(&format!("\"client\";r={left};t=")), "{fields}");
    }
    // Another path, another connection.
    let talk = Talk { client: Client::new(), ..talk };
    let response = talk.get("/sessions/eve").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let told: serde_json::Value = response.json().await;
    let sentence = told["error"].as_str().expect("a refusal is a sentence");
    assert!(sentence.starts_with("over the limit of 5 in 60s (client)"), "{sentence}");
    // Who runs the service sees what is going on all the same.
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
        "/fleeting/figures",
        "/fleeting/stream",
    ] {
        let response = talk.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert!(!response.headers().contains_key("ratelimit"), "{path}");
    }
}

#[tokio::test]
async fn prometheus_reads_its_figures() {
    let talk = Talk::start_with(&["--per-session", "3"]);
    assert_eq!(talk.put("/sessions/ada?ttl=0.05", "x").await, StatusCode::CREATED);
    assert_eq!(talk.put("/sessions/eve", "x").await, StatusCode::CREATED);
    for _ in 0..4 {
        talk.get("/sessions/eve").await;
    }
    talk.stats_where(|stats| stats["expired"] == 1).await;
    let response = talk.get("/metrics").await;
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
async fn a_session_that_is_asked_for_too_often_leaves_others_alone() {
    let talk = Talk::start_with(&["--per-session", "3"]);
    assert_eq!(talk.put("/sessions/ada", "").await, StatusCode::CREATED);
    assert_eq!(talk.get("/sessions/ada").await.status(), StatusCode::OK);
    assert_eq!(talk.get("/sessions/ada/ttl").await.status(), StatusCode::OK);
    let response = talk.get("/sessions/ada").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let policy = response.headers()["ratelimit-policy"].to_str().expect("fields are ASCII");
    assert!(policy.contains("\"session\";q=3;w=60"), "{policy}");
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(talk.delete("/sessions/ada").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(talk.put("/sessions/grace", "").await, StatusCode::CREATED);
    talk.stats_where(|stats| stats["limited"] == 2).await;
}

#[tokio::test]
async fn the_figures_are_those_of_what_happened() {
    let talk = Talk::start();
    let mut events = talk.events().await;
    talk.put("/sessions/a?ttl=100", "").await;
    talk.put("/sessions/a?ttl=100", "").await;
    talk.put("/sessions/b", "").await;
    talk.put("/sessions/c", "").await;
    for path in ["/sessions/a", "/sessions/a", "/sessions/b", "/sessions/x", "/sessions/y"] {
        talk.body(path).await;
    }
    talk.delete("/sessions/c").await;
    talk.delete("/sessions/x").await;
    talk.put("/sessions/brief?ttl=0.05", "").await;
    let lag = events.expired().await["lag_ms"].clone();

    let stats = talk.stats_where(|stats| stats["last_lag_ms"] == lag).await;
    let expected = json!({
        "entries": 2, "hits": 3, "misses": 2, "hit_ratio": 0.6, "expired": 1, "removed": 1,
        "replaced": 1, "subscribers": 1, "last_lag_ms": lag, "max_lag_ms": lag,
    });
    for (name, value) in expected.as_object().expect("it is written as one") {
        assert_eq!(&stats[name], value, "{name} in {stats}");
    }
    assert!(stats["uptime_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{stats}");
    let sweeps = stats["sweeps"].as_u64().expect("sweeps is a number");
    talk.stats_where(|stats| stats["sweeps"].as_u64() > Some(sweeps)).await;

    drop(events);
    talk.stats_where(|stats| stats["subscribers"] == 0).await;
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_minds_no_query() {
    let talk = Talk::start();
    let response = talk.get("/?utm_source=x&y").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str();
    let policy = policy.expect("it is ASCII");
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    let page = response.text().await;
    let script = talk.get("/page.js").await;
    assert_eq!(script.headers()[header::CONTENT_TYPE], "text/javascript; charset=utf-8");
    let script = script.text().await;
    for needed in ["<!doctype html>", "fleeting/style.css", "fleeting/script.js", "page.js"] {
        assert!(page.contains(needed), "the page has no {needed}");
    }
    for danger in ["http:", "https:", "\"//", "=\"/", "url(", "@import", "innerHTML", "style="] {
        assert!(!page.contains(danger), "the page has {danger}");
        assert!(!script.contains(danger), "its script has {danger}");
    }
    assert_eq!(talk.get("/healthz?probe=1").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn ctrl_c_ends_the_streams_and_the_service() {
    in_time(async || {
        let mut talk = Talk::start();
        let (mut first, mut second) = (talk.events().await, talk.events().await);
        talk.put("/sessions/brief?ttl=0.001", "").await;
        first.expired().await;
        let silent = talk.connect().await;
        let mut idle = talk.connect().await;
        idle.write_all(b"GET /stats HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .expect("it takes a request");
        let mut answer = [0; 12];
        idle.read_exact(&mut answer).await.expect("it answers");
        assert_eq!(&answer, b"HTTP/1.1 200");

        let stopped = Instant::now();
        talk.service.signal("INT");
        assert_eq!(first.next().await, None);
        second.expired().await;
        assert_eq!(second.next().await, None);
        assert!(rest(idle).await.ends_with('}'), "the idle connection got more than its answer");
        assert_eq!(rest(silent).await, "");
        let left = (5 * SECOND).saturating_sub(stopped.elapsed());
        assert_eq!(talk.service.wait(left).code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn sigterm_ends_it_although_a_request_stays_unfinished_and_somebody_looks() {
    in_time(async || {
        let mut talk = Talk::start();
        let mut half = talk.connect().await;
        half.write_all(b"PUT /sessions/a HTTP/1.1\r\nhost: x\r\n").await.expect("it takes a half");
        // Answered on a connection made later, so the half has come by then.
        talk.json("/stats").await;
        let _dashboard = talk.get("/fleeting/stream").await;
        talk.service.signal("TERM");
        assert_eq!(talk.service.wait(5 * SECOND).code(), Some(0));
    })
    .await;
}

#[test]
fn an_address_in_use_is_a_sentence() {
    let service = Service::start();
    let second = Command::new(example("service"))
        .args(["--listen", service.address()])
        .output()
        .expect("the service can't be run");
    assert!(!second.status.success());
    assert_eq!(String::from_utf8_lossy(&second.stdout), "");
    let complaint = String::from_utf8_lossy(&second.stderr);
    assert!(complaint.starts_with("error: can't listen on 127.0.0.1:"), "it says {complaint:?}");
    assert!(complaint.contains("--listen"), "it says {complaint:?}");
}

/// What it says and how it ends, with `RUST_LOG` as given.
fn said(args: &[&str], log: &str) -> (Option<i32>, String, String) {
    let mut service = Command::new(example("service"));
    let output = service.args(["--listen", "127.0.0.1:0"]).args(args).env("RUST_LOG", log).output();
    let output = output.expect("the service can't be run");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn it_tells_its_version() {
    let (code, stdout, _) = said(&["--version"], "");
    assert_eq!((code, &*stdout), (Some(0), "service 0.1.0\n"));
}

#[test]
fn what_it_is_given_wrong_is_a_sentence() {
    for (args, log, parts) in [
        (&["--trust", "10.0.0.0/99"][..], "", &["--trust takes networks", "10.0.0.0/99"][..]),
        (&[], "fleeting=loud", &["RUST_LOG can't be \"fleeting=loud\"", "info,fleeting=debug"]),
        (&["--spool", "/dev/null/queue"], "", &["/dev/null/queue"]),
        (&["--snapshot", "/nowhere/file"], "", &["can't write /nowhere/file"]),
        (
            // Nobody listens on this port: it is not one that is given out.
            &["--redis", "redis://ada:secret@127.0.0.1:1"],
            "",
            &["the Redis server of --redis redis://***@127.0.0.1:1", "see whether it runs"],
        ),
        (&["--redis", "127.0.0.1 6379"], "", &["redis://HOST:PORT"]),
    ] {
        let (code, _, stderr) = said(args, log);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(' '), "{args:?}: {stderr}");
        assert!(parts.iter().all(|part| last.contains(part)), "{args:?}: {last}");
        assert!(!stderr.contains("secret"), "{args:?}: {stderr}");
    }
}
