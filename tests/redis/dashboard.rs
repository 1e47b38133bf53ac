//! Rate limiters on Redis in the dashboard.

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

use crate::patience::patience;

/// Returns the most denied keys of a limiter, once the dashboard reports `denied` denials.
async fn denied_keys(name: &str, denied: u64) -> Value {
    let app = fleeting::dashboard();
    let start = Instant::now();
    loop {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let metrics: Value = serde_json::from_slice(&body).unwrap();
        let groups = metrics["groups"].as_array().unwrap();
        // The embedded limiter for failures of the server has the same name.
        let mut named = groups.iter().filter(|group| group["name"] == name);
        let group = named.find(|group| group["kind"] == "redis_limiter");
        if let Some(group) = group.filter(|group| group["counts"]["denied"] == denied) {
            return group["denied_keys"].clone();
        }
        assert!(start.elapsed() < patience(), "the dashboard reports {group:?} for {name}");
        // The dashboard samples once per second.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn top_denied_keys_are_hashed_unless_show_keys_is_set() {
    let server = Server::durable();
    let client = connect(server.url()).await;
    type Set = fn(RateLimiterBuilder<String>) -> RateLimiterBuilder<String>;
    let limited: [(&str, Set); 2] = [
        ("hashed keys", |builder| builder),
        // Without a cache, the server denies each call.
        ("plain keys", |builder| builder.deny_cache(0).show_keys()),
    ];
    for (name, set) in limited {
        let builder = RateLimiter::<String>::builder(&client, name)
            .limit(Limit::per_hour(1))
            .timeout(patience());
        let limiter = set(builder).build().unwrap();
        for (key, times) in [("ada", 3), ("{eve}", 5), ("bob", 1)] {
            for call in 0..times {
                assert_eq!(limiter.check(key).await.is_ok(), call == 0, "{key}");
            }
        }
        let soon = limiter.until_ready_within("ada", Duration::from_millis(1)).await;
        assert!(soon.is_err());
        let keys = denied_keys(name, 7).await;
        if name.starts_with("hashed") {
            let counts: Vec<_> =
                keys.as_array().unwrap().iter().map(|key| &key["denials"]).collect();
            assert_eq!(counts, [4, 3]);
            assert!(!keys.to_string().contains("eve"), "{keys}");
            assert!(keys.as_array().unwrap().iter().all(|key| key["plain"] == false), "{keys}");
        } else {
            let key =
                |key: &str, denials: u64| json!({ "key": key, "plain": true, "denials": denials });
            assert_eq!(keys, json!([key("{eve}", 4), key("ada", 3)]));
        }
    }
}
