//! `RateLimitLayer` with a limiter on Redis: axum servers on real sockets that share one quota.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{Router, extract::Path, http::StatusCode, routing::get};
use fleeting::{
    ClientIp, Limit, RateLimitLayer,
    redis::{Error, OnError, RateLimiter},
};

use crate::{
    clock::in_time,
    http::{Client as Http, Response},
    patience::patience,
    servers::{Server, connect},
};

async fn limiter<K>(server: &Server, quota: u32, on_error: OnError) -> RateLimiter<K> {
    let client = connect(server.url()).await;
    RateLimiter::builder(&client, "layer")
        .limit(Limit::per_hour(quota).named("hourly"))
        .on_error(on_error)
        .timeout(patience())
        .build()
        .unwrap()
}

/// Serves `app` on a free port; returns its URL.
async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn app() -> Router {
    Router::new()
        .route("/", get("hello"))
        .route("/fails", get(async || (StatusCode::IM_A_TEAPOT, "no")))
}

fn by_token(limiter: RateLimiter<String>) -> RateLimitLayer<String> {
    RateLimitLayer::new(limiter, |request| {
        Some(request.headers.get("x-token")?.to_str().ok()?.to_owned())
    })
}

async fn ask(http: &Http, url: &str, token: &str) -> Response {
    http.get(url).header("x-token", token).send().await
}

