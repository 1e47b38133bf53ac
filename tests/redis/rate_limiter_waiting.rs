//! Waiting for a key of a limiter on Redis: the queue, its bound, early denials, jitter and statistics.

use std::time::Duration;

use fleeting::{
    Limit, Window,
    redis::{Error, OnError, RateLimiter},
};
#[cfg(feature = "axum")]
use fleeting::{RateLimitDecision, RateLimitLayer};
use tokio::time::{Instant, sleep, timeout};
use tokio_test::task;

use super::rate_limiter::{client, limited, strict};
use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::Server,
};

const MINUTE: Duration = Duration::from_secs(60);

async fn limiter(server: &Server, limit: Limit) -> RateLimiter<String> {
    strict(&client(server).await, "waiting").limit(limit).build().unwrap()
}

/// The server has a real clock, so the test asserts the order of the calls and no times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_is_not_polled_delays_the_others_only_for_a_while() {
    let server = Server::start();
    // On a busy machine, the waiter may be left with a check in progress. The others wait for its end, too.
    let limit = Limit::new(1, ms(300));
    let builder = strict(&client(&server).await, "waiting").limit(limit);
    let limiter: RateLimiter<String> = builder.timeout(patience()).build().unwrap();
    // On a busy machine, the window may end before the waiter is left unpolled: try again with another key.
    let (key, unpolled, before) = 'denied: loop {
        let key = format!("ada {}", limiter.stats().admitted);
        let before = limiter.stats();
        limiter.check(&key).await.unwrap();
        let mut unpolled = task::spawn({
            let (limiter, key) = (limiter.clone(), key.clone());
            async move { limiter.until_ready(&key).await }
        });
        // It checks and is denied; after that it is not polled any more.
        for _ in 0..20 {
            if unpolled.poll().is_ready() {
                continue 'denied;
            }
            sleep(ms(10)).await;
        }
        break (key, unpolled, before);
    };
    let others = (0..2).map(|_| {
        let (limiter, key) = (limiter.clone(), key.clone());
        tokio::spawn(async move { limiter.until_ready(&key).await.map(drop) })
    });
    for other in others.collect::<Vec<_>>() {
        timeout(patience(), other)
            .await
            .expect("the waiters behind are admitted first")
            .unwrap()
            .unwrap();
    }
    timeout(patience(), unpolled)
        .await
        .expect("the waiter is admitted when it is polled again")
        .unwrap();
    assert_eq!(limiter.stats().admitted - before.admitted, 4);
    assert_eq!(limiter.stats().waited - before.waited, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn max_waiting_denies_further_callers() {
    let server = Server::start();
    let builder =
        strict(&client(&server).await, "waiting").limit(Limit::per_hour(1).named("hourly"));
    let limiter = builder.max_waiting(2).build().unwrap();
    limiter.check("ada").await.unwrap();
    let wait = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready_within("ada", 120 * MINUTE).await.map(drop) })
    };
    let waiting = [wait(), wait()];
    sleep(ms(100)).await;
    let start = Instant::now();
    let denied = limited(limiter.until_ready_within("ada", 120 * MINUTE).await);
    assert!(denied.retry_after() > 59 * MINUTE && start.elapsed() < patience(), "{denied:?}");
    assert_eq!(limiter.denials(), [(Limit::per_hour(1).named("hourly"), 1)]);
    assert_eq!(limiter.stats().denied, 1, "waiters do not count as denied");
    // A cost of 0, and one that can never pass, are decided without waiting.
    limiter.until_ready_n("ada", 0).await.unwrap();
    assert!(matches!(limiter.until_ready_n("ada", 2).await, Err(Error::Limited(_))));
    waiting.into_iter().for_each(|task| task.abort());
}

