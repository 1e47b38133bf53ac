//! Costs that are known only from the response, requests that wait, keys that another layer provides, and fields of a
//! denial that comes from a handler.

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
    http::{Request, StatusCode, request::Parts},
    response::Response,
    routing::get,
};
use fleeting::{Headers, Limit, Limited, RateLimitLayer, RateLimiter, Standing, Window};
use http_body_util::BodyExt;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::asking::*;

const SECOND: Duration = Duration::from_secs(1);

fn per_minute(quota: u32) -> RateLimiter<String> {
    RateLimiter::builder().limit(Limit::per_minute(quota).named("minute")).build()
}

fn get_path(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).expect("the request is valid")
}

#[tokio::test(start_paused = true)]
async fn charge_after_sets_the_cost_by_the_response() {
    #[derive(Clone)]
    struct Rows(u32);

    let limiter = per_minute(100);
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .cost(|_| 10)
        .refund_unused()
        .charge_after(|response: &Response| {
            if response.status() == StatusCode::NOT_FOUND {
                return 0;
            }
            let header = response.headers().get("x-tokens").and_then(|value| value.to_str().ok());
            let rows = response.extensions().get::<Rows>().map(|rows| rows.0);
            rows.or_else(|| header?.parse().ok()).unwrap_or(10)
        });
    let app = Router::new()
        .route("/tokens", get(async || ([("x-tokens", "30")], "text")))
        .route("/rows", get(async || (Extension(Rows(25)), "read")))
        .route("/plain", get("plain"))
        .route("/dear", get(async || (Extension(Rows(500)), "dear")))
        .layer(layer);
    for (path, status, remaining) in [
        ("/tokens", 200, 70),
        ("/rows", 200, 45),
        ("/plain", 200, 35),
        ("/nowhere", 404, 35),
        ("/dear", 200, 0),
    ] {
        let answer = ask(&app, get_path(path)).await;
        assert_eq!(answer.status(), status, "{path}");
        // The fields show the corrected charge.
        assert_eq!(left(answer.headers())[0].1[0], Some(remaining), "{path}");
        if path == "/tokens" {
            assert_eq!(answer.headers()["x-tokens"], "30", "`charge_after` removed a header");
        }
        assert_eq!(limiter.peek("all").await.remaining(), remaining as u32);
    }
    let denied = ask(&app, get_path("/plain")).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(number(denied.headers(), "retry-after"), Some(60));
}

#[tokio::test(start_paused = true)]
async fn charge_after_is_not_called_for_responses_that_are_not_charged() {
    let limiter = per_minute(100);
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .charge_when(|status| status.is_success())
        .charge_after(|_| 40);
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_path("/nowhere")).await.status(), 404);
    assert_eq!(limiter.peek("all").await.remaining(), 100);
    assert_eq!(ask(&app, get_path("/")).await.status(), 200);
    assert_eq!(limiter.peek("all").await.remaining(), 60);
}

/// The whole body, or the part that was sent before the client disconnected.
#[tokio::test(start_paused = true)]
async fn charge_sent_charges_the_bytes_that_were_sent() {
    let limiter = per_minute(1_000);
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .cost(|_| 10)
        .charge_when(|status| status != StatusCode::NOT_FOUND)
        .charge_after(|_| unreachable!("`charge_sent` replaces `charge_after`"))
        .charge_sent(|bytes| bytes as u32);
    let stream = async || {
        let pieces = (0..5).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 50]));
        Body::from_stream(futures::stream::iter(pieces))
    };
    let app = Router::new().route("/", get(stream)).route("/empty", get(async || ())).layer(layer);
    let remaining = async || limiter.peek("all").await.remaining();

    let answer = ask(&app, get_path("/")).await;
    assert_eq!(remaining().await, 990, "charged before the body was sent");
    assert_eq!(left(answer.headers())[0].1[0], Some(990));
    assert_eq!(text(answer).await.len(), 250);
    assert_eq!(remaining().await, 750);

    let mut answer = ask(&app, get_path("/")).await;
    for _ in 0..2 {
        answer.body_mut().frame().await.unwrap().unwrap();
    }
    drop(answer);
    assert_eq!(remaining().await, 650, "not charged for the part that was sent");

    drop(ask(&app, get_path("/empty")).await);
    assert_eq!(remaining().await, 640, "not charged for the request");
    assert_eq!(ask(&app, get_path("/nowhere")).await.status(), 404);
    assert_eq!(remaining().await, 640, "a response that is not charged was charged");
}

