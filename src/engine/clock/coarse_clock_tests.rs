//! Tests of `coarse_clock` with a late coarse clock, on clocks that the tests set.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;

use super::{
    coarse_clock::{Kernel, LAG, MARGIN, STEP},
    machine::fake::Fake,
    *,
};
use crate::engine::{
    coop,
    store::{Cause, Store},
};

const START: u64 = 77_000_000_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

impl Clock {
    fn of(fake: &'static Fake) -> Clock {
        let kernel = Kernel::of(fake.machine(), START);
        Clock { epoch: Instant::now(), source: ClockSource::Kernel(kernel) }
    }
}

/// Returns the deadline `nanoseconds` after the start.
fn at(nanoseconds: u64) -> Deadline {
    Tick(NonZeroU64::new(EPOCH + nanoseconds).expect("it is not zero")).into()
}

fn a_clock() -> (&'static Fake, Clock) {
    let fake = Fake::at(START);
    (fake, Clock::of(fake))
}

#[test]
fn lookup_reads_only_the_coarse_clock_if_it_ticks() {
    let (fake, clock) = a_clock();
    let readings = fake.precise_readings();
    for _ in 0..10_000 {
        fake.pass(10 * MS);
        fake.tick(10 * MS);
        assert!(!clock.is_expired(at(1_000 * SECOND)));
    }
    assert_eq!(fake.precise_readings(), readings);
}

#[test]
fn precise_clock_decides_near_a_deadline() {
    let (fake, clock) = a_clock();
    fake.pass(4 * MS - 1);
    assert!(!clock.is_expired(at(4 * MS)));
    assert!(!clock.lazy_now().is_expired(at(4 * MS)));
    fake.pass(1);
    assert!(clock.is_expired(at(4 * MS)));
    assert!(clock.lazy_now().is_expired(at(4 * MS)));
}

/// A processor is stolen for up to 10 s: the coarse clock stands still, and one precise reading corrects all threads.
#[test]
fn one_precise_reading_shows_all_threads_that_the_coarse_clock_is_late() {
    let (fake, clock) = a_clock();
    for late in [MARGIN + 1, 100 * MS, SECOND, 10 * SECOND] {
        let start = fake.precise_now() - START;
        fake.tick(0);
        assert!(!clock.is_expired(at(start + late)));
        fake.pass(late);
        // By a clone of the clock, in another thread.
        let other = clock.clone();
        thread::spawn(move || other.now()).join().unwrap();
        assert!(clock.is_expired(at(start + late)), "late by {late}");
        assert!(clock.lazy_now().is_expired(at(start + late)), "late by {late}");
        assert!(!clock.is_expired(at(start + late + 1)), "late by {late}");
        assert!(!clock.lazy_now().is_expired(at(start + late + 1)), "late by {late}");
        assert_eq!(clock.lazy_now().at_least(), clock.now());
    }
}

#[test]
fn late_coarse_clock_is_trusted_again_after_it_caught_up() {
    let (fake, clock) = a_clock();
    fake.pass(10 * SECOND);
    clock.now();
    let readings = fake.precise_readings();
    assert!(!clock.is_expired(at(100 * SECOND)));
    assert_eq!(fake.precise_readings(), readings + 1, "the coarse clock is late and not used");
    fake.tick(10 * MS);
    assert!(!clock.is_expired(at(100 * SECOND)));
    assert_eq!(fake.precise_readings(), readings + 1);
}

/// If the coarse clock lags by no more than `MARGIN`, lookups are exact without any other reading.
#[test]
fn expired_value_never_appears_live_within_the_margin() {
    let (fake, clock) = a_clock();
    fake.pass(MARGIN);
    assert!(clock.is_expired(at(MARGIN)));
    assert!(!clock.is_expired(at(MARGIN + 1)));
}

/// An expired value appears live until the first precise reading after its deadline, and no longer.
#[test]
fn undetected_lateness_ends_with_the_next_precise_reading() {
    let (fake, clock) = a_clock();
    fake.pass(10 * SECOND);
    assert!(
        !clock.is_expired(at(SECOND)) && !clock.lazy_now().is_expired(at(SECOND)),
        "undetected"
    );
    // A lookup near its deadline by the late clock makes a precise reading.
    assert!(clock.is_expired(at(MARGIN)));
    assert!(clock.is_expired(at(SECOND)) && clock.lazy_now().is_expired(at(SECOND)));
}

