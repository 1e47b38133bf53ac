//! What a task is in the middle of, so that it never waits for itself.

use std::{cell::RefCell, future::poll_fn, pin::pin, sync::Arc};

thread_local! {
    /// The addresses of what the present poll is within, the innermost last.
    static ACTIVE_SCOPES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Being within something, until it is dropped.
pub(crate) struct ReentrancyScope;

impl ReentrancyScope {
    /// Awaits `future` as a part of `what`.
    pub(crate) async fn run<T, F: Future>(what: &Arc<T>, future: F) -> F::Output {
        let id = Arc::as_ptr(what).addr();
        let mut future = pin!(future);
        poll_fn(move |cx| {
            ACTIVE_SCOPES.with_borrow_mut(|within| within.push(id));
            let _leaves = ReentrancyScope;
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Whether what is polled is a part of `what`.
    pub(crate) fn is<T>(what: &Arc<T>) -> bool {
        let id = Arc::as_ptr(what).addr();
        ACTIVE_SCOPES.with_borrow(|within| within.contains(&id))
    }
}

impl Drop for ReentrancyScope {
    fn drop(&mut self) {
        ACTIVE_SCOPES.with_borrow_mut(|within| within.pop());
    }
}
