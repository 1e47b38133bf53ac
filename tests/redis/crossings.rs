//! The table of crossings, on Redis with a stopped clock.

#[cfg(feature = "axum")]
use std::{cell::Cell, time::Duration};

#[cfg(feature = "axum")]
use axum::http::request::Parts;
#[cfg(feature = "axum")]
use fleeting::{Limit, RateLimitLayer, redis::RateLimiter};

use super::{
    rate_limiter::{client, strict},
    rate_limiter_several_limits::OnRedis,
};
#[cfg(feature = "axum")]
use crate::layer_crossings;
use crate::{
    crossings_table::{Setting, play_all},
    servers::StoppedServer,
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
    let Some(server) = StoppedServer::start() else { return };
    let client = client(&server).await;
    play_all(reason_against, async |setup| OnRedis::new(&server, &client, setup)).await;
}

#[cfg(feature = "axum")]
struct OnLayer<'a> {
    server: &'a StoppedServer,
    limiter: RateLimiter<String>,
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
        self.server.pass(time);
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn each_pair_of_settings_of_the_layer_denies_the_same_failures() {
    let Some(server) = StoppedServer::start() else { return };
    let client = client(&server).await;
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
        OnLayer { server: &server, limiter }
    };
    layer_crossings::play_all(reason_against, new).await;
}