/// One coarse reading decides that a later deadline is not reached, and gives an upper bound of the present. Near the
/// deadline, and if the coarse clock is late, a precise reading does.
#[test]
fn unless_expired_returns_a_time_that_is_not_past() {
    let (fake, clock) = a_clock();
    let latest = |deadline| Some(clock.unless_expired(deadline)?.nanoseconds() - EPOCH);
    let readings = fake.precise_readings();
    for pass in [0, MS, 10 * MS, MARGIN - 11 * MS] {
        fake.pass(pass);
        let present = fake.precise_now() - START;
        assert!(latest(at(SECOND)).is_some_and(|at| (present..=present + MARGIN).contains(&at)));
        assert!(latest(Deadline::PERSISTENT).is_some());
    }
    assert_eq!(fake.precise_readings(), readings);
    assert_eq!((latest(at(MARGIN)), latest(at(MARGIN + 1))), (None, Some(MARGIN)));
    fake.pass(10 * SECOND);
    clock.now();
    assert_eq!(latest(at(10 * SECOND)), None);
    assert_eq!(latest(at(20 * SECOND)), Some(10 * SECOND + MARGIN));
    // A call that has seen a deadline reached at its beginning does not see it unreached later.
    let call = clock.call(true);
    let begin = call.begin();
    assert!(call.unless_expired(begin.into()).is_none());
}

/// A write with a long TTL begins at a tick that every thread has seen reached, and reads no fenced clock for it.
#[test]
fn call_begins_at_most_the_lag_of_the_coarse_clock_early() {
    let (fake, clock) = a_clock();
    clock.now();
    let readings = fake.precise_readings();
    for lag in [0, MS, 10 * MS, LAG] {
        fake.pass(SECOND);
        fake.tick(lag);
        let call = clock.call(false);
        let present = fake.precise_now() - START;
        assert_eq!(Deadline::from(call.at_least()), at(present - lag));
        fake.pass(LAG - lag);
        assert_eq!(
            Deadline::from(call.at_least()),
            at(present - lag),
            "the call still begins then"
        );
    }
    assert_eq!(fake.precise_readings(), readings);
    // Later than `LAG` behind a precise reading, the coarse clock is not trusted, or the reading itself is the bound.
    fake.pass(10 * SECOND);
    let precise = clock.now();
    assert!(clock.call(false).at_least() >= precise);
    let call = clock.call(true);
    assert!(call.begin() >= precise && call.at_least() == call.begin());
}

/// The real clock is the subject: if a program only looks up values, its calls check the coarse clock.
#[test]
fn one_call_in_a_thousand_checks_the_real_clock() {
    let a_thousand_calls = || {
        let mut calls = tokio_test::task::spawn(async {
            for _ in 0..1_000 {
                coop::proceed().await;
            }
        });
        assert!(calls.poll().is_ready());
    };
    a_thousand_calls();
    let clock = Clock::new();
    let ClockSource::Kernel(kernel) = clock.source else {
        panic!("no kernel clock was found that agrees with `Instant`: {clock:?}");
    };
    thread::sleep(Duration::from_nanos(2 * STEP));
    let before = std::time::Instant::now();
    a_thousand_calls();
    let horizon = Tick(NonZeroU64::new(kernel.horizon()).expect("it is not zero"));
    assert!(clock.instant(horizon).into_std() > before);
}

/// All lookups read the horizon, so it must not be written at each call.
#[test]
fn horizon_is_written_once_per_step() {
    let (fake, clock) = a_clock();
    clock.now();
    let mut horizons = vec![fake.horizon().load(Relaxed)];
    for _ in 0..10_000 {
        fake.pass(STEP / 1_000);
        clock.now();
        let horizon = fake.horizon().load(Relaxed);
        if horizon != horizons[horizons.len() - 1] {
            horizons.push(horizon);
        }
    }
    assert_eq!(horizons.len(), 11);
    assert!(horizons.is_sorted_by(|a, b| b - a == STEP));
}

/// A value that a sweep, another reader or a precise method has seen expired is not returned by any call.
#[test]
fn store_never_returns_a_value_seen_expired() {
    let (fake, clock) = a_clock();
    let store: Store<u32, u32, _> = Store::new(2, 0, foldhash::fast::FixedState::default());
    for key in 0..100 {
        store.set(key, key, &clock, |_| at(SECOND + u64::from(key)));
    }
    let is_live = |key| store.deadline(&key, &clock).is_some();
    assert!((0..100).all(is_live));
    fake.pass(10 * SECOND);
    let report = store.remove(&0, &clock.now(), Cause::Removed);
    assert_eq!(report, None, "a precise reading has seen it expired");
    assert!(!(0..100).any(is_live));
}

