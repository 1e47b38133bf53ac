//! Stand-in for user code that panics at the call chosen by a test.

use std::cell::Cell;

thread_local! {
    /// Number of calls of [`burn`] on this thread until one panics; 0 for never.
    pub(crate) static FUSE: Cell<u32> = const { Cell::new(0) };
}

/// Counts a call, and panics if it is the chosen one.
pub(crate) fn burn() {
    let calls = FUSE.get();
    FUSE.set(calls.saturating_sub(1));
    assert!(calls != 1, "the panic of this test");
}
