//! Who waits for a key of a limiter on Redis: who is not polled, how many, how long, and what is counted.

use std::time::Duration;

use fleeting::{
    Limit, RateLimitDecision, RateLimitLayer,
    redis::{Error, OnError, RateLimiter},
};
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
    assert_eq!(limiter.denials(), [(Limit::per_hour(1).named("hourly"), limiter.stats().denied)]);
    assert!(limiter.stats().denied >= 2);
    // What could never pass, or costs nothing, waits for nobody.
    limiter.until_ready_n("ada", 0).await.unwrap();
    assert!(matches!(limiter.until_ready_n("ada", 2).await, Err(Error::Limited(_))));
    waiting.into_iter().for_each(|task| task.abort());
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