/// A thread that learns from another thread that a deadline was reached sees it reached, too.
#[test]
fn threads_agree_on_expired_deadlines() {
    static REACHED: AtomicU64 = AtomicU64::new(0);
    let fake = Fake::at(START);
    let clock = Clock::of(fake);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for step in 0..20_000 {
                    fake.pass(MS / 2);
                    let now = clock.now().nanoseconds() - EPOCH;
                    // Pairs with the `Acquire` below: a thread that reads `now` must see the horizon of that reading.
                    REACHED.fetch_max(now, Release);
                    // In between, the coarse clock is late by far more than the margin.
                    if step % 500 == 0 {
                        fake.tick(0);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while REACHED.load(Relaxed) < 19 * SECOND {
                    // Pairs with `Release`: `reached` comes with the horizon of its reading.
                    let reached = REACHED.load(Acquire);
                    assert!(clock.is_expired(at(reached)));
                    assert!(clock.lazy_now().is_expired(at(reached)));
                }
            });
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Pass(u64),
    /// The coarse clock catches up, except for this lag.
    Tick(u64),
    Now,
    LookUp(i64),
    Lazy(i64, i64),
}

fn op() -> impl Strategy<Value = Op> {
    // Around the present, and around the sums of which the bounds consist.
    let near = -100 * MS as i64..100 * MS as i64;
    prop_oneof![
        3 => (0..80 * MS).prop_map(Op::Pass),
        1 => (0..20 * SECOND).prop_map(Op::Pass),
        2 => (0..30 * MS).prop_map(Op::Tick),
        3 => Just(Op::Now),
        4 => near.clone().prop_map(Op::LookUp),
        2 => (near.clone(), near).prop_map(|(a, b)| Op::Lazy(a, b)),
    ]
}

proptest! {
    /// No value expires early; a value seen expired stays expired; and an expired value appears live only if the coarse
    /// clock is late and the precise one was not read since the deadline.
    #[test]
        fn expired_stays_expired_with_a_late_coarse_clock(ops in proptest::collection::vec(op(), 1..200)) {
        let (fake, clock) = a_clock();
        let (mut coarse, mut precise, mut seen_dead) = (0, 0, 0);
        for op in ops {
            let now = fake.precise_now() - START;
            match op {
                Op::Pass(time) => fake.pass(time),
                Op::Tick(lag) => {
                    fake.tick(lag.min(now));
                    coarse = coarse.max(now - lag.min(now));
                }
                Op::Now => {
                    prop_assert_eq!(clock.now().nanoseconds(), EPOCH + now);
                    (precise, seen_dead) = (now, now);
                }
                Op::LookUp(ahead) => {
                    let deadline = now.saturating_add_signed(ahead);
                    let is_expired = clock.is_expired(at(deadline));
                    prop_assert!(!is_expired || deadline <= now, "expired before its deadline");
                    prop_assert!(is_expired || deadline > seen_dead, "it was seen expired");
                    prop_assert!(is_expired || deadline > now || precise < deadline && coarse + MARGIN < deadline);
                    seen_dead = seen_dead.max(if is_expired { deadline } else { 0 });
                }
                Op::Lazy(a, b) => {
                    let lazy = clock.lazy_now();
                    let (a, b) = (now.saturating_add_signed(a), now.saturating_add_signed(b));
                    for deadline in [a, b, a] {
                        let is_expired = lazy.is_expired(at(deadline));
                        prop_assert!(!is_expired || deadline <= now, "expired before its deadline");
                        prop_assert!(is_expired || deadline > seen_dead, "it was seen expired");
                        seen_dead = seen_dead.max(if is_expired { deadline } else { 0 });
                    }
                    let at_least = lazy.at_least().nanoseconds() - EPOCH;
                    prop_assert!(coarse <= at_least && at_least <= now);
                    prop_assert_eq!(lazy.tick().nanoseconds(), EPOCH + now);
                    (precise, seen_dead) = (now, now);
                }
            }
        }
    }
}

/// The constants depend on each other: the coarse clock may lag as far as kernels that tick every 10 ms let it, and
/// more.
#[test]
fn margin_allows_for_the_slowest_kernel_tick() {
    const { assert!(MARGIN == LAG + STEP && LAG >= 2 * 10 * MS) }
    assert_eq!(Duration::from_nanos(MARGIN), Duration::from_millis(50));
}
