//! Code of a user that panics at one of its calls, whichever a test wants.

use std::cell::Cell;

thread_local! {
    /// Calls of [`burn`] on this thread until one panics; 0 for never.
    pub(crate) static FUSE: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn burn() {
    let calls = FUSE.get();
    FUSE.set(calls.saturating_sub(1));
    assert!(calls != 1, "the panic of this test");
}
