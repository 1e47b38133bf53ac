//! Random operations on a bounded cache, compared with a model that follows the events; and concurrent writers at the
//! bound.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cache, Cause, Sweep};
use futures::FutureExt;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::unconstrained,
    time::{Instant, advance},
};

use crate::sequences::config;

const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

/// The model does not predict victims. It checks that each removed entry was present, that all others still are, that
/// no live entry is evicted while an expired one is present or the cache is below its bound, and that the bound holds.
#[derive(Clone, Debug)]
enum Op {
    Set(u64, u64),
    SetEx(u64, u64, u64),
    SetNx(u64, u64),
    KeepTtl(u64, u64),
    Update(u64, u64),
    Expire(u64, u64),
    Remove(u64),
    Get(u64),
    Clear,
    Advance(u64),
    Sweep,
    Bound(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..12_u64;
    let weight = || prop_oneof![8 => 0..8_u64, 1 => Just(20), 1 => Just(u64::from(u32::MAX))];
    prop_oneof![
        4 => (key(), weight()).prop_map(|(k, w)| Op::Set(k, w)),
        6 => (key(), weight(), 0..6_u64).prop_map(|(k, w, t)| Op::SetEx(k, w, t)),
        2 => (key(), weight()).prop_map(|(k, w)| Op::SetNx(k, w)),
        2 => (key(), weight()).prop_map(|(k, w)| Op::KeepTtl(k, w)),
        2 => (key(), weight()).prop_map(|(k, w)| Op::Update(k, w)),
        2 => (key(), 0..6_u64).prop_map(|(k, t)| Op::Expire(k, t)),
        2 => key().prop_map(Op::Remove),
        3 => key().prop_map(Op::Get),
        1 => Just(Op::Clear),
        3 => (0..4_u64).prop_map(Op::Advance),
        1 => Just(Op::Sweep),
        1 => (1..12_u64).prop_map(Op::Bound),
    ]
}

/// Maps a key to its value (number and weight) and deadline.
type Entries = BTreeMap<u64, ((u64, u64), Option<Instant>)>;

async fn check_against_model(ops: Vec<Op>, by_weight: bool, shards: usize, mut bound: u64) {
    let weigher =
        |_: &u64, value: &(u64, u64)| u32::try_from(value.1).expect("the weight fits in a u32");
    let builder = Cache::builder().sweep(Sweep::manual()).publish(ALL).shards(shards);
    let cache = match by_weight {
        true => builder.max_weight(bound, weigher).build(),
        false => builder.max_entries(bound as usize).build(),
    };
    let mut events = cache.events_lossless(1);
    let mut entries = Entries::new();
    let weigh = |value: &(u64, u64)| if by_weight { value.1 } else { 1 };
    let is_dead = |deadline: Option<Instant>| deadline.is_some_and(|at| Instant::now() >= at);
    let after = |ticks: u64| Some(Instant::now() + Duration::from_millis(100 * ticks));
    for (number, op) in ops.into_iter().enumerate() {
        let number = number as u64;
        let before = entries.clone();
        let mut written: Option<(u64, (u64, u64), Option<Instant>)> = None;
        let live_entry =
            |key: &u64| before.get(key).filter(|(_, deadline)| !is_dead(*deadline)).copied();
        match op.clone() {
            Op::Set(key, weight) => {
                let old = cache.set(key, (number, weight)).await;
                assert_eq!(old, live_entry(&key).map(|(value, _)| value));
                written = Some((key, (number, weight), None));
            }
            Op::SetEx(key, weight, ttl) => {
                let old =
                    cache.set_ex(key, (number, weight), Duration::from_millis(100 * ttl)).await;
                assert_eq!(old, live_entry(&key).map(|(value, _)| value));
                written = Some((key, (number, weight), after(ttl)));
            }
            Op::SetNx(key, weight) => {
                let set = cache.set_nx(key, (number, weight), None).await;
                assert_eq!(set, live_entry(&key).is_none());
                written = set.then_some((key, (number, weight), None));
            }
            Op::KeepTtl(key, weight) => {
                cache.set_keep_ttl(key, (number, weight)).await;
                let current_deadline = live_entry(&key).and_then(|(_, deadline)| deadline);
                written = Some((key, (number, weight), current_deadline));
            }
            Op::Update(key, weight) => {
                let updated = cache.update(&key, |value| *value = (number, weight)).await;
                assert_eq!(updated.is_some(), live_entry(&key).is_some());
                if let Some((_, deadline)) = live_entry(&key) {
                    entries.insert(key, ((number, weight), deadline));
                    written = Some((key, (number, weight), deadline));
                }
            }
            Op::Expire(key, ttl) => {
                if cache.expire(&key, Duration::from_millis(100 * ttl)).await {
                    entries.get_mut(&key).expect("the model has the key").1 = after(ttl);
                }
            }
            Op::Remove(key) => {
                assert_eq!(cache.remove(&key).await, live_entry(&key).map(|(value, _)| value));
            }
            Op::Get(key) => {
                assert_eq!(cache.get(&key).await, live_entry(&key).map(|(value, _)| value));
            }
            Op::Clear => cache.clear().await,
            Op::Advance(ticks) => advance(Duration::from_millis(100 * ticks)).await,
            Op::Sweep => _ = cache.sweep().await,
            Op::Bound(to) => {
                bound = to;
                match by_weight {
                    true => cache.set_max_weight(to).await,
                    false => cache.set_max_entries(to as usize).await,
                }
            }
        }
        // The events are applied in their order. Then the written entry is present, unless an event removed it.
        let mut received = Vec::new();
        while let Some(event) = unconstrained(events.recv()).now_or_never().flatten() {
            received.push(event);
        }
        let mut is_present = written.is_some();
        for event in &received {
            let is_new =
                written.is_some_and(|(key, value, _)| (key, value) == (event.key, event.value));
            match entries.get(&event.key) {
                Some((value, deadline)) if *value == event.value => {
                    assert_eq!(event.deadline, *deadline, "{op:?}: {event:?}");
                    entries.remove(&event.key);
                }
                _ => assert!(is_new, "{op:?}: the removed entry of {event:?} was not present"),
            }
            is_present &= !is_new;
            match event.cause {
                Cause::Expired => assert!(is_dead(event.deadline), "{op:?}: {event:?}"),
                Cause::Evicted => {
                    assert!(is_new || !is_dead(event.deadline), "{op:?}: {event:?}");
                    assert!(!is_new || by_weight && event.value.1 > bound, "{op:?}: {event:?}");
                }
                _ => {}
            }
        }
        if let Some((key, value, deadline)) = written.filter(|_| is_present) {
            entries.insert(key, (value, deadline));
        }
        let evicted: u64 = received
            .iter()
            .filter(|event| event.cause == Cause::Evicted)
            .filter(|event| written.is_none_or(|(_, value, _)| value != event.value))
            .map(|event| weigh(&event.value))
            .sum();
        let used: u64 = entries.values().map(|(value, _)| weigh(value)).sum();
        assert!(used <= bound, "{op:?}: {used} of {bound}");
        if evicted > 0 {
            assert!(
                entries.values().all(|(value, deadline)| weigh(value) == 0 || !is_dead(*deadline)),
                "{op:?}: a live entry was evicted before an expired one"
            );
            assert!(used + evicted > bound, "{op:?}: {evicted} evicted below the bound");
        }
        assert_eq!(cache.weight(), used, "{op:?}");
        assert_eq!(cache.len(), entries.len(), "{op:?}");
        for (key, (value, deadline)) in &entries {
            let live = (!is_dead(*deadline)).then_some(*value);
            let found = cache.iter().find(|(k, _)| k == key).map(|(_, value)| value);
            assert_eq!(found, live, "{op:?}: {key}");
        }
    }
}

#[test]
fn events_match_removed_entries_and_all_others_stay() {
    let ops = proptest::collection::vec(op(), 1..60);
    let setup = (ops, any::<bool>(), 1..6_usize, 1..12_u64);
    proptest!(config(1_000, 0x5eed_0018), |((ops, by_weight, shards, bound) in setup)| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("the runtime is built");
        runtime.block_on(unconstrained(check_against_model(ops, by_weight, shards, bound)));
    });
}

