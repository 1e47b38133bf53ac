//! Tests of thread interleavings, explored by shuttle: `RUSTFLAGS="--cfg shuttle --cfg lean" cargo test --lib
//! interleavings`. `SHUTTLE_ITERATIONS` is the number of interleavings explored per test (5,000 by default).

mod bounds;
mod failed_loads;
mod loads;
mod many;
mod parts;
mod streams;
mod tags;

use shuttle::{rand::Rng, thread};

use self::parts::{ALL, Parts, drain, explore, iterations, spawn};
use crate::engine::{
    event::{Cause, LosslessEvents},
    store::{LockWait, StepLimits, Store},
};

/// A `get_ex` and a sweep that may see the old deadline: exactly one of them takes effect.
#[test]
fn get_ex_and_sweep_never_both_take_effect() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        parts.set(1, 0, 10);
        let refresh = spawn(&parts, |parts| parts.get_ex(5, 100));
        let sweep = spawn(&parts, |parts| parts.sweep(10));
        let read = spawn(&parts, |parts| parts.get(5));
        let (refreshed, swept) = (refresh.join().unwrap(), sweep.join().unwrap());
        let read = read.join().unwrap();
        match refreshed {
            Some(value) => {
                assert_eq!((value, swept, drain(&mut events)), (1, 0, vec![]));
                assert_eq!(
                    (parts.get(99), read),
                    (Some(1), Some(1)),
                    "expired by its old deadline"
                );
            }
            None => {
                assert_eq!(drain(&mut events), [(1, Cause::Expired)]);
                assert_eq!((swept, parts.resident()), (1, None));
            }
        }
    });
}

/// A reader, a writer and the sweeper find the same expired value: it is published once, before the new value.
#[test]
fn expired_value_is_published_once_and_before_its_successor() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        parts.set(1, 0, 10);
        let read = spawn(&parts, |parts| parts.get(10));
        let sweep = spawn(&parts, |parts| parts.sweep(10));
        let write = spawn(&parts, |parts| {
            assert_eq!(parts.set(2, 10, 20), None, "an expired key counts as missing");
            parts.remove(11, Cause::Removed)
        });
        assert!(matches!(read.join().unwrap(), None | Some(2)));
        sweep.join().unwrap();
        assert_eq!(write.join().unwrap(), Some(2));
        assert_eq!(drain(&mut events), [(1, Cause::Expired), (2, Cause::Removed)]);
    });
}

/// Three threads make random calls on one key. Every value is published once or still resident, and the events have the
/// order in which the values followed each other.
#[test]
fn events_of_one_key_have_the_order_of_its_values() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        let threads: Vec<_> = (0..3_u32)
            .map(|thread| {
                spawn(&parts, move |parts| {
                    let mut random = shuttle::rand::thread_rng();
                    let (mut set, mut replaced, mut removed) = (vec![], vec![], vec![]);
                    for step in 0..3 {
                        let value = 10 * thread + step + 1;
                        match random.gen_range(0..6) {
                            0 | 1 => {
                                set.push(value);
                                let deadline = random.gen_range(5..15);
                                replaced
                                    .extend(parts.set(value, 8, deadline).map(|old| (old, value)));
                            }
                            2 => drop(parts.get_ex(8, 30)),
                            3 => removed.extend(parts.remove(8, Cause::Removed)),
                            4 => removed.extend(parts.remove(8, Cause::Expired)),
                            _ => drop(parts.sweep(10)),
                        }
                    }
                    (set, replaced, removed)
                })
            })
            .collect();
        let (mut set, mut replaced, mut removed) = (vec![], vec![], vec![]);
        for thread in threads {
            let (s, a, l) = thread.join().unwrap();
            set.extend(s);
            replaced.extend(a);
            removed.extend(l);
        }
        let received = drain(&mut events);
        let mut chain: Vec<u32> = received.iter().map(|(value, _)| *value).collect();
        chain.extend(parts.resident());
        let mut all = chain.clone();
        all.sort_unstable();
        set.sort_unstable();
        assert_eq!(all, set, "each value is published once or resident: {received:?}");
        for (old, new) in replaced {
            let at = chain.iter().position(|value| *value == old).unwrap();
            assert_eq!(received[at], (old, Cause::Replaced));
            assert_eq!(chain[at + 1], new, "{old} was replaced by {new}: {received:?}");
        }
        for value in removed {
            let reported =
                received.iter().any(|(v, cause)| *v == value && *cause != Cause::Replaced);
            assert!(reported, "{value} was removed: {received:?}");
        }
    });
}

