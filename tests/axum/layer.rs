//! `RateLimitLayer`, and `Limited` as a response: through real sockets where connections matter, else by
//! calling the service on a paused clock.

use std::{
    convert::Infallible,
    future::{Ready, pending, ready},
    hash::{BuildHasher, DefaultHasher, Hasher},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{FromRequestParts, Path},
    http::{HeaderMap, Method, Request, Response, StatusCode, request::Parts},
    routing::{any, get},
};
use fleeting::{
    ClientIp, Headers, Limit, Limited, RateLimitLayer, RateLimiter, TrustedProxies, Window,
};
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::{net::TcpListener, time::advance};
use tokio_test::{assert_pending, task::spawn};
use tower::{Layer, Service, ServiceExt};

use crate::{
    clock::until_enough,
    http::{self, Client},
};

const HOUR: u64 = 3_600;

/// Serves it on a free port, with the addresses of its peers.
async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port is free");
    let address = listener.local_addr().expect("it is bound");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    format!("http://{address}/")
}

/// The same from `times` requests, one after the other.
async fn statuses(times: usize, request: impl Fn() -> http::Request) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(request().send().await.status().as_u16());
    }
    statuses
}

/// Calls a service on the spot.
async fn ask(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.expect("a router has no errors")
}

fn get_with(headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).expect("it is a request")
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("the body breaks off").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("the body is text")
}

fn hourly(quota: u32) -> RateLimiter<String> {
    RateLimiter::builder().limit(Limit::per_hour(quota).named("hourly")).build()
}

/// One key for all.
fn all(_: &Parts) -> Option<String> {
    Some("all".to_owned())
}

/// Each member of the field: its name, and those of its parameters that are asked for.
fn members<const N: usize>(
    headers: &HeaderMap,
    field: &str,
    parameters: [&str; N],
) -> Vec<(String, [Option<i64>; N])> {
    let lines: Vec<_> = headers.get_all(field).iter().map(|line| line.as_bytes()).collect();
    let line = lines.join(&b", "[..]);
    let list = sfv::Parser::new(&line).parse::<sfv::List>().expect("the field is a list");
    let member = |entry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("{entry:?} is no item") };
        let name = item.bare_item.as_string().expect("its name is a string").as_str().to_owned();
        assert!(item.params.keys().all(|key| parameters.contains(&key.as_str())));
        let value =
            |name| item.params.get(name).map(|value| value.as_integer().expect("no number").into());
        (name, parameters.map(value))
    };
    list.into_iter().map(member).collect()
}

fn policies(headers: &HeaderMap) -> Vec<(String, [Option<i64>; 2])> {
    members(headers, "ratelimit-policy", ["q", "w"])
}

fn left(headers: &HeaderMap) -> Vec<(String, [Option<i64>; 2])> {
    members(headers, "ratelimit", ["r", "t"])
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    let value = headers.get(name)?.to_str().expect("it is text");
    Some(value.parse().expect("it is a number"))
}

