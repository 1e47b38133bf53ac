//! Verbs, bounds, tags, waits and events of `Cache`.

use std::{cell::RefCell, future::pending, time::Duration};

use fleeting::{Builder, Cache, Cause, LosslessEvents, Op, Sweep, When};
use futures::{FutureExt, lock::Mutex};
use tokio::{
    task::{unconstrained, yield_now},
    time::{Instant, sleep},
};

use crate::cancel::{Effect, Parts, calls, has_effect, with_effects};

const SECOND: Duration = Duration::from_secs(1);

struct State {
    cache: Cache<u32, u32>,
    events: RefCell<LosslessEvents<u32, u32>>,
}

fn builder() -> Builder<u32, u32> {
    let causes = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];
    Cache::builder().sweep(Sweep::manual().seed(1)).shards(2).publish(causes)
}

/// Caches with other code paths.
fn builders() -> [Builder<u32, u32>; 5] {
    [
        builder(),
        builder().time_to_live(9 * SECOND),
        builder().time_to_idle(30 * SECOND).stale_if_error(SECOND),
        builder().max_entries(9),
        builder().max_weight(40, |_, value| value % 10),
    ]
}

/// Returns a cache with values of all kinds: with a TTL, persistent, expired and with a tag.
async fn filled(builder: Builder<u32, u32>) -> State {
    let cache = builder.build();
    let events = RefCell::new(cache.events_lossless(1_000));
    for key in 0..4 {
        cache.set_ex(key, 10 + key, 5 * SECOND).await;
    }
    cache.set_ex(4, 14, Duration::MAX).await;
    cache.set_tagged(5, 15, 5 * SECOND, ["a", "b"]).await;
    cache.set_tagged(6, 16, 5 * SECOND, ["a"]).await;
    cache.set_ex(7, 17, Duration::ZERO).await;
    State { cache, events }
}

/// Observes each live entry and the events of each key.
async fn observe(state: &State) -> Parts {
    let mut parts = Parts::new();
    for (key, value) in state.cache.iter() {
        parts.insert(key.to_string(), format!("{value} for {:?}", state.cache.ttl(&key).await));
    }
    let mut events = state.events.borrow_mut();
    while let Some(event) = unconstrained(events.recv()).now_or_never().flatten() {
        let text = format!("; {} {:?}", event.value, event.cause);
        parts.entry(event.key.to_string()).or_default().push_str(&text);
    }
    parts
}

async fn all_have_effect(effect: Effect, calls: Vec<(&str, Call)>) {
    for (name, call) in calls {
        for kind in 0..builders().len() {
            let new = async || filled(builders().into_iter().nth(kind).expect("in range")).await;
            has_effect(effect, name, new, async |state| call(&state.cache).await, observe).await;
        }
    }
}

type Call = fn(&Cache<u32, u32>) -> futures::future::LocalBoxFuture<'_, String>;

