//! Random sequences within a bound, against a map that follows the events; and many writers at once.

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

/// Who leaves is not for a model to say. That whoever leaves was there, that all the others still are, that nothing
/// living leaves while something dead is there or while there is room, and that the bound holds: that is.
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

/// Key, number and weight, and deadline.
type Entries = BTreeMap<u64, ((u64, u64), Option<Instant>)>;

async fn check(ops: Vec<Op>, by_weight: bool, shards: usize, mut bound: u64) {
    let weigher = |_: &u64, value: &(u64, u64)| u32::try_from(value.1).expect("it fits");
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
        let alive =
            |key: &u64| before.get(key).filter(|(_, deadline)| !is_dead(*deadline)).copied();
        match op.clone() {
            Op::Set(key, weight) => {
                let old = cache.set(key, (number, weight)).await;
                assert_eq!(old, alive(&key).map(|(value, _)| value));
                written = Some((key, (number, weight), None));
            }
            Op::SetEx(key, weight, ttl) => {
                let old =
                    cache.set_ex(key, (number, weight), Duration::from_millis(100 * ttl)).await;
                assert_eq!(old, alive(&key).map(|(value, _)| value));
                written = Some((key, (number, weight), after(ttl)));
            }
            Op::SetNx(key, weight) => {
                let set = cache.set_nx(key, (number, weight), None).await;
                assert_eq!(set, alive(&key).is_none());
                written = set.then_some((key, (number, weight), None));
            }
            Op::KeepTtl(key, weight) => {
                cache.set_keep_ttl(key, (number, weight)).await;
                let kept = alive(&key).and_then(|(_, deadline)| deadline);
                written = Some((key, (number, weight), kept));
            }
            Op::Update(key, weight) => {
                let updated = cache.update(&key, |value| *value = (number, weight)).await;
                assert_eq!(updated.is_some(), alive(&key).is_some());
                if let Some((_, deadline)) = alive(&key) {
                    entries.insert(key, ((number, weight), deadline));
                    written = Some((key, (number, weight), deadline));
                }
            }
            Op::Expire(key, ttl) => {
                if cache.expire(&key, Duration::from_millis(100 * ttl)).await {
                    entries.get_mut(&key).expect("it is there").1 = after(ttl);
                }
            }
            Op::Remove(key) => {
                assert_eq!(cache.remove(&key).await, alive(&key).map(|(value, _)| value));
            }
            Op::Get(key) => {
                assert_eq!(cache.get(&key).await, alive(&key).map(|(value, _)| value));
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
        // The events in their order, and then what was written is there, unless it was told of.
        let mut told = Vec::new();
        while let Some(event) = unconstrained(events.recv()).now_or_never().flatten() {
            told.push(event);
        }
        let mut is_there = written.is_some();
        for event in &told {
            let is_new =
                written.is_some_and(|(key, value, _)| (key, value) == (event.key, event.value));
            match entries.get(&event.key) {
                Some((value, deadline)) if *value == event.value => {
                    assert_eq!(event.deadline, *deadline, "{op:?}: {event:?}");
                    entries.remove(&event.key);
                }
                _ => assert!(is_new, "{op:?}: {event:?} was not there"),
            }
            is_there &= !is_new;
            match event.cause {
                Cause::Expired => assert!(is_dead(event.deadline), "{op:?}: {event:?}"),
                Cause::Evicted => {
                    assert!(is_new || !is_dead(event.deadline), "{op:?}: {event:?}");
                    assert!(!is_new || by_weight && event.value.1 > bound, "{op:?}: {event:?}");
                }
                _ => {}
            }
        }
        if let Some((key, value, deadline)) = written.filter(|_| is_there) {
            entries.insert(key, (value, deadline));
        }
        let evicted: u64 = told
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
                "{op:?}: somebody living left before the dead"
            );
            assert!(used + evicted > bound, "{op:?}: {evicted} left, and there was room");
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
fn whoever_leaves_was_there_and_all_others_stay() {
    let ops = proptest::collection::vec(op(), 1..60);
    let setup = (ops, any::<bool>(), 1..6_usize, 1..12_u64);
    proptest!(config(1_000, 0x5eed_0018), |((ops, by_weight, shards, bound) in setup)| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime can be made");
        runtime.block_on(unconstrained(check(ops, by_weight, shards, bound)));
    });
}

/// So many write at once: what each of them is just writing may be above the bound, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn many_writers_at_once_stay_within_the_bound() {
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
                        // Of all shards, one after the other: what moves in between may count twice.
                        let weight = cache.weight();
                        assert!(weight <= most + above, "{weight} of {most}");
                        tokio::task::yield_now().await;
                    }
                }
            });
            let told = tokio::spawn(async move {
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
            watcher.await.expect("the bound held");
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
            assert_eq!(cache.weight(), 0, "nothing was counted twice, or not at all");
            cache.shutdown().await;
            let (count, evicted) = told.await.expect("no panic");
            assert_eq!(
                count, written,
                "each value that was written has left once; {resident} in the end"
            );
            assert_eq!(evicted, stats.evicted);
        }
    }
}
