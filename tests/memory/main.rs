//! Memory use, measured by a counting allocator.

use std::{
    alloc::System,
    cell::RefCell,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use cap::Cap;

mod cache;
#[cfg(all(feature = "dirq", unix))]
mod dirq;
mod rate_limit;
mod sets;
#[cfg(feature = "serde")]
mod snapshot;

/// Counts the memory of the whole process.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// Dropped when the thread ends, and so after the test has been reported, which allocates memory, too.
    static HELD_TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Waits until no other test runs, and holds its turn until the thread ends.
fn wait_for_turn() {
    HELD_TURN.take();
    // A failed test has poisoned the mutex; the others still get their turn.
    HELD_TURN.set(Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)));
    // The previous test has ended, but the harness may still be reporting it: wait until memory is stable.
    let (mut unchanged, mut before) = (0, MEMORY.allocated());
    while unchanged < 20 {
        thread::sleep(Duration::from_millis(1));
        let now = MEMORY.allocated();
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
    }
}

/// Runs the test on a runtime of its own with a paused clock.
fn run_paused(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder
        .enable_time()
        .start_paused(true)
        .build()
        .expect("the runtime can be built")
        .block_on(test);
}

/// Returns the growth of allocated memory since `before`, in bytes.
fn allocated_since(before: usize) -> usize {
    MEMORY.allocated().saturating_sub(before)
}