/// Subscribers come, read and leave during departures: each receives the events of its time once, and no other
/// subscriber affects them.
#[test]
fn subscriber_receives_each_event_once_while_others_come_and_leave() {
    explore(|| {
        let parts = Parts::new();
        let mut witness = parts.subscribe();
        let subscribing = spawn(&parts, |parts| {
            let mut events = parts.subscribe();
            parts.store.set(2, 7, &parts.at(0), |_| parts.until(9));
            parts.store.remove(&2, &parts.at(0), Cause::Removed);
            parts.publisher.flush();
            let received = drain(&mut events);
            assert_eq!(received.iter().filter(|(value, _)| *value == 7).count(), 1, "{received:?}");
            received
        });
        let leaving = spawn(&parts, |parts| {
            let mut events = parts.subscribe();
            drop(drain(&mut events));
            drop(events);
            drop(parts.subscribe());
        });
        let departs = spawn(&parts, |parts| {
            for value in 0..3 {
                parts.set(value, 0, 9);
                parts.remove(0, Cause::Removed);
            }
        });
        let joined = subscribing.join().unwrap();
        leaving.join().unwrap();
        departs.join().unwrap();
        let all = drain(&mut witness);
        let mut values: Vec<u32> =
            all.iter().map(|(value, _)| *value).filter(|v| *v != 7).collect();
        assert_eq!(values, [0, 1, 2]);
        values = all.iter().map(|(value, _)| *value).collect();
        let joined: Vec<u32> = joined.iter().map(|(value, _)| *value).collect();
        assert!(
            values.windows(joined.len()).any(|run| run == joined),
            "{joined:?} is not a run of {values:?}"
        );
    });
}

/// The end of the streams and concurrent departures: events before the end are received, none twice, and none after it.
#[test]
fn shutdown_delivers_earlier_events_exactly_once() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        let (ended, end) = shuttle::sync::mpsc::channel();
        let departs = spawn(&parts, move |parts| {
            parts.set(1, 0, 10);
            parts.remove(0, Cause::Removed);
            ended.send(()).unwrap();
            parts.set(2, 0, 10);
            parts.sweep(10);
        });
        let shutdown = spawn(&parts, move |parts| {
            end.recv().unwrap();
            parts.sweep(10);
            parts.publisher.close();
        });
        let late = spawn(&parts, |parts| drop(drain(&mut parts.subscribe())));
        departs.join().unwrap();
        shutdown.join().unwrap();
        late.join().unwrap();
        let received = drain(&mut events);
        assert_eq!(received[0], (1, Cause::Removed));
        assert!(matches!(received[1..], [] | [(2, Cause::Expired)]), "{received:?}");
        assert_eq!(parts.resident(), None);
    });
}