/// A denial by a limit named `hourly`, whose wait is known only roughly.
fn assert_is_denial(quota: i64, headers: &HeaderMap, body: &str) {
    let retry_after = number(headers, "retry-after").expect("it says when to come again");
    assert!((1..=HOUR).contains(&retry_after), "{retry_after}");
    assert_eq!(policies(headers), [("hourly".to_owned(), [Some(quota), Some(HOUR as i64)])]);
    assert_eq!(left(headers), [("hourly".to_owned(), [Some(0), Some(retry_after as i64)])]);
    assert_eq!(headers["content-type"], "application/problem+json");

    let problem: Value = serde_json::from_str(body).expect("the body is JSON");
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert!(problem["title"].is_string());
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["hourly"]));
    let milliseconds = problem["retry_after_ms"].as_u64().expect("it is a number");
    assert!((1..=1_000 * HOUR).contains(&milliseconds), "{milliseconds}");
    assert_eq!(milliseconds.div_ceil(1_000), retry_after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_connections_exactly_the_quota_passes() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        // So that no unit of a smooth window is free again while the test runs.
        let limit = Limit::new(10, Duration::from_secs(HOUR)).named("hourly");
        let limiter = RateLimiter::builder().limit(limit).window(window).build();
        let layer = RateLimitLayer::by::<ClientIp>(limiter);
        let reached = Arc::new(AtomicUsize::new(0));
        let handler = {
            let reached = reached.clone();
            async move || reached.fetch_add(1, Relaxed).to_string()
        };
        let router = || Router::new().route("/", get(handler.clone())).layer(layer.clone());
        let servers = [serve(router()).await, serve(router()).await];

        let client = Client::without_reuse();
        let requests = (0..64).map(|i| client.get(&servers[i % 2]).send());
        let (mut passed, mut denied) = (0, 0);
        for response in join_all(requests).await {
            match response.status().as_u16() {
                200 => {
                    passed += 1;
                    assert_eq!(left(response.headers())[0].0, "hourly");
                }
                429 => {
                    denied += 1;
                    let headers = response.headers().clone();
                    let body = response.text().await;
                    assert_is_denial(10, &headers, &body);
                }
                status => panic!("{status}"),
            }
        }
        assert_eq!((passed, denied, reached.load(Relaxed)), (10, 54, 10), "{window:?}");
    }
}

#[tokio::test]
async fn in_a_handler_it_is_a_question_mark() {
    let limiter = hourly(1);
    let handler = async move |Path(user): Path<String>| -> Result<String, Limited> {
        Ok(limiter.check(&user).await?.remaining().to_string())
    };
    let url = serve(Router::new().route("/{user}", get(handler))).await;
    let client = Client::without_reuse();
    let first = client.get(format!("{url}ada")).send().await;
    assert_eq!((first.status(), first.text().await), (StatusCode::OK, "0".to_owned()));
    let second = client.get(format!("{url}ada")).send().await;
    assert_eq!(second.status(), 429);
    assert_is_denial(1, &second.headers().clone(), &second.text().await);
    assert_eq!(client.get(format!("{url}grace")).send().await.status(), 200);
}

#[tokio::test]
async fn who_forges_headers_gets_no_second_quota() {
    let forged: &[&[(&str, &str)]] = &[
        &[],
        &[("x-forwarded-for", "203.0.113.1")],
        &[("x-forwarded-for", "203.0.113.2"), ("x-forwarded-for", "203.0.113.3")],
        &[("x-forwarded-for", "203.0.113.4, 203.0.113.5")],
        &[("x-forwarded-for", "\"")],
        &[("x-forwarded-for", "nonsense,,unknown")],
        &[("forwarded", "for=203.0.113.6")],
        &[("forwarded", "for=\"203.0.113.7")],
        &[("x-real-ip", "203.0.113.8"), ("x-client-ip", "203.0.113.9"), ("via", "1.1 203.0.113.9")],
    ];
    let quota = forged.len() as u32;
    let limiter = || RateLimiter::builder().limit(Limit::per_hour(quota)).build();
    let hello = || Router::new().route("/", get("hello"));
    // Nobody is trusted, or not this peer: the headers are not looked at.
    let elsewhere = TrustedProxies::new(["10.0.0.0/8", "::1"]).expect("they are networks");
    let layers = [
        RateLimitLayer::by::<ClientIp>(limiter()),
        RateLimitLayer::by_ip(limiter(), TrustedProxies::none()),
        RateLimitLayer::by_ip(limiter(), elsewhere.clone()),
        RateLimitLayer::by_ip(limiter(), elsewhere.forwarded(true)),
    ];
    for layer in layers {
        let url = serve(hello().layer(layer)).await;
        let mut passed = 0;
        for _ in 0..2 {
            for headers in forged {
                let request = Client::without_reuse().get(&url);
                let request =
                    headers.iter().fold(request, |request, (k, v)| request.header(*k, *v));
                passed += u32::from(request.send().await.status() == 200);
            }
        }
        assert_eq!(passed, quota);
    }

    // The peer is a proxy of ours, which adds the client: at the end of the last line, or as a line.
    for forwarded in [false, true] {
        let trusted = TrustedProxies::new(["127.0.0.0/8"]).expect("it is a network");
        let layer = RateLimitLayer::by_ip(limiter(), trusted.forwarded(forwarded));
        let url = serve(hello().layer(layer)).await;
        let (name, client_of_proxy) = match forwarded {
            false => ("x-forwarded-for", "192.0.2.1"),
            true => ("forwarded", "for=192.0.2.1"),
        };
        let mut passed = 0;
        for own_line in [false, true] {
            for headers in forged {
                let mut headers: Vec<_> =
                    headers.iter().map(|(name, value)| (*name, value.to_string())).collect();
                match headers.iter_mut().rev().find(|(sent, _)| *sent == name) {
                    Some((_, value)) if !own_line => *value += &format!(", {client_of_proxy}"),
                    _ => headers.push((name, client_of_proxy.to_owned())),
                }
                let request = Client::without_reuse().get(&url);
                let request = headers.iter().fold(request, |request, (k, v)| request.header(*k, v));
                passed += u32::from(request.send().await.status() == 200);
            }
        }
        assert_eq!(passed, quota, "{name}");
        // Another client of the proxy has a quota of its own.
        let other = client_of_proxy.replace("192.0.2.1", "192.0.2.2");
        assert_eq!(
            Client::without_reuse().get(&url).header(name, other).send().await.status(),
            200
        );
    }
}

