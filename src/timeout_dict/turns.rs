//! Turns of the waiters of a timeout dictionary: one of them examines the entries, and the others queue behind it.
//!
//! 1. The waiter whose turn it is holds a permit. Tokio's semaphore is FIFO and forgets cancelled waiters.
//! 2. A waiter that is neither polled nor dropped would keep its turn forever. So while others queue, a task watches:
//!    if an entry is due and no waiter looks at it in time, it adds a permit, and the next waiter has the turn
//!    (`current`), too.
//! 3. A waiter that has lost its turn like this still gets entries when it is polled again, but does not return its
//!    permit.

use std::sync::{
    Arc, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::engine::sync::{Mutex, MutexGuard};

pub(super) struct Turns {
    pub(super) permits: Semaphore,
    state: Mutex<TurnState>,
    /// Number of times that a waiter has examined the entries.
    pub(super) looks: AtomicU64,
    /// Wakes the waiters whose turn it is: normally one.
    pub(super) wake_waiters: Notify,
    /// Wakes the task that watches the turns.
    pub(super) wake_watch: Notify,
}

#[derive(Default)]
pub(super) struct TurnState {
    /// Waiter whose turn it is.
    current: Option<u64>,
    last_id: u64,
    /// Number of waiters in the queue.
    pub(super) queued: usize,
    pub(super) is_watched: bool,
}

/// Right to examine the entries; ended by its drop.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    id: u64,
    permit: Option<SemaphorePermit<'a>>,
}

/// Place of a waiter in the queue.
pub(super) struct Queued<'a>(pub(super) &'a Turns);

/// The task that watches the turns, also if its runtime drops it.
pub(super) struct WatchTask {
    pub(super) turns: Arc<Turns>,
    pub(super) has_ended: bool,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            permits: Semaphore::new(1),
            state: Mutex::new(TurnState::default()),
            looks: AtomicU64::new(0),
            wake_waiters: Notify::new(),
            wake_watch: Notify::new(),
        }
    }

    pub(super) fn count_look(&self) {
        self.looks.fetch_add(1, Relaxed);
    }

    pub(super) fn begin<'a>(&'a self, permit: SemaphorePermit<'a>) -> Turn<'a> {
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        state.current.get_or_insert(id);
        Turn { turns: self, id, permit: Some(permit) }
    }

    /// Gives the turn to the next waiter, in addition to one that does not use it.
    pub(super) fn pass_on(&self) {
        if self.permits.available_permits() > 0 {
            // All waiters of the queue have a permit already.
            return;
        }
        self.state().current = None;
        self.permits.add_permits(1);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        if state.current == Some(self.id) {
            // Before the permit is returned, as its next holder becomes the current one.
            state.current = None;
        } else if let Some(permit) = self.permit.take() {
            // `pass_on` has replaced it.
            permit.forget();
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.state().queued -= 1;
    }
}

impl WatchTask {
    /// Returns whether no waiter is queued, and then ends the watch.
    pub(super) fn ends(&mut self) -> bool {
        let mut state = self.turns.state();
        // Under the lock under which a waiter is queued, so that it starts the next watch.
        state.is_watched = state.queued > 0;
        self.has_ended = !state.is_watched;
        self.has_ended
    }
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        // Otherwise another watch may have started.
        if !self.has_ended {
            self.turns.state().is_watched = false;
        }
    }
}
