//! `charge_failures` of `RateLimitLayer` with a limiter on Redis: requests that wait reserve nothing.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
    routing::get,
};
use fleeting::{Limit, RateLimitLayer, Window, redis::RateLimiter};
use futures::future::join_all;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use super::rate_limiter::{client, strict};
use crate::{
    clock::{in_time, ms},
    servers::Server,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn app(limiter: &RateLimiter<String>, wait: Duration) -> Router {
    let layer = RateLimitLayer::new(limiter.clone(), |_| Some("ada".to_owned()));
    let layer = layer.charge_failures(|response| response.status() == StatusCode::UNAUTHORIZED);
    Router::new()
        .route("/wrong", get(async || StatusCode::UNAUTHORIZED))
        .route("/right", get(async || StatusCode::OK))
        .layer(layer.wait(wait))
}

async fn call(app: &Router, path: &str) -> Response<Body> {
    app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap()
}

/// Returns the statuses of concurrent requests, and the times after which they came.
async fn calls(app: &Router, path: &str, times: usize) -> Vec<(u16, Duration)> {
    let start = Instant::now();
    let calls = (0..times).map(|_| async {
        let status = call(app, path).await.status().as_u16();
        (status, start.elapsed())
    });
    join_all(calls).await
}

async fn limiter(
    server: &Server,
    limit: Limit,
    change: impl Fn(Builder) -> Builder,
) -> RateLimiter<String> {
    change(strict(&client(server).await, "failures").limit(limit)).build().unwrap()
}

type Builder = fleeting::redis::RateLimiterBuilder<String>;

#[tokio::test]
async fn max_waiting_bounds_the_guesses_that_pass_at_once() {
    in_time(async || {
        let server = Server::start();
        let limit = Limit::new(1, ms(500));
        let limiter = limiter(&server, limit, |builder| builder.max_waiting(5)).await;
        let app = app(&limiter, HOUR);
        // In the second round, the places of the first waiters are free again.
        for _ in 0..2 {
            assert_eq!(call(&app, "/wrong").await.status(), 401);
            let calls = calls(&app, "/wrong", 500).await;
            let count = |status| calls.iter().filter(|(is, _)| *is == status).count();
            assert_eq!((count(401), count(429)), (5, 495));
            limiter.reset("ada").await.unwrap();
        }
        assert_eq!(limiter.stats().denied, 2 * 495);
    })
    .await;
}

#[tokio::test]
async fn jitter_spreads_the_requests_that_wait() {
    in_time(async || {
        let server = Server::start();
        let limiter =
            limiter(&server, Limit::new(1, ms(300)), |builder| builder.jitter(ms(1_000))).await;
        let app = app(&limiter, HOUR);
        assert_eq!(call(&app, "/wrong").await.status(), 401);
        let calls = calls(&app, "/right", 20).await;
        assert!(
            calls.iter().all(|(status, after)| *status == 200 && *after < ms(2_000)),
            "{calls:?}"
        );
        let times = || calls.iter().map(|(_, after)| *after);
        let spread = times().max().unwrap() - times().min().unwrap();
        assert!(spread > ms(300), "all requests passed within {spread:?}");
    })
    .await;
}

#[tokio::test]
async fn changes_of_the_limits_and_releases_wake_requests_that_wait() {
    in_time(async || {
        let server = Server::start();
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            for change in ["set_limits", "clear_limits", "reset", "refund"] {
                let one = Limit::per_hour(2);
                let limiter =
                    limiter(&server, Limit::per_hour(9), |builder| builder.window(window)).await;
                limiter.set_limits([one]).await.unwrap();
                let app = app(&limiter, 2 * HOUR);
                assert_eq!(call(&app, "/wrong").await.status(), 401);
                let permit = limiter.check("ada").await.unwrap();
                let changes = async {
                    sleep(ms(200)).await;
                    match change {
                        "set_limits" => limiter.set_limits([Limit::per_hour(5)]).await.unwrap(),
                        "clear_limits" => limiter.clear_limits().await.unwrap(),
                        "reset" => assert!(limiter.reset("ada").await.unwrap()),
                        _ => permit.refund().await.unwrap(),
                    }
                };
                let (calls, ()) = tokio::join!(calls(&app, "/right", 3), changes);
                let is_woken = |(status, after): &(u16, Duration)| {
                    *status == 200 && *after >= ms(200) && *after < ms(2_000)
                };
                assert!(calls.iter().all(is_woken), "{window:?} {change}: {calls:?}");
                limiter.reset("ada").await.unwrap();
                limiter.clear_limits().await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn request_that_cannot_pass_in_time_is_denied_immediately() {
    in_time(async || {
        let server = Server::start();
        let limiter = limiter(&server, Limit::per_hour(1), |builder| builder).await;
        let app = app(&limiter, ms(60_000));
        assert_eq!(call(&app, "/wrong").await.status(), 401);
        for (status, after) in calls(&app, "/right", 3).await {
            assert!(status == 429 && after < ms(1_000), "{status} {after:?}");
        }
        assert_eq!(limiter.stats().denied, 3);
    })
    .await;
}

/// As in memory: until a check makes the smaller plan known, its usage leaks as that of the larger one.
#[tokio::test]
async fn wait_under_a_smaller_plan_is_that_of_the_units_in_use() {
    in_time(async || {
        let server = Server::start();
        let limiter =
            limiter(&server, Limit::new(10, ms(10_000)), |builder| builder.window(Window::Gcra))
                .await;
        let layer = RateLimitLayer::new(limiter.clone(), |_| Some("ada".to_owned()))
            .charge_failures(|response| response.status() == StatusCode::UNAUTHORIZED)
            .limits(|request, _| {
                (request.uri.path() == "/small").then(|| [Limit::new(2, ms(4_000))].into())
            });
        let app =
            Router::new().route("/{path}", get(async || StatusCode::UNAUTHORIZED)).layer(layer);
        for _ in 0..10 {
            assert_eq!(call(&app, "/large").await.status(), 401);
        }
        let denied = call(&app, "/small").await;
        assert_eq!(denied.status(), 429);
        let wait: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        // Nine of ten units have to leak.
        assert!((ms(8_000).as_secs()..=ms(9_000).as_secs()).contains(&wait), "{wait}");
    })
    .await;
}

/// The fields of a limiter in memory.
#[tokio::test]
async fn denial_of_a_cost_above_the_quota_has_the_fields_of_a_limiter_in_memory() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        for fails in [false, true] {
            let server = Server::start();
            let limit = Limit::per_hour(5).named("hourly");
            let on_redis = limiter(&server, limit.clone(), |builder| builder.window(window)).await;
            let embedded =
                fleeting::RateLimiter::<String>::builder().window(window).limit(limit).build();
            on_redis.check_n("ada", 2).await.unwrap();
            embedded.check_n("ada", 2).await.unwrap();
            let mut answers = Vec::new();
            for layer in [
                RateLimitLayer::new(embedded, |_| Some("ada".to_owned())).cost(|_| 6),
                RateLimitLayer::new(on_redis.clone(), |_| Some("ada".to_owned())).cost(|_| 6),
            ] {
                let layer = match fails {
                    true => layer.charge_failures(|_| true),
                    false => layer,
                };
                let app = Router::new().route("/", get("hello")).layer(layer);
                answers.push(call(&app, "/").await);
            }
            let [expected, answer] = &answers[..] else { unreachable!() };
            assert_eq!(answer.status(), 429, "{window:?}");
            assert_eq!(answer.headers()["ratelimit-policy"], r#""hourly";q=5;w=3600"#);
            let headers = |answer: &Response<Body>| {
                let mut headers = answer.headers().clone();
                // The time is that of another clock, by milliseconds.
                headers.remove("date");
                format!("{headers:?}")
            };
            assert_eq!(headers(answer), headers(expected), "{window:?}");
        }
    }
}