#[tokio::test]
async fn one_network_of_ipv6_has_one_quota() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let trusted = TrustedProxies::new(["127.0.0.1"]).expect("it is an address");
    // As an extension outside of the layer.
    let app = Router::new()
        .route("/", get("hello"))
        .layer(RateLimitLayer::by::<ClientIp>(limiter))
        .layer(Extension(trusted));
    let url = serve(app).await;
    let from = async |addr: &str| {
        Client::without_reuse()
            .get(&url)
            .header("x-forwarded-for", addr)
            .send()
            .await
            .status()
            .as_u16()
    };
    assert_eq!(from("2001:db8:0:1::1").await, 200);
    assert_eq!(from("2001:db8:0:1:ffff:ffff:ffff:ffff").await, 429);
    assert_eq!(from("2001:db8:0:2::1").await, 200);
    assert_eq!(from("192.0.2.1").await, 200);
    assert_eq!(from("::ffff:192.0.2.1").await, 429);
    assert_eq!(from("192.0.2.2").await, 200);
}

#[tokio::test]
async fn without_the_peers_address_the_answer_says_what_is_missing() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    for layer in [
        RateLimitLayer::by::<ClientIp>(limiter.clone()),
        RateLimitLayer::by_ip(limiter, TrustedProxies::none()),
    ] {
        let app = Router::new().route("/", get("hello")).layer(layer);
        let response = ask(&app, get_with(&[])).await;
        assert_eq!(response.status(), 500);
        assert!(text(response).await.contains("into_make_service_with_connect_info"));
    }
}

#[tokio::test]
async fn preflights_are_not_counted_where_they_are_skipped() {
    let layer =
        RateLimitLayer::new(hourly(2), all).skip(|request| request.method == Method::OPTIONS);
    let url = serve(Router::new().route("/", any("hello")).layer(layer)).await;
    let client = Client::without_reuse();
    let preflight = || {
        let request = client.request(Method::OPTIONS, &url);
        request.header("origin", "https://x").header("access-control-request-method", "GET")
    };
    assert_eq!(statuses(5, preflight).await, [200; 5]);
    assert_eq!(statuses(3, || client.get(&url)).await, [200, 200, 429]);
    let skipped = preflight().send().await;
    assert_eq!(skipped.status(), 200);
    assert!(!skipped.headers().contains_key("ratelimit"));
}

