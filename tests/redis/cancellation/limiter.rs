//! Calls of limiters and their permits.

use std::{sync::LazyLock, time::Duration};

use fleeting::{
    Limit,
    redis::{Client, OnError, Permit, RateLimiter},
};
use futures::lock::Mutex;
use tokio::time::{sleep, timeout};

use super::{HOUR, checked, fresh, until};
use crate::{
    cancel::{Effect, Parts, at_each_poll, calls, has_effect_at_polls, with_effects},
    patience::patience,
    servers::{Server, connect},
};

type Limiter = RateLimiter<String>;

/// Limits of single calls.
static NINE: LazyLock<[Limit; 1]> = LazyLock::new(|| [Limit::per_hour(9)]);

fn build(client: &Client, name: &str) -> Limiter {
    let builder = Limiter::builder(client, name).limit(Limit::per_hour(9));
    builder.timeout(patience()).on_error(OnError::Deny).build().unwrap()
}

/// Returns a limiter with one charge of the key `ada`.
async fn limiter(client: &Client) -> Limiter {
    let limiter = build(client, &fresh());
    limiter.check("ada").await.unwrap();
    limiter
}

async fn observe(limiter: &Limiter) -> Parts {
    let mut parts = Parts::new();
    for key in ["ada", "bob"] {
        let remaining = limiter.peek(key).await.unwrap().remaining();
        parts.insert(key.to_owned(), remaining.to_string());
    }
    parts
}

#[tokio::test]
async fn cancelled_call_of_a_limiter_has_charged_its_cost_or_nothing() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let changes = calls! { limiter: Limiter;
        limiter.check("ada"), limiter.check("bob"), limiter.check_n("ada", 2),
        limiter.check_with("ada", &*NINE), limiter.check_n_with("bob", 3, &*NINE),
        limiter.reset("ada"), limiter.until_ready("ada"), limiter.until_ready_n("ada", 2),
        limiter.until_ready_within("ada", HOUR), limiter.set_limits([Limit::per_hour(20)]),
    };
    let reads = calls! { limiter: Limiter;
        limiter.peek("ada"), limiter.peek_with("ada", &*NINE), limiter.check_with("ada", &[]),
        limiter.check_n("ada", 0), limiter.reset("bob"), limiter.clear_limits(),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        let new = async || limiter(&client).await;
        let call = async |limiter: &Limiter| checked(call(limiter).await);
        has_effect_at_polls(effect, name, new, call, observe).await;
    }
}

#[tokio::test]
async fn cancelled_change_of_the_limits_may_be_repeated() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for sets in [true, false] {
        let change = async |limiter: &Limiter| match sets {
            true => limiter.set_limits([Limit::per_hour(20)]).await.unwrap(),
            false => limiter.clear_limits().await.unwrap(),
        };
        at_each_poll(
            async || {
                let name = fresh();
                let limiter = build(&client, &name);
                if !sets {
                    limiter.set_limits([Limit::per_hour(20)]).await.unwrap();
                }
                (limiter, name)
            },
            async |(limiter, _)| change(limiter).await,
            async |(limiter, name), _, schedule| {
                change(&limiter).await;
                for limiter in [limiter, build(&client, &name)] {
                    // Other processes learn of the change with a later call.
                    let is_changed = async || {
                        let remaining = limiter.peek("bob").await.unwrap().remaining();
                        remaining == if sets { 20 } else { 9 }
                    };
                    until(is_changed, &format!("set: {sets}, {schedule:?}")).await;
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_wait_on_redis_gives_up_its_place() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let calls = calls! { limiter: Limiter;
        limiter.until_ready("ada"), limiter.until_ready_n("ada", 9), limiter.until_ready_within("ada", 2 * HOUR),
    };
    for (name, call) in calls {
        at_each_poll(
            async || {
                let limiter = build(&client, &fresh());
                limiter.check_n("ada", 9).await.unwrap();
                limiter
            },
            async |limiter| {
                // The call cannot pass before the reset.
                let reset = async {
                    sleep(Duration::from_millis(20)).await;
                    limiter.reset("ada").await.unwrap();
                };
                checked(tokio::join!(call(limiter), reset).0);
            },
            async |limiter, _, schedule| {
                // The cancelled call may be charged after a reset.
                let passes = async || {
                    limiter.reset("ada").await.unwrap();
                    let wait = limiter.until_ready_n("ada", 9);
                    timeout(patience() / 100, wait).await.is_ok()
                };
                until(passes, &format!("{name}, {schedule:?}: later waiters are blocked")).await;
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_refund_or_settle_on_redis_has_its_whole_effect_or_none() {
    type State = (Limiter, Mutex<Option<Permit>>);

    let server = Server::shared();
    let client = connect(server.url()).await;
    let new = async || {
        let limiter = limiter(&client).await;
        let permit = limiter.check_n("bob", 2).await.unwrap();
        (limiter, Mutex::new(Some(permit)))
    };
    let observe = async |(limiter, _): &State| observe(limiter).await;
    for (name, actual) in [("refund", None), ("settle(0)", Some(0)), ("settle(7)", Some(7))] {
        let call = async |(limiter, permit): &State| {
            // A repeated call has no permit left.
            let permit = permit.lock().await.take();
            match (permit, actual) {
                (Some(permit), None) => permit.refund().await.unwrap(),
                (Some(permit), Some(actual)) => permit.settle(actual).await.unwrap(),
                (None, _) => drop(limiter.check("ada").await.unwrap()),
            }
        };
        has_effect_at_polls(Effect::Whole, name, new, call, observe).await;
    }
}
