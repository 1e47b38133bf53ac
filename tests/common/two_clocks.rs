//! Runtimes with a paused and with a real clock, and a counter of polls of a waiting future.

// Each test binary compiles its own copy of this module and uses only a part of it.
#![allow(dead_code)]

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::runtime::{Builder, Runtime};

/// Returns a runtime with a paused clock, which advances only when all tasks wait for a timer.
pub(crate) fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Returns a runtime with the real clock.
pub(crate) fn real() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

/// Awaits `future` and counts its polls.
pub(crate) async fn counted<F: Future>(polls: &AtomicUsize, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.fetch_add(1, Relaxed);
        future.as_mut().poll(cx)
    })
    .await
}

/// Asserts that a future that waited for half a second has slept in between. A loop without a pause would be polled a
/// thousand times, because Tokio makes it yield after every 128 sleeps.
pub(crate) fn assert_waited(polls: &AtomicUsize) {
    let polls = polls.load(Relaxed);
    assert!(polls < 200, "polled {polls} times in half a second");
}