#[tokio::test(start_paused = true)]
async fn the_fields_are_exact() {
    let limiter = RateLimiter::builder()
        .limit(Limit::new(2, Duration::from_millis(1_500)).named("burst"))
        .limit(Limit::per_hour(3))
        .build();
    let layer = RateLimitLayer::new(limiter, all);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let burst = |numbers: [i64; 2]| ("burst".to_owned(), numbers.map(Some));
    let unnamed = |numbers: [i64; 2]| ("3-per-3600s".to_owned(), numbers.map(Some));

    let first = ask(&app, get_with(&[])).await;
    assert_eq!(first.status(), 200);
    assert_eq!(policies(first.headers()), [burst([2, 2]), unnamed([3, 3_600])]);
    assert_eq!(left(first.headers()), [burst([1, 2]), unnamed([2, 3_600])]);
    assert!(!first.headers().contains_key("x-ratelimit-limit"));

    advance(Duration::from_millis(1_000)).await;
    let second = ask(&app, get_with(&[])).await;
    assert_eq!(left(second.headers()), [burst([0, 1]), unnamed([1, 3_599])]);

    let third = ask(&app, get_with(&[])).await;
    assert_eq!(third.status(), 429);
    assert_eq!(third.headers()["retry-after"], "1");
    assert_eq!(policies(third.headers()), [burst([2, 2]), unnamed([3, 3_600])]);
    assert_eq!(left(third.headers()), [burst([0, 1]), unnamed([1, 3_599])]);
    let problem: Value = serde_json::from_str(&text(third).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["burst"]));
    assert_eq!(problem["retry_after_ms"], 500);

    advance(Duration::from_millis(500)).await;
    let fourth = ask(&app, get_with(&[])).await;
    assert_eq!(fourth.status(), 200);
    assert_eq!(left(fourth.headers()), [burst([0, 1]), unnamed([0, 3_599])]);
    let fifth = ask(&app, get_with(&[])).await;
    assert_eq!(fifth.headers()["retry-after"], "3599");
    assert_eq!(left(fifth.headers()), [burst([0, 1]), unnamed([0, 3_599])]);
    let problem: Value = serde_json::from_str(&text(fifth).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["3-per-3600s"]));
    // Who comes when it says so passes.
    advance(Duration::from_secs(3_599)).await;
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_tells_what_its_own_charge_left_and_the_wait_from_now() {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(3).named("minute")).build();
    let slow = async || tokio::time::sleep(Duration::from_millis(20_500)).await;
    let app = Router::new().route("/", get(slow)).layer(RateLimitLayer::new(limiter.clone(), all));
    let answer = async {
        let answer = ask(&app, get_with(&[])).await;
        left(answer.headers())
    };
    let meanwhile = async {
        advance(Duration::from_secs(1)).await;
        limiter.check("all").await.expect("there is room");
    };
    let (left, ()) = tokio::join!(answer, meanwhile);
    // 39.5 s are left of its minute.
    assert_eq!(left, [("minute".to_owned(), [Some(2), Some(40)])]);
    assert_eq!(limiter.peek("all").await.remaining(), 1);
}

/// The real clock is the subject: the seconds are read from a coarse one, which lags by some milliseconds, and
/// are right also in these.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_ends_when_it_ends() {
    for _ in 0..5 {
        until_enough(see_a_second_end).await;
    }
}

/// Whether it was seen before and after.
async fn see_a_second_end() -> bool {
    let per = Duration::from_millis(1_020);
    let limiter = RateLimiter::builder().limit(Limit::new(1_000_000, per)).build();
    let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limiter, all));
    let start = Instant::now();
    ask(&app, get_with(&[])).await;
    let charged = start..Instant::now();
    let mut seen = Vec::new();
    while start.elapsed() < Duration::from_millis(40) {
        let before = Instant::now();
        let answer = ask(&app, get_with(&[])).await;
        let after = Instant::now();
        let seconds = left(answer.headers())[0].1[1].expect("something is in use");
        let until = |charged: Instant, now: Instant| {
            (charged + per - now).as_nanos().div_ceil(1_000_000_000)
        };
        let (least, most) = (until(charged.start, after), until(charged.end, before));
        assert!((least..=most).contains(&(seconds as u128)), "{seconds}, not {least} or {most}");
        seen.push(seconds);
    }
    seen.dedup();
    assert!([&[2, 1][..], &[2], &[1]].contains(&&seen[..]), "{seen:?}");
    seen.len() == 2
}

