//! User types that misbehave, or are unusual: nothing waits for itself, and nothing is lost but what panicked.

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

mod panics;
mod reentrant;
mod unusual;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(300);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

fn so_far<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

/// Runs `test` on a thread of its own, with a paused clock, and fails where it gets stuck.
fn watched<Test, Running>(test: Test)
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
        done.send(()).expect("the watchdog waits longer than this");
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(()) => thread.join().expect("it is done"),
        Err(RecvTimeoutError::Timeout) => {
            panic!("still running after {PATIENCE:?}: something waits for itself")
        }
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it ended early"))
        }
    }
}