#[tokio::test]
async fn servers_share_one_quota_and_report_it() {
    let server = Server::start();
    let mut urls = Vec::new();
    for _ in 0..2 {
        let limiter = limiter(&server, 10, OnError::Deny).await;
        urls.push(serve(app().layer(by_token(limiter))).await);
    }
    let http = Http::new();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..30 {
        let (http, url) = (http.clone(), urls[caller % 2].clone());
        callers.spawn(async move { ask(&http, &url, "ada").await.status().as_u16() });
    }
    let statuses = callers.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 20);

    let other = ask(&http, &urls[0], "grace").await;
    assert_eq!(other.status(), 200);
    assert_eq!(other.headers()["ratelimit-policy"], r#""hourly";q=10;w=3600"#);
    assert_eq!(other.headers()["ratelimit"], r#""hourly";r=9;t=3600"#);
    for url in &urls {
        let denied = ask(&http, url, "ada").await;
        let wait: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((3_500..=3_600).contains(&wait), "{wait}");
        let field = format!(r#""hourly";r=0;t={wait}"#);
        assert_eq!(denied.headers()["ratelimit"], field.as_str());
        let problem: serde_json::Value = denied.json().await;
        assert_eq!(problem["violated-policies"][0], "hourly");
    }
    // Requests without a token are not limited.
    assert!(http.get(&urls[0]).send().await.headers().get("ratelimit").is_none());
}

#[tokio::test]
async fn long_key_is_the_same_in_all_servers() {
    let server = Server::start();
    let (http, token) = (Http::new(), "t".repeat(5_000));
    for expected in [200, 429] {
        let limiter = limiter(&server, 1, OnError::Deny).await;
        let url = serve(app().layer(by_token(limiter))).await;
        assert_eq!(ask(&http, &url, &token).await.status(), expected);
    }
}

#[tokio::test]
async fn by_ip_limits_each_client_address() {
    let server = Server::start();
    let by_ip = RateLimitLayer::by_ip(limiter(&server, 2, OnError::Deny).await, Default::default());
    let extracted = RateLimitLayer::by::<ClientIp>(limiter(&server, 2, OnError::Deny).await);
    let urls = [serve(app().layer(by_ip)).await, serve(app().layer(extracted)).await];
    let http = Http::new();
    for (url, expected) in [(0, 200), (1, 200), (0, 429), (1, 429)] {
        assert_eq!(http.get(&urls[url]).send().await.status(), expected);
    }
    let keys: Vec<String> =
        redis::AsyncCommands::keys(&mut server.plain().await, "*").await.unwrap();
    assert_eq!(keys, ["fleeting:limit1:layer:{127.0.0.1}"]);
}

#[tokio::test]
async fn charge_when_refunds_other_responses() {
    let server = Server::start();
    let only_failures = by_token(limiter(&server, 2, OnError::Deny).await)
        .charge_when(|status| status == StatusCode::IM_A_TEAPOT);
    let url = serve(app().layer(only_failures)).await;
    let (http, fails) = (Http::new(), format!("{url}/fails"));
    for _ in 0..5 {
        let passed = ask(&http, &url, "ada").await;
        assert_eq!(passed.status(), 200);
        assert_eq!(passed.headers()["ratelimit"], r#""hourly";r=2"#);
    }
    for expected in [418, 418, 429] {
        assert_eq!(ask(&http, &fails, "ada").await.status(), expected);
    }
}

#[tokio::test]
async fn ratelimit_field_contains_the_cost_set_by_charge_after() {
    let server = Server::start();
    let limiter = limiter(&server, 100, OnError::Deny).await;
    let layer = by_token(limiter.clone()).cost(|_| 10).refund_unused().charge_after(|response| {
        if response.status() == StatusCode::IM_A_TEAPOT { 200 } else { 4 }
    });
    let url = serve(app().layer(layer)).await;
    let (http, expensive) = (Http::new(), format!("{url}/fails"));
    let passed = ask(&http, &url, "ada").await;
    assert_eq!(passed.headers()["ratelimit"], r#""hourly";r=96;t=3600"#);
    assert_eq!(
        ask(&http, &expensive, "ada").await.headers()["ratelimit"],
        r#""hourly";r=0;t=3600"#
    );
    assert_eq!(ask(&http, &url, "ada").await.status(), 429);
    // New limits are reported immediately.
    limiter.set_limits([Limit::per_hour(1_000).named("more")]).await.unwrap();
    let passed = ask(&http, &url, "ada").await;
    assert_eq!(passed.headers()["ratelimit-policy"], r#""more";q=1000;w=3600"#);
    assert_eq!(passed.headers()["ratelimit"], r#""more";r=792;t=3600"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_delays_a_request_until_it_passes() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let limiter = RateLimiter::builder(&client, "layer")
        .limit(Limit::new(1, Duration::from_millis(300)))
        .on_error(OnError::Deny)
        .timeout(patience())
        .build()
        .unwrap();
    let patient = by_token(limiter.clone()).wait(patience());
    let hasty = by_token(limiter).wait(Duration::from_millis(20));
    let (patient, hasty) = (serve(app().layer(patient)).await, serve(app().layer(hasty)).await);
    let http = Http::new();
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(&http, &patient, "ada").await.status(), 200);
    }
    assert!(begin.elapsed() >= Duration::from_millis(600), "{:?}", begin.elapsed());
    let denied = ask(&http, &hasty, "ada").await;
    assert!(denied.status() == 429 || begin.elapsed() > Duration::from_millis(880));
}

/// As in memory: the units of the larger plan do not take their time by the small plan.
#[tokio::test]
async fn request_that_passes_in_time_behind_one_of_a_larger_plan_is_not_denied() {
    let server = Server::start();
    let plan = |quota| -> std::sync::Arc<[Limit]> { [Limit::per_second(quota)].into() };
    let (small, large) = (plan(1), plan(100));
    // By the small plan, the 50 units that wait would take 50 seconds.
    let layer = by_token(limiter(&server, 1, OnError::Deny).await)
        .limits(move |request, _| {
            Some(if request.uri.path() == "/fails" { &large } else { &small }.clone())
        })
        .cost(|request| if request.uri.path() == "/fails" { 50 } else { 1 })
        .wait(Duration::from_secs(40));
    let url = serve(app().layer(layer)).await;
    let (http, fails) = (Http::new(), format!("{url}/fails"));
    for _ in 0..2 {
        assert_eq!(ask(&http, &fails, "ada").await.status(), StatusCode::IM_A_TEAPOT);
    }
    let behind = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ask(&http, &url, "ada").await.status()
    };
    let (ahead, behind) = tokio::join!(ask(&http, &fails, "ada"), behind);
    assert_eq!((ahead.status(), behind), (StatusCode::IM_A_TEAPOT, StatusCode::OK));
}

#[tokio::test]
async fn limits_cost_skip_and_shadow_work_as_in_memory() {
    let server = Server::start();
    let paid: std::sync::Arc<[Limit]> = [Limit::per_hour(5).named("paid")].into();
    let layer = by_token(limiter(&server, 1, OnError::Deny).await)
        .limits(move |_, key| (key == "rich").then(|| paid.clone()))
        .cost(|request| if request.uri.path() == "/fails" { 3 } else { 1 })
        .skip(|request| request.headers.contains_key("x-skip"));
    let shadow = layer.clone().shadow();
    let (url, free) = (serve(app().layer(layer)).await, serve(app().layer(shadow)).await);
    let http = Http::new();
    let fails = format!("{url}/fails");
    assert_eq!(ask(&http, &fails, "rich").await.headers()["ratelimit"], r#""paid";r=2;t=3600"#);
    assert_eq!(ask(&http, &fails, "rich").await.status(), 429);
    let never = ask(&http, &fails, "poor").await;
    assert_eq!(never.status(), 429);
    assert!(never.headers().get("retry-after").is_none());
    for expected in [200, 429] {
        assert_eq!(ask(&http, &url, "poor").await.status(), expected);
    }
    assert_eq!(ask(&http, &free, "poor").await.status(), 200);
    let skipped = http.get(&url).header("x-token", "poor").header("x-skip", "1").send().await;
    assert_eq!(skipped.status(), 200);
}

#[tokio::test]
async fn on_error_decides_requests_while_the_server_fails() {
    // The local limiter may be late by a second.
    in_time(async || {
        let server = Server::start();
        let mut urls = Vec::new();
        for on_error in [OnError::Deny, OnError::Allow, OnError::Local] {
            let client = connect(server.url()).await;
            let limiter =
                RateLimiter::builder(&client, "layer").limit(Limit::per_hour(1).named("hourly"));
            let limiter = limiter.on_error(on_error).build().unwrap();
            urls.push(serve(app().layer(by_token(limiter))).await);
        }
        server.pause();
        let http = Http::new();
        let denied = ask(&http, &urls[0], "ada").await;
        assert_eq!(denied.status(), 503);
        assert_eq!(denied.headers()["retry-after"], "1");
        assert!(denied.headers().get("ratelimit").is_none());
        for _ in 0..3 {
            let passed = ask(&http, &urls[1], "ada").await;
            assert_eq!(passed.status(), 200);
            assert!(passed.headers().get("ratelimit").is_none(), "the remaining quota is unknown");
        }
        let passed = ask(&http, &urls[2], "ada").await;
        assert_eq!(passed.headers()["ratelimit"], r#""hourly";r=0;t=3600"#);
        assert_eq!(ask(&http, &urls[2], "ada").await.status(), 429);
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn errors_of_a_check_in_a_handler_are_responses() {
    let server = Server::start();
    let limiter: RateLimiter<String> = RateLimiter::builder(&connect(server.url()).await, "layer")
        .limit(Limit::per_hour(1))
        .on_error(OnError::Deny)
        // The paused server is waited for as long as this.
        .timeout(patience() / 40)
        .build()
        .unwrap();
    let hello = async move |Path(user): Path<String>| -> Result<String, Error> {
        limiter.check(&user).await?;
        Ok(format!("hello {user}"))
    };
    let url = serve(Router::new().route("/{user}", get(hello))).await;
    let http = Http::new();
    let ask = |user: &str| http.get(format!("{url}/{user}")).send();
    assert_eq!(ask("ada").await.text().await, "hello ada");
    let denied = ask("ada").await;
    assert_eq!(denied.status(), 429);
    assert!(denied.headers().contains_key("retry-after"));
    let () =
        redis::AsyncCommands::lpush(&mut server.plain().await, "fleeting:limit1:layer:{list}", 1)
            .await
            .unwrap();
    assert_eq!(ask("list").await.status(), 500);
    server.pause();
    let unavailable = ask("grace").await;
    server.resume();
    assert_eq!(
        (unavailable.status().as_u16(), &unavailable.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
}

/// The body may be dropped outside of a runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_sent_charges_the_bytes_of_the_body() {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    let server = Server::start();
    let limiter = limiter::<String>(&server, 1_000, OnError::Deny).await;
    let layer = by_token(limiter.clone()).charge_sent(|bytes| bytes as u32);
    let app = Router::new().route("/", get(async || vec![0; 100])).layer(layer);
    let ask = || Request::get("/").header("x-token", "ada").body(Body::empty()).unwrap();
    let answer = app.clone().oneshot(ask()).await.unwrap();
    std::thread::spawn(|| drop(answer)).join().unwrap();
    let answer = app.oneshot(ask()).await.unwrap();
    axum::body::to_bytes(answer.into_body(), 1_000).await.unwrap();
    let settled = async {
        // The body that was dropped costs its request.
        while limiter.peek("ada").await.unwrap().remaining() != 899 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(patience(), settled).await.expect("the body is charged");
}

/// By the server with each policy.
#[tokio::test]
async fn charge_failures_charges_only_failures() {
    let server = Server::start();
    for on_error in [OnError::Deny, OnError::Local] {
        let limiter: RateLimiter<String> = limiter(&server, 2, on_error).await;
        let name = format!("{on_error:?}");
        let layer = by_token(limiter.clone())
            .charge_failures(|response| response.status() == StatusCode::IM_A_TEAPOT);
        let url = serve(app().layer(layer)).await;
        let (http, fails) = (Http::new(), format!("{url}/fails"));
        for _ in 0..5 {
            assert_eq!(ask(&http, &url, &name).await.status(), 200);
        }
        assert_eq!(limiter.peek(&name).await.unwrap().remaining(), 2, "a success was charged");
        for left in [1, 0] {
            let failed = ask(&http, &fails, &name).await;
            assert_eq!(failed.status(), StatusCode::IM_A_TEAPOT);
            let field = failed.headers()["ratelimit"].to_str().unwrap();
            assert!(field.starts_with(&format!(r#""hourly";r={left};t="#)), "{field}");
        }
        assert_eq!(limiter.stats().admitted, 2, "each charged failure is counted as a check");
        for _ in 0..2 {
            let denied = ask(&http, &url, &name).await;
            assert_eq!(denied.status(), 429);
            let wait: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((3_500..=3_600).contains(&wait), "{wait}");
        }
        assert_eq!(ask(&http, &url, "another").await.status(), 200);
        limiter.reset(&name).await.unwrap();
        assert_eq!(ask(&http, &url, &name).await.status(), 200);
    }
}
