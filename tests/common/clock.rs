//! Test cases that depend on the real clock, on a machine that may be busy.

// Each test binary compiles its own copy of this module and uses only a part of it.
#![allow(dead_code)]

use std::{
    cell::Cell,
    fs,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use futures::FutureExt;

use crate::patience::stretch;

thread_local! {
    static SCALE: Cell<u32> = const { Cell::new(1) };
}

/// Returns a duration for a case run by [`in_time`]. It doubles with each attempt, and `FLEETING_TEST_PATIENCE`
/// multiplies it.
pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds) * scale()
}

/// Returns a rate per second for a case run by [`in_time`]. It halves with each attempt.
pub(crate) fn per_second(rate: u64) -> u64 {
    rate / u64::from(scale())
}

fn scale() -> u32 {
    SCALE.get() * stretch().max(1.0).round() as u32
}

/// Runs a case that assumes that its threads and timers are scheduled promptly.
///
/// If an attempt fails and the machine was late, it is repeated with all durations of [`ms`] doubled. If it fails
/// although the machine was prompt, the case has failed.
pub(crate) async fn in_time(case: impl AsyncFn()) {
    for scale in [1, 2, 4, 8] {
        SCALE.set(scale);
        let probe = LatenessProbe::begin();
        let Err(panic) = AssertUnwindSafe(case()).catch_unwind().await else { return };
        match probe.lateness() {
            Some(late) => println!("attempt repeated: {late}"),
            None => resume_unwind(panic),
        }
    }
    SCALE.set(16);
    case().await;
}

/// Repeats `attempt` until it returns true: until what it needs has happened, such as an effect of injected faults.
pub(crate) async fn until_enough(attempt: impl AsyncFn() -> bool) {
    for _ in 0..30 {
        if attempt().await {
            return;
        }
    }
    panic!("thirty attempts did not have the effect that the case needs");
}

/// Measures how late the machine is: by a thread that sleeps repeatedly, and by the time for which the thread of the
/// case was runnable but not running.
struct LatenessProbe {
    stop: Sender<()>,
    sleeper: JoinHandle<(u32, Duration)>,
    begin: Instant,
    run_delay: Duration,
}

/// Returns the total time for which this thread was runnable but not running. Only Linux reports it.
fn run_delay() -> Duration {
    if cfg!(not(target_os = "linux")) {
        return Duration::ZERO;
    }
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux provides schedstat");
    let nanoseconds = stat.split(' ').nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the second field is a number"))
}

impl LatenessProbe {
    const NAP: Duration = Duration::from_millis(1);

    fn begin() -> Self {
        let (stop, stopped) = channel();
        let sleeper = thread::spawn(move || {
            let (mut naps, mut worst) = (0, Duration::ZERO);
            loop {
                let begin = Instant::now();
                if stopped.recv_timeout(Self::NAP) != Err(RecvTimeoutError::Timeout) {
                    return (naps, worst);
                }
                naps += 1;
                worst = worst.max(begin.elapsed().saturating_sub(Self::NAP));
            }
        });
        Self { stop, sleeper, begin: Instant::now(), run_delay: run_delay() }
    }

    /// Returns a description of the lateness if the machine was late.
    fn lateness(self) -> Option<String> {
        let passed = self.begin.elapsed();
        drop(self.stop);
        let (naps, worst) = self.sleeper.join().expect("the thread only sleeps");
        let waited = run_delay() - self.run_delay;
        let is_late = worst.max(waited) > 10 * Self::NAP || naps * 2 * Self::NAP < passed;
        is_late.then(|| {
            format!("in {passed:?}, of {naps} sleeps of 1 ms, one was {worst:?} late; the case was not running for {waited:?}")
        })
    }
}
