//! Waiters for a load of one key, and concurrent writes to it.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use foldhash::fast::FixedState;
use shuttle::{future::block_on, rand::Rng, sync::atomic::AtomicU64, thread};

use super::{Parts, explore, iterations, spawn};
use crate::engine::{
    block_on::block_on as block_on_thread,
    clock::{Deadline, Now, Tick},
    event::Cause,
    store::{Flight, FlightMember, Lookup, Preceding, Seen, Store},
};

/// Loads key 1 through single flight; may be cancelled wherever it waits or loads. Returns its result.
fn get_or_load(parts: &Parts, value: u32, running: &AtomicU32) -> Option<u32> {
    let is_cancelled = || shuttle::rand::thread_rng().gen_bool(0.3);
    let place = parts.store.locate(&1);
    let mut has_joined = false;
    let mut waits = 0;
    loop {
        let (flight, is_leader, preceding) =
            match parts.store.join_load(place, &1, || 1, false, &parts.start) {
                ControlFlow::Break(value) => return Some(value),
                ControlFlow::Continue(FlightMember { flight, is_leader, preceding }) => {
                    (flight, is_leader, if has_joined { Preceding::default() } else { preceding })
                }
            };
        has_joined = true;
        let leave = || parts.store.leave_load(place, &flight);
        if !is_leader {
            if is_cancelled() {
                leave();
                return None;
            }
            // A task, or a caller of a method that is not async.
            let waited = match shuttle::rand::thread_rng().gen_bool(0.5) {
                true => block_on(flight.wait(preceding)),
                false => block_on_thread(flight.wait(preceding)),
            };
            match waited {
                Lookup::Leader(()) => {
                    let found = parts.store.restart_load(place, &1, &flight, false, &parts.start);
                    if let ControlFlow::Break(value) = found {
                        flight.finish(Lookup::Live(value));
                        leave();
                        return Some(value);
                    }
                }
                Lookup::Live(value) | Lookup::Loaded(value) => {
                    leave();
                    return Some(value);
                }
                _ => {
                    leave();
                    waits += 1;
                    assert!(waits < 2, "a caller waits for a third load");
                    continue;
                }
            }
        }
        let loaded = run_load(parts, &flight, value, running, is_cancelled());
        leave();
        return loaded;
    }
}

fn run_load(
    parts: &Parts,
    flight: &Flight<u32>,
    value: u32,
    running: &AtomicU32,
    is_cancelled: bool,
) -> Option<u32> {
    assert_eq!(running.fetch_add(1, SeqCst), 0, "two concurrent loads");
    thread::yield_now();
    running.fetch_sub(1, SeqCst);
    if is_cancelled {
        flight.abandon();
        return None;
    }
    store_loaded(parts, flight, value, Deadline::PERSISTENT, parts.start);
    Some(value)
}

/// Stores the loaded value of key 1 at `now` and ends the flight.
fn store_loaded(parts: &Parts, flight: &Flight<u32>, value: u32, deadline: Deadline, now: Tick) {
    let mut new = parts.store.new_entry_with(1, value);
    parts.store.decide(&mut new, &now, |_, _| flight.deadline_to_store(deadline, &now).into());
    flight.finish(Lookup::Loaded(value));
}

/// No caller waits forever if others are cancelled, no two callers load concurrently, and no waiter stays registered.
#[test]
fn load_waiters_are_always_served_by_one_load_at_a_time() {
    explore(|| {
        let parts = Parts::new();
        let running = Arc::new(AtomicU32::new(0));
        let calls = [10, 20, 30].map(|value| {
            let running = running.clone();
            spawn(&parts, move |parts| get_or_load(parts, value, &running))
        });
        let got = calls.map(|call| call.join().unwrap());
        let stored = parts.store.get(&1, &parts.start);
        assert!(got.iter().flatten().all(|value| stored == Some(*value)), "{got:?} {stored:?}");
        assert!(!parts.store.has_waiters(), "waiters stayed registered");
    });
}

/// A write takes precedence over a load in progress, and a call that begins after the write gets nothing older.
#[test]
fn write_takes_precedence_over_a_concurrent_load() {
    explore(|| {
        let parts = Parts::new();
        let running = Arc::new(AtomicU32::new(0));
        let removes = shuttle::rand::thread_rng().gen_bool(0.5);
        let calls = [10, 20].map(|value| {
            let running = running.clone();
            spawn(&parts, move |parts| get_or_load(parts, value, &running))
        });
        let later = running.clone();
        let writes = spawn(&parts, move |parts| {
            if removes {
                parts.store.remove(&1, &parts.start, Cause::Removed);
                // The loaded value is 30, or that of another caller whose load began after the write.
                return (get_or_load(parts, 30, &later), None);
            }
            parts.store.set(1, 9, &parts.start, |_| Deadline::PERSISTENT);
            (get_or_load(parts, 30, &later), Some(9))
        });
        let (got, written) = writes.join().unwrap();
        for call in calls {
            call.join().unwrap();
        }
        if written.is_some() {
            assert_eq!(got, Some(9), "older than a write that came before the call");
            assert_eq!(parts.store.get(&1, &parts.start), Some(9), "the load took precedence");
        }
        assert!(!parts.store.has_waiters(), "waiters stayed registered");
    });
}

