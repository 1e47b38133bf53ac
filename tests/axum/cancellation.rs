//! Requests to a layer, cancelled at each wait: they are charged if they have reached the service, and block no other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use fleeting::{Limit, RateLimitLayer, RateLimiter};
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use super::asking::*;
use crate::cancel::at_each_await;

const MINUTE: Duration = Duration::from_secs(60);
const QUOTA: u32 = 3;

/// A limiter, the application behind it, and the number of requests that have reached the application.
type State = (RateLimiter<String>, Router, Arc<AtomicU64>);

/// Layers that decide immediately, after a lookup, and after a wait.
fn state(layer: &str) -> State {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(QUOTA)).build();
    let settings = RateLimitLayer::new(limiter.clone(), all);
    let settings = match layer {
        "immediate" => settings,
        "lookup" => settings.limits_by_key(MINUTE, async |_| {
            yield_now().await;
            sleep(MINUTE / 99).await;
            None
        }),
        _ => settings.wait(2 * MINUTE),
    };
    let reached = Arc::<AtomicU64>::default();
    let counter = reached.clone();
    let handler = async move || {
        counter.fetch_add(1, Relaxed);
        yield_now().await;
        sleep(MINUTE / 99).await;
    };
    (limiter, Router::new().route("/", get(handler)).layer(settings), reached)
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_is_charged_if_it_has_reached_the_service() {
    for layer in ["immediate", "lookup", "wait"] {
        let used = if layer == "wait" { QUOTA } else { 1 };
        let new = async || {
            let state = state(layer);
            state.0.check_n("all", used).await.expect("the quota is not used yet");
            state
        };
        let call = async |(_, app, _): &State| ask(app, get_with(&[])).await.status();
        at_each_await(new, call, async |(limiter, app, reached), reply, schedule| {
            assert!(reply.is_none_or(|status| status == 200), "{layer}, {schedule:?}: {reply:?}");
            let reached = reached.load(Relaxed);
            assert!(reached == 1 || reply.is_none(), "{layer}, {schedule:?}");
            assert_eq!(limiter.stats().admitted, 1 + reached, "{layer}, {schedule:?}");
            if layer != "wait" {
                let remaining = limiter.peek("all").await.remaining();
                assert_eq!(u64::from(QUOTA - used - remaining), reached, "{layer}, {schedule:?}");
            }
            // The charges have left their window, and the cancelled request its place.
            sleep(2 * MINUTE).await;
            let later = timeout(MINUTE / 9, ask(&app, get_with(&[]))).await;
            let later = later.unwrap_or_else(|_| panic!("{layer}, {schedule:?}: it is blocked"));
            assert_eq!(later.status(), 200, "{layer}, {schedule:?}");
        })
        .await;
    }
}
