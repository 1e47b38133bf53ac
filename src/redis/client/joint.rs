//! Work that is done once for all who wait for it, by a task of its own: nobody's drop ends it.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{FutureExt, future::Shared};
use tokio::sync::oneshot;

/// At most one piece of work at a time.
pub(super) struct Joint<T: Clone>(Slot<T>);

type Slot<T> = Arc<Mutex<Option<Outcome<T>>>>;

/// An error where the task's runtime is gone.
pub(super) type Outcome<T> = Shared<oneshot::Receiver<T>>;

/// Empties the slot, whether the task ends or is dropped with its runtime.
struct End<T: Clone>(Slot<T>);

impl<T: Clone + Send + Sync + 'static> Joint<T> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Joins the work that is under way; where none is, begins this.
    pub(super) fn join<F>(&self, work: impl FnOnce() -> F) -> Outcome<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(under_way) = &*slot {
            return under_way.clone();
        }
        let (tell, outcome) = oneshot::channel();
        let outcome = outcome.shared();
        *slot = Some(outcome.clone());
        drop(slot);
        let end = End(self.0.clone());
        let work = work();
        tokio::spawn(async move {
            let value = work.await;
            // First, so that who is told and finds the outcome wanting begins anew.
            drop(end);
            // Nobody may wait any more.
            let _ = tell.send(value);
        });
        outcome
    }
}

impl<T: Clone> Drop for End<T> {
    fn drop(&mut self) {
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // It may hold the wakers of who waits, which are dropped outside the lock.
        drop(outcome);
    }
}
