//! `charge_failures`: only failures are charged, when they are known.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
    routing::get,
};
use fleeting::{Limit, RateLimitLayer, RateLimiter, Window};
use futures::future::join_all;
use tokio::time::{Instant, advance, sleep, timeout};

use super::asking::*;

const SECOND: Duration = Duration::from_secs(1);

fn limiter_of(window: Window, limit: Limit) -> RateLimiter<String> {
    RateLimiter::builder().window(window).limit(limit.named("failures")).build()
}

fn failures(limiter: &RateLimiter<String>) -> RateLimitLayer<String> {
    RateLimitLayer::new(limiter.clone(), all)
        .charge_failures(|response| response.status() == StatusCode::UNAUTHORIZED)
}

/// Both answers take 0.2 s.
fn app(layer: RateLimitLayer<String>) -> Router {
    let answer = |status| {
        get(async move || {
            sleep(SECOND / 5).await;
            status
        })
    };
    Router::new()
        .route("/right", answer(StatusCode::OK))
        .route("/wrong", answer(StatusCode::UNAUTHORIZED))
        .layer(layer)
}

async fn call(app: &Router, path: &str) -> Response<Body> {
    ask(app, Request::get(path).body(Body::empty()).unwrap()).await
}

async fn statuses_of(app: &Router, path: &str, times: usize) -> Vec<u16> {
    let calls = (0..times).map(|_| async { call(app, path).await.status().as_u16() });
    join_all(calls).await
}

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

/// Returns the statuses of concurrent requests, and the times after which they came.
async fn waits_of(app: &Router, times: usize) -> Vec<(u16, Duration)> {
    let start = Instant::now();
    let calls = (0..times).map(|_| async {
        let status = call(app, "/right").await.status().as_u16();
        (status, start.elapsed())
    });
    join_all(calls).await
}

#[tokio::test(start_paused = true)]
async fn max_waiting_limits_the_requests_that_wait_for_a_failure_to_leave_the_window() {
    let limit = Limit::per_second(1);
    let limiter = RateLimiter::builder().limit(limit).max_waiting(2).build();
    let app = app(failures(&limiter).wait(60 * SECOND));
    // In the second round, the places of the first waiters are free again.
    for _ in 0..2 {
        assert_eq!(call(&app, "/wrong").await.status(), 401);
        let mut statuses = statuses_of(&app, "/right", 5).await;
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 429, 429, 429]);
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_delays_requests_that_wait_for_a_failure_to_leave_the_window() {
    let limit = Limit::per_second(1);
    let limiter = RateLimiter::builder().limit(limit).jitter(10 * SECOND).build();
    let app = app(failures(&limiter).wait(60 * SECOND));
    assert_eq!(call(&app, "/wrong").await.status(), 401);
    let waits = waits_of(&app, 20).await;
    assert!(waits.iter().all(|(status, waited)| *status == 200 && *waited <= 12 * SECOND));
    let times = || waits.iter().map(|(_, waited)| *waited);
    let spread = times().max().zip(times().min()).map(|(last, first)| last - first);
    assert!(spread > Some(SECOND), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn set_limits_and_reset_wake_requests_that_wait_for_a_failure_to_leave_the_window() {
    for resets in [false, true] {
        let limiter = limiter_of(Window::Log, Limit::per_hour(1));
        let app = app(failures(&limiter).wait(7_200 * SECOND));
        assert_eq!(call(&app, "/wrong").await.status(), 401);
        let change = async {
            sleep(SECOND).await;
            match resets {
                true => assert!(limiter.reset("all").await),
                false => limiter.set_limits([Limit::per_hour(5)]),
            }
        };
        let (waits, ()) = tokio::join!(waits_of(&app, 3), change);
        assert_eq!(waits, [(200, SECOND + SECOND / 5); 3], "resets {resets}");
    }
}

#[tokio::test(start_paused = true)]
async fn any_number_of_successful_requests_run_at_the_same_time() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(5));
        let app = app(failures(&limiter));
        assert_eq!(statuses_of(&app, "/right", 20).await, [200; 20], "{window:?}");
        assert_eq!(limiter.peek("all").await.remaining(), 5, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_that_fill_the_quota_deny_requests_until_one_leaves_the_window() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = limiter_of(window, Limit::per_minute(3));
        let app = app(failures(&limiter));
        for left_after in [2, 1, 0] {
            let answer = call(&app, "/wrong").await;
            assert_eq!(answer.status(), 401);
            // The failure is in its own field.
            assert_eq!(left(answer.headers())[0].1[0], Some(left_after), "{window:?}");
            advance(10 * SECOND).await;
        }
        for path in ["/right", "/wrong"] {
            let denied = call(&app, path).await;
            assert_eq!(denied.status(), 429, "{window:?}");
            let expected = if window == Window::Log { 30..=30 } else { 30..=36 };
            let after = number(denied.headers(), "retry-after").unwrap();
            assert!(expected.contains(&after), "{window:?} {after}");
        }
        let after = limiter.peek("all").await.retry_after();
        advance(after).await;
        assert_eq!(call(&app, "/right").await.status(), 200, "{window:?}");
        assert_eq!(limiter.stats().denied, 2, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn charged_failures_do_not_exceed_the_quota_and_the_requests_in_flight() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_hour(5));
        let app = app(failures(&limiter));
        assert_eq!(statuses_of(&app, "/wrong", 4).await, [401; 4]);
        assert_eq!(statuses_of(&app, "/wrong", 7).await, [401; 7], "{window:?}");
        assert_eq!(statuses_of(&app, "/wrong", 7).await, [429; 7], "{window:?}");
        // All eleven are charged: six units are a debt, which counts like any charge.
        let twelve = [Limit::per_hour(12)];
        assert_eq!(limiter.peek_with("all", &twelve).await.remaining(), 1, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_request_of_a_failure_costs_nothing() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(5));
    let app = app(failures(&limiter));
    assert!(timeout(SECOND / 10, call(&app, "/wrong")).await.is_err());
    assert_eq!(limiter.peek("all").await.remaining(), 5);
    assert_eq!(limiter.stats().keys, 0);
}

#[tokio::test(start_paused = true)]
async fn failure_costs_what_cost_and_charge_after_return() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(10));
    let app_of_cost = app(failures(&limiter).cost(|_| 3));
    assert_eq!(call(&app_of_cost, "/wrong").await.status(), 401);
    assert_eq!(limiter.peek("all").await.remaining(), 7);
    let app_after = app(failures(&limiter).cost(|_| 3).charge_after(|_| 5));
    assert_eq!(call(&app_after, "/right").await.status(), 200);
    assert_eq!(call(&app_after, "/wrong").await.status(), 401);
    assert_eq!(limiter.peek("all").await.remaining(), 2);
    assert_eq!(call(&app_of_cost, "/right").await.status(), 429);
    assert_eq!(call(&app(failures(&limiter)), "/right").await.status(), 200);
    let never = call(&app(failures(&limiter).cost(|_| 11)), "/right").await;
    assert_eq!((never.status().as_u16(), number(never.headers(), "retry-after")), (429, None));
}