/// Two callers that saw the same old value refresh it, and a third writes through to the origin: no older value stays,
/// no two load concurrently, and a caller that comes after a stored refresh does not load again.
#[test]
fn write_takes_precedence_over_concurrent_refreshes() {
    explore(|| {
        let parts = Parts::new();
        let origin = Arc::new(AtomicU32::new(1));
        let running = Arc::new(AtomicU32::new(0));
        let loads = Arc::new(AtomicU32::new(0));
        let seen = parts.until(10);
        parts.set(1, 0, 10);
        let refreshes = [0; 2].map(|_| {
            let (origin, running, loads) = (origin.clone(), running.clone(), loads.clone());
            spawn(&parts, move |parts| {
                let place = parts.store.locate(&1);
                let seen = Seen::Live { hard_deadline: seen };
                let refresh = parts.store.lead_refresh(place, &1, || 1, seen, &parts.start);
                let Some(FlightMember { flight, .. }) = refresh else { return };
                assert_eq!(running.fetch_add(1, SeqCst), 0, "two concurrent loads");
                loads.fetch_add(1, SeqCst);
                let value = origin.load(SeqCst);
                thread::yield_now();
                running.fetch_sub(1, SeqCst);
                store_loaded(parts, &flight, value, parts.until(20), parts.at(5));
                parts.store.leave_load(place, &flight);
            })
        });
        let writes = shuttle::rand::thread_rng().gen_bool(0.7);
        let written = spawn(&parts, move |parts| {
            if writes {
                origin.store(2, SeqCst);
                // Sometimes no later than the deadline that the refreshes saw, so that they cannot detect the write by
                // it.
                let until = shuttle::rand::thread_rng().gen_range(9..12);
                parts.set(2, 5, until);
                assert_eq!(parts.get(6), Some(2), "older than a write that came before the call");
            }
        });
        refreshes.into_iter().for_each(|refresh| refresh.join().unwrap());
        written.join().unwrap();
        assert_eq!(parts.get(7), Some(if writes { 2 } else { 1 }));
        assert!(writes || loads.load(SeqCst) == 1, "loaded twice");
        assert!(!parts.store.has_waiters(), "waiters stayed registered");
    });
}

/// A refresh, and a caller that sets the deadline during it or lets the value expire, and then reads and loads: it sees
/// its own deadline, and nothing older than the expiry.
#[test]
fn deadline_set_during_a_load_takes_precedence() {
    explore(|| {
        let parts = Parts::new();
        let running = Arc::new(AtomicU32::new(0));
        parts.set(1, 0, 10);
        // Started before the deadline is set: a later refresh would be newer.
        let place = parts.store.locate(&1);
        let seen = Seen::Live { hard_deadline: parts.until(10) };
        let refresh = parts.store.lead_refresh(place, &1, || 1, seen, &parts.start);
        let FlightMember { flight, .. } = refresh.expect("no other load is running");
        let refresh = spawn(&parts, move |parts| {
            store_loaded(parts, &flight, 2, parts.until(20), parts.start);
            parts.store.leave_load(place, &flight);
        });
        let expires = shuttle::rand::thread_rng().gen_bool(0.5);
        let deadline = parts.until(if expires { 0 } else { 15 });
        let changed = parts.store.update(&1, &parts.start, |_, _| ((), Some(deadline)));
        assert_eq!(changed, Some(()), "the value stays live until then");
        if expires {
            assert_eq!(parts.get(0), None, "the refresh undid the expiry");
            let got = get_or_load(&parts, 3, &running);
            assert!(got.is_none_or(|value| value == 3), "older than the expiry: {got:?}");
        }
        refresh.join().unwrap();
        match expires {
            true => assert!(parts.get(0).is_none_or(|value| value == 3), "the expiry is undone"),
            false => {
                let until = parts.store.deadline(&1, &parts.start);
                assert_eq!(until, Some(deadline), "the refresh undid the new deadline");
                assert_eq!(parts.get(0), Some(2));
            }
        }
        assert!(!parts.store.has_waiters(), "waiters stayed registered");
    });
}