/// A full lossless subscriber: the sweeper stops, and the subscriber receives exactly the expired entries.
#[test]
fn full_lossless_subscriber_stops_the_sweeper() {
    explore(|| {
        let parts = Parts::new();
        let mut events = LosslessEvents::new(&parts.publisher, 2);
        for key in 10..15 {
            parts.store.set(key, u32::from(key), &parts.at(0), |_| parts.until(10));
        }
        let sweeps = spawn(&parts, |parts| {
            for _ in 0..3 {
                let mut shard_pass =
                    Store::<u8, u32, foldhash::fast::FixedState>::begin_shard_pass(0);
                for shard in 0..2 {
                    shard_pass.shard = shard;
                    let (room, mut unrecorded) = (parts.publisher.room(Cause::Expired), vec![]);
                    let all = |buckets| buckets;
                    let store = &parts.store;
                    store.sweep_windows(
                        &mut shard_pass,
                        all,
                        &parts.at(10),
                        StepLimits { max_expired: room, lock_wait: LockWait::Wait },
                        &mut unrecorded,
                    );
                    parts.publisher.flush();
                    shard_pass = Store::<u8, u32, foldhash::fast::FixedState>::begin_shard_pass(0);
                }
            }
        });
        let reads = spawn(&parts, move |_| {
            let mut values = drain(&mut events);
            thread::yield_now();
            values.extend(drain(&mut events));
            (events, values)
        });
        sweeps.join().unwrap();
        let (mut events, mut values) = reads.join().unwrap();
        assert_eq!(parts.publisher.overflow(), 0, "only writers go beyond the capacity");
        values.extend(drain(&mut events));
        assert_eq!(values.len() + parts.store.len(), 5);
        values.sort_by_key(|(value, _)| *value);
        values.dedup();
        assert_eq!(values.len() + parts.store.len(), 5, "no event is received twice");
    });
}

/// The entries of a shard move to a smaller table, window by window, during reads, writes and sweeps: no entry is lost,
/// and none is duplicated.
#[test]
fn shrinking_table_neither_loses_nor_duplicates_entries() {
    let iterations = iterations() / 10;
    shuttle::check_random(
        || {
            let parts = Parts::new();
            let key = |n: u32| n as u8;
            for n in 0..200 {
                let deadline = parts.until(if n < 12 { 100 } else { 5 });
                parts.store.set(key(n), n, &parts.at(0), |_| deadline);
            }
            assert_eq!(parts.sweep(5), 188);
            for shard in 0..2 {
                assert!(parts.store.shrink(shard), "it is sparse");
            }
            let read = spawn(&parts, move |parts| {
                for n in 0..4 {
                    assert_eq!(parts.store.get(&key(n), &parts.at(6)), Some(n));
                }
                assert!(parts.store.len() >= 8);
            });
            let write = spawn(&parts, move |parts| {
                for n in 4..8 {
                    let replaced =
                        parts.store.set(key(n), 100 + n, &parts.at(6), |_| parts.until(100));
                    assert_eq!(replaced, Some(n));
                }
                for n in 8..12 {
                    assert_eq!(parts.store.remove(&key(n), &parts.at(6), Cause::Removed), Some(n));
                }
            });
            let sweep = spawn(&parts, |parts| parts.sweep(7));
            parts.sweep(7);
            read.join().unwrap();
            write.join().unwrap();
            sweep.join().unwrap();
            parts.sweep(7);
            let mut resident: Vec<_> = (0..2)
                .flat_map(|shard| parts.store.snapshot(shard, &parts.at(8)))
                .map(|(_, value, _)| value)
                .collect();
            resident.sort_unstable();
            assert_eq!(resident, [0, 1, 2, 3, 104, 105, 106, 107]);
            assert_eq!((parts.store.len(), parts.sweep(100)), (8, 8));
        },
        iterations,
    );
}

/// A sweeper begins to rest during a write that expires within the rest: at least one of them notices the other.
#[test]
fn write_wakes_a_sweeper_that_begins_to_rest() {
    explore(|| {
        let parts = Parts::new();
        parts.set(1, 0, 100);
        let write = spawn(&parts, |parts| {
            parts.store.set(2, 7, &parts.at(0), |_| parts.until(5));
        });
        let rests = parts.store.arm_wake_deadline(parts.at(10));
        write.join().unwrap();
        assert!(!rests || parts.store.journal().is_wake_requested());
        parts.store.disarm_wake_deadline();
        parts.store.set(2, 8, &parts.at(0), |_| parts.until(4));
        assert!(!parts.store.journal().is_wake_requested(), "no sweeper rests");
    });
}