/// Responses to HEAD, 304s and those of clients that disconnect have no bytes.
#[tokio::test(start_paused = true)]
async fn cost_of_a_response_is_not_below_that_of_its_request() {
    let by_body = |layer: RateLimitLayer<String>| layer.charge_sent(|bytes| bytes as u32);
    let by_head = |layer: RateLimitLayer<String>| layer.charge_after(|_| 0);
    for (name, set) in [("sent", by_body as fn(_) -> _), ("after", by_head)] {
        let limiter = per_minute(10);
        let layer = set(RateLimitLayer::new(limiter.clone(), all).cost(|_| 2));
        let app = Router::new()
            .route("/", get("hello"))
            .route("/unchanged", get(StatusCode::NOT_MODIFIED))
            .layer(layer.clone());
        let head = || Request::head("/").body(Body::empty()).unwrap();
        drop(text(ask(&app, head()).await).await);
        drop(text(ask(&app, get_path("/unchanged")).await).await);
        drop(ask(&app, get_path("/")).await);
        assert_eq!(limiter.peek("all").await.remaining(), 4, "{name}");
        // Unless unused cost is refunded.
        let app = Router::new().route("/", get("hello")).layer(layer.refund_unused());
        drop(text(ask(&app, head()).await).await);
        assert_eq!(limiter.peek("all").await.remaining(), 4, "{name}");
    }
}

/// A connection may hold a body long after its end, while the next request uses another connection.
#[tokio::test(start_paused = true)]
async fn charge_sent_charges_as_soon_as_the_body_has_ended() {
    let limiter = per_minute(1_000);
    let layer = RateLimitLayer::new(limiter.clone(), all).charge_sent(|bytes| bytes as u32);
    let stream = async || {
        let pieces = (0..2).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 50]));
        Body::from_stream(futures::stream::iter(pieces))
    };
    let whole = async || vec![0_u8; 100];
    let app = Router::new().route("/stream", get(stream)).route("/whole", get(whole)).layer(layer);
    let mut remaining = 1_000;
    // A stream's last frame is known only by its end.
    for (path, frames) in [("/whole", 1), ("/stream", 3)] {
        let mut answer = ask(&app, get_path(path)).await;
        for _ in 0..frames {
            answer.body_mut().frame().await.transpose().unwrap();
        }
        remaining -= 100;
        assert_eq!(limiter.peek("all").await.remaining(), remaining, "{path}");
        drop(answer);
        assert_eq!(limiter.peek("all").await.remaining(), remaining, "{path}: charged twice");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_in_charge_sent_does_not_affect_the_response() {
    let limiter = per_minute(1_000);
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .cost(|_| 10)
        .charge_sent(|bytes| panic!("no cost for {bytes} bytes"));
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(text(ask(&app, get_path("/")).await).await, "hello");
    drop(ask(&app, get_path("/")).await);
    assert_eq!(limiter.peek("all").await.remaining(), 980, "the initial charge changed");
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_order_until_they_pass() {
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).build();
    let layer = RateLimitLayer::new(limiter.clone(), all).wait(3 * SECOND);
    let app = Router::new().route("/{id}", get(async || "hello")).layer(layer);
    let order = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for id in 0..6 {
        let (app, order) = (app.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let answer = ask(&app, get_path(&format!("/{id}"))).await;
            let seen = (id, answer.status().as_u16(), start.elapsed().as_secs());
            order.lock().unwrap().push(seen);
        }));
        yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut seen = order.lock().unwrap().clone();
    // Two cannot pass in time, because of those ahead, and are denied immediately.
    let denied: Vec<_> = seen.extract_if(.., |(_, status, _)| *status == 429).collect();
    assert_eq!(denied.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [4, 5]);
    assert!(denied.iter().all(|(_, _, at)| *at == 0), "{denied:?}");
    assert_eq!(seen, [(0, 200, 0), (1, 200, 1), (2, 200, 2), (3, 200, 3)]);
    let stats = limiter.stats();
    assert!(stats.admitted == 4 && stats.denied >= 2, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn request_of_a_disconnected_client_leaves_the_queue() {
    let limiter = per_minute(1);
    let layer = RateLimitLayer::new(limiter.clone(), all).wait(600 * SECOND);
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_path("/")).await.status(), 200);
    let start = Instant::now();
    let cancelled = {
        let app = app.clone();
        async move { timeout(10 * SECOND, ask(&app, get_path("/"))).await.is_err() }
    };
    let (cancelled, answer) = tokio::join!(cancelled, ask(&app, get_path("/")));
    assert!(cancelled);
    assert_eq!((answer.status().as_u16(), start.elapsed()), (200, 60 * SECOND));
    assert_eq!(limiter.stats().admitted, 2, "the cancelled request was charged");
}

