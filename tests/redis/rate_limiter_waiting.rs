//! Who waits for a key of a limiter on Redis: who is not polled, how many, how long, and what is counted.

use std::time::Duration;

use fleeting::{
    Limit, Window,
    redis::{Error, OnError, RateLimiter},
};
#[cfg(feature = "axum")]
use fleeting::{RateLimitDecision, RateLimitLayer};
use tokio::time::{Instant, sleep, timeout};
use tokio_test::{assert_pending, task};

use super::rate_limiter::{client, limited, strict};
use crate::{clock::ms, servers::Server};

const MINUTE: Duration = Duration::from_secs(60);

async fn limiter(server: &Server, limit: Limit) -> RateLimiter<String> {
    strict(&client(server).await, "lines").limit(limit).build().unwrap()
}

/// In real time, as the server's is: so it says only what comes when it is not in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_no_longer_polled_holds_up_the_others_for_a_while() {
    let server = Server::start();
    let limiter = limiter(&server, Limit::new(1, ms(300))).await;
    limiter.check("ada").await.unwrap();
    let mut kept = task::spawn(limiter.until_ready("ada"));
    // It asks, and is told to wait; then it is left alone.
    for _ in 0..20 {
        assert_pending!(kept.poll());
        sleep(ms(10)).await;
    }
    let others = (0..2).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready("ada").await.map(drop) })
    });
    for other in others.collect::<Vec<_>>() {
        timeout(MINUTE, other).await.expect("it goes first").unwrap().unwrap();
    }
    timeout(MINUTE, kept).await.expect("it has its turn, too").unwrap();
    assert_eq!(limiter.stats().admitted, 4);
    assert_eq!(limiter.stats().waited, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_wait_than_may() {
    let server = Server::start();
    let builder = strict(&client(&server).await, "lines").limit(Limit::per_hour(1).named("hourly"));
    let limiter = builder.max_waiting(2).build().unwrap();
    limiter.check("ada").await.unwrap();
    let wait = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready_within("ada", 120 * MINUTE).await.map(drop) })
    };
    let waiting = [wait(), wait()];
    sleep(ms(100)).await;
    let start = Instant::now();
    let told = limited(limiter.until_ready_within("ada", 120 * MINUTE).await);
    assert!(told.retry_after() > 59 * MINUTE && start.elapsed() < MINUTE, "{told:?}");
    assert_eq!(limiter.denials(), [(Limit::per_hour(1).named("hourly"), 1)]);
    assert_eq!(limiter.stats().denied, 1, "who waits was denied nothing");
    // What could never pass, or costs nothing, waits for nobody.
    limiter.until_ready_n("ada", 0).await.unwrap();
    assert!(matches!(limiter.until_ready_n("ada", 2).await, Err(Error::Limited(_))));
    waiting.into_iter().for_each(|task| task.abort());
}

/// As in memory: so no more wait for a key than may pass in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_can_not_pass_in_time_behind_others_knows_at_once() {
    let server = Server::start();
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let builder = strict(&client(&server).await, &format!("{window:?}")).window(window);
        let limiter = builder.limit(Limit::per_hour(2)).build().unwrap();
        limiter.check_n("ada", 2).await.unwrap();
        let wait = |cost| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.until_ready_n("ada", cost).await.map(drop) })
        };
        let mut waiting = vec![wait(2)];
        // The head has asked.
        sleep(ms(300)).await;
        for _ in 0..2 {
            waiting.push(wait(2));
            sleep(ms(50)).await;
        }
        // Behind four units, as many as two hours let pass; by GCRA, two of them may pass at once.
        let least = if window == Window::Gcra { 90 } else { 120 };
        let hasty = limiter.until_ready_within("ada", (least - 1) * MINUTE);
        let told = limited(timeout(MINUTE, hasty).await.expect("it is clear at once"));
        assert!(told.retry_after() > (least - 1) * MINUTE, "{window:?}: {told:?}");
        let patient = limiter.until_ready_within("ada", (least + 1) * MINUTE);
        let patient = timeout(ms(300), patient).await;
        assert!(patient.is_err(), "it may pass: {window:?}");
        waiting.into_iter().for_each(|task| task.abort());
    }
}

