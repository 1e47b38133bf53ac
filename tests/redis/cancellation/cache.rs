//! Verbs and loader methods of caches, with and without events, a near cache and stale windows.

use std::{convert::Infallible, time::Duration};

use fleeting::{
    When,
    redis::{Cache, Client},
};
use futures::lock::Mutex;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{HOUR, checked, fresh, hours, until};
use crate::{
    cancel::{Effect, Parts, at_each_poll, calls, has_effect_at_polls},
    patience::patience,
    servers::{Server, connect},
};

type Numbers = Cache<String, u64>;

/// Handles of two processes to one cache.
struct State {
    cache: Numbers,
    /// Without a near cache, so that it reads what is on the server.
    other: Numbers,
}

/// Caches with other code paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Events,
    Near,
    Stale,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Events, Kind::Near, Kind::Stale];

async fn filled(client: &Client, kind: Kind) -> State {
    let name = fresh();
    // A lease that a cancelled load does not give back would block for longer than any test.
    let builder = || Cache::builder(client, &name).lease(HOUR);
    let (builder, other) = match kind {
        Kind::Plain => (builder(), builder()),
        Kind::Events => (builder().events(HOUR), builder().events(HOUR)),
        Kind::Near => (builder().near(100), builder()),
        Kind::Stale => {
            (builder().stale_while_revalidate(HOUR), builder().stale_while_revalidate(HOUR))
        }
    };
    let state = State { cache: builder.build().unwrap(), other: other.build().unwrap() };
    let State { cache, .. } = &state;
    cache.set_many((0..4).map(|key| (key.to_string(), key)), Some(HOUR)).await.unwrap();
    cache.set_tagged("tagged".into(), 7, HOUR, ["a"]).await.unwrap();
    cache.set_ex("expired".into(), 8, Duration::from_millis(1)).await.unwrap();
    until(async || cache.get("expired").await.unwrap().is_none(), "the value expires").await;
    // The near cache has an answer for each key.
    observe(&state).await;
    state
}

/// Observes each key from both processes. A near cache that keeps an old answer is neither before nor after a call.
async fn observe(State { cache, other }: &State) -> Parts {
    let mut parts = Parts::new();
    for key in ["0", "1", "2", "3", "tagged", "expired", "new"] {
        let (value, ttl) = (cache.get(key).await.unwrap(), cache.ttl(key).await.unwrap());
        let on_server = other.get(key).await.unwrap();
        parts.insert(key.into(), format!("{value:?} {on_server:?} {}", hours(ttl)));
    }
    parts
}

#[tokio::test]
async fn cancelled_call_of_a_cache_has_its_whole_effect_or_none() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let whole = calls! { cache: Numbers;
        cache.get_ex("0", 2 * HOUR), cache.set("0".into(), 9), cache.set_ex("new".into(), 9, 2 * HOUR),
        cache.set_nx("new".into(), 9, Some(HOUR)), cache.set_nx("expired".into(), 9, Some(HOUR)),
        cache.set_keep_ttl("0".into(), 9), cache.remove("0"), cache.expire("0", 2 * HOUR),
        cache.expire_if("0", 2 * HOUR, When::Later), cache.expire_at("0", Instant::now() + 2 * HOUR),
        cache.extend("0", HOUR), cache.persist("0"), cache.expire_now("0"), cache.update("0", |value| *value += 7),
        cache.set_tagged("0".into(), 9, 2 * HOUR, ["a", "b"]), cache.remove_tag("a"),
    };
    let nothing = calls! { cache: Numbers;
        cache.get("0"), cache.get("expired"), cache.get_many(["0", "new"]), cache.contains_key("0"), cache.ttl("0"),
        cache.len(), cache.is_empty(), cache.set_nx("0".into(), 9, None), cache.get_with_ttl("0"),
    };
    let parts = calls! { cache: Numbers;
        cache.set_many(["0", "1", "new"].map(|key| (key.to_owned(), 9)), Some(2 * HOUR)),
        cache.remove_many(["0", "1", "new"]), cache.clear(),
    };
    for (effect, calls) in
        [(Effect::Whole, whole), (Effect::Nothing, nothing), (Effect::SomeParts, parts)]
    {
        for (name, call) in calls {
            for kind in KINDS {
                let name = format!("{name} of {kind:?}");
                let new = async || filled(&client, kind).await;
                let call = async |state: &State| checked(call(&state.cache).await);
                has_effect_at_polls(effect, &name, new, call, observe).await;
            }
        }
    }
}

