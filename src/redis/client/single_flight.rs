//! Single flight: work that runs once for all callers that wait for it.
//!
//! The work runs in a task of its own, so it continues if a caller is cancelled.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, future::Shared};
use tokio::{sync::oneshot, time::Instant};

/// Allowance for a task that is scheduled late, added to the maximum duration of the work.
const GRACE: Duration = Duration::from_millis(100);

/// Runs at most one piece of work at a time.
pub(super) struct SingleFlight<T: Clone> {
    slot: FlightSlot<T>,
    /// Work older than this is assumed stuck on a stopped runtime; the next caller restarts it.
    max_duration: Duration,
}

type FlightSlot<T> = Arc<Mutex<Option<SharedCall<T>>>>;

struct SharedCall<T: Clone> {
    outcome: SharedResult<T>,
    started_at: Instant,
}

/// Result of the work; an error if the runtime of its task was shut down.
pub(super) type SharedResult<T> = Shared<oneshot::Receiver<T>>;

/// Clears the slot when the task ends or is dropped with its runtime.
struct ClearSlotOnDrop<T: Clone> {
    slot: FlightSlot<T>,
    /// Result of this task: the slot may already hold that of a successor.
    outcome: SharedResult<T>,
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Creates a single flight for work that takes at most `max_duration`.
    pub(super) fn new(max_duration: Duration) -> Self {
        Self { slot: Arc::default(), max_duration: max_duration.saturating_add(GRACE) }
    }

    /// Returns whether work is in flight.
    pub(super) fn is_running(&self) -> bool {
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().is_some_and(|work| work.started_at.elapsed() < self.max_duration)
    }

    /// Joins the work in flight, or starts `work` if there is none.
    pub(super) fn join<F>(&self, work: impl FnOnce() -> F) -> SharedResult<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(SharedCall { outcome, started_at }) = &*slot
            && started_at.elapsed() < self.max_duration
        {
            return outcome.clone();
        }
        let (sender, outcome) = oneshot::channel();
        let outcome = outcome.shared();
        let old = slot.replace(SharedCall { outcome: outcome.clone(), started_at: Instant::now() });
        drop(slot);
        // After unlock, for the reason given in `ClearSlotOnDrop`.
        drop(old);
        let clear = ClearSlotOnDrop { slot: self.slot.clone(), outcome: outcome.clone() };
        let work = work();
        tokio::spawn(async move {
            let value = work.await;
            // Before the value is sent: a caller that cannot use the result must be able to start the next flight.
            drop(clear);
            // Fails if all callers were cancelled.
            let _ = sender.send(value);
        });
        outcome
    }
}

impl<T: Clone> Drop for ClearSlotOnDrop<T> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = slot.take_if(|in_flight| in_flight.outcome.ptr_eq(&self.outcome));
        drop(slot);
        // After unlock: it may hold the wakers of waiters, whose `Drop` is foreign code.
        drop(ended);
    }
}
