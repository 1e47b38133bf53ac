//! What is on a real server, as this process has seen it.

use std::time::Duration;

use fleeting::{
    Limit,
    redis::{Breaker, Cache, Client, OnError, RateLimiter},
};

use crate::{SECOND, servers::Server, told};

#[tokio::test]
async fn a_cache_a_limiter_and_their_client_through_the_death_of_the_server() {
    let mut server = Server::durable();
    let client =
        Client::builder(server.url()).prefix("told").timeout(SECOND).connect().await.unwrap();
    let cache: Cache<String, u32> = Cache::builder(&client, "shared").build().unwrap();
    let limiter: RateLimiter<String> = RateLimiter::builder(&client, "shared calls")
        .limit(Limit::per_hour(2))
        .on_error(OnError::Allow)
        .build()
        .unwrap();
    cache.set("ada".into(), 1).await.unwrap();
    assert_eq!(cache.get("ada").await.unwrap(), Some(1));
    assert_eq!(cache.get("eve").await.unwrap(), None);
    for allowed in [true, true, false] {
        assert_eq!(limiter.check("ada").await.is_ok(), allowed);
    }
    let before = told("shared");
    assert_eq!(before.counter("fleeting_redis_cache_hits_total"), 1);
    assert_eq!(before.counter("fleeting_redis_cache_misses_total"), 1);
    assert_eq!(before.counter("fleeting_redis_cache_events_total"), 0);
    assert_eq!(before.counter("fleeting_redis_cache_events_missed_total"), 0);
    let calls = told("shared calls");
    assert_eq!(calls.counter("fleeting_redis_limiter_allowed_total"), 2);
    assert_eq!(calls.counter("fleeting_redis_limiter_denied_total"), 1);
    let breaker = |state| {
        told("shared calls").gauge_of("fleeting_redis_limiter_breaker", Some(("state", state)))
    };
    assert_eq!([breaker("closed"), breaker("open"), breaker("half_open")], [1.0, 0.0, 0.0]);
    let told_before = told("told");
    assert!(told_before.counter("fleeting_redis_client_commands_total") >= 6);
    assert_eq!(told_before.counter("fleeting_redis_client_failures_total"), 0);
    assert_eq!(told_before.counter("fleeting_redis_client_reconnects_total"), 0);

    let near: Cache<String, u32> = Cache::builder(&client, "near").near(10).build().unwrap();
    for n in 0..20 {
        near.set("ada".into(), n).await.unwrap();
        while near.stats().near_hits <= u64::from(n) {
            assert_eq!(near.get("ada").await.unwrap(), Some(n));
        }
    }
    let seen = told("near");
    let [hits, answered, changes] = ["hits", "near_hits", "invalidations"]
        .map(|what| seen.counter(&format!("fleeting_redis_cache_{what}_total")));
    assert!(answered >= 20 && hits > answered && changes >= 20, "{hits} {answered} {changes}");
    // What is kept is a cache by itself.
    assert!(told("near near").counter("fleeting_cache_hits_total") >= 20);

    server.kill();
    while limiter.stats().breaker != Breaker::Open {
        assert!(limiter.check("bob").await.is_ok(), "it allows where the server fails");
    }
    let seen = breaker("open") + breaker("half_open");
    assert!(seen >= 1.0, "it may be half open by now, and not closed");
    assert!(told("shared calls").counter("fleeting_redis_limiter_errors_total") >= 3);
    assert!(told("shared calls").counter("fleeting_redis_limiter_by_policy_total") >= 3);
    assert!(told("told").counter("fleeting_redis_client_failures_total") >= 1);

    server.restart();
    let begin = std::time::Instant::now();
    while cache.get("ada").await.is_err() {
        assert!(begin.elapsed() < 120 * SECOND, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(told("told").counter("fleeting_redis_client_reconnects_total") >= 1);
}