/// Of a call of several units, too, of which some have room.
#[cfg(feature = "axum")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_sent_away_is_told_when_a_call_of_its_cost_passes() {
    use axum::{Router, body::Body, http::Request, routing::get};
    use tower::ServiceExt;

    let server = Server::start();
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let builder = strict(&client(&server).await, &format!("{window:?}")).window(window);
        let limits = [Limit::per_hour(5).named("hourly"), Limit::per_minute(4).named("minute")];
        let limiter = limits.iter().fold(builder, |builder, limit| builder.limit(limit.clone()));
        let limiter = limiter.max_waiting(1).build().unwrap();
        limiter.check_n("ada", 3).await.unwrap();
        let head = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.until_ready_n("ada", 4).await.map(drop) }
        });
        sleep(ms(300)).await;
        let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned()));
        let layer = layer.cost(|_| 3).wait(120 * MINUTE);
        let app = Router::new().route("/", get("hello")).layer(layer.clone());
        let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(answer.status(), 429);
        let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        // One unit by GCRA; the oldest call by the others.
        let least = if window == Window::Gcra { 600 } else { 3_500 };
        assert!((least..=3_600).contains(&wait), "{window:?}: {wait}");
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
        let names = r#""violated-policies":["hourly","minute"]"#;
        assert!(String::from_utf8_lossy(&body).contains(names), "{window:?}: {body:?}");
        // Who is held to no limits waits for nobody.
        let free = layer.limits(|_, _| Some([].into()));
        let app = Router::new().route("/", get("hello")).layer(free);
        let answer = timeout(MINUTE, app.oneshot(Request::new(Body::empty()))).await.unwrap();
        assert_eq!(answer.unwrap().status(), 200);
        head.abort();
    }
}

/// Who waits behind others, while the server is away, is told what the policy says, and not that it is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_without_a_server_ends_by_the_policy() {
    let mut server = Server::start();
    let client = client(&server).await;
    server.kill();
    for policy in [OnError::Local, OnError::Deny, OnError::Allow] {
        let builder = RateLimiter::<String>::builder(&client, "lines").on_error(policy);
        let limiter = builder.limit(Limit::per_hour(1)).max_waiting(1).build().unwrap();
        let first = limiter.check("ada").await;
        assert_eq!(first.is_err(), policy == OnError::Deny);
        let head = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.until_ready("ada").await.map(drop) }
        });
        sleep(ms(300)).await;
        let told = limiter.until_ready_within("ada", 120 * MINUTE).await;
        match policy {
            OnError::Local => {
                assert!(limited(told).retry_after() > 59 * MINUTE);
                assert!(!head.is_finished());
            }
            OnError::Deny => assert!(told.is_err_and(|error| error.is_temporary())),
            _ => assert!(told.is_ok()),
        }
        head.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_longer_by_a_random_time() {
    let server = Server::start();
    let builder = strict(&client(&server).await, "lines").limit(Limit::new(1, ms(100)));
    let limiter = builder.jitter(ms(1_000)).build().unwrap();
    let wait = |key: u32| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let key = key.to_string();
            limiter.until_ready(&key).await.unwrap();
            limiter.until_ready(&key).await.unwrap();
            Instant::now()
        })
    };
    let mut passed = Vec::new();
    for task in (0..20).map(wait).collect::<Vec<_>>() {
        passed.push(task.await.unwrap());
    }
    let spread = *passed.iter().max().unwrap() - *passed.iter().min().unwrap();
    assert!(spread > ms(300), "20 within {spread:?}");
    assert_eq!(limiter.stats().waited, 20);
}

#[cfg(feature = "axum")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_tells_of_its_decisions_and_counts_what_it_let_pass() {
    use std::sync::{Arc, Mutex};

    use axum::{Router, body::Body, http::Request, routing::get};
    use tower::ServiceExt;

    let server = Server::start();
    let limiter = limiter(&server, Limit::per_hour(1).named("hourly")).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    let layer = RateLimitLayer::new(limiter.clone(), |_| Some("ada".to_owned()))
        .partition_key(|key| key.clone())
        .limits_by_key(MINUTE, async |_| None)
        .on_decision(move |decision, _| {
            log.lock().unwrap().push(match decision {
                RateLimitDecision::Allowed => "allowed",
                RateLimitDecision::Denied(_) => "denied",
                RateLimitDecision::Shadowed(_) => "shadowed",
                other => panic!("{other:?}"),
            });
        });
    for (layer, status) in [(layer.clone(), 200), (layer.clone(), 429), (layer.shadow(), 200)] {
        let app = Router::new().route("/", get("hello")).layer(layer);
        let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(answer.status(), status);
        let policy =
            answer.headers().get("ratelimit-policy").map(|policy| policy.to_str().unwrap());
        let expected = "\"hourly\";q=1;w=3600;pk=:YWRh:";
        assert!(policy.is_none_or(|policy| policy == expected), "{policy:?}");
    }
    assert_eq!(*told.lock().unwrap(), ["allowed", "denied", "shadowed"]);
    assert_eq!((limiter.stats().denied, limiter.stats().shadowed), (2, 1));
}
