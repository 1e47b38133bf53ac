//! The table of crossings of the layer, with the limiter in memory, and its promises about several limits for one key.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, request::Parts},
    routing::get,
};
use fleeting::{Limit, RateLimitLayer, RateLimiter, Window};
use futures::future::join_all;
use tokio::time::{advance, sleep};

use super::asking::{all, ask, number};
use crate::layer_crossings::{Backend, Needs, WINDOWS, play_all};

const SECOND: Duration = Duration::from_secs(1);

struct Embedded(RateLimiter<String>);

impl Backend for Embedded {
    const HAS_WAITERS: bool = true;

    fn layer(&self, key: fn(&Parts) -> Option<String>) -> RateLimitLayer<String> {
        RateLimitLayer::new(self.0.clone(), key)
    }

    async fn set_limit(&self, limit: Limit) {
        self.0.set_limits([limit]);
    }

    async fn pass(&self, time: Duration) {
        advance(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_pair_of_settings_denies_the_same_failures() {
    let new = async |needs: Needs| {
        let builder = RateLimiter::builder().window(needs.window).limit(needs.limit);
        let builder = match needs.max_keys {
            Some(keys) => builder.max_keys(keys),
            None => builder,
        };
        Embedded(builder.build())
    };
    play_all(|_| None, new).await;
}

/// An app with one key for all requests, a limit for `/login`, and one for all other paths.
fn two_routes(layer: RateLimitLayer<String>, login: Limit, status: StatusCode) -> Router {
    let login: Arc<[Limit]> = [login].into();
    let layer = layer.limits(move |parts, _| (parts.uri.path() == "/login").then(|| login.clone()));
    let right = get(async || {
        sleep(Duration::from_millis(10)).await;
        "right"
    });
    let login = get(async move || {
        sleep(Duration::from_millis(10)).await;
        status
    });
    Router::new().route("/", right).route("/login", login).layer(layer)
}

async fn status(app: &Router, path: &str) -> u16 {
    ask(app, Request::get(path).body(Body::empty()).unwrap()).await.status().as_u16()
}

#[tokio::test(start_paused = true)]
async fn requests_of_another_route_do_not_free_the_quota_of_logins() {
    for window in WINDOWS {
        let limiter = RateLimiter::builder().window(window).limit(Limit::per_second(100)).build();
        let layer = RateLimitLayer::new(limiter, all);
        let app = two_routes(layer, Limit::per_hour(5), StatusCode::UNAUTHORIZED);
        let mut logins = 0;
        for _ in 0..500 {
            logins += usize::from(status(&app, "/login").await == 401);
            assert_eq!(status(&app, "/").await, 200, "{window:?}");
            advance(SECOND).await;
        }
        assert!((1..=5).contains(&logins), "{window:?}: {logins} logins");
    }
}

#[tokio::test(start_paused = true)]
async fn shorter_limits_of_a_route_report_a_wait_of_their_own_window() {
    for buckets in [1, 10, 100] {
        let window = Window::Buckets(buckets);
        let limiter =
            RateLimiter::builder().window(window).limit(Limit::new(1_000, 86_400 * SECOND));
        let layer = RateLimitLayer::new(limiter.build(), all);
        let app = two_routes(layer, Limit::per_minute(3), StatusCode::OK);
        for _ in 0..5 {
            assert_eq!(status(&app, "/").await, 200);
            advance(2 * SECOND).await;
        }
        let denied = ask(&app, Request::get("/login").body(Body::empty()).unwrap()).await;
        let wait = number(denied.headers(), "retry-after").expect("the request is denied");
        assert!(wait <= 60 + 60_u64.div_ceil(buckets as u64), "{window:?}: {wait} s");
        advance(wait as u32 * SECOND).await;
        assert_eq!(status(&app, "/login").await, 200, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_two_routes_that_are_not_charged_leave_the_quota() {
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = RateLimiter::builder().window(window).limit(Limit::per_minute(100)).build();
        let layer = RateLimitLayer::new(limiter.clone(), all)
            .charge_when(|status| status == StatusCode::UNAUTHORIZED);
        let app = two_routes(layer, Limit::per_hour(100), StatusCode::OK);
        // Requests in flight are charged, so that fewer than the quota may run at once.
        for _ in 0..4 {
            let calls = (0..90).map(|call| status(&app, ["/", "/login"][call % 2]));
            assert_eq!(join_all(calls).await, [200; 90], "{window:?}");
        }
        assert_eq!(limiter.peek("all").await.remaining(), 100, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_not_charged_leave_the_quota_of_gcra() {
    let limiter = RateLimiter::builder().window(Window::Gcra).limit(Limit::per_hour(3)).build();
    let layer = RateLimitLayer::new(limiter.clone(), all)
        .charge_when(|status| status == StatusCode::UNAUTHORIZED);
    let app = two_routes(layer, Limit::per_hour(3), StatusCode::OK);
    for _ in 0..20 {
        let calls = (0..3).map(|_| status(&app, "/"));
        assert_eq!(join_all(calls).await, [200; 3]);
    }
    assert_eq!(limiter.peek("all").await.remaining(), 3);
}