#[tokio::test(start_paused = true)]
async fn cancelled_call_for_one_key_has_its_whole_effect_or_none() {
    let changes = calls! { cache: Cache<u32, u32>;
        cache.get_ex(&0, SECOND), cache.get_ex_with(&0, |_| SECOND),
        cache.set(0, 1), cache.set(7, 1), cache.set(20, 9), cache.set_ex(0, 1, SECOND),
        cache.set_nx(20, 9, Some(SECOND)), cache.set_nx(7, 1, None),
        cache.set_keep_ttl(0, 1), cache.set_keep_ttl(20, 1), cache.remove(&0), cache.expire(&0, SECOND),
        cache.expire(&0, Duration::ZERO), cache.expire_if(&0, SECOND, When::Sooner),
        cache.expire_at(&0, Instant::now() + SECOND), cache.extend(&0, SECOND), cache.persist(&0),
        cache.expire_now(&0), cache.update(&0, |value| *value += 5),
        cache.compute(&0, |_| Op::Set(1)), cache.compute(&0, |_| Op::Remove),
        cache.compute(&20, |_| Op::SetEx(9, SECOND)), cache.set_tagged(0, 1, SECOND, ["a"]),
        cache.set_tagged(20, 9, SECOND, ["c"]), cache.remove_tag("a"),
    };
    let reads = calls! { cache: Cache<u32, u32>;
        cache.get(&0), cache.get(&7), cache.get_with_ttl(&0), cache.get_with_ttl(&7), cache.get_many(&[0, 1, 7, 30]), cache.contains_key(&0), cache.ttl(&0),
        cache.set_nx(0, 1, None), cache.remove(&7),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        all_have_effect(effect, vec![(name, call)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_compute_with_changes_nothing() {
    let calls = calls! { cache: Cache<u32, u32>;
        cache.compute_with(&0, async |_| {
            yield_now().await;
            sleep(SECOND / 9).await;
            Op::Set(1)
        }),
        cache.compute_with(&20, async |_| Op::SetEx(9, SECOND)),
    };
    // The clock passes no deadline: of the events and TTLs, only those of key 0 change.
    for (name, call) in calls {
        let new = async || {
            let cache = builder().build();
            cache.set(0, 10).await;
            State { events: RefCell::new(cache.events_lossless(9)), cache }
        };
        let call = async |state: &State| call(&state.cache).await;
        has_effect(Effect::Whole, name, new, call, observe_values).await;
    }
}

/// Observes the values and not their TTLs, for calls during which time passes.
async fn observe_values(state: &State) -> Parts {
    state.cache.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_for_several_keys_has_changed_some_of_them_with_their_events() {
    let calls = calls! { cache: Cache<u32, u32>;
        cache.set_many([(0, 1), (1, 1), (2, 1), (7, 1)], Some(SECOND)),
        cache.remove_many(&[0, 1, 7, 30]), cache.remove_if(|key, _| key % 2 == 0),
        cache.retain(|key, _| *key < 3), cache.clear(),
    };
    all_have_effect(Effect::SomeParts, calls).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_sweep_has_removed_some_of_the_expired_entries() {
    // The third keeps the expired value for its stale window.
    for kind in [0, 1, 3, 4] {
        let new = async || filled(builders().into_iter().nth(kind).expect("in range")).await;
        let call = async |state: &State| state.cache.sweep().await;
        has_effect(Effect::SomeParts, "sweep", new, call, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_set_many_of_many_keys_has_written_some_of_them() {
    let new = async || filled(builder()).await;
    let call = async |state: &State| {
        state.cache.set_many((0..2_000).map(|key| (key, 1)), Some(SECOND)).await;
    };
    has_effect(Effect::SomeParts, "set_many", new, call, observe).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_change_of_a_bound_has_evicted_some_entries() {
    for kind in [3, 4] {
        let new = async || filled(builders().into_iter().nth(kind).expect("in range")).await;
        let call = async |state: &State| match kind {
            3 => state.cache.set_max_entries(2).await,
            _ => state.cache.set_max_weight(6).await,
        };
        // The policy may evict other entries in each run, so only the bound is observed.
        crate::cancel::at_each_await(new, call, async |state, reply, schedule| {
            let is_within = state.cache.weight() <= 6 && (kind == 4 || state.cache.len() <= 2);
            assert!(is_within || reply.is_none(), "{schedule:?}");
            call(&state).await;
            let events = observe(&state).await;
            let resident = state.cache.len();
            assert!(state.cache.weight() <= 6 && (kind == 4 || resident <= 2), "{schedule:?}");
            let removed = events.values().filter(|part| part.contains(';')).count();
            assert_eq!(
                removed + resident,
                8,
                "each removal has one event, {schedule:?}: {events:?}"
            );
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_shutdown_may_be_called_again() {
    let new = async || filled(builder()).await;
    let call = async |state: &State| state.cache.shutdown().await;
    crate::cancel::at_each_await(new, call, async |state, _, _| {
        state.cache.shutdown().await;
        let mut events = state.events.into_inner();
        let expired = events.recv().await.expect("it was due");
        assert_eq!((expired.key, expired.cause), (7, Cause::Expired));
        assert!(events.recv().await.is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_for_a_key_has_no_effect() {
    let calls = calls! { cache: Cache<u32, u32>; cache.wait_for(&20), cache.expired(&0) };
    for (name, call) in calls {
        let new = async || {
            let state = filled(builder().sweep(Sweep::default())).await;
            let cache = state.cache.clone();
            // Ends the wait of a call that is not cancelled.
            tokio::spawn(async move {
                sleep(SECOND).await;
                cache.set(20, 9).await;
                sleep(9 * SECOND).await;
            });
            state
        };
        crate::cancel::at_each_await(
            new,
            async |state: &State| call(&state.cache).await,
            async |state, _, schedule| {
                sleep(2 * SECOND).await;
                assert_eq!(state.cache.get(&20).await, Some(9), "{name} {schedule:?}");
                assert!(!call(&state.cache).await.is_empty());
            },
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_recv_has_consumed_no_event() {
    let new = async || {
        let cache = builder().build();
        let streams = (cache.events(), cache.events_lossless(9));
        let writer = cache.clone();
        tokio::spawn(async move {
            for key in 0..3 {
                sleep(SECOND).await;
                writer.set(key, 1).await;
                writer.remove(&key).await;
            }
            pending::<()>().await;
        });
        (cache, Mutex::new(streams))
    };
    crate::cancel::at_each_await(
        new,
        async |(_, streams)| {
            let (events, lossless_events) = &mut *streams.lock().await;
            // The lossless stream is read first, so that it is at most one event ahead.
            let first = lossless_events.recv().await.expect("the cache is alive").key;
            (
                first,
                events.recv().await.expect("the cache is alive").expect("no event is missed").key,
            )
        },
        async |(_cache, streams), reply, schedule| {
            let (mut events, mut lossless_events) = streams.into_inner();
            let next =
                events.recv().await.expect("the cache is alive").expect("none is missed").key;
            assert_eq!(next, u32::from(reply.is_some()), "{schedule:?}");
            let next = lossless_events.recv().await.expect("the cache is alive").key;
            assert!(next <= 1, "{schedule:?}: {next}");
        },
    )
    .await;
}