#[tokio::test(start_paused = true)]
async fn no_name_breaks_a_field() {
    let names = [r#"with "quotes" and \"#, "Größe", "line\r\nset-cookie: a=b", "", "µ;q=0, \"x\""];
    for name in names {
        let limiter = RateLimiter::<String>::builder()
            .limit(Limit::new(1, Duration::from_micros(1_500)).named(name))
            .limit(Limit::new(1, Duration::from_micros(1_500)))
            .build();
        let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limiter, all));
        ask(&app, get_with(&[])).await;
        let denied = ask(&app, get_with(&[])).await;
        assert_eq!(denied.status(), 429);
        assert!(!denied.headers().contains_key("set-cookie"));
        let names: Vec<_> = left(denied.headers()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[1], "1-per-1.5ms");
        assert_eq!(policies(denied.headers()).len(), 2);
        let problem: Value = serde_json::from_str(&text(denied).await).unwrap();
        assert_eq!(problem["violated-policies"][0], names[0], "{name:?}");
        let is_plain = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        assert_eq!(names[0] == name, is_plain, "{name:?} became {:?}", names[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn which_fields_is_a_setting() {
    let limiter = || {
        RateLimiter::builder()
            .limit(Limit::per_second(5).named("burst"))
            .limit(Limit::per_minute(2).named("minute"))
            .build()
    };
    for headers in [Headers::Draft11, Headers::Legacy, Headers::Both, Headers::None] {
        let layer = RateLimitLayer::new(limiter(), all).headers(headers);
        let app = Router::new().route("/", get("hello")).layer(layer);
        let has_draft = matches!(headers, Headers::Draft11 | Headers::Both);
        let has_legacy = matches!(headers, Headers::Legacy | Headers::Both);
        for (status, remaining, reset) in [(200, 1, 60), (200, 0, 60), (429, 0, 60)] {
            let answer = ask(&app, get_with(&[])).await;
            assert_eq!(answer.status(), status);
            let fields = answer.headers();
            assert_eq!(number(fields, "retry-after"), (status == 429).then_some(60));
            assert_eq!(fields.contains_key("ratelimit"), has_draft, "{headers:?}");
            assert_eq!(fields.contains_key("ratelimit-policy"), has_draft, "{headers:?}");
            let legacy = ["limit", "remaining", "reset"]
                .map(|name| number(fields, &format!("x-ratelimit-{name}")));
            let expected = [2, remaining, reset].map(|number| has_legacy.then_some(number));
            assert_eq!(legacy, expected, "{headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_layers_tell_of_the_limits_of_both() {
    let inner = RateLimitLayer::new(hourly(1), all).headers(Headers::Both);
    let outer = RateLimiter::builder().limit(Limit::per_minute(3).named("minute")).build();
    let outer = RateLimitLayer::new(outer, all).headers(Headers::Both);
    let app = Router::new().route("/", get("hello")).layer(inner).layer(outer);

    let names =
        |headers: &HeaderMap| left(headers).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let passed = ask(&app, get_with(&[])).await;
    assert_eq!(names(passed.headers()), ["hourly", "minute"]);
    assert_eq!(policies(passed.headers()).len(), 2);
    assert_eq!(number(passed.headers(), "x-ratelimit-limit"), Some(1));
    let by_inner = ask(&app, get_with(&[])).await;
    assert_eq!((by_inner.status().as_u16(), names(by_inner.headers()).len()), (429, 2));
    assert_eq!(number(by_inner.headers(), "retry-after"), Some(HOUR));
    ask(&app, get_with(&[])).await;
    let by_outer = ask(&app, get_with(&[])).await;
    assert_eq!(names(by_outer.headers()), ["minute"]);
    assert_eq!(number(by_outer.headers(), "retry-after"), Some(60));
    assert_eq!(number(by_outer.headers(), "x-ratelimit-limit"), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_request_costs_what_is_said() {
    let limiter = hourly(10);
    let cost = |request: &Parts| {
        request.uri.query().map_or(1, |query| query.parse().expect("it is a number"))
    };
    let layer = RateLimitLayer::new(limiter.clone(), all).cost(cost);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let spend = async |cost: u32| {
        ask(&app, Request::get(format!("/?{cost}")).body(Body::empty()).unwrap()).await
    };
    assert_eq!(spend(7).await.status(), 200);
    assert_eq!(limiter.peek("all").await.remaining(), 3);

    let denied = spend(4).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(number(denied.headers(), "retry-after"), Some(HOUR));
    // Cheaper requests pass all the same.
    assert_eq!(left(denied.headers()), [("hourly".to_owned(), [Some(3), Some(HOUR as i64)])]);

    let never = spend(11).await;
    assert_eq!(never.status(), 429);
    assert_eq!(number(never.headers(), "retry-after"), None);
    assert_eq!(left(never.headers()), [("hourly".to_owned(), [Some(3), None])]);
    let problem: Value = serde_json::from_str(&text(never).await).unwrap();
    assert_eq!(problem.get("retry_after_ms"), None);

    assert_eq!(spend(3).await.status(), 200);
    assert_eq!(spend(1).await.status(), 429);
    assert_eq!(spend(0).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_plan_has_limits_of_its_own() {
    let limiter = hourly(1);
    let paid: Arc<[Limit]> = [Limit::per_minute(3).named("paid")].into();
    let layer = RateLimitLayer::new(limiter, |request| {
        Some(request.headers.get("x-token")?.to_str().ok()?.to_owned())
    })
    .limits(move |request, token| match request.uri.path() {
        _ if token == "root" => Some([].into()),
        "/" if token.starts_with("paid") => Some(paid.clone()),
        _ => None,
    });
    let app = Router::new().route("/", get("hello")).layer(layer);
    let asks = async |token: &str, times: usize| {
        let mut answers = Vec::new();
        for _ in 0..times {
            let answer = ask(&app, get_with(&[("x-token", token)])).await;
            let name = left(answer.headers()).first().map(|(name, _)| name.clone());
            answers.push((answer.status().as_u16(), name.unwrap_or_default()));
        }
        answers
    };
    let all = |statuses: &[u16], name: &str| {
        statuses.iter().map(|status| (*status, name.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(asks("free", 2).await, all(&[200, 429], "hourly"));
    assert_eq!(asks("paid", 4).await, all(&[200, 200, 200, 429], "paid"));
    // No limits: nothing to tell.
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let answer = ask(&app, get_with(&[("x-token", "root")])).await;
        assert!(!answer.headers().contains_key("ratelimit"));
        statuses.push(answer.status());
    }
    assert_eq!(statuses, [200; 3]);
    // No key, no limit.
    let answer = ask(&app, get_with(&[])).await;
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().contains_key("ratelimit"));
}

#[tokio::test(start_paused = true)]
async fn only_the_answers_that_count_are_charged() {
    let limiter = hourly(2);
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .charge_when(|status| status == StatusCode::UNAUTHORIZED);
    let login = async |headers: HeaderMap| match headers.contains_key("password") {
        true => StatusCode::OK,
        false => StatusCode::UNAUTHORIZED,
    };
    let app = Router::new().route("/", get(login)).layer(layer);
    for _ in 0..5 {
        let right = ask(&app, get_with(&[("password", "x")])).await;
        assert_eq!(right.status(), 200);
        // The fields come after the refund.
        assert_eq!(left(right.headers()), [("hourly".to_owned(), [Some(2), None])]);
    }
    let wrong = ask(&app, get_with(&[])).await;
    assert_eq!(wrong.status(), 401);
    assert_eq!(left(wrong.headers()), [("hourly".to_owned(), [Some(1), Some(HOUR as i64)])]);
    assert_eq!(ask(&app, get_with(&[])).await.status(), 401);
    assert_eq!(ask(&app, get_with(&[("password", "x")])).await.status(), 429);
    assert_eq!(limiter.stats().refunded, 5);
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_stays_charged() {
    let limiter = hourly(2);
    let layer = RateLimitLayer::new(limiter.clone(), all).charge_when(|_| false);
    let app = Router::new().route("/", get(pending::<()>)).layer(layer);
    let mut request = spawn(ask(&app, get_with(&[])));
    assert_eq!(limiter.peek("all").await.remaining(), 2);
    assert_pending!(request.poll());
    assert_eq!(limiter.peek("all").await.remaining(), 1);
    drop(request);
    assert_eq!(limiter.peek("all").await.remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shadow_counts_and_denies_nothing() {
    let limiter = hourly(2);
    let layer = RateLimitLayer::new(limiter.clone(), all).shadow();
    let app = Router::new().route("/", get("hello")).layer(layer);
    for _ in 0..5 {
        let answer = ask(&app, get_with(&[])).await;
        assert_eq!(answer.status(), 200);
        assert!(!answer.headers().contains_key("ratelimit"));
    }
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_denial_can_be_ones_own() {
    let layer = RateLimitLayer::new(hourly(1), all).on_limited(|limited, request| {
        let text = format!("{} {} {}", request.uri.path(), limited.limit(), limited.cost());
        (StatusCode::SERVICE_UNAVAILABLE, [("x-own", "yes")], text)
    });
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
    let denied = ask(&app, get_with(&[])).await;
    assert_eq!(denied.status(), 503);
    assert_eq!(denied.headers()["x-own"], "yes");
    assert_eq!(number(denied.headers(), "retry-after"), Some(HOUR));
    assert_eq!(left(denied.headers()), [("hourly".to_owned(), [Some(0), Some(HOUR as i64)])]);
    assert_eq!(text(denied).await, "/ 1 in 3600s (hourly) 1");

    // What it says itself stays; fields that tell of limits come once.
    let layer = RateLimitLayer::new(hourly(1), all)
        .on_limited(|limited, _| ([("retry-after", "7000")], limited.clone()));
    let app = Router::new().route("/", get("hello")).layer(layer);
    ask(&app, get_with(&[])).await;
    let denied = ask(&app, get_with(&[])).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(number(denied.headers(), "retry-after"), Some(7_000));
    assert_eq!(left(denied.headers()).len(), 1);
    assert_eq!(policies(denied.headers()).len(), 1);
}

/// Who a request is from, by a header that it must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Token(String);

impl<S: Send + Sync> FromRequestParts<S> for Token {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        tokio::task::yield_now().await;
        let token = parts.headers.get("x-token").and_then(|token| token.to_str().ok());
        let token = token.ok_or((StatusCode::UNAUTHORIZED, "a token is needed"))?;
        Ok(Self(token.to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn an_extractor_is_a_key_and_its_rejection_an_answer() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let layer = RateLimitLayer::by::<Token>(limiter);
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_with(&[("x-token", "ada")])).await.status(), 200);
    assert_eq!(ask(&app, get_with(&[("x-token", "ada")])).await.status(), 429);
    assert_eq!(ask(&app, get_with(&[("x-token", "grace")])).await.status(), 200);
    let rejected = ask(&app, get_with(&[])).await;
    assert_eq!(rejected.status(), 401);
    assert_eq!(text(rejected).await, "a token is needed");
}

#[tokio::test(start_paused = true)]
async fn a_setting_holds_for_the_layer_that_it_is_set_on() {
    let layer = RateLimitLayer::new(hourly(10), all);
    let expensive = layer.clone().cost(|_| 4);
    let app = |layer| Router::new().route("/", get("hello")).layer(layer);
    let (cheap, expensive) = (app(layer), app(expensive));
    let remaining = async |app| left(ask(app, get_with(&[])).await.headers())[0].1[0];
    assert_eq!(remaining(&cheap).await, Some(9));
    assert_eq!(remaining(&expensive).await, Some(5));
    assert_eq!(remaining(&cheap).await, Some(4));
}

/// Remembers how many bytes were hashed at once.
#[derive(Clone, Default)]
struct Longest(Arc<AtomicUsize>);

struct LongestHasher(DefaultHasher, Arc<AtomicUsize>);

impl BuildHasher for Longest {
    type Hasher = LongestHasher;

    fn build_hasher(&self) -> LongestHasher {
        LongestHasher(DefaultHasher::new(), self.0.clone())
    }
}

impl Hasher for LongestHasher {
    fn finish(&self) -> u64 {
        self.0.finish()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.1.fetch_max(bytes.len(), Relaxed);
        self.0.write(bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_key_is_shortened_and_stays_itself() {
    let longest = Longest::default();
    let limiter =
        RateLimiter::<String>::builder().limit(Limit::per_hour(1)).hasher(longest.clone()).build();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let layer = RateLimitLayer::new(limiter.clone(), |request| {
        Some(String::from_utf8_lossy(request.headers["x-token"].as_bytes()).into_owned())
    })
    .limits({
        let seen = seen.clone();
        move |_, key: &String| {
            seen.lock().unwrap().push(key.len());
            None
        }
    });
    let app = Router::new().route("/", get("hello")).layer(layer);
    let prefix = "é".repeat(2_000);
    let tokens = [
        format!("{prefix}a"),
        format!("{prefix}b"),
        format!("x{prefix}"),
        "y".repeat(256),
        "y".repeat(257),
    ];
    for (times, expected) in [(0, 200), (1, 429)] {
        for token in &tokens {
            let status = ask(&app, get_with(&[("x-token", token)])).await.status();
            assert_eq!(status, expected, "{} bytes, time {times}", token.len());
        }
    }
    assert_eq!(limiter.stats().keys, tokens.len());
    assert!((256..=300).contains(&longest.0.load(Relaxed)), "{longest:?}", longest = longest.0);
    // A short one is counted as it is, and a plan is chosen by the whole.
    assert_eq!(limiter.peek(&tokens[3]).await.remaining(), 0);
    assert_eq!(seen.lock().unwrap()[..5], tokens.map(|token| token.len()));
}

/// A service with an error of its own, that must be asked whether it is ready before each call.
#[derive(Debug, Default)]
struct Picky {
    is_ready: bool,
}

#[derive(Debug, PartialEq)]
struct Broken;

impl Clone for Picky {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<&'static str>> for Picky {
    type Response = Response<Full<Bytes>>;
    type Error = Broken;
    type Future = Ready<Result<Response<Full<Bytes>>, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<&'static str>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it is called before it is ready");
        ready(match request.into_body() {
            "broken" => Err(Broken),
            body => Ok(Response::new(body.into())),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn any_tower_service_will_do_and_keeps_its_errors() {
    let limiter = hourly(3);
    let mut service = RateLimitLayer::new(limiter.clone(), all).layer(Picky::default());
    let mut call = async |body| service.ready().await?.call(Request::new(body)).await;
    let body = async |response: Response<Full<Bytes>>| {
        let Ok::<_, Infallible>(body) = response.into_body().collect().await;
        String::from_utf8(body.to_bytes().to_vec()).expect("the body is text")
    };
    let first = call("hello").await.unwrap();
    assert_eq!(left(first.headers()), [("hourly".to_owned(), [Some(2), Some(HOUR as i64)])]);
    assert_eq!(body(first).await, "hello");
    assert_eq!(call("broken").await.unwrap_err(), Broken);
    assert_eq!(limiter.peek("all").await.remaining(), 1);
    assert_eq!(call("hello").await.unwrap().status(), 200);
    let denied = call("hello").await.unwrap();
    assert_eq!(denied.status(), 429);
    let headers = denied.headers().clone();
    assert_is_denial(3, &headers, &body(denied).await);
}
