//! Evictions from a bounded store, during writes, reads, removals and sweeps.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use shuttle::{rand::Rng, thread};

use super::{ALL, Parts, drain, explore, iterations, spawn};
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
                                parts.evict_deferred();
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

/// A writer inserts an entry that expires, while another one removes expired entries to stay within the bound. If the
/// new entry stays, the store knows afterwards that it expires, and removes it before any live entry.
#[test]
fn deadline_of_a_concurrent_write_is_never_lost() {
    explore(|| {
        let parts = bounded(2, None);
        let mut events = parts.subscribe();
        let keys = |shard| {
            (0..).filter(|key| parts.store.locate::<u8>(key).shard() == shard).take(4).collect()
        };
        // The shard of the new entry is the first to be asked for its earliest expiry, and no other write looks into
        // it.
        let (expiring, live): (Vec<u8>, Vec<u8>) = (keys(0), keys(1));
        let set = |parts: &Parts, key: u8, at: u64, until: u64| {
            let deadline = parts.until(until);
            parts.store.set(key, u32::from(key), &parts.at(at), |_| deadline);
            parts.publisher.flush();
        };
        // The earliest expiry of the bound stays at 5 after the entry was removed.
        set(&parts, live[0], 0, 5);
        parts.store.remove(&live[0], &parts.at(0), Cause::Removed);
        set(&parts, expiring[0], 0, 100);
        set(&parts, live[1], 0, 100);
        let (written, other, last) = (expiring[1], live[2], live[3]);
        let first = spawn(&parts, move |parts| set(parts, written, 4, 6));
        let second = spawn(&parts, move |parts| set(parts, other, 8, 100));
        first.join().unwrap();
        second.join().unwrap();
        let before = drain(&mut events);
        set(&parts, last, 8, 100);
        let after = drain(&mut events);
        if !before.iter().any(|(value, _)| *value == u32::from(written)) {
            assert_eq!(after, [(u32::from(written), Cause::Expired)], "after {before:?}");
        }
    });
}

/// Weights of the writes that have begun, and of those that have returned or were cancelled.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Parts {
    /// Sets an entry as [`Cache::set`](crate::Cache::set) does. A cancelled write is polled `polls` times only.
    /// Returns the weight above the bound that no write in progress is responsible for.
    fn write(&self, progress: &Progress, key: u8, value: u32, polls: usize) -> u64 {
        let (weight, now) = (u64::from(value % 100), self.at(0));
        progress.begun.fetch_add(weight, Relaxed);
        let mut ended_before = progress.ended.load(Relaxed);
        self.store.set(key, value, &now, |_| self.until(100));
        for _ in 1..polls {
            ended_before = progress.ended.load(Relaxed);
            if !self.store.has_deferred_evictions() {
                break;
            }
            thread::yield_now();
            ended_before = progress.ended.load(Relaxed);
            if !self.store.evict_deferred(&now) {
                break;
            }
        }
        progress.ended.fetch_add(weight, Relaxed);
        let resident = self.store.weight();
        let in_progress = progress.begun.load(Relaxed) - ended_before - weight;
        resident.saturating_sub(LIMIT + in_progress)
    }

    /// Evicts as a write does before it returns.
    fn evict_deferred(&self) {
        while self.store.has_deferred_evictions() {
            self.store.evict_deferred(&self.at(0));
            thread::yield_now();
        }
    }
}

const LIMIT: u64 = 32;

/// Two writes evict so many entries that the rest is deferred, while a third one is cancelled and the sweeper helps.
/// When a write returns, the bound holds, except for writes that have not returned. In the end exactly the excess was
/// evicted, and each entry once.
#[test]
fn bound_holds_when_a_write_with_deferred_evictions_returns() {
    let test = || {
        let parts = bounded(LIMIT, Some(Arc::new(|_: &u8, value: &u32| value % 100)));
        let mut events = parts.subscribe();
        let progress = Arc::new(Progress::default());
        (0..LIMIT as u8).for_each(|key| {
            assert_eq!(parts.write(&progress, key, 100 * u32::from(key) + 1, usize::MAX), 0);
        });
        let writes = |writes: [(u8, u32, usize); 2]| {
            let progress = progress.clone();
            spawn(&parts, move |parts| {
                writes.map(|(key, weight, polls)| {
                    parts.write(&progress, key, 100 * u32::from(key) + weight, polls)
                })
            })
        };
        let polls = shuttle::rand::thread_rng().gen_range(1..4);
        let first = writes([(100, 12, usize::MAX), (101, 9, usize::MAX)]);
        let second = writes([(102, 9, polls), (103, 11, usize::MAX)]);
        let sweep = spawn(&parts, |parts| {
            for _ in 0..8 {
                parts.store.evict_deferred(&parts.at(0));
                thread::yield_now();
            }
        });
        let above = [first.join().unwrap(), second.join().unwrap()];
        sweep.join().unwrap();
        parts.evict_deferred();
        parts.publisher.flush();
        let resident: Vec<u32> = (0..2)
            .flat_map(|shard| parts.store.snapshot(shard, &parts.start))
            .map(|(_, value, _)| value)
            .collect();
        let weight: u64 = resident.iter().map(|value| u64::from(value % 100)).sum();
        assert_eq!(parts.store.weight(), weight, "the counted weight is that of the entries");
        assert!(weight <= LIMIT, "{weight} after all writes");
        let [[first, next], [_, last]] = above;
        assert_eq!([first, next, last], [0; 3], "a write returned above the bound");
        let evicted: Vec<u32> = drain(&mut events).into_iter().map(|(value, _)| value).collect();
        if evicted.iter().all(|value| value % 100 == 1) {
            assert_eq!(weight, LIMIT, "too many entries were evicted");
        }
        let mut all = [evicted, resident].concat();
        all.sort_unstable();
        let light = (0..LIMIT as u32).map(|key| 100 * key + 1);
        assert!(all.into_iter().eq(light.chain([10_012, 10_109, 10_209, 10_311])), "once each");
    };
    // Few preemptions, at random places, find a thread that stays behind while others finish their writes.
    shuttle::check_random(test, iterations() / 2);
    shuttle::check_pct(test, iterations() / 2, 4);
}
