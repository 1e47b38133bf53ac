//! The task that lets members die where nobody calls. It sleeps until the next death, and holds nothing of
//! the sets while it sleeps or yields, so that it ends with the last handle.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::{
    builder::Options,
    shard::{Shard, SweepProgress},
    state::{SharedState, StateOf},
};
use crate::engine::event::Publisher;

enum Step {
    /// Yield to the runtime, then go on.
    Yield,
    /// A lossless subscriber has no room.
    HeldBack,
    Done,
}

/// Makes the state of some shards, and starts its sweeper on the current Tokio runtime.
///
/// # Panics
///
/// Outside of a Tokio runtime, and on one without a time driver.
pub(super) fn start<S: Shard>(
    options: Options,
    shards: impl Iterator<Item = S>,
) -> Arc<StateOf<S>> {
    let runtime = Handle::try_current().unwrap_or_else(|_| {
        panic!(
            "{:?} must be built inside of a Tokio runtime, on which its sweeper runs: \
             in `#[tokio::main]`, `#[tokio::test]`, a task, or under `Handle::enter`",
            options.name
        )
    });
    // Made here, so that a runtime without time panics here and not in the task.
    drop(sleep(Duration::ZERO));
    let every = options.sweep_every;
    let state = Arc::new(SharedState::new(options, shards));
    let sweeper =
        run(Arc::downgrade(&state), state.publisher.clone(), state.alarm().clone(), every);
    state.keep_task(runtime.spawn(sweeper));
    state
}

/// The task: sleeps until the next death, but sweeps no more often than `every`.
async fn run<S: Shard>(
    state: Weak<StateOf<S>>,
    publisher: Arc<Publisher<S::Key, S::Value>>,
    alarm: Arc<Notify>,
    every: Duration,
) {
    let mut earliest = Instant::now();
    loop {
        let Some(next) = state.upgrade().map(|state| state.next_death()) else { return };
        let Some(death) = next else {
            alarm.notified().await;
            continue;
        };
        // An alarm that rang since `next_death` has left a permit, and ends the wait at once.
        if timeout_at(death.max(earliest), alarm.notified()).await.is_ok() {
            continue;
        }
        let mut shard = 0;
        loop {
            let Some(step) = state.upgrade().map(|state| sweep(&state, &mut shard)) else { return };
            match step {
                Step::Yield => tokio::task::yield_now().await,
                Step::HeldBack => publisher.wait_for_room().await,
                Step::Done => break,
            }
        }
        earliest = Instant::now().checked_add(every).unwrap_or(earliest);
    }
}

/// Lets a batch of what is dead leave, from a shard on. What panics in user code is logged, and that shard
/// waits for the next sweep.
fn sweep<S: Shard>(state: &StateOf<S>, from: &mut usize) -> Step {
    while *from < state.shard_count() {
        let room = state.publisher.room();
        let sweep = || state.change_and_drop(*from, |shard, change| shard.sweep(room, change));
        let Ok((progress, panicked)) = catch_unwind(AssertUnwindSafe(sweep)) else {
            tracing::error!(set = state.name(), "a sweep panicked; the next one goes on");
            *from += 1;
            return Step::Yield;
        };
        if panicked > 0 {
            tracing::error!(set = state.name(), panicked, "the Drop of expired members panicked");
        }
        match progress {
            SweepProgress::Done => *from += 1,
            SweepProgress::More => return Step::Yield,
            SweepProgress::HeldBack => return Step::HeldBack,
        }
    }
    Step::Done
}
