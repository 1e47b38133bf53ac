//! Evictions from a bounded store, during writes, reads, removals and sweeps.

use std::sync::Arc;

use shuttle::rand::Rng;

use super::{ALL, Parts, drain, explore, spawn};
use crate::engine::{
    event::{Cause, Publisher},
    store::{Store, Weigher},
};

pub(super) fn bounded(limit: u64, weigher: Option<Weigher<u8, u32>>) -> Arc<Parts> {
    let parts = Arc::into_inner(Parts::new()).expect("it is not shared yet");
    let store = Store::new(2, 0, foldhash::fast::FixedState::default());
    let store = store.evicting(limit, weigher, || 0x5eed_0019);
    let causes = Cause::bits(ALL) | Cause::Evicted.bit();
    let publisher = Publisher::new(store.journal().clone(), parts.clock.clone(), causes, 1_000);
    Arc::new(Parts { store, publisher: Arc::new(publisher), ..parts })
}

/// Three threads make random calls on a few keys. In the end the bound holds, the counted weight is that of the
/// resident entries, and each value is published once or resident.
#[test]
fn bound_holds_after_concurrent_writes() {
    explore(|| {
        let weighs = shuttle::rand::thread_rng().gen_range(0..2) == 1;
        let weigher: Option<Weigher<u8, u32>> =
            weighs.then(|| Arc::new(|_: &u8, value: &u32| value % 3) as _);
        let limit = shuttle::rand::thread_rng().gen_range(1..4);
        let parts = bounded(limit, weigher);
        let mut events = parts.subscribe();
        let threads: Vec<_> = (0..3_u32)
            .map(|thread| {
                spawn(&parts, move |parts| {
                    let mut random = shuttle::rand::thread_rng();
                    let mut set = vec![];
                    for step in 0..3 {
                        let value = 10 * thread + step + 1;
                        let (key, now) = (random.gen_range(0..6), parts.at(8));
                        match random.gen_range(0..8) {
                            0..4 => {
                                set.push(value);
                                let deadline = parts.until(random.gen_range(5..15));
                                parts.store.set(key, value, &now, |_| deadline);
                                assert!(parts.store.weight() <= limit + 3 * 2, "three writers");
                            }
                            4 => drop(parts.store.remove(&key, &now, Cause::Removed)),
                            5 => drop(parts.store.get(&key, &now)),
                            6 => _ = parts.store.evict_some(&now),
                            _ => _ = parts.sweep(10),
                        }
                        parts.publisher.flush();
                    }
                    set
                })
            })
            .collect();
        let mut set: Vec<u32> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        let resident: Vec<u32> = (0..2)
            .flat_map(|shard| parts.store.snapshot(shard, &parts.start))
            .map(|(_, value, _)| value)
            .collect();
        let weight: u64 =
            resident.iter().map(|value| if weighs { u64::from(value % 3) } else { 1 }).sum();
        assert_eq!(parts.store.weight(), weight, "the counted weight is that of the entries");
        assert!(weight <= limit, "{weight} of {limit}");
        let mut all: Vec<u32> = drain(&mut events).into_iter().map(|(value, _)| value).collect();
        all.extend(resident);
        all.sort_unstable();
        set.sort_unstable();
        assert_eq!(all, set, "each value is published once or resident");
    });
}
