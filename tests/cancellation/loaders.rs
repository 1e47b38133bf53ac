//! Loader methods of `Cache`: a cancelled load stores nothing, and a waiter takes over.

use std::{convert::Infallible, time::Duration};

use fleeting::{Cache, Sweep};
use futures::lock::Mutex;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

use crate::cancel::at_each_await;

const MINUTE: Duration = Duration::from_secs(60);

/// Cache, and the caller that waits for the load, if it has begun.
struct State {
    cache: Cache<u32, u32>,
    waiter: Mutex<Option<JoinHandle<u32>>>,
}

fn state() -> State {
    State { cache: Cache::builder().sweep(Sweep::manual()).build(), waiter: Mutex::new(None) }
}

/// Loads 1 in several steps.
async fn slow() -> u32 {
    for _ in 0..3 {
        yield_now().await;
    }
    sleep(MINUTE / 9).await;
    yield_now().await;
    1
}

/// Calls a loader method for key 0. The waiters of these methods load 2.
async fn load(cache: &Cache<u32, u32>, method: &str) -> u32 {
    match method {
        "get_or_set_with" => cache.get_or_set_with(&0, MINUTE, slow).await,
        "get_or_set" => cache.get_or_set(&0, MINUTE, slow()).await,
        "get_or_try_set_with" => {
            let load = async || Ok::<_, Infallible>(slow().await);
            cache.get_or_try_set_with(&0, MINUTE, load).await.expect("it does not fail")
        }
        "get_or_try_set_with_freshness" => {
            let load = async || Ok::<_, Infallible>(slow().await);
            cache.get_or_try_set_with_freshness(&0, MINUTE, load).await.expect("it does not fail").0
        }
        "get_or_try_set" => {
            let load = async { Ok::<_, Infallible>(slow().await) };
            cache.get_or_try_set(&0, MINUTE, load).await.expect("it does not fail")
        }
        "refresh_with" => cache.refresh_with(&0, MINUTE, slow).await,
        _ => {
            let load = async |keys: Vec<u32>| {
                let value = slow().await;
                keys.into_iter().map(|key| (key, value)).collect()
            };
            let values = cache.get_many_or_set_with([0, 5, 6], MINUTE, load).await;
            values[0].expect("the loader returns all keys")
        }
    }
}

const METHODS: [&str; 7] = [
    "get_or_set_with",
    "get_or_set",
    "get_or_try_set_with",
    "get_or_try_set_with_freshness",
    "get_or_try_set",
    "refresh_with",
    "get_many_or_set_with",
];

#[tokio::test(start_paused = true)]
async fn cancelled_load_without_a_waiter_stores_nothing_and_blocks_no_caller() {
    for method in METHODS {
        at_each_await(
            async || state(),
            async |state| load(&state.cache, method).await,
            async |state, reply, schedule| {
                let stored = state.cache.get(&0).await;
                match reply {
                    Some(value) => {
                        assert_eq!((value, stored), (1, Some(1)), "{method}, {schedule:?}")
                    }
                    // A load of several keys may have stored some of them.
                    None if method == "get_many_or_set_with" => {
                        assert!(stored.is_none_or(|v| v == 1))
                    }
                    None => assert_eq!(stored, None, "{method}, {schedule:?}"),
                }
                let later = state.cache.get_or_set_with(&0, MINUTE, async || 2);
                let later = timeout(MINUTE, later).await;
                assert_eq!(later, Ok(stored.unwrap_or(2)), "{method}, {schedule:?}");
                let other = timeout(MINUTE, state.cache.set(0, 3)).await;
                assert_eq!(other, Ok(later.ok()), "{method}, {schedule:?}");
            },
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_of_a_cancelled_load_runs_its_own() {
    for method in METHODS {
        at_each_await(
            async || state(),
            async |state| {
                let cache = state.cache.clone();
                let call = load(&state.cache, method);
                // Begins to wait while the load is running.
                let waiter = async {
                    yield_now().await;
                    let wait = async move { cache.get_or_set_with(&0, MINUTE, async || 2).await };
                    *state.waiter.lock().await = Some(tokio::spawn(wait));
                };
                tokio::join!(call, waiter).0
            },
            async |state, reply, schedule| {
                let Some(waiter) = state.waiter.lock().await.take() else { return };
                let value = timeout(MINUTE, waiter).await;
                let value = value.expect("the waiter is not stuck").expect("it does not panic");
                let stored = state.cache.get(&0).await;
                assert_eq!(stored, Some(value), "{method}, {schedule:?}");
                assert!(reply.is_none_or(|reply| reply == value), "{method}, {schedule:?}");
            },
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_does_not_affect_the_load() {
    for method in METHODS {
        at_each_await(
            async || {
                let state = state();
                let cache = state.cache.clone();
                let load = async move { cache.get_or_set_with(&0, MINUTE, slow).await };
                *state.waiter.lock().await = Some(tokio::spawn(load));
                yield_now().await;
                state
            },
            async |state| load(&state.cache, method).await,
            async |state, reply, schedule| {
                let leader = state.waiter.lock().await.take().expect("it was spawned");
                assert_eq!(leader.await.expect("it does not panic"), 1, "{method}, {schedule:?}");
                assert_eq!(state.cache.get(&0).await, Some(1), "{method}, {schedule:?}");
                assert!(reply.is_none_or(|value| value == 1), "{method}, {schedule:?}");
            },
        )
        .await;
    }
}
