//! Removal of one tag by two threads at once. `FLEETING_STRESS_SECONDS` sets the duration (4 by default, of which this
//! test takes a quarter).

use std::{
    hint,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Sweep};
use futures::FutureExt;

const HOUR: Duration = Duration::from_secs(3_600);

/// Outside of a task no call waits.
fn call<T>(call_future: impl Future<Output = T>) -> T {
    call_future.now_or_never().expect("a call outside of a task never yields")
}

/// Waits until both threads have arrived `times` times. It spins, so that they continue within nanoseconds.
fn meet(arrivals: &AtomicU64, times: u64) {
    arrivals.fetch_add(1, SeqCst);
    for spins in 0.. {
        if arrivals.load(SeqCst) >= 2 * times {
            return;
        }
        if spins % 1_000 == 999 {
            thread::yield_now();
        }
        hint::spin_loop();
    }
}

/// Only one of two calls finds the tag, and the other one may return first.
#[test]
fn value_cannot_be_read_after_either_of_two_overlapping_calls_of_remove_tag() {
    let seconds = std::env::var("FLEETING_STRESS_SECONDS")
        .map_or(4.0, |text| text.parse().expect("FLEETING_STRESS_SECONDS must be a number"));
    let time = Duration::from_secs_f64(seconds / 4.0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _context = runtime.enter();
    let cache: Cache<u64, u64> = Cache::builder().sweep(Sweep::manual()).shards(2).build();
    let (arrivals, last) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let remove_and_read = |round: u64, delay: u64| {
        meet(&arrivals, 2 * round + 1);
        // Different offsets of the two calls.
        (0..delay).for_each(|_| hint::spin_loop());
        call(cache.remove_tag("tag"));
        let read = call(cache.get(&0));
        meet(&arrivals, 2 * round + 2);
        read
    };
    let (rounds, readable) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let rounds = (0..).take_while(|round| *round <= last.load(SeqCst));
            rounds.filter(|round| remove_and_read(*round, round % 16).is_some()).count()
        });
        let (begin, mut readable) = (Instant::now(), 0);
        for round in 0.. {
            // After a complete sweep, look-ups do not search for removed tags until the next removal.
            runtime.block_on(cache.sweep());
            call(cache.set_tagged(0, round, HOUR, ["tag"]));
            if begin.elapsed() >= time {
                last.store(round, SeqCst);
            }
            readable += usize::from(remove_and_read(round, 7).is_some());
            if last.load(Relaxed) == round {
                return (round + 1, readable + other.join().unwrap());
            }
        }
        unreachable!("the last round returns");
    });
    println!("{rounds} rounds");
    assert_eq!(readable, 0, "values read after their tag was removed, in {rounds} rounds");
}