/// A cost above the quota is denied immediately, and shadow mode delays nothing.
#[tokio::test(start_paused = true)]
async fn requests_above_the_quota_and_in_shadow_mode_do_not_wait() {
    let start = Instant::now();
    let layer = || RateLimitLayer::new(per_minute(1), all).wait(600 * SECOND);
    let dear = Router::new().route("/", get("hello")).layer(layer().cost(|_| 2));
    assert_eq!(ask(&dear, get_path("/")).await.status(), 429);
    let shadow = Router::new().route("/", get("hello")).layer(layer().shadow());
    for _ in 0..3 {
        assert_eq!(ask(&shadow, get_path("/")).await.status(), 200);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn waiting_request_uses_its_plan_and_cost() {
    let limiter = per_minute(1);
    let plan: Arc<[Limit]> = [Limit::per_minute(10).named("paid")].into();
    let layer = RateLimitLayer::new(limiter, all)
        .limits(move |_, _| Some(plan.clone()))
        .cost(|_| 6)
        .wait(60 * SECOND);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let start = Instant::now();
    for after in [0, 60] {
        let answer = ask(&app, get_path("/")).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(start.elapsed().as_secs(), after);
        assert_eq!(left(answer.headers())[0].0, "paid");
        assert_eq!(left(answer.headers())[0].1[0], Some(4));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UserId(u32);

#[tokio::test(start_paused = true)]
async fn by_extension_uses_the_key_of_an_outer_layer() {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    let layer = RateLimitLayer::by_extension::<UserId>(limiter);
    let route = || Router::new().route("/", get("hello")).layer(layer.clone());
    for user in [1, 2] {
        let app = route().layer(Extension(UserId(user)));
        assert_eq!(ask(&app, get_path("/")).await.status(), 200);
        assert_eq!(ask(&app, get_path("/")).await.status(), 429);
    }
    let without = ask(&route(), get_path("/")).await;
    assert_eq!(without.status(), 500);
    assert!(text(without).await.contains("UserId"));
}

/// The denial of a handler gets the fields of the layer's `Headers`.
#[tokio::test(start_paused = true)]
async fn denial_of_a_handler_has_the_fields_of_the_layer() {
    for headers in [Headers::Draft11, Headers::Legacy, Headers::Both, Headers::None] {
        let letters = RateLimiter::<String>::builder().limit(Limit::per_minute(1).named("letters"));
        let letters = letters.build();
        let handler = async move || -> Result<&'static str, Limited> {
            letters.check("ada").await?;
            Ok("sent")
        };
        let layer = RateLimitLayer::new(hourly(10), all).headers(headers);
        let app = Router::new().route("/", get(handler)).layer(layer);
        assert_eq!(ask(&app, get_path("/")).await.status(), 200);
        let denied = ask(&app, get_path("/")).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(number(denied.headers(), "retry-after"), Some(60), "{headers:?}");
        let draft = matches!(headers, Headers::Draft11 | Headers::Both);
        let legacy = matches!(headers, Headers::Legacy | Headers::Both);
        let names: Vec<_> = left(denied.headers()).into_iter().map(|(name, _)| name).collect();
        let expected: &[&str] = if draft { &["letters", "hourly"] } else { &[] };
        assert_eq!(names, expected, "{headers:?}");
        let limit = number(denied.headers(), "x-ratelimit-limit");
        assert_eq!(limit, legacy.then_some(1), "not the limit that denied: {headers:?}");
        assert_eq!(number(denied.headers(), "x-ratelimit-remaining"), legacy.then_some(0));
    }
}

/// For example to shorten a response if little quota is left, or to require a login.
#[tokio::test(start_paused = true)]
async fn handler_gets_the_standing_of_its_key() {
    let limiter = RateLimiter::<String>::builder()
        .limit(Limit::per_minute(10).named("minute"))
        .limit(Limit::per_hour(3).named("hourly"))
        .build();
    let handler = async |Extension(standing): Extension<Standing>| {
        let name = standing.limit().name().unwrap().to_owned();
        format!("{name} {} {:?}", standing.remaining(), standing.more_after())
    };
    let layer = RateLimitLayer::new(limiter, all).skip(|parts| parts.uri.path() == "/free");
    let app = Router::new()
        .route("/", get(handler))
        .route(
            "/free",
            get(async |standing: Option<Extension<Standing>>| standing.is_none().to_string()),
        )
        .layer(layer.clone())
        .route("/waits", get(handler).layer(layer.wait(SECOND)));
    for (path, left) in [("/", 2), ("/waits", 1), ("/", 0)] {
        let standing = text(ask(&app, get_path(path)).await).await;
        assert_eq!(standing, format!("hourly {left} Some(3600s)"));
    }
    assert_eq!(text(ask(&app, get_path("/free")).await).await, "true");
}

#[tokio::test(start_paused = true)]
async fn fields_show_changed_limits_immediately() {
    let limiter = per_minute(10);
    let layer =
        RateLimitLayer::new(limiter.clone(), all).skip(|parts: &Parts| parts.uri.path() == "/free");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let handler = async move || {
        count.fetch_add(1, Relaxed);
        "hello"
    };
    let app = Router::new().route("/", get(handler)).layer(layer);
    assert_eq!(left(ask(&app, get_path("/")).await.headers())[0].1[0], Some(9));
    limiter.set_limits([Limit::per_minute(3).named("less")]);
    let answer = ask(&app, get_path("/")).await;
    assert_eq!(policies(answer.headers()), [("less".to_owned(), [Some(3), Some(60)])]);
    assert_eq!(left(answer.headers())[0].1[0], Some(1));
    assert_eq!(ask(&app, get_path("/")).await.status(), 200);
    assert_eq!(ask(&app, get_path("/")).await.status(), 429);
    assert_eq!(asked.load(Relaxed), 3);
    sleep(60 * SECOND).await;
    assert_eq!(ask(&app, get_path("/")).await.status(), 200);
}

/// Even after the second change, and behind another waiter. The fields show the limits that admitted the request.
#[tokio::test(start_paused = true)]
async fn waiting_request_follows_changes_of_the_limits() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let layer = RateLimitLayer::new(limiter.clone(), all).wait(2 * 3_600 * SECOND);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let ask_once = || {
        let app = app.clone();
        tokio::spawn(async move { ask(&app, get_path("/")).await })
    };
    assert_eq!(ask_once().await.unwrap().status(), 200);
    let start = Instant::now();
    for (round, quota) in [(1, 3), (2, 5), (3, 7)] {
        let waiting = [ask_once(), ask_once()];
        sleep(SECOND).await;
        limiter.set_limits([Limit::per_hour(quota).named(format!("round-{round}"))]);
        let mut left_over = Vec::new();
        for waiting in waiting {
            let answer = waiting.await.unwrap();
            assert_eq!((answer.status().as_u16(), start.elapsed()), (200, round * SECOND));
            let shown = policies(answer.headers());
            let expected = (format!("round-{round}"), [Some(quota.into()), Some(3_600)]);
            assert_eq!(shown, [expected]);
            left_over.push(left(answer.headers())[0].1[0]);
        }
        assert_eq!(left_over, [Some(1), Some(0)]);
    }
    // A waiting request that can no longer pass.
    let waiting = ask_once();
    sleep(SECOND).await;
    limiter.set_limits([Limit::per_hour(1).named("less")]);
    let answer = waiting.await.unwrap();
    assert_eq!(policies(answer.headers())[0].0, "less");
}

/// Requests of a key wait in one queue, also under different plans, as the docs of `wait` say.
#[tokio::test(start_paused = true)]
async fn waiting_request_of_a_small_plan_delays_those_behind_it() {
    let limiter = per_minute(1);
    let small: Arc<[Limit]> = [Limit::per_minute(1)].into();
    let large: Arc<[Limit]> = [Limit::per_minute(100)].into();
    let layer = RateLimitLayer::new(limiter, all)
        .limits(move |parts, _| {
            Some(if parts.uri.path() == "/1" { &small } else { &large }.clone())
        })
        .wait(60 * SECOND);
    let app = Router::new().route("/{id}", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_path("/1")).await.status(), 200);
    let start = Instant::now();
    let timed = async |path| (ask(&app, get_path(path)).await.status().as_u16(), start.elapsed());
    let (first, second) = tokio::join!(timed("/1"), timed("/2"));
    assert_eq!((first, second), ((200, 60 * SECOND), (200, 60 * SECOND)));
}

/// Units that wait for a large plan do not take their time by the small plan of a request behind them. (With `Gcra`,
/// the units of the large plan leak as the small one says.)
#[tokio::test(start_paused = true)]
async fn request_that_passes_in_time_behind_one_of_a_larger_plan_is_not_denied() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = RateLimiter::<String>::builder().window(window).limit(Limit::per_minute(1));
        let small: Arc<[Limit]> = [Limit::per_minute(10)].into();
        let large: Arc<[Limit]> = [Limit::per_minute(100)].into();
        let layer = RateLimitLayer::new(limiter.build(), all)
            .limits(move |parts, _| {
                Some(if parts.uri.path() == "/1" { &small } else { &large }.clone())
            })
            .cost(|parts| parts.uri.path()[1..].parse().unwrap())
            .wait(150 * SECOND);
        let app = Router::new().route("/{id}", get("hello")).layer(layer);
        assert_eq!(ask(&app, get_path("/100")).await.status(), 200);
        let status = async |path| ask(&app, get_path(path)).await.status().as_u16();
        let (first, second) = tokio::join!(status("/50"), status("/1"));
        assert_eq!((first, second), (200, 200), "{window:?}");
    }
}

/// The first change of the limits, while the handler runs.
#[tokio::test(start_paused = true)]
async fn fields_after_a_correction_are_of_one_set_of_limits() {
    let limiter = RateLimiter::<String>::builder().limit(Limit::per_minute(100)).build();
    let layer = RateLimitLayer::new(limiter.clone(), all).charge_when(|_| true);
    let handler = move || {
        let limiter = limiter.clone();
        async move { limiter.set_limits([Limit::per_second(1), Limit::per_hour(1_000)]) }
    };
    let app = Router::new().route("/", get(handler)).layer(layer);
    let response = ask(&app, get_path("/")).await;
    let [policies, left] = [policies(response.headers()), left(response.headers())];
    let numbers = |fields: &[(String, [Option<i64>; 2])], at: usize| -> Vec<_> {
        fields.iter().map(|(_, numbers)| numbers[at]).collect()
    };
    assert_eq!(numbers(&policies, 0), [Some(1), Some(1_000)]);
    assert_eq!(numbers(&left, 0).len(), 2);
}
