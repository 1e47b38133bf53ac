//! Isolation of panics in user code: values are dropped one by one, so that a panic in one drop affects no other value.

use std::{
    any::Any,
    future::poll_fn,
    mem::needs_drop,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    thread,
};

/// Drops each of `items`; returns how many of these drops panicked.
pub(crate) fn drop_all<T>(items: impl IntoIterator<Item = T>) -> usize {
    if !needs_drop::<T>() {
        return 0;
    }
    // A loop, since it is compiled for many types, and an iterator's adapters with it.
    let mut panicked = 0;
    for item in items {
        panicked += usize::from(!drop_one(item));
    }
    panicked
}

/// Awaits `future`; returns `Err` if it panicked.
pub(crate) async fn caught<F: Future>(future: F) -> thread::Result<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        // Completed, so a future that panicked is not polled again.
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Resumes the panic of a task. Returns if the task was cancelled instead.
#[cfg(any(feature = "redis", all(feature = "dirq", unix)))]
pub(crate) fn resume_panic_of(ended: tokio::task::JoinError) {
    if let Ok(panic) = ended.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

/// Returns the message of a panic, if it has one.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Drops `item`; returns whether its drop did not panic.
fn drop_one<T>(item: T) -> bool {
    // `AssertUnwindSafe`: no code uses the item after a panic.
    catch_unwind(AssertUnwindSafe(|| drop(item))).is_ok()
}