/// Loads 1, or the number that the waiters load.
async fn load(cache: &Numbers, method: &str, key: &str, number: u64) -> u64 {
    let load = async move || {
        if number == 1 {
            sleep(Duration::from_millis(3)).await;
        }
        number
    };
    match method {
        "get_or_set_with" => cache.get_or_set_with(key, HOUR, load).await.unwrap(),
        _ => {
            let load = async move || Ok::<_, Infallible>(load().await);
            cache.get_or_try_set_with(key, HOUR, load).await.unwrap().unwrap()
        }
    }
}

#[tokio::test]
async fn cancelled_load_on_redis_blocks_no_later_load() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for method in ["get_or_set_with", "get_or_try_set_with"] {
        for (kind, key) in
            KINDS.map(|kind| (kind, "new")).into_iter().chain([(Kind::Stale, "expired")])
        {
            at_each_poll(
                async || (filled(&client, kind).await, Mutex::new(Vec::new())),
                async |(state, waiters)| {
                    let begin_to_wait = async {
                        yield_now().await;
                        for cache in [state.cache.clone(), state.other.clone()] {
                            let wait = async move { load(&cache, method, key, 2).await };
                            waiters.lock().await.push(tokio::spawn(wait));
                        }
                    };
                    tokio::join!(load(&state.cache, method, key, 1), begin_to_wait).0
                },
                async |(State { cache, other }, waiters), reply, schedule| {
                    let promise = format!("{method} of {kind:?}, {schedule:?}");
                    for waiter in waiters.into_inner() {
                        let value = timeout(patience(), waiter).await;
                        let value =
                            value.unwrap_or_else(|_| panic!("{promise}: a waiter is stuck"));
                        assert!([1, 2, 8].contains(&value.unwrap()), "{promise}");
                    }
                    // First in the other process: the lease is given back, and not only the flight.
                    for later in [&other, &cache] {
                        let is_loaded = async || {
                            let load = timeout(patience(), load(later, method, key, 2)).await;
                            let value = load.unwrap_or_else(|_| panic!("{promise}: it is blocked"));
                            // A stale value is returned while a task refreshes it.
                            assert!([1, 2].contains(&value) || key == "expired" && value == 8);
                            value != 8
                        };
                        until(is_loaded, &promise).await;
                    }
                    let stored = cache.get(key).await.unwrap();
                    assert_eq!(stored, other.get(key).await.unwrap(), "{promise}");
                    assert!(
                        reply.is_none_or(|reply| reply == 8 || stored == Some(reply)),
                        "{promise}"
                    );
                },
            )
            .await;
        }
    }
}

/// Callers of a near cache that miss the same key share one request.
#[tokio::test]
async fn cancelled_read_of_a_near_cache_takes_no_answer_from_the_others() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    at_each_poll(
        async || {
            let state = filled(&client, Kind::Near).await;
            // The near cache has no current answer.
            state.cache.set("1".into(), 9).await.unwrap();
            (state, Mutex::new(None::<JoinHandle<_>>))
        },
        async |(state, follower)| {
            let joins = async {
                yield_now().await;
                let cache = state.cache.clone();
                let read = tokio::spawn(async move { cache.get("1").await.unwrap() });
                *follower.lock().await = Some(read);
            };
            tokio::join!(state.cache.get("1"), joins).0.unwrap()
        },
        async |(state, follower), _, schedule| {
            if let Some(follower) = follower.into_inner() {
                let read = timeout(patience(), follower).await.expect("the follower is not stuck");
                assert_eq!(read.unwrap(), Some(9), "{schedule:?}");
            }
            let again = timeout(patience(), state.cache.get("1")).await;
            assert_eq!(
                again.expect("the next read is not stuck").unwrap(),
                Some(9),
                "{schedule:?}"
            );
        },
    )
    .await;
}
