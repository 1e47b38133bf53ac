//! Calls with several keys, during writes, reads, removals and sweeps of single ones.

use std::collections::HashMap;

use shuttle::rand::Rng;

use super::{Parts, bounds::bounded, drain, explore, spawn};
use crate::engine::event::Cause;

impl Parts {
    fn set_many(&self, keys: &[u8], first: u32, now: u64, deadline: u64) {
        let mut entries: Vec<_> = keys.iter().copied().zip(first..).map(Some).collect();
        let mut places = self.store.locate_all_to_put(keys.iter());
        let until = || self.until(deadline);
        assert!(self.store.set_many(&mut places, &mut entries, &self.at(now), until));
        self.publisher.flush();
    }

    fn remove_many(&self, keys: &[u8], now: u64) -> usize {
        let keys: Vec<&u8> = keys.iter().collect();
        let (mut places, mut removed) = (self.store.locate_all(keys.iter().copied()), 0);
        assert!(self.store.remove_many(&mut places, &keys, &self.at(now), &mut removed));
        self.publisher.flush();
        removed
    }
}

/// Each value is published once or resident; the values that one call sets for one key come in their order; and the
/// number of removed entries is that of the events.
#[test]
fn set_many_and_remove_many_publish_each_value_once() {
    explore(|| {
        let is_bounded = shuttle::rand::thread_rng().gen_range(0..3) == 0;
        let parts = if is_bounded { bounded(3, None) } else { Parts::new() };
        let mut events = parts.subscribe();
        let threads: Vec<_> = (0..3_u32)
            .map(|thread| {
                spawn(&parts, move |parts| {
                    let mut random = shuttle::rand::thread_rng();
                    let (mut set, mut removed) = (vec![], 0);
                    for step in 0..2 {
                        let first = 100 * thread + 10 * step;
                        let keys: Vec<u8> = (0..4).map(|_| random.gen_range(0..4)).collect();
                        match random.gen_range(0..6) {
                            0..3 => {
                                set.extend(keys.iter().copied().zip(first..));
                                parts.set_many(&keys, first, 8, random.gen_range(5..15));
                            }
                            3 => removed += parts.remove_many(&keys, 8),
                            4 => _ = parts.sweep(10),
                            _ => {
                                set.push((1, first));
                                parts.set(first, 8, 20);
                            }
                        }
                    }
                    (set, removed)
                })
            })
            .collect();
        let (mut set, mut removed) = (vec![], 0);
        for thread in threads {
            let (its, took) = thread.join().unwrap();
            set.extend(its);
            removed += took;
        }
        let reported = drain(&mut events);
        let of_cause = reported.iter().filter(|(_, cause)| *cause == Cause::Removed).count();
        assert_eq!(of_cause, removed);
        let mut chain: Vec<u32> = reported.into_iter().map(|(value, _)| value).collect();
        for shard in 0..2 {
            let resident = parts.store.snapshot(shard, &parts.start);
            chain.extend(resident.into_iter().map(|(_, value, _)| value));
        }
        let place: HashMap<u32, usize> =
            chain.iter().enumerate().map(|(place, value)| (*value, place)).collect();
        assert_eq!(
            (chain.len(), place.len()),
            (set.len(), set.len()),
            "each published or resident"
        );
        for (key, value) in &set {
            let later = |(k, v): &&(u8, u32)| k == key && v / 10 == value / 10 && v > value;
            if let Some((_, next)) = set.iter().find(later) {
                assert!(place[value] < place[next], "{value} was set before {next}");
            }
        }
        assert!(!is_bounded || parts.store.weight() <= 3);
    });
}

/// A task that waits for a value of one of the keys is notified, whenever it begins to wait.
#[test]
fn set_many_wakes_a_waiter_for_one_of_its_keys() {
    explore(|| {
        let parts = Parts::new();
        let waits = spawn(&parts, |parts| {
            let place = parts.store.locate(&2);
            loop {
                if let Some(value) = parts.store.get(&2, &parts.start) {
                    return value;
                }
                let insert_waiters = parts.store.await_value(place);
                let reported = insert_waiters.notified();
                if parts.store.deadline(&2, &parts.start).is_none() {
                    shuttle::future::block_on(reported);
                }
                parts.store.leave_insert_waiters(place, &insert_waiters);
            }
        });
        parts.set_many(&[1, 2, 3], 10, 0, 100);
        assert_eq!(waits.join().unwrap(), 11);
        assert!(!parts.store.has_waiters());
    });
}
