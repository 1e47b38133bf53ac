//! Cases by the real clock, on a machine that may do much else.

// Each test binary compiles this module anew, and uses its share of it.
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

thread_local! {
    static SCALE: Cell<u32> = const { Cell::new(1) };
}

/// So many milliseconds, in a case that [`in_time`] runs: more of them in each further attempt.
pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds) * SCALE.get()
}

/// Runs a case that takes it for granted that the machine is in time.
///
/// An attempt that fails while the machine was late is void: there is another, with all times twice as long. One
/// that fails on a machine in time has failed.
pub(crate) async fn in_time(case: impl AsyncFn()) {
    for scale in [1, 2, 4, 8] {
        SCALE.set(scale);
        let watch = Watch::begin();
        let Err(panic) = AssertUnwindSafe(case()).catch_unwind().await else { return };
        match watch.lateness() {
            Some(late) => println!("the attempt is void: {late}"),
            None => resume_unwind(panic),
        }
    }
    SCALE.set(16);
    case().await;
}

/// Runs `attempt` until it says that enough happened in it to mean anything.
pub(crate) async fn until_enough(attempt: impl AsyncFn() -> bool) {
    for _ in 0..30 {
        if attempt().await {
            return;
        }
    }
    panic!("too little happens, in thirty attempts");
}

/// Sleeps over and over, to see how late it is woken, and knows how long the case's own thread waited for a processor.
struct Watch {
    end: Sender<()>,
    sleeper: JoinHandle<(u32, Duration)>,
    begin: Instant,
    kept_waiting: Duration,
}

/// How long this thread has waited for a processor, in all.
fn kept_waiting() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    let nanoseconds = stat.split(' ').nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the second field"))
}

impl Watch {
    const NAP: Duration = Duration::from_millis(1);

    fn begin() -> Self {
        let (end, ended) = channel();
        let sleeper = thread::spawn(move || {
            let (mut naps, mut worst) = (0, Duration::ZERO);
            loop {
                let begin = Instant::now();
                if ended.recv_timeout(Self::NAP) != Err(RecvTimeoutError::Timeout) {
                    return (naps, worst);
                }
                naps += 1;
                worst = worst.max(begin.elapsed().saturating_sub(Self::NAP));
            }
        });
        Self { end, sleeper, begin: Instant::now(), kept_waiting: kept_waiting() }
    }

    /// What says that the machine was late; nothing where it was not.
    fn lateness(self) -> Option<String> {
        let passed = self.begin.elapsed();
        drop(self.end);
        let (naps, worst) = self.sleeper.join().expect("it only sleeps");
        let waited = kept_waiting() - self.kept_waiting;
        let is_late = worst.max(waited) > 10 * Self::NAP || naps * 2 * Self::NAP < passed;
        is_late.then(|| {
            format!("in {passed:?}, of {naps} naps of 1 ms, one was {worst:?} late; the case waited for {waited:?}")
        })
    }
}
