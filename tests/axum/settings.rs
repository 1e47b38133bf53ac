//! Settings of a layer: costs, plans, charged responses, denials, keys; and any tower service.

use std::{
    convert::Infallible,
    future::{Ready, pending, ready},
    hash::{BuildHasher, DefaultHasher, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::FromRequestParts,
    http::{HeaderMap, Request, Response, StatusCode, request::Parts},
    routing::get,
};
use fleeting::{ClientIp, Limit, RateLimitBody, RateLimitLayer, RateLimiter, TrustedProxies};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio_test::{assert_pending, task::spawn};
use tower::{Layer, Service, ServiceExt};

use super::asking::*;

#[tokio::test(start_paused = true)]
async fn cost_sets_the_cost_of_a_request() {
    let limiter = hourly(10);
    let cost = |request: &Parts| {
        request.uri.query().map_or(1, |query| query.parse().expect("the query is a number"))
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
    // Cheaper requests still pass.
    assert_eq!(left(denied.headers()), [("hourly".to_owned(), [Some(3), Some(HOUR as i64)])]);

    let never = spend(11).await;
    assert_eq!(never.status(), 429);
    assert_eq!(number(never.headers(), "retry-after"), None);
    assert_eq!(left(never.headers()), [("hourly".to_owned(), [Some(3), Some(HOUR as i64)])]);
    let problem: Value = serde_json::from_str(&text(never).await).unwrap();
    assert_eq!(problem.get("retry_after_ms"), None);

    assert_eq!(spend(3).await.status(), 200);
    assert_eq!(spend(1).await.status(), 429);
    assert_eq!(spend(0).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn limits_sets_the_limits_of_a_plan() {
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
    // Without limits there are no fields.
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let answer = ask(&app, get_with(&[("x-token", "root")])).await;
        assert!(!answer.headers().contains_key("ratelimit"));
        statuses.push(answer.status());
    }
    assert_eq!(statuses, [200; 3]);
    // A request without a key is not limited.
    let answer = ask(&app, get_with(&[])).await;
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().contains_key("ratelimit"));
}

#[tokio::test(start_paused = true)]
async fn charge_when_charges_only_the_selected_responses() {
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
        // The fields are written after the refund.
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
async fn cancelled_request_stays_charged() {
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
async fn shadow_mode_counts_and_denies_nothing() {
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

/// Shadow mode must not break anything, even if some requests have no key.
#[tokio::test(start_paused = true)]
async fn shadow_mode_admits_requests_without_a_key() {
    let by_token = RateLimitLayer::by::<Token>(
        RateLimiter::<Token>::builder().limit(Limit::per_hour(1)).build(),
    );
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let by_ip = RateLimitLayer::by_ip(limiter, TrustedProxies::none());
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let by_client = RateLimitLayer::by::<ClientIp>(limiter);
    let route = || Router::new().route("/", get("hello"));
    for shadow in [
        route().layer(by_token.shadow()),
        route().layer(by_ip.shadow()),
        route().layer(by_client.shadow()),
    ] {
        let answer = ask(&shadow, get_with(&[])).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(text(answer).await, "hello");
    }
}

/// Health checks have no token, and no address if the router is called within the process.
#[tokio::test(start_paused = true)]
async fn skipped_request_needs_no_key() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let by_function = RateLimitLayer::new(hourly(1), move |parts| {
        count.fetch_add(1, Relaxed);
        all(parts)
    });
    let by_token = RateLimitLayer::by::<Token>(
        RateLimiter::<Token>::builder().limit(Limit::per_hour(1)).build(),
    );
    let is_health = |request: &Parts| request.uri.path() == "/health";
    let route = || Router::new().route("/health", get("well"));
    for app in [route().layer(by_function.skip(is_health)), route().layer(by_token.skip(is_health))]
    {
        for _ in 0..3 {
            let health = Request::get("/health").body(Body::empty()).unwrap();
            assert_eq!(ask(&app, health).await.status(), 200);
        }
    }
    assert_eq!(asked.load(Relaxed), 0, "the key of a skipped request was extracted");
}

#[tokio::test(start_paused = true)]
async fn on_limited_sets_the_response_of_a_denial() {
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

    // Its own `Retry-After` stays, and the rate limit fields occur once.
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

/// Extractor of a header that the request must have.
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
async fn extractor_provides_the_key_and_its_rejection_is_the_response() {
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
async fn setting_applies_only_to_the_layer_on_which_it_is_set() {
    let layer = RateLimitLayer::new(hourly(10), all);
    let expensive = layer.clone().cost(|_| 4);
    let app = |layer| Router::new().route("/", get("hello")).layer(layer);
    let (cheap, expensive) = (app(layer), app(expensive));
    let remaining = async |app| left(ask(app, get_with(&[])).await.headers())[0].1[0];
    assert_eq!(remaining(&cheap).await, Some(9));
    assert_eq!(remaining(&expensive).await, Some(5));
    assert_eq!(remaining(&cheap).await, Some(4));
}

/// Records the largest number of bytes hashed in one write.
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
async fn long_keys_are_shortened_and_share_no_quota() {
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
    // A short key is counted as it is, and `limits` gets the whole key.
    assert_eq!(limiter.peek(&tokens[3]).await.remaining(), 0);
    assert_eq!(seen.lock().unwrap()[..5], tokens.map(|token| token.len()));
}

/// A service with its own error type, which must be polled for readiness before each call.
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
        assert!(std::mem::take(&mut self.is_ready), "`call` without `poll_ready`");
        ready(match request.into_body() {
            "broken" => Err(Broken),
            body => Ok(Response::new(body.into())),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn layer_fits_any_tower_service_and_keeps_its_errors() {
    let limiter = hourly(3);
    let mut service = RateLimitLayer::new(limiter.clone(), all).layer(Picky::default());
    let mut call = async |body| service.ready().await?.call(Request::new(body)).await;
    let body = async |response: Response<RateLimitBody<Full<Bytes>>>| {
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
