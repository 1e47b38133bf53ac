//! Code of the application in a layer: extractors with state, lookups of limits, `on_decision`, partition keys.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::FromRequestParts,
    http::{HeaderMap, Request, StatusCode, request::Parts},
    response::IntoResponse,
    routing::get,
};
use fleeting::{Headers, Limit, RateLimitDecision, RateLimitLayer, RateLimiter};
use tokio::time::{Instant, advance, sleep, timeout};

use super::asking::*;

const SECOND: Duration = Duration::from_secs(1);

type Plan = Arc<[Limit]>;

/// Finds the user of a token, after a while.
#[derive(Clone, Default)]
struct App {
    asked: Arc<AtomicUsize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct User(String);

#[derive(Clone)]
struct Cost(u32);

impl FromRequestParts<App> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, StatusCode> {
        sleep(SECOND).await;
        app.asked.fetch_add(1, Relaxed);
        let token = parts.headers.get("x-token").and_then(|token| token.to_str().ok());
        let user = token.ok_or(StatusCode::UNAUTHORIZED)?.to_owned();
        if user == "paid" {
            parts.extensions.insert::<Plan>([Limit::per_minute(10).named("paid")].into());
            parts.extensions.insert(Cost(4));
        }
        Ok(User(user))
    }
}

fn by_user(limiter: &RateLimiter<User>, app: &App) -> RateLimitLayer<User> {
    RateLimitLayer::by_with_state::<User, _>(limiter.clone(), app.clone())
        .limits(|request, _| request.extensions.get::<Plan>().cloned())
        .cost(|request| request.extensions.get().map_or(1, |Cost(cost)| *cost))
}

fn from(token: &str) -> Request<Body> {
    get_with(&[("x-token", token)])
}

#[tokio::test(start_paused = true)]
async fn extractor_with_state_provides_key_cost_and_limits() {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(1).named("free")).build();
    let state = App::default();
    let handler = async |cost: Option<Extension<Cost>>| cost.map_or(0, |cost| cost.0.0).to_string();
    for layer in [by_user(&limiter, &state), by_user(&limiter, &state).wait(SECOND)] {
        let app = Router::new().route("/", get(handler)).layer(layer).with_state(state.clone());
        let free = ask(&app, from("free")).await;
        assert_eq!((free.status().as_u16(), left(free.headers())[0].0.as_str()), (200, "free"));
        assert_eq!(ask(&app, from("free")).await.status(), 429);
        for left_after in [6, 2] {
            let paid = ask(&app, from("paid")).await;
            assert_eq!(paid.status(), 200);
            assert_eq!(left(paid.headers())[0].1[0], Some(left_after));
            assert_eq!(text(paid).await, "4", "the handler does not see the extension");
        }
        assert_eq!(ask(&app, from("paid")).await.status(), 429);
        assert_eq!(ask(&app, get_with(&[])).await.status(), 401);
        advance(60 * SECOND).await;
    }
    assert_eq!(state.asked.load(Relaxed), 12);
}

