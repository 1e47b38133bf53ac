//! A dictionary uses one clock, regardless of the runtime of its waiters. These tests use the real clock.

use std::{
    sync::atomic::AtomicUsize,
    thread::sleep,
    time::{Duration, Instant},
};

use fleeting::TimeoutDict;
use tokio::time::advance;

use crate::two_clocks::{assert_waited, counted, paused, real};

const MS: Duration = Duration::from_millis(1);

#[test]
fn waiter_under_a_paused_clock_waits_for_a_real_deadline() {
    let dict = TimeoutDict::new();
    let polls = AtomicUsize::new(0);
    let start = Instant::now();
    let taken = paused().block_on(async {
        dict.set("a", 1, 500 * MS).await;
        counted(&polls, dict.next_expired()).await
    });
    assert_eq!(taken, ("a", 1));
    assert!(start.elapsed() >= 500 * MS);
    assert_waited(&polls);
}

#[test]
fn waiter_under_a_paused_clock_waits_for_the_end_of_a_real_lease() {
    let dict = TimeoutDict::new();
    let polls = AtomicUsize::new(0);
    let start = Instant::now();
    paused().block_on(async {
        dict.set("a", 1, Duration::ZERO).await;
        std::mem::forget(dict.next_claim(500 * MS).await);
        assert!(counted(&polls, dict.next_claim(500 * MS)).await.ack().await);
    });
    assert!(start.elapsed() >= 500 * MS);
    assert_waited(&polls);
}

#[test]
fn waiter_in_real_time_waits_for_a_paused_deadline() {
    static POLLS: AtomicUsize = AtomicUsize::new(0);
    let (paused, real) = (paused(), real());
    let dict = paused.block_on(async { TimeoutDict::new() });
    let waiter = dict.clone();
    real.block_on(dict.set("a", 1, 10 * MS));
    let waits = real.spawn(async move { counted(&POLLS, waiter.next_expired()).await });
    sleep(500 * MS);
    assert!(!waits.is_finished(), "the clock of the dictionary is paused");
    assert_waited(&POLLS);
    paused.block_on(advance(10 * MS));
    assert_eq!(real.block_on(waits).unwrap(), ("a", 1));
}

#[test]
fn earlier_entry_ends_a_wait_on_another_clock() {
    let dict = TimeoutDict::new();
    let waiter = dict.clone();
    let (paused, other) = (paused(), real());
    paused.block_on(dict.set("late", 1, Duration::from_secs(1_000)));
    let comes = other.spawn(async move {
        sleep(200 * MS);
        dict.set("soon", 2, Duration::ZERO).await;
    });
    assert_eq!(paused.block_on(waiter.next_expired()), ("soon", 2));
    other.block_on(comes).unwrap();
}

#[test]
fn cancelled_wait_on_another_clock_takes_nothing() {
    let paused = paused();
    for doublings in 0..10 {
        let (dict, ttl) = (TimeoutDict::new(), (100 * MS) * (1 << doublings));
        let was_cancelled = paused.block_on(async {
            dict.set("a", 1, ttl).await;
            let mut next = tokio_test::task::spawn(dict.next_expired());
            for _ in 0..3 {
                // On a busy machine, the entry may be due already.
                if next.poll().is_ready() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            drop(next);
            sleep(ttl);
            assert_eq!(dict.take_expired(9).await, [("a", 1)]);
            true
        });
        if was_cancelled {
            return;
        }
    }
    panic!("the entry was always due before the wait was cancelled");
}
