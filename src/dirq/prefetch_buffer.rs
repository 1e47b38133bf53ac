//! The buffer of prefetched locks, which are released if they are not requested soon.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, Sleep, sleep_until},
};

use super::{Error, Lock, Name, root::DirId};

/// Prefetched locks, in order. Locks that are not requested within [`MAX_AGE`] are released, even if the stream is not
/// polled.
///
/// [`MAX_AGE`]: Self::MAX_AGE
pub(super) struct PrefetchBuffer<T: Send + 'static>(Arc<Mutex<State<T>>>);

struct State<T: Send + 'static> {
    locks: VecDeque<Result<Lock<T>, Error>>,
    filled_at: Instant,
    /// The task that releases stale locks.
    release_task: Option<JoinHandle<()>>,
    /// Receives the elements that were released.
    released: Option<oneshot::Receiver<Vec<(DirId, Name)>>>,
}

impl<T: Send + 'static> PrefetchBuffer<T> {
    /// Older locks are released and their elements locked again when they are requested. Short compared with
    /// `max_lock`.
    const MAX_AGE: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Self {
        let filled_at = Instant::now();
        let state = State { locks: VecDeque::new(), filled_at, release_task: None, released: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns the next lock, unless it is stale.
    pub(super) fn pop(&self) -> Option<Result<Lock<T>, Error>> {
        let mut state = lock(&self.0);
        let is_fresh = state.filled_at.elapsed() < Self::MAX_AGE;
        is_fresh.then(|| state.locks.pop_front()).flatten()
    }

    /// Returns whether no further elements are expected from the buffer.
    pub(super) fn is_empty(&self) -> bool {
        let state = lock(&self.0);
        state.locks.is_empty() && state.released.is_none()
    }

    /// Empties the buffer: returns the released elements, by queue and name, and the stale locks, which come after
    /// them.
    pub(super) async fn take_all(&self) -> (Vec<(DirId, Name)>, VecDeque<Result<Lock<T>, Error>>) {
        let (released, locks) = {
            let mut state = lock(&self.0);
            (state.released.take(), mem::take(&mut state.locks))
        };
        let names = match released {
            // The sender was dropped because the runtime is shutting down.
            Some(names) => names.await.unwrap_or_default(),
            None => Vec::new(),
        };
        (names, locks)
    }

    /// Fills the buffer, which must be empty. If `may_be_many`, stale locks are released in time.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver, if `may_be_many`.
    pub(super) fn fill(&self, locks: VecDeque<Result<Lock<T>, Error>>, may_be_many: bool) {
        let filled_at = Instant::now();
        // Created even if it is not needed, so that a missing time driver causes a panic at the first call or never.
        let sleep = may_be_many.then(|| sleep_until(filled_at + Self::MAX_AGE));
        // The first lock is returned immediately, so a single one cannot become stale.
        let sleep = sleep.filter(|_| locks.len() > 1);
        let has_release_task = {
            let mut state = lock(&self.0);
            (state.locks, state.filled_at) = (locks, filled_at);
            // The task ends with its runtime, while the stream may have moved to another.
            state.release_task.as_ref().is_some_and(|release_task| !release_task.is_finished())
        };
        if let Some(sleep) = sleep
            && !has_release_task
        {
            let release_task =
                tokio::spawn(release_stale(Arc::downgrade(&self.0), Box::pin(sleep)));
            lock(&self.0).release_task = Some(release_task);
        }
    }
}

/// Releases stale locks. Ends when the buffer is empty.
async fn release_stale<T: Send + 'static>(
    state: Weak<Mutex<State<T>>>,
    mut sleep: Pin<Box<Sleep>>,
) {
    loop {
        sleep.as_mut().await;
        // If the stream is dropped, so are its locks.
        let Some(state) = state.upgrade() else { return };
        let mut state = lock(&state);
        let expires_at = state.filled_at + PrefetchBuffer::<T>::MAX_AGE;
        if !state.locks.is_empty() && Instant::now() < expires_at {
            drop(state);
            sleep.as_mut().reset(expires_at);
            continue;
        }
        state.release_task = None;
        let (locks, errors): (VecDeque<_>, _) =
            mem::take(&mut state.locks).into_iter().partition(Result::is_ok);
        state.locks = errors;
        if locks.is_empty() {
            return;
        }
        let (sender, released) = oneshot::channel();
        state.released = Some(released);
        drop(state);
        // Unlocking may block on the disk. If the stream is polled in the meantime, it waits for the names.
        spawn_blocking(move || {
            let names = locks.iter().flatten().map(Lock::queue_and_name).collect();
            // Unlocked before the names are sent: the stream then locks these elements again.
            drop(locks);
            // Fails if the stream was dropped, which needs no names.
            let _ = sender.send(names);
        });
        return;
    }
}

fn lock<T: Send + 'static>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // The state is consistent at every point where a thread can panic.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