/// A load of a value whose tag is known only at its end, and a caller that removes the tag during it: the caller gets
/// nothing older than the removal, even if another one removes the tag again.
#[test]
fn removal_of_a_tag_takes_precedence_over_the_load_of_a_value_with_it() {
    let test = || {
        let parts = Parts::new();
        let running = Arc::new(AtomicU32::new(0));
        let place = parts.store.locate(&1);
        let joined = parts.store.join_load(place, &1, || 1, false, &parts.start);
        let ControlFlow::Continue(FlightMember { flight, .. }) = joined else { panic!("no value") };
        let began_at = parts.store.tagged_loads.begin();
        let load = spawn(&parts, move |parts| {
            let names = [Box::from("tag")];
            let tags = parts.store.tags(names.to_vec());
            flight.set_tags(tags.clone());
            flight.set_tag_removal(parts.store.tagged_loads.first_removal(&names, began_at));
            let mut new = parts.store.new_entry_with(1, 2);
            new.tags = tags;
            let deadline = || flight.deadline_to_store(Deadline::PERSISTENT, &parts.start);
            parts.store.decide(&mut new, &parts.start, |_, _| deadline().into());
            flight.finish(Lookup::Loaded(2));
            parts.store.tagged_loads.end(began_at);
            parts.store.leave_load(place, &flight);
        });
        parts.store.remove_tag("tag", &parts.start);
        assert_ne!(parts.get(0), Some(2), "the load took precedence");
        let again = spawn(&parts, |parts| parts.store.remove_tag("tag", &parts.start));
        let got = get_or_load(&parts, 3, &running);
        assert!(got.is_none_or(|value| value == 3), "older than the removal: {got:?}");
        again.join().unwrap();
        load.join().unwrap();
        assert_ne!(parts.get(0), Some(2), "the load took precedence");
        assert!(!parts.store.has_waiters(), "waiters stayed registered");
    };
    // Few preemptions: the whole removal has to come between two steps of the load.
    shuttle::check_pct(test, iterations(), 3);
}

/// A clock that the test advances.
struct Present(AtomicU64);

impl Now for Present {
    fn is_expired(&self, deadline: Deadline) -> bool {
        deadline.is_expired(self.tick())
    }

    fn tick(&self) -> Tick {
        Tick::EPOCH.later(self.0.load(SeqCst) * 1_000_000_000)
    }
}

/// One reader postpones the idle deadline while others see it reached: one of them comes first, and the others agree.
#[test]
fn time_to_idle_hit_never_revives_a_value_seen_expired() {
    explore(|| {
        let store =
            Store::new(2, 0, FixedState::default()).with_time_to_idle(Duration::from_secs(10));
        let stale_window = shuttle::rand::thread_rng().gen_bool(0.5);
        let window = Duration::from_secs(if stale_window { 100 } else { 0 });
        let store: Store<u8, u32, _> = store.with_stale_window(window);
        let parts = Arc::new((store, Present(AtomicU64::new(0))));
        let (store, present) = &*parts;
        store.set(1, 1, present, |_| Deadline::PERSISTENT);
        present.0.store(9, SeqCst);
        let hits = spawn(&parts, move |(store, present)| store.get(&1, present));
        let misses = [0; 2].map(|_| {
            spawn(&parts, move |(store, present)| {
                let first = match shuttle::rand::thread_rng().gen_bool(0.5) {
                    true => store.get(&1, present),
                    false => store.peek(&1, present),
                };
                let second = store.get(&1, present);
                assert!(first.is_some() || second.is_none(), "an expired value became live again");
            })
        });
        present.0.store(10, SeqCst);
        hits.join().unwrap();
        for misses in misses {
            misses.join().unwrap();
        }
    });
}

/// Waiters for the insert and for the departure of a value, some of which are cancelled.
#[test]
fn insert_and_departure_waiters_are_woken_and_unregistered() {
    explore(|| {
        let parts = Parts::new();
        let place = parts.store.locate(&1);
        let done = Arc::new(AtomicBool::new(false));
        let is_done = done.clone();
        let waiter = spawn(&parts, move |parts| {
            let insert_waiters = parts.store.await_value(place);
            let notified = insert_waiters.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            if parts.store.peek(&1, &parts.start).is_none() {
                block_on(notified);
            }
            parts.store.leave_insert_waiters(place, &insert_waiters);
            if let Some(waiters) = parts.store.await_departure(place, &1, &parts.start) {
                let event = block_on(waiters.event());
                assert_eq!(event.cause, Cause::Removed);
                parts.store.leave_departure_waiters(place, &waiters);
            }
            is_done.store(true, SeqCst);
        });
        let cancelled = spawn(&parts, move |parts| {
            let insert_waiters = parts.store.await_value(place);
            parts.store.leave_insert_waiters(place, &insert_waiters);
            if let Some(waiters) = parts.store.await_departure(place, &1, &parts.start) {
                parts.store.leave_departure_waiters(place, &waiters);
            }
        });
        // Until the waiter has seen a value and its removal.
        let mut value = 0;
        while !done.load(SeqCst) {
            value += 1;
            parts.set(value, 0, 100);
            thread::yield_now();
            parts.remove(0, Cause::Removed);
            thread::yield_now();
        }
        cancelled.join().unwrap();
        waiter.join().unwrap();
        assert!(!parts.store.has_waiters(), "waiters stayed registered");
    });
}
