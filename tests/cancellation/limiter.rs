//! Calls of `RateLimiter` and its permits.

use std::time::Duration;

use fleeting::{Limit, Permit, RateLimiter, Window};
use futures::lock::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::cancel::{Effect, Parts, at_each_await, calls, has_effect};

const SECOND: Duration = Duration::from_secs(1);
const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

/// Returns a limiter with two charges of the key `ada`.
async fn limiter(window: Window) -> RateLimiter<String> {
    let limits = [Limit::new(5, 10 * SECOND), Limit::new(3, 20 * SECOND)];
    let builder = RateLimiter::builder().window(window);
    let limiter = limits.into_iter().fold(builder, |builder, limit| builder.limit(limit)).build();
    limiter.check_n("ada", 2).await.expect("quota is left");
    limiter
}

async fn observe(limiter: &RateLimiter<String>) -> Parts {
    let mut parts = Parts::new();
    for key in ["ada", "bob"] {
        parts.insert(key.to_owned(), format!("{:?}", limiter.peek(key).await));
    }
    let stats = limiter.stats();
    parts.insert("keys".into(), format!("{:?}", (stats.keys, stats.admitted, stats.denied)));
    parts
}

#[tokio::test(start_paused = true)]
async fn cancelled_check_has_charged_nothing() {
    let calls = calls! { limiter: RateLimiter<String>;
        limiter.check("ada"), limiter.check("bob"), limiter.check_n("ada", 2), limiter.check_n("ada", 0),
        limiter.check_with("ada", &[]), limiter.check_n_with("bob", 1, &[]), limiter.peek("ada"),
        limiter.peek_with("ada", &[]), limiter.reset("ada"), limiter.reset("bob"),
    };
    for window in WINDOWS {
        for (name, call) in &calls {
            let new = async || limiter(window).await;
            let call = async |limiter: &RateLimiter<String>| call(limiter).await;
            has_effect(Effect::Nothing, name, new, call, observe).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_has_charged_nothing_and_later_waiters_move_up() {
    let calls = calls! { limiter: RateLimiter<String>;
        limiter.until_ready("ada"), limiter.until_ready_n("ada", 2),
        limiter.until_ready_within("ada", 60 * SECOND),
    };
    for window in WINDOWS {
        for (name, call) in &calls {
            at_each_await(
                async || {
                    let limiter = limiter(window).await;
                    limiter.check("ada").await.expect("quota is left");
                    (limiter, Instant::now())
                },
                async |(limiter, _)| call(limiter).await,
                async |(limiter, begin), reply, schedule| {
                    let used = 3 - limiter.peek("ada").await.remaining();
                    if reply.is_none() && begin.elapsed().is_zero() {
                        assert_eq!(used, 3, "{name}, {window:?}, {schedule:?}");
                    }
                    // The quota that the cancelled call did not charge is available.
                    sleep(20 * SECOND).await;
                    let waiter = timeout(Duration::ZERO, limiter.until_ready_n("ada", 3));
                    let waiter = match reply {
                        None => waiter.await.expect("the key has no charges").map(drop),
                        Some(_) => limiter.until_ready_n("ada", 3).await.map(drop),
                    };
                    assert!(waiter.is_ok(), "{name}, {window:?}, {schedule:?}");
                },
            )
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_refund_or_settle_keeps_the_charge() {
    type State = (RateLimiter<String>, Mutex<Option<Permit>>);
    for window in WINDOWS {
        let new = async || {
            let limiter = limiter(window).await;
            let permit = limiter.check("ada").await.expect("quota is left");
            (limiter, Mutex::new(Some(permit)))
        };
        let observe = async |(limiter, _): &State| observe(limiter).await;
        for (name, actual) in [("refund", None), ("settle(0)", Some(0)), ("settle(7)", Some(7))] {
            let call = async |(_, permit): &State| {
                // A repeated call has no permit left.
                let Some(permit) = permit.lock().await.take() else { return };
                match actual {
                    None => permit.refund().await,
                    Some(actual) => permit.settle(actual).await,
                }
            };
            has_effect(Effect::Nothing, name, new, call, observe).await;
        }
    }
}
