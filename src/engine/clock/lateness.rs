//! What holds where the coarse clock is late: tests of `kernel` on clocks that are set by hand.

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
    kernel::{Kernel, LAG, MARGIN, STEP},
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
        Clock { epoch: Instant::now(), source: Source::Kernel(kernel) }
    }
}

/// The deadline at so many nanoseconds after the start.
fn at(nanoseconds: u64) -> Deadline {
    Tick(NonZeroU64::new(EPOCH + nanoseconds).expect("it is not zero")).into()
}

fn a_clock() -> (&'static Fake, Clock) {
    let fake = Fake::at(START);
    (fake, Clock::of(fake))
}

#[test]
fn a_coarse_clock_that_ticks_is_all_that_a_look_up_reads() {
    let (fake, clock) = a_clock();
    let readings = fake.precise_readings();
    for _ in 0..10_000 {
        fake.pass(10 * MS);
        fake.tick(10 * MS);
        assert!(!clock.is_dead(at(1_000 * SECOND)));
    }
    assert_eq!(fake.precise_readings(), readings);
}

#[test]
fn near_a_deadline_the_precise_clock_decides() {
    let (fake, clock) = a_clock();
    fake.pass(4 * MS - 1);
    assert!(!clock.is_dead(at(4 * MS)));
    assert!(!clock.lazy_now().is_dead(at(4 * MS)));
    fake.pass(1);
    assert!(clock.is_dead(at(4 * MS)));
    assert!(clock.lazy_now().is_dead(at(4 * MS)));
}

/// A processor is stolen for 10 s: the coarse clock stands still, and one precise reading is enough for all.
#[test]
fn one_precise_reading_tells_all_that_the_coarse_clock_is_late() {
    let (fake, clock) = a_clock();
    for late in [MARGIN + 1, 100 * MS, SECOND, 10 * SECOND] {
        let start = fake.precise_now() - START;
        fake.tick(0);
        assert!(!clock.is_dead(at(start + late)));
        fake.pass(late);
        // Of another clone, in another thread.
        let other = clock.clone();
        thread::spawn(move || other.now()).join().unwrap();
        assert!(clock.is_dead(at(start + late)), "late by {late}");
        assert!(clock.lazy_now().is_dead(at(start + late)), "late by {late}");
        assert!(!clock.is_dead(at(start + late + 1)), "late by {late}");
        assert!(!clock.lazy_now().is_dead(at(start + late + 1)), "late by {late}");
        assert_eq!(clock.lazy_now().at_least(), clock.now());
    }
}

#[test]
fn a_late_coarse_clock_that_has_caught_up_is_trusted_again() {
    let (fake, clock) = a_clock();
    fake.pass(10 * SECOND);
    clock.now();
    let readings = fake.precise_readings();
    assert!(!clock.is_dead(at(100 * SECOND)));
    assert_eq!(fake.precise_readings(), readings + 1, "late, and so read precisely");
    fake.tick(10 * MS);
    assert!(!clock.is_dead(at(100 * SECOND)));
    assert_eq!(fake.precise_readings(), readings + 1);
}

/// As long as the coarse clock lags by no more than `MARGIN`, nothing has to notice anything.
#[test]
fn within_the_margin_nothing_dead_passes_for_alive() {
    let (fake, clock) = a_clock();
    fake.pass(MARGIN);
    assert!(clock.is_dead(at(MARGIN)));
    assert!(!clock.is_dead(at(MARGIN + 1)));
}

/// What is dead passes for alive until the first precise reading after its death, and no longer.
#[test]
fn lateness_that_nobody_has_noticed_ends_with_the_next_precise_reading() {
    let (fake, clock) = a_clock();
    fake.pass(10 * SECOND);
    assert!(!clock.is_dead(at(SECOND)) && !clock.lazy_now().is_dead(at(SECOND)), "nobody can know");
    // A look-up near its deadline, by the late clock, is one.
    assert!(clock.is_dead(at(MARGIN)));
    assert!(clock.is_dead(at(SECOND)) && clock.lazy_now().is_dead(at(SECOND)));
}

