//! User types that misbehave or are unusual: no deadlock, and nothing is lost except the panicking value.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use fleeting::{Cause, Event, LosslessEvents};
use futures::FutureExt;
use tokio::task::unconstrained;

use crate::patience::patience;

mod events_after_panics;
mod panics;
mod reentrant;
mod unusual;

const SECOND: Duration = Duration::from_secs(1);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

fn drain<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

/// Runs `test` on a thread of its own, with a paused clock, and fails if it does not finish.
fn run_with_watchdog<Test, Running>(test: Test)
where
    Test: FnOnce() -> Running + Send + 'static,
    Running: Future<Output = ()>,
{
    let (done, ended) = channel();
    let thread = thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(test());
        drop(runtime);
        done.send(()).expect("the watchdog waits for it");
    });
    match ended.recv_timeout(2 * patience()) {
        Ok(()) => thread.join().expect("the test has finished"),
        Err(RecvTimeoutError::Timeout) => {
            panic!("the test is deadlocked")
        }
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("the test panicked"))
        }
    }
}