/// As in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_ready_within_denies_immediately_if_the_queue_ahead_is_too_long() {
    in_time(async || {
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
            // Time for the check of the head.
            sleep(ms(300)).await;
            for _ in 0..2 {
                waiting.push(wait(2));
                sleep(ms(50)).await;
            }
            // The units ahead take three hours, with those of the head; with GCRA, two of them may pass immediately.
            let least = if window == Window::Gcra { 150 } else { 180 };
            let short = limiter.until_ready_within("ada", (least - 1) * MINUTE);
            let denied =
                limited(timeout(patience(), short).await.expect("the denial is immediate"));
            assert!(denied.retry_after() > (least - 1) * MINUTE, "{window:?}: {denied:?}");
            let long = limiter.until_ready_within("ada", (least + 1) * MINUTE);
            let waited = timeout(ms(300), long).await;
            assert!(waited.is_err(), "{window:?}: a call that may pass in time was denied");
            waiting.into_iter().for_each(|task| task.abort());
        }
    })
    .await;
}

/// With a cost of several units too, some of which would fit.
#[cfg(feature = "axum")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_of_a_full_queue_is_the_wait_for_the_cost_of_the_call() {
    in_time(async || {
        use axum::{Router, body::Body, http::Request, routing::get};
        use tower::ServiceExt;

        let server = Server::start();
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            let builder = strict(&client(&server).await, &format!("{window:?}")).window(window);
            let limits =
                [Limit::per_hour(5).named("hourly"), Limit::new(4, ms(60_000)).named("minute")];
            let limiter =
                limits.iter().fold(builder, |builder, limit| builder.limit(limit.clone()));
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
            // With GCRA one unit has to leak; otherwise the oldest call has to leave the window.
            let least = if window == Window::Gcra { 600 } else { 3_500 };
            assert!((least..=3_600).contains(&wait), "{window:?}: {wait}");
            let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
            let names = r#""violated-policies":["hourly","minute"]"#;
            assert!(String::from_utf8_lossy(&body).contains(names), "{window:?}: {body:?}");
            // A request without limits does not wait.
            let free = layer.limits(|_, _| Some([].into()));
            let app = Router::new().route("/", get("hello")).layer(free);
            let answer =
                timeout(patience(), app.oneshot(Request::new(Body::empty()))).await.unwrap();
            assert_eq!(answer.unwrap().status(), 200);
            head.abort();
        }
    })
    .await;
}

/// A waiter in the queue gets the decision of the policy, not the error of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_error_decides_waits_while_the_server_fails() {
    in_time(async || {
        let mut server = Server::start();
        let client = client(&server).await;
        server.kill();
        for policy in [OnError::Local, OnError::Deny, OnError::Allow] {
            let builder = RateLimiter::<String>::builder(&client, "waiting").on_error(policy);
            let limiter = builder.limit(Limit::per_hour(1)).max_waiting(1).build().unwrap();
            let first = limiter.check("ada").await;
            assert_eq!(first.is_err(), policy == OnError::Deny);
            let head = tokio::spawn({
                let limiter = limiter.clone();
                async move { limiter.until_ready("ada").await.map(drop) }
            });
            sleep(ms(300)).await;
            let outcome = limiter.until_ready_within("ada", 120 * MINUTE).await;
            match policy {
                OnError::Local => {
                    assert!(limited(outcome).retry_after() > 59 * MINUTE);
                    assert!(!head.is_finished());
                }
                OnError::Deny => assert!(outcome.is_err_and(|error| error.is_temporary())),
                _ => assert!(outcome.is_ok()),
            }
            head.abort();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jitter_adds_a_random_delay_to_waits() {
    in_time(async || {
        let server = Server::start();
        let builder = strict(&client(&server).await, "waiting").limit(Limit::new(1, ms(100)));
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
        assert!(spread > ms(300), "all 20 waits ended within {spread:?}");
        assert_eq!(limiter.stats().waited, 20);
    })
    .await;
}

#[cfg(feature = "axum")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_decision_reports_and_stats_count_shadowed_requests() {
    use std::sync::{Arc, Mutex};

    use axum::{Router, body::Body, http::Request, routing::get};
    use tower::ServiceExt;

    let server = Server::start();
    let limiter = limiter(&server, Limit::per_hour(1).named("hourly")).await;
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let log = decisions.clone();
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
    assert_eq!(*decisions.lock().unwrap(), ["allowed", "denied", "shadowed"]);
    assert_eq!((limiter.stats().denied, limiter.stats().shadowed), (2, 1));
}
