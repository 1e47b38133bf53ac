//! What stays in memory, counted by the allocator.

use std::{
    alloc::System,
    cell::RefCell,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use cap::Cap;

mod cache;
mod rate_limit;
mod sets;
#[cfg(feature = "serde")]
mod snapshot;

/// Counts what the whole process has.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// Dropped when the thread ends, and so after the test has been reported, for which memory is needed too.
    static MINE: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Waits until no other test runs.
fn take_turns() {
    MINE.take();
    // One that failed leaves the others their turn.
    MINE.set(Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)));
    // The one before is over, and the harness still writes of it.
    let (mut quiet, mut before) = (0, MEMORY.allocated());
    while quiet < 20 {
        thread::sleep(Duration::from_millis(1));
        let now = MEMORY.allocated();
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
    }
}

/// Runs it by a paused clock.
fn alone(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime").block_on(test);
}

/// Bytes since `before`.
fn grown(before: usize) -> usize {
    MEMORY.allocated().saturating_sub(before)
}
