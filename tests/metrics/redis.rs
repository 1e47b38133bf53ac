//! Redis metrics, as seen by this process, with a real server.

use std::time::Duration;

use fleeting::{
    Limit,
    redis::{Breaker, Cache, Client, OnError, RateLimiter},
};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    scrape,
    servers::Server,
};

#[tokio::test]
async fn redis_metrics_match_the_calls_through_a_server_outage() {
    in_time(async || {
        // The metrics of an attempt stay, so the next one needs names of its own.
        let name = |name: &str| format!("{name}-{}", ms(1).as_millis());
        let mut server = Server::durable();
        let client = Client::builder(server.url())
            .prefix(name("client"))
            .timeout(ms(1_000))
            .connect()
            .await
            .unwrap();
        let cache: Cache<String, u32> = Cache::builder(&client, &name("shared")).build().unwrap();
        let limiter: RateLimiter<String> = RateLimiter::builder(&client, name("calls"))
            .limit(Limit::per_hour(2))
            .on_error(OnError::Allow)
            // A busy server has to decide all checks before it is killed.
            .timeout(ms(5_000))
            .build()
            .unwrap();
        cache.set("ada".into(), 1).await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap(), Some(1));
        assert_eq!(cache.get("eve").await.unwrap(), None);
        for allowed in [true, true, false] {
            assert_eq!(limiter.check("ada").await.is_ok(), allowed);
        }
        let before = scrape(&name("shared"));
        assert_eq!(before.counter("fleeting_redis_cache_hits_total"), 1);
        assert_eq!(before.counter("fleeting_redis_cache_misses_total"), 1);
        assert_eq!(before.counter("fleeting_redis_cache_events_total"), 0);
        assert_eq!(before.counter("fleeting_redis_cache_events_missed_total"), 0);
        let calls = scrape(&name("calls"));
        assert_eq!(calls.counter("fleeting_redis_limiter_allowed_total"), 2);
        assert_eq!(calls.counter("fleeting_redis_limiter_denied_total"), 1);
        let breaker = |state| {
            scrape(&name("calls"))
                .gauge_of("fleeting_redis_limiter_breaker", Some(("state", state)))
        };
        assert_eq!([breaker("closed"), breaker("open"), breaker("half_open")], [1.0, 0.0, 0.0]);
        let client_before = scrape(&name("client"));
        assert!(client_before.counter("fleeting_redis_client_commands_total") >= 6);
        assert_eq!(client_before.counter("fleeting_redis_client_failures_total"), 0);
        assert_eq!(client_before.counter("fleeting_redis_client_reconnects_total"), 0);

        let near: Cache<String, u32> =
            Cache::builder(&client, &name("near")).near(10).build().unwrap();
        for n in 0..20 {
            near.set("ada".into(), n).await.unwrap();
            while near.stats().near_hits <= u64::from(n) {
                assert_eq!(near.get("ada").await.unwrap(), Some(n));
            }
        }
        let seen = scrape(&name("near"));
        let [hits, answered, changes] = ["hits", "near_hits", "invalidations"]
            .map(|event| seen.counter(&format!("fleeting_redis_cache_{event}_total")));
        assert!(answered >= 20 && hits > answered && changes >= 20, "{hits} {answered} {changes}");
        // The near cache has metrics of its own.
        assert!(scrape(&(name("near") + " near")).counter("fleeting_cache_hits_total") >= 20);

        server.kill();
        while limiter.stats().breaker != Breaker::Open {
            assert!(
                limiter.check("bob").await.is_ok(),
                "the limiter allows while the server is down"
            );
        }
        let seen = breaker("open") + breaker("half_open");
        assert!(seen >= 1.0, "the breaker is open or half open");
        assert!(scrape(&name("calls")).counter("fleeting_redis_limiter_errors_total") >= 3);
        assert!(scrape(&name("calls")).counter("fleeting_redis_limiter_by_policy_total") >= 3);
        assert!(scrape(&name("client")).counter("fleeting_redis_client_failures_total") >= 1);

        let begin = std::time::Instant::now();
        while scrape(&name("client")).gauge("fleeting_redis_client_unreachable") != 1.0 {
            assert!(begin.elapsed() < patience(), "the server is not reported as unreachable");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.restart();
        let begin = std::time::Instant::now();
        while cache.get("ada").await.is_err() {
            assert!(begin.elapsed() < patience(), "the client does not reconnect");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(scrape(&name("client")).counter("fleeting_redis_client_reconnects_total") >= 1);
        while scrape(&name("client")).gauge("fleeting_redis_client_unreachable") != 0.0 {
            assert!(begin.elapsed() < patience(), "the server is still reported as unreachable");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
