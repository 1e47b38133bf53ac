//! Work that is done once for all who wait for it, by a task of its own: nobody's drop ends it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, future::Shared};
use tokio::{sync::oneshot, time::Instant};

/// Beyond the time that work takes at most, as its task may be late.
const LATE: Duration = Duration::from_millis(100);

/// At most one piece of work at a time.
pub(super) struct Joint<T: Clone> {
    slot: Slot<T>,
    /// What takes longer is on a runtime that nobody drives, and is begun anew by who comes then.
    longest: Duration,
}

type Slot<T> = Arc<Mutex<Option<UnderWay<T>>>>;

struct UnderWay<T: Clone> {
    outcome: Outcome<T>,
    begun: Instant,
}

/// An error where the task's runtime is gone.
pub(super) type Outcome<T> = Shared<oneshot::Receiver<T>>;

/// Empties the slot, whether the task ends or is dropped with its runtime.
struct End<T: Clone> {
    slot: Slot<T>,
    /// That of this task: another may have taken its place.
    outcome: Outcome<T>,
}

impl<T: Clone + Send + Sync + 'static> Joint<T> {
    /// For work that ends within `longest`.
    pub(super) fn new(longest: Duration) -> Self {
        Self { slot: Arc::default(), longest: longest.saturating_add(LATE) }
    }

    /// Joins the work that is under way; where none is, begins this.
    pub(super) fn join<F>(&self, work: impl FnOnce() -> F) -> Outcome<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(UnderWay { outcome, begun }) = &*slot
            && begun.elapsed() < self.longest
        {
            return outcome.clone();
        }
        let (tell, outcome) = oneshot::channel();
        let outcome = outcome.shared();
        let old = slot.replace(UnderWay { outcome: outcome.clone(), begun: Instant::now() });
        drop(slot);
        // As in `End`.
        drop(old);
        let end = End { slot: self.slot.clone(), outcome: outcome.clone() };
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
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = slot.take_if(|under_way| under_way.outcome.ptr_eq(&self.outcome));
        drop(slot);
        // It may hold the wakers of who waits, which are dropped outside the lock.
        drop(ended);
    }
}
