//! Turns of the waiters of a timeout dictionary: one of them examines the entries, and the others queue behind it.
//!
//! 1. The waiter whose turn it is holds a permit. Tokio's semaphore is FIFO and forgets cancelled waiters.
//! 2. A waiter that is neither polled nor dropped would keep its turn forever. So while others queue, a task watches:
//!    if an entry is due and no waiter looks at it within [`PATIENCE`], it adds a permit, and the next waiter has the
//!    turn (`current`), too.
//! 3. A waiter that has lost its turn like this still gets entries when it is polled again, but does not return its
//!    permit.

use std::{
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, SemaphorePermit},
};

use super::state::SharedState;
use crate::engine::sync::{Mutex, MutexGuard};

/// Time for which a due entry may stay unexamined before the next waiter has the turn.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) struct Turns {
    permits: Semaphore,
    state: Mutex<TurnState>,
    /// Number of times that a waiter has examined the entries.
    looks: AtomicU64,
    /// Wakes the waiters whose turn it is: normally one.
    pub(super) wake_waiters: Notify,
    /// Wakes the task that watches the turns.
    pub(super) wake_watch: Notify,
}

#[derive(Default)]
struct TurnState {
    /// Waiter whose turn it is.
    current: Option<u64>,
    last_id: u64,
    /// Number of waiters in the queue.
    queued: usize,
    is_watched: bool,
}

/// Right to examine the entries; ended by its drop.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    id: u64,
    permit: Option<SemaphorePermit<'a>>,
}

/// Place of a waiter in the queue.
struct Queued<'a>(&'a Turns);

/// The task that watches the turns, also if its runtime drops it.
struct Watch {
    turns: Arc<Turns>,
    has_ended: bool,
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

    fn begin<'a>(&'a self, permit: SemaphorePermit<'a>) -> Turn<'a> {
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        state.current.get_or_insert(id);
        Turn { turns: self, id, permit: Some(permit) }
    }

    /// Gives the turn to the next waiter, in addition to one that does not use it.
    fn pass_on(&self) {
        if self.permits.available_permits() > 0 {
            // All waiters of the queue have a permit already.
            return;
        }
        self.state().current = None;
        self.permits.add_permits(1);
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
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

impl Watch {
    /// Returns whether no waiter is queued, and then ends the watch.
    fn ends(&mut self) -> bool {
        let mut state = self.turns.state();
        // Under the lock under which a waiter is queued, so that it starts the next watch.
        state.is_watched = state.queued > 0;
        self.has_ended = !state.is_watched;
        self.has_ended
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Otherwise another watch may have started.
        if !self.has_ended {
            self.turns.state().is_watched = false;
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> SharedState<K, V> {
    /// Waits for a turn.
    pub(super) async fn turn(self: &Arc<Self>) -> Turn<'_> {
        let turns = &*self.turns;
        if let Ok(permit) = turns.permits.try_acquire() {
            return turns.begin(permit);
        }
        let _queued = self.enqueue();
        let permit = turns.permits.acquire().await.expect("the semaphore is never closed");
        turns.begin(permit)
    }

    fn enqueue(self: &Arc<Self>) -> Queued<'_> {
        let mut state = self.turns.state();
        state.queued += 1;
        // Without a runtime, no waiter can wait for a deadline, either.
        if !state.is_watched
            && let Ok(runtime) = Handle::try_current()
        {
            state.is_watched = true;
            drop(state);
            let watch = Watch { turns: self.turns.clone(), has_ended: false };
            runtime.spawn(watch_turns(Arc::downgrade(self), watch));
        }
        Queued(&self.turns)
    }
}

/// Passes the turn on if a due entry is not examined, until no waiter is queued.
async fn watch_turns<K, V>(shared: Weak<SharedState<K, V>>, mut watch: Watch) {
    let turns = watch.turns.clone();
    let mut looks_when_due = None;
    loop {
        let Some(dict) = shared.upgrade() else { return };
        if watch.ends() {
            return;
        }
        let clock = dict.clock.clone();
        let now = clock.now();
        let due_at = dict.with(|entries| entries.arm_watch_deadline());
        drop(dict);
        if !due_at.is_expired(now) {
            looks_when_due = None;
            clock.timeout_at(due_at, turns.wake_watch.notified()).await;
            continue;
        }
        let looks = turns.looks.load(Relaxed);
        if looks_when_due == Some(looks) {
            turns.pass_on();
        }
        looks_when_due = Some(looks);
        clock.timeout_at(now.after(PATIENCE), std::future::pending::<()>()).await;
    }
}
