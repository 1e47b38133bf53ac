//! The table of crossings, on Redis with a stopped clock.

use std::cell::Cell;
#[cfg(feature = "axum")]
use std::time::Duration;

#[cfg(feature = "axum")]
use axum::http::request::Parts;
#[cfg(feature = "axum")]
use fleeting::{Limit, RateLimitLayer, redis::RateLimiter};

use super::{
    rate_limiter::{client, server_time, strict},
    rate_limiter_several_limits::OnRedis,
};
#[cfg(feature = "axum")]
use crate::layer_crossings;
use crate::{
    crossings_table::{Setting, play_all},
    servers::{Server, program},
};

fn reason_against(setting: Setting) -> Option<&'static str> {
    match setting {
        Setting::Wait => Some("a waiter sleeps by the clock of its process, which is not stopped"),
        Setting::MaxKeys => Some("the server evicts keys, so there is no bound"),
        _ => None,
    }
}

#[tokio::test]
async fn each_pair_of_settings_leaves_one_quota_to_a_key() {
    // Valkey reads the clock from a counter of the processor, so it cannot be stopped. The scripts are the same.
    if program().contains("valkey") {
        return;
    }
    let server = Server::start_with_clock();
    let client = client(&server).await;
    let now = Cell::new(server_time(&mut server.plain().await).await);
    server.stop_clock(now.get());
    play_all(reason_against, async |setup| OnRedis::new(&server, &client, &now, setup)).await;
}

#[cfg(feature = "axum")]
struct OnLayer<'a> {
    server: &'a Server,
    limiter: RateLimiter<String>,
    now: &'a Cell<u64>,
}

#[cfg(feature = "axum")]
impl layer_crossings::Backend for OnLayer<'_> {
    const HAS_WAITERS: bool = false;

    fn layer(&self, key: fn(&Parts) -> Option<String>) -> RateLimitLayer<String> {
        RateLimitLayer::new(self.limiter.clone(), key)
    }

    async fn set_limit(&self, limit: Limit) {
        self.limiter.set_limits([limit]).await.unwrap();
    }

    async fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time.as_micros() as u64);
        self.server.stop_clock(self.now.get());
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn each_pair_of_settings_of_the_layer_denies_the_same_failures() {
    // As above.
    if program().contains("valkey") {
        return;
    }
    let server = Server::start_with_clock();
    let client = client(&server).await;
    let now = Cell::new(server_time(&mut server.plain().await).await);
    server.stop_clock(now.get());
    let reason_against = |setting| match setting {
        layer_crossings::Setting::MaxKeys => reason_against(Setting::MaxKeys),
        _ => None,
    };
    let names = Cell::new(0);
    let new = async |needs: layer_crossings::Needs| {
        names.set(names.get() + 1);
        // Locally known denials expire by the clock of this process.
        let builder = strict(&client, &format!("cell {}", names.get())).deny_cache(0);
        let limiter = builder.window(needs.window).limit(needs.limit).build().unwrap();
        OnLayer { server: &server, limiter, now: &now }
    };
    layer_crossings::play_all(reason_against, new).await;
}
