//! Detection of calls from inside a loader or a `compute_with` closure, which would otherwise wait for themselves.

use std::{cell::RefCell, future::poll_fn, pin::Pin, sync::Arc};

thread_local! {
    /// Identities of the flights and turns whose user future is being polled on this thread, the innermost last.
    ///
    /// An identity is the address of an `Arc`. It stays unique because the callers of `run` and `is` hold that `Arc`.
    static ACTIVE_SCOPES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Guard of one poll inside of this number of flights or turns; dropping it removes the innermost scopes, even if the
/// poll panics.
pub(crate) struct ReentrancyScope(usize);

impl ReentrancyScope {
    /// Runs `future` as a part of `owner`, a flight or a turn. The caller pins it, because each function that takes it
    /// by value would add its size to the future of the call.
    pub(crate) fn run<'a, T, F: Future>(
        owner: &'a Arc<T>,
        future: Pin<&'a mut F>,
    ) -> impl Future<Output = F::Output> {
        Self::run_all([owner], future)
    }

    /// Runs `future` as a part of each of `owners`.
    pub(crate) fn run_all<'a, T: 'a, F: Future>(
        owners: impl AsRef<[&'a Arc<T>]>,
        mut future: Pin<&'a mut F>,
    ) -> impl Future<Output = F::Output> {
        poll_fn(move |cx| {
            let owners = owners.as_ref();
            let ids = owners.iter().map(|owner| Arc::as_ptr(owner).addr());
            ACTIVE_SCOPES.with_borrow_mut(|scopes| scopes.extend(ids));
            let _scope = ReentrancyScope(owners.len());
            future.as_mut().poll(cx)
        })
    }

    /// Returns whether the current poll is a part of `owner`.
    pub(crate) fn is<T>(owner: &Arc<T>) -> bool {
        let id = Arc::as_ptr(owner).addr();
        ACTIVE_SCOPES.with_borrow(|scopes| scopes.contains(&id))
    }
}

impl Drop for ReentrancyScope {
    fn drop(&mut self) {
        ACTIVE_SCOPES.with_borrow_mut(|scopes| scopes.truncate(scopes.len() - self.0));
    }
}