#[tokio::test(start_paused = true)]
async fn request_cancelled_during_key_extraction_is_not_charged() {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    let plans = RateLimitLayer::new(limiter.clone(), |_| Some(User("ada".to_owned())))
        .limits_by_key(60 * SECOND, async |_| {
            sleep(SECOND).await;
            None
        });
    for layer in [by_user(&limiter, &App::default()), plans] {
        let app = Router::<()>::new().route("/", get("hello")).layer(layer);
        assert!(timeout(SECOND / 2, ask(&app, from("ada"))).await.is_err());
        assert_eq!(limiter.stats().admitted, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn limits_by_key_are_looked_up_once_per_ttl() {
    let limiter = RateLimiter::<String>::builder().limit(Limit::per_hour(2).named("own")).build();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let look_up = move |key: String| {
        log.lock().unwrap().push(key.clone());
        async move {
            sleep(SECOND).await;
            let plan: Plan = [Limit::per_hour(5).named("paid")].into();
            key.starts_with("paid").then_some(plan)
        }
    };
    let token = |request: &Parts| Some(request.headers.get("x-token")?.to_str().ok()?.to_owned());
    let layer = RateLimitLayer::new(limiter, token).limits_by_key(60 * SECOND, look_up);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let start = Instant::now();
    // Long enough for the layer to shorten it.
    let long = "paid".repeat(100);
    for (user, name, quota) in [("ada", "own", 2), ("paid", "paid", 5), (&long, "paid", 5)] {
        for call in 1..=quota + 2 {
            let answer = ask(&app, from(user)).await;
            assert_eq!(answer.status(), if call > quota { 429 } else { 200 }, "{user} {call}");
            assert_eq!(policies(answer.headers())[0].0, name);
        }
    }
    assert_eq!(start.elapsed(), 3 * SECOND);
    assert_eq!(*asked.lock().unwrap(), ["ada", "paid", &long], "not looked up by the whole key");
    // A request without a key causes no lookup, and each key is looked up again after its TTL.
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
    assert_eq!(asked.lock().unwrap().len(), 3);
    advance(60 * SECOND).await;
    ask(&app, from("ada")).await;
    assert_eq!(asked.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn limits_by_key_may_be_none_and_have_a_ttl_of_zero_or_forever() {
    for (ttl, looks) in [(Duration::ZERO, 5), (Duration::MAX, 1)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let limiter = hourly(1);
        let layer = RateLimitLayer::new(limiter.clone(), all).limits_by_key(ttl, move |_| {
            count.fetch_add(1, Relaxed);
            async { Some([].into()) }
        });
        let app = Router::new().route("/", get("hello")).layer(layer);
        for _ in 0..5 {
            let answer = ask(&app, get_with(&[])).await;
            assert_eq!(answer.status(), 200);
            assert!(!answer.headers().contains_key("ratelimit"));
        }
        assert_eq!((asked.load(Relaxed), limiter.stats().admitted), (looks, 0), "{ttl:?}");
    }
}

/// A hundred concurrent requests cause one lookup, even if some are cancelled.
#[tokio::test(start_paused = true)]
async fn concurrent_requests_of_a_key_share_one_lookup_of_limits() {
    let limiter = hourly(1_000);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let layer = RateLimitLayer::new(limiter, all).limits_by_key(60 * SECOND, move |_| {
        count.fetch_add(1, Relaxed);
        async {
            sleep(10 * SECOND).await;
            None
        }
    });
    let app = Router::new().route("/", get("hello")).layer(layer);
    let first = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, get_with(&[])).await }
    });
    let others = (0..100).map(|_| {
        let app = app.clone();
        tokio::spawn(async move { ask(&app, get_with(&[])).await.status() })
    });
    let others: Vec<_> = others.collect();
    sleep(5 * SECOND).await;
    assert_eq!(asked.load(Relaxed), 1);
    first.abort();
    for other in others {
        assert_eq!(other.await.unwrap(), 200);
    }
    assert_eq!(asked.load(Relaxed), 2, "a waiter did not continue with its own lookup");
}

#[tokio::test(start_paused = true)]
async fn panicking_lookup_of_limits_affects_only_its_own_request() {
    let limiter = hourly(2);
    let calls = AtomicUsize::new(0);
    let layer = RateLimitLayer::new(limiter, all).limits_by_key(60 * SECOND, move |_| {
        let call = calls.fetch_add(1, Relaxed);
        async move {
            assert!(call > 0, "no database");
            None
        }
    });
    let app = Router::new().route("/", get("hello")).layer(layer);
    let first = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, get_with(&[])).await }
    });
    assert!(first.await.unwrap_err().is_panic());
    for status in [200, 200, 429] {
        assert_eq!(ask(&app, get_with(&[])).await.status(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn on_decision_is_called_for_each_decision() {
    let limiter =
        RateLimiter::<String>::builder().limit(Limit::per_second(1).named("burst")).build();
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let log = decisions.clone();
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .skip(|request| request.method == "OPTIONS")
        .on_decision(move |decision, request| {
            let text = match decision {
                RateLimitDecision::Allowed => "allowed".to_owned(),
                RateLimitDecision::Waited(wait) => format!("waited {wait:?}"),
                RateLimitDecision::Denied(limited) => format!("denied {}", limited.limit()),
                RateLimitDecision::Shadowed(limited) => format!("shadowed {}", limited.limit()),
                other => panic!("{other:?}"),
            };
            log.lock().unwrap().push(format!("{text} {}", request.uri.path()));
        });
    let app = Router::new()
        .route("/", get("hello").layer(layer.clone()))
        .route("/waits", get("hello").layer(layer.clone().wait(SECOND)))
        .route("/watches", get("hello").layer(layer.shadow().wait(SECOND)));
    for path in ["/", "/", "/watches", "/waits", "/watches"] {
        ask(&app, Request::get(path).body(Body::empty()).unwrap()).await;
    }
    ask(&app, Request::options("/").body(Body::empty()).unwrap()).await;
    let expected = [
        "allowed /",
        "denied 1 in 1s (burst) /",
        "shadowed 1 in 1s (burst) /watches",
        "waited 1s /waits",
        "shadowed 1 in 1s (burst) /watches",
    ];
    assert_eq!(*decisions.lock().unwrap(), expected);
    let stats = limiter.stats();
    let counted = (stats.admitted, stats.waited, stats.denied, stats.shadowed);
    assert_eq!(counted, (2, 1, 3, 2), "stats differ from the decisions: {stats:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_wait_than_max_waiting() {
    let limiter =
        RateLimiter::<String>::builder().limit(Limit::per_second(1)).max_waiting(2).build();
    let layer = RateLimitLayer::new(limiter, all).wait(60 * SECOND);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let start = Instant::now();
    let ask_in_order = |_| async { (ask(&app, get_with(&[])).await.status(), start.elapsed()) };
    let answers = futures::future::join_all((0..5).map(ask_in_order)).await;
    let expected = [(200, 0), (200, 1), (200, 2), (429, 0), (429, 0)];
    let expected = expected.map(|(status, after)| (status, after * SECOND));
    let answers: Vec<_> = answers.iter().map(|(status, at)| (status.as_u16(), *at)).collect();
    assert_eq!(answers, expected);
}

/// Returns a parameter of each member of a field.
fn parameter(headers: &HeaderMap, field: &str, name: &str) -> Vec<Option<sfv::BareItem>> {
    let lines: Vec<_> = headers.get_all(field).iter().map(|line| line.as_bytes()).collect();
    let list = sfv::Parser::new(&lines.join(&b", "[..])).parse::<sfv::List>().unwrap();
    let of = |entry: sfv::ListEntry| match entry {
        sfv::ListEntry::Item(item) => item.params.get(name).cloned(),
        other => panic!("{other:?} is not an item"),
    };
    list.into_iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn fields_contain_the_partition_key() {
    let limits =
        || RateLimiter::<String>::builder().limit(Limit::per_hour(1)).limit(Limit::per_minute(1));
    let layer = RateLimitLayer::by_extension::<String>(limits().build())
        .partition_key(|key: &String| key.as_bytes().to_vec());
    // All lengths of base64's padding, and all of its digits.
    let keys = (0..=6).map(|length| "ada+/é"[..length.min(5)].repeat(1 + length / 6));
    for key in keys.chain(["é".repeat(128), "\0\u{10ffff}".to_owned()]) {
        let app = Router::new().route("/", get("hello")).layer(layer.clone());
        let app = app.layer(Extension(key.clone()));
        for status in [200, 429] {
            let answer = ask(&app, get_with(&[])).await;
            assert_eq!(answer.status(), status);
            for field in ["ratelimit-policy", "ratelimit"] {
                let expected = Some(sfv::BareItem::ByteSequence(key.clone().into_bytes()));
                let values = parameter(answer.headers(), field, "pk");
                assert_eq!(values, [expected.clone(), expected], "{key:?} {field}");
            }
        }
        advance(3_600 * SECOND).await;
    }
    let long = RateLimitLayer::new(hourly(3), all).partition_key(|_| [b'a'; 257]);
    let app = Router::new().route("/", get("hello")).layer(long);
    let answer = ask(&app, get_with(&[])).await;
    assert_eq!(parameter(answer.headers(), "ratelimit", "pk"), [None]);
    let exact = RateLimitLayer::new(hourly(3), all).partition_key(|_| *b"App-999");
    let app = Router::new().route("/", get("hello")).layer(exact.clone());
    let answer = ask(&app, get_with(&[])).await;
    let expected = r#""hourly";q=3;w=3600;pk=:QXBwLTk5OQ==:"#;
    assert_eq!(answer.headers()["ratelimit-policy"], expected);
    assert_eq!(answer.headers()["ratelimit"], r#""hourly";r=2;t=3600;pk=:QXBwLTk5OQ==:"#);
    for headers in [Headers::Legacy, Headers::None] {
        let app = Router::new().route("/", get("hello")).layer(exact.clone().headers(headers));
        assert!(!ask(&app, get_with(&[])).await.headers().contains_key("ratelimit"));
    }
}

#[tokio::test(start_paused = true)]
async fn limit_of_bytes_has_the_unit_content_bytes() {
    let limiter = RateLimiter::<String>::builder()
        .limit(Limit::per_hour(5_000).named("sent").of_bytes())
        .limit(Limit::per_hour(5).named("requests"))
        .build();
    let layer = RateLimitLayer::new(limiter, all);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let answer = ask(&app, get_with(&[])).await.into_response();
    let expected = r#""sent";q=5000;qu="content-bytes";w=3600, "requests";q=5;w=3600"#;
    assert_eq!(answer.headers()["ratelimit-policy"], expected);
    let units = parameter(answer.headers(), "ratelimit-policy", "qu");
    assert_eq!(units.iter().filter(|unit| unit.is_some()).count(), 1);
}

/// The last known limits, or the limiter's own; and each later request tries again.
#[tokio::test(start_paused = true)]
async fn failed_lookup_of_limits_is_not_taken_for_a_plan() {
    let limiter = RateLimiter::<String>::builder().limit(Limit::per_hour(9).named("own")).build();
    let state = Arc::new(Mutex::new((false, 0)));
    let database = state.clone();
    let layer = RateLimitLayer::new(limiter, all).try_limits_by_key(60 * SECOND, move |_| {
        let mut database = database.lock().unwrap();
        database.1 += 1;
        let is_up = database.0;
        async move {
            let plan: Plan = [Limit::per_hour(5).named("paid")].into();
            if is_up { Ok(Some(plan)) } else { Err("the database is down") }
        }
    });
    let app = Router::new().route("/", get("hello")).layer(layer);
    let policy = async || policies(ask(&app, get_with(&[])).await.headers())[0].0.clone();
    for lookups in 1..=3 {
        assert_eq!(policy().await, "own");
        assert_eq!(state.lock().unwrap().1, lookups, "a failure was cached");
    }
    state.lock().unwrap().0 = true;
    assert_eq!(policy().await, "paid");
    state.lock().unwrap().0 = false;
    advance(61 * SECOND).await;
    assert_eq!(policy().await, "paid", "the last limits are forgotten");
    advance(2 * 3_600 * SECOND).await;
    assert_eq!(policy().await, "own");
}
