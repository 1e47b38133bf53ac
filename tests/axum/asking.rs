//! Servers, requests and parsers of the fields that tests of the layer share.

use std::net::SocketAddr;

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, Response, request::Parts},
};
use fleeting::{Limit, RateLimiter};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::http::{self};

pub(super) const HOUR: u64 = 3_600;

/// Serves the app on a free port, with the addresses of its peers. Returns its URL.
pub(super) async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("the listener is bound");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    format!("http://{address}/")
}

/// Returns the statuses of `times` equal requests, one after the other.
pub(super) async fn statuses(times: usize, request: impl Fn() -> http::Request) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(request().send().await.status().as_u16());
    }
    statuses
}

/// Calls the app without a server.
pub(super) async fn ask(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.expect("a router has no errors")
}

pub(super) fn get_with(headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).expect("the request is valid")
}

pub(super) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("the body is complete").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("the body is text")
}

pub(super) fn hourly(quota: u32) -> RateLimiter<String> {
    RateLimiter::builder().limit(Limit::per_hour(quota).named("hourly")).build()
}

/// The same key for all requests.
pub(super) fn all(_: &Parts) -> Option<String> {
    Some("all".to_owned())
}

/// Parses a field: the name of each member, and the values of the given parameters.
pub(super) fn members<const N: usize>(
    headers: &HeaderMap,
    field: &str,
    parameters: [&str; N],
) -> Vec<(String, [Option<i64>; N])> {
    let lines: Vec<_> = headers.get_all(field).iter().map(|line| line.as_bytes()).collect();
    let line = lines.join(&b", "[..]);
    let list = sfv::Parser::new(&line).parse::<sfv::List>().expect("the field is a list");
    let member = |entry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("{entry:?} is not an item") };
        let name = item.bare_item.as_string().expect("the name is a string").as_str().to_owned();
        assert!(item.params.keys().all(|key| parameters.contains(&key.as_str())));
        let value = |name| {
            item.params
                .get(name)
                .map(|value| value.as_integer().expect("the parameter is a number").into())
        };
        (name, parameters.map(value))
    };
    list.into_iter().map(member).collect()
}

pub(super) fn policies(headers: &HeaderMap) -> Vec<(String, [Option<i64>; 2])> {
    members(headers, "ratelimit-policy", ["q", "w"])
}

pub(super) fn left(headers: &HeaderMap) -> Vec<(String, [Option<i64>; 2])> {
    members(headers, "ratelimit", ["r", "t"])
}

pub(super) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    let value = headers.get(name)?.to_str().expect("the field is text");
    Some(value.parse().expect("the value is a number"))
}

/// Asserts a denial by a limit named `hourly`, whose exact wait is unknown.
pub(super) fn assert_is_denial(quota: i64, headers: &HeaderMap, body: &str) {
    let retry_after = number(headers, "retry-after").expect("`Retry-After` is present");
    assert!((1..=HOUR).contains(&retry_after), "{retry_after}");
    assert_eq!(policies(headers), [("hourly".to_owned(), [Some(quota), Some(HOUR as i64)])]);
    assert_eq!(left(headers), [("hourly".to_owned(), [Some(0), Some(retry_after as i64)])]);
    assert_eq!(headers["content-type"], "application/problem+json");

    let problem: Value = serde_json::from_str(body).expect("the body is JSON");
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert!(problem["title"].is_string());
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["hourly"]));
    let milliseconds = problem["retry_after_ms"].as_u64().expect("the value is a number");
    assert!((1..=1_000 * HOUR).contains(&milliseconds), "{milliseconds}");
    assert_eq!(milliseconds.div_ceil(1_000), retry_after);
}