/// By one coarse reading it is told that what dies later lives, and what time it is at most; near a deadline, and where
/// the coarse clock is late, by a precise one.
#[test]
fn what_lives_is_told_with_a_time_that_is_not_past() {
    let (fake, clock) = a_clock();
    let latest = |deadline| Some(clock.unless_dead(deadline)?.nanoseconds() - EPOCH);
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
    // A call that goes on sees dead what it saw dead, and so does its look at what lives.
    let call = clock.call(true);
    let begin = call.begin();
    assert!(call.unless_dead(begin.into()).is_none());
}

/// The real clock is the subject: where nobody does anything but look up, the calls themselves notice.
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
    let Source::Kernel(kernel) = clock.source else {
        panic!("no kernel clock was found to be that of `Instant`: {clock:?}");
    };
    thread::sleep(Duration::from_nanos(2 * STEP));
    let before = std::time::Instant::now();
    a_thousand_calls();
    let horizon = Tick(NonZeroU64::new(kernel.horizon()).expect("it is not zero"));
    assert!(clock.instant(horizon).into_std() > before);
}

/// All look-ups read the horizon: it must not be written at each call.
#[test]
fn the_horizon_is_written_once_a_step() {
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

/// A value that a sweep, another reader or a precise verb has seen dead is given to nobody.
#[test]
fn the_store_returns_nothing_that_was_seen_dead() {
    let (fake, clock) = a_clock();
    let store: Store<u32, u32, _> = Store::new(2, 0, foldhash::fast::FixedState::default());
    for key in 0..100 {
        store.set(key, key, &clock, |_| at(SECOND + u64::from(key)));
    }
    let is_live = |key| store.deadline(&key, &clock).is_some();
    assert!((0..100).all(is_live));
    fake.pass(10 * SECOND);
    let report = store.remove(&0, &clock.now(), Cause::Removed);
    assert_eq!(report, None, "seen dead by a precise reading");
    assert!(!(0..100).any(is_live));
}

/// Who hears from another thread what it has seen dead sees it dead.
#[test]
fn threads_agree_on_what_is_dead() {
    static HEARD: AtomicU64 = AtomicU64::new(0);
    let fake = Fake::at(START);
    let clock = Clock::of(fake);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for step in 0..20_000 {
                    fake.pass(MS / 2);
                    let now = clock.now().nanoseconds() - EPOCH;
                    HEARD.fetch_max(now, Release);
                    // In between it is late by far more than the margin.
                    if step % 500 == 0 {
                        fake.tick(0);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while HEARD.load(Relaxed) < 19 * SECOND {
                    let heard = HEARD.load(Acquire);
                    assert!(clock.is_dead(at(heard)));
                    assert!(clock.lazy_now().is_dead(at(heard)));
                }
            });
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Pass(u64),
    /// The coarse clock catches up, but for so much.
    Tick(u64),
    Now,
    LookUp(i64),
    Lazy(i64, i64),
}

fn op() -> impl Strategy<Value = Op> {
    // About the present, and about what the bounds are made of.
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
    /// Nothing dies before its time; what was seen dead stays dead; and what is dead passes for alive only where the
    /// coarse clock is late and nobody has read the precise one since the death.
    #[test]
    fn late_or_not_the_dead_stay_dead(ops in proptest::collection::vec(op(), 1..200)) {
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
                    let is_dead = clock.is_dead(at(deadline));
                    prop_assert!(!is_dead || deadline <= now, "dead before its time");
                    prop_assert!(is_dead || deadline > seen_dead, "it was seen dead");
                    prop_assert!(is_dead || deadline > now || precise < deadline && coarse + MARGIN < deadline);
                    seen_dead = seen_dead.max(if is_dead { deadline } else { 0 });
                }
                Op::Lazy(a, b) => {
                    let lazy = clock.lazy_now();
                    let (a, b) = (now.saturating_add_signed(a), now.saturating_add_signed(b));
                    for deadline in [a, b, a] {
                        let is_dead = lazy.is_dead(at(deadline));
                        prop_assert!(!is_dead || deadline <= now, "dead before its time");
                        prop_assert!(is_dead || deadline > seen_dead, "it was seen dead");
                        seen_dead = seen_dead.max(if is_dead { deadline } else { 0 });
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

/// The figures go together: a coarse clock may lag as far as a kernel that ticks each 10 ms lets it, and more.
#[test]
fn the_margins_leave_room() {
    const { assert!(MARGIN == LAG + STEP && LAG >= 2 * 10 * MS) }
    assert_eq!(Duration::from_nanos(MARGIN), Duration::from_millis(50));
}
