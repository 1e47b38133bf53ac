//! Runtimes of which one keeps real time and the other does not, and how often somebody who waits is polled.

// Each test binary compiles this module anew, and uses its share of it.
#![allow(dead_code)]

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::runtime::{Builder, Runtime};

/// Whose clock stands still, but where it has nothing else to do than to wait.
pub(crate) fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

pub(crate) fn real() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

/// Counts how often `future` is polled.
pub(crate) async fn counted<F: Future>(polls: &AtomicUsize, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.fetch_add(1, Relaxed);
        future.as_mut().poll(cx)
    })
    .await
}

/// Who waits for half a second looks at the clock now and then. A loop without a pause would be polled a thousand
/// times, as Tokio makes it yield after each 128 sleeps.
pub(crate) fn assert_waited(polls: &AtomicUsize) {
    let polls = polls.load(Relaxed);
    assert!(polls < 200, "polled {polls} times in half a second");
}