/// The weight may exceed the bound only by the entries that concurrent writers are writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn concurrent_writers_stay_within_the_bound() {
    const WRITERS: u64 = 8;
    for bound in [1_u64, 10, 1_000] {
        for by_weight in [false, true] {
            let builder = Cache::builder().publish(ALL);
            let cache = match by_weight {
                false => builder.max_entries(bound as usize).build(),
                true => builder.max_weight(3 * bound, |_, value: &u64| (*value % 4) as u32).build(),
            };
            let most = if by_weight { 3 * bound } else { bound };
            let above = if by_weight { 3 * WRITERS } else { WRITERS };
            let mut events = cache.events_lossless(1_000);
            let over = Arc::new(AtomicBool::new(false));
            let watcher = tokio::spawn({
                let (cache, over) = (cache.clone(), over.clone());
                async move {
                    while !over.load(Relaxed) {
                        // The shards are read one after the other, so an entry that is moved in between may count
                        // twice.
                        let weight = cache.weight();
                        assert!(weight <= most + above, "{weight} of {most}");
                        tokio::task::yield_now().await;
                    }
                }
            });
            let event_counter = tokio::spawn(async move {
                let (mut count, mut evicted) = (0_u64, 0_u64);
                while let Some(event) = events.recv().await {
                    count += 1;
                    evicted += u64::from(event.cause == Cause::Evicted);
                }
                (count, evicted)
            });
            let writers = (0..WRITERS).map(|writer| {
                let cache = cache.clone();
                tokio::spawn(async move {
                    let mut random = SmallRng::seed_from_u64(0x5eed_0015 + writer);
                    let mut written = 0;
                    for number in 0..20_000_u64 {
                        let key = random.random_range(0..4 * bound);
                        match random.random_range(0..20) {
                            0 => _ = cache.remove(&key).await,
                            1 => _ = cache.get(&key).await,
                            2 => _ = cache.update(&key, |value| *value += 1).await,
                            3 => {
                                let ttl = Duration::from_micros(random.random_range(0..3_000));
                                cache.set_ex(key, number, ttl).await;
                                written += 1;
                            }
                            _ => {
                                cache.set(key, number).await;
                                written += 1;
                            }
                        }
                    }
                    written
                })
            });
            let written = futures::future::join_all(writers).await;
            let written: u64 = written.into_iter().map(|writer| writer.expect("no panic")).sum();
            over.store(true, Relaxed);
            watcher.await.expect("the watcher does not panic");
            assert!(cache.weight() <= most, "{} of {most}", cache.weight());
            if !by_weight {
                assert_eq!(cache.weight(), cache.len() as u64);
            }
            let stats = cache.stats();
            let weight: u64 =
                cache.values().map(|value| if by_weight { value % 4 } else { 1 }).sum();
            assert!(weight <= cache.weight());
            let resident = cache.len() as u64;
            cache.clear().await;
            assert_eq!(cache.weight(), 0, "each entry is counted exactly once");
            cache.shutdown().await;
            let (count, evicted) = event_counter.await.expect("no panic");
            assert_eq!(
                count, written,
                "each written value has one event; {resident} resident at the end"
            );
            assert_eq!(evicted, stats.evicted);
        }
    }
}