#[tokio::test(start_paused = true)]
async fn failures_are_charged_by_the_plan_of_their_request() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(1));
    let plan: Arc<[Limit]> = [Limit::per_minute(2).named("plan")].into();
    let app = app(failures(&limiter).limits(move |_, _| Some(plan.clone())));
    for (status, remaining) in [(401, 1), (401, 0), (429, 0)] {
        let answer = call(&app, "/wrong").await;
        assert_eq!(answer.status(), status);
        assert_eq!(left(answer.headers()), left(answer.headers()));
        assert_eq!(left(answer.headers())[0].0, "plan");
        assert_eq!(left(answer.headers())[0].1[0], Some(remaining));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_until_a_failure_leaves_the_window() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(2));
    let app = app(failures(&limiter).wait(60 * SECOND));
    assert_eq!(statuses_of(&app, "/wrong", 2).await, [401; 2]);
    let start = Instant::now();
    assert_eq!(statuses_of(&app, "/right", 10).await, [200; 10]);
    assert_eq!(start.elapsed(), 60 * SECOND + SECOND / 5);
    let impatient = self::app(failures(&limiter).wait(SECOND));
    assert_eq!(statuses_of(&impatient, "/wrong", 2).await, [401; 2]);
    assert_eq!(statuses_of(&impatient, "/right", 2).await, [429; 2]);
}

/// `charge_when` reserves, so a request may wait for one in flight that is refunded.
#[tokio::test(start_paused = true)]
async fn refund_of_a_request_in_flight_wakes_one_that_waits() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(5));
    let layer = RateLimitLayer::new(limiter, all)
        .charge_when(|status| status == StatusCode::UNAUTHORIZED)
        .wait(60 * SECOND);
    let app = app(layer);
    let start = Instant::now();
    assert_eq!(statuses_of(&app, "/right", 10).await, [200; 10]);
    assert_eq!(start.elapsed(), 2 * SECOND / 5);
}

#[tokio::test(start_paused = true)]
async fn retry_jitter_spreads_the_waits_of_denied_clients() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(1));
    let layer = RateLimitLayer::new(limiter, all).retry_jitter(100 * SECOND);
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let denied = ask(&app, get_with(&[])).await;
        let wait = number(denied.headers(), "retry-after").unwrap();
        assert!((60..=160).contains(&wait), "{wait}");
        assert_eq!(left(denied.headers())[0].1[1], Some(wait as i64));
        waits.insert(wait);
    }
    assert!(waits.len() > 10, "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn on_limited_receives_the_wait_that_retry_jitter_has_lengthened() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(1));
    let layer =
        RateLimitLayer::new(limiter, all).retry_jitter(100 * SECOND).on_limited(|limited, _| {
            let seconds = limited.retry_after().as_secs_f64().ceil();
            (StatusCode::TOO_MANY_REQUESTS, [("x-in-response", format!("{seconds}"))])
        });
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
    for _ in 0..20 {
        let denied = ask(&app, get_with(&[])).await;
        let wait = number(denied.headers(), "retry-after");
        assert_eq!(number(denied.headers(), "x-in-response"), wait);
    }
}

#[tokio::test(start_paused = true)]
async fn disabled_layer_changes_nothing() {
    let limiter = limiter_of(Window::Log, Limit::per_minute(1));
    let seen = Arc::new(Mutex::new(0));
    let count = seen.clone();
    let layer = |enabled| {
        let count = count.clone();
        let key = move |_: &axum::http::request::Parts| {
            *count.lock().unwrap() += 1;
            Some("all".to_owned())
        };
        RateLimitLayer::new(limiter.clone(), key).enabled(enabled)
    };
    let disabled = Router::new().route("/", get("hello")).layer(layer(false));
    for _ in 0..3 {
        let answer = ask(&disabled, get_with(&[])).await;
        assert_eq!(answer.status(), 200);
        assert!(!answer.headers().contains_key("ratelimit"));
        assert_eq!(text(answer).await, "hello");
    }
    assert_eq!((*seen.lock().unwrap(), limiter.stats().admitted), (0, 0));
    let enabled = Router::new().route("/", get("hello")).layer(layer(false).enabled(true));
    for status in [200, 429] {
        assert_eq!(ask(&enabled, get_with(&[])).await.status(), status);
    }
}
