//! Interleavings of threads in the wait queue of a key, and of calls at the bound of keys; see
//! `crate::engine::interleavings`.

use std::{
    future::pending,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use shuttle::{future::block_on, thread};
use tokio::time::Instant;

use super::{
    Limit, RateLimiter,
    waiting::{Waiter, Waiting},
};
use crate::{Sweep, engine::hasher::DefaultHasher};

type WaitQueue = Waiting<u8, DefaultHasher>;

const KEY: u8 = 1;

fn waiting() -> Arc<WaitQueue> {
    Arc::new(Waiting::new(DefaultHasher::default()))
}

fn limiter(limit: Limit, max_keys: usize) -> RateLimiter<u8> {
    // Only to build it: its sweeps are manual.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _context = runtime.enter();
    let builder = RateLimiter::builder().limit(limit).max_keys(max_keys);
    builder.shards(2).sweep(Sweep::manual()).build()
}

/// Waits for a turn by notifications alone; the clock does not move.
fn wait(waiter: &Waiter<'_, u8, DefaultHasher>, now: Instant) {
    while waiter.turn(now).is_err() {
        block_on(waiter.notified_or(pin!(pending::<()>())));
    }
}

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let iterations = std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|text| text.parse().ok());
    shuttle::check_random(test, iterations.unwrap_or(5_000));
}

#[test]
fn interleavings_of_a_wait_queue_that_some_leave() {
    explore(|| {
        let (waiting, now) = (waiting(), Instant::now());
        let heads = Arc::new(AtomicUsize::new(0));
        let passes = || {
            let (waiting, heads) = (waiting.clone(), heads.clone());
            thread::spawn(move || {
                let waiter = waiting.join(KEY, 1, None);
                wait(&waiter, now);
                assert_eq!(heads.fetch_add(1, SeqCst), 0, "two waiters were the head at a time");
                thread::yield_now();
                heads.fetch_sub(1, SeqCst);
            })
        };
        let gives_up = || {
            let waiting = waiting.clone();
            thread::spawn(move || {
                let waiter = waiting.join(KEY, 1, None);
                let _ = waiter.turn(now);
                thread::yield_now();
                drop(waiter);
            })
        };
        let threads = [passes(), gives_up(), passes(), gives_up(), passes()];
        // Shuttle reports a deadlock if a waiter is never woken.
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        assert!(waiting.is_empty());
    });
}

#[test]
fn interleavings_of_a_wait_queue_whose_head_is_not_polled() {
    explore(|| {
        let (waiting, start) = (waiting(), Instant::now());
        let silent = {
            let waiting = waiting.clone();
            thread::spawn(move || {
                let waiter = waiting.join(KEY, 1, None);
                let _ = waiter.turn(start);
                // Polled again at some time, or never.
                thread::yield_now();
                let _ = waiter.turn(start);
                thread::yield_now();
            })
        };
        let passes = || {
            let waiting = waiting.clone();
            thread::spawn(move || {
                let waiter = waiting.join(KEY, 1, None);
                let mut now = start;
                // It sleeps until the returned time, so it gets its turn eventually.
                for _ in 0..100 {
                    match waiter.turn(now) {
                        Ok(()) => return,
                        Err(wake_at) => now = wake_at,
                    }
                    thread::yield_now();
                }
                panic!("a waiter never got its turn");
            })
        };
        let threads = [silent, passes(), passes()];
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        assert!(waiting.is_empty());
    });
}

#[test]
fn interleavings_of_checks_of_a_key_that_gets_a_place() {
    explore(|| {
        let limiter = limiter(Limit::per_hour(1), 1);
        block_on(limiter.check(&0)).expect("nothing is in use");
        let passes = |makes_room: bool| {
            let limiter = limiter.clone();
            thread::spawn(move || {
                if makes_room {
                    block_on(limiter.reset(&0));
                }
                block_on(limiter.check(&KEY)).is_ok()
            })
        };
        let passed = [passes(false), passes(true)].map(|thread| thread.join().unwrap());
        assert_ne!(passed, [true, true], "the key passed twice");
        assert!(block_on(limiter.check(&KEY)).is_err());
    });
}

#[test]
fn interleavings_of_a_debt_of_a_key_that_gets_a_place() {
    explore(|| {
        let limiter = limiter(Limit::per_hour(9), 9);
        let free = block_on(limiter.check_n(&KEY, 0)).expect("nothing is in use");
        let debtor = {
            let limiter = limiter.clone();
            thread::spawn(move || block_on(limiter.check(&KEY)).is_ok())
        };
        block_on(free.settle(3));
        assert!(debtor.join().unwrap());
        assert_eq!(block_on(limiter.peek(&KEY)).remaining(), 5);
    });
}
