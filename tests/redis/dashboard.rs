//! What the dashboard shows of a limiter on a server.

use std::time::{Duration, Instant};

use axum::{body::Body, http::Request};
use fleeting::{
    Limit,
    redis::{RateLimiter, RateLimiterBuilder},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::servers::{Server, connect};

/// Which keys are denied, of a limiter that has denied so many calls.
async fn denied_keys(name: &str, denied: u64) -> Value {
    let app = fleeting::dashboard();
    let start = Instant::now();
    loop {
        let request = Request::get("/figures").body(Body::empty()).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let figures: Value = serde_json::from_slice(&body).unwrap();
        let groups = figures["groups"].as_array().unwrap();
        // That in memory, for when the server fails, has its name.
        let mut named = groups.iter().filter(|group| group["name"] == name);
        let group = named.find(|group| group["kind"] == "redis_limiter");
        if let Some(group) = group.filter(|group| group["counts"]["denied"] == denied) {
            return group["denied_keys"].clone();
        }
        assert!(start.elapsed() < Duration::from_secs(300), "{name} is {group:?}");
        // A thread looks, once a second.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_keys_that_are_denied_most_are_hashes_unless_allowed() {
    let server = Server::durable();
    let client = connect(server.url()).await;
    type Set = fn(RateLimiterBuilder<String>) -> RateLimiterBuilder<String>;
    let limited: [(&str, Set); 2] = [
        ("hashed keys", |builder| builder),
        // Denied by the server each time.
        ("keys that are shown", |builder| builder.deny_cache(0).show_keys()),
    ];
    for (name, set) in limited {
        let builder = RateLimiter::<String>::builder(&client, name)
            .limit(Limit::per_hour(1))
            .timeout(Duration::from_secs(60));
        let limiter = set(builder).build().unwrap();
        for (key, times) in [("ada", 3), ("{eve}", 5), ("bob", 1)] {
            for call in 0..times {
                assert_eq!(limiter.check(key).await.is_ok(), call == 0, "{key}");
            }
        }
        let soon = limiter.until_ready_within("ada", Duration::from_millis(1)).await;
        assert!(soon.is_err());
        let told = denied_keys(name, 7).await;
        if name.starts_with("hashed") {
            let counts: Vec<_> =
                told.as_array().unwrap().iter().map(|key| &key["denials"]).collect();
            assert_eq!(counts, [4, 3]);
            assert!(!told.to_string().contains("eve"), "{told}");
            assert!(told.as_array().unwrap().iter().all(|key| key["plain"] == false), "{told}");
        } else {
            let key =
                |key: &str, denials: u64| json!({ "key": key, "plain": true, "denials": denials });
            assert_eq!(told, json!([key("{eve}", 4), key("ada", 3)]));
        }
    }
}
