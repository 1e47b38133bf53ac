//! The buffer of prefetched locks, which are released if they are not requested soon.
//!
//! The thread that acquires locks puts them into the buffer itself. A future of `next` that was polled once and dropped
//! would otherwise keep them, in a result that no caller receives.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, Sleep, sleep},
};

use super::{Error, Lock, Name, mutex::lock};

/// Prefetched locks, in order. Locks that are not requested within [`MAX_AGE`] are released, even if the stream is not
/// polled.
///
/// [`MAX_AGE`]: Self::MAX_AGE
pub(super) struct PrefetchBuffer<T: Send + 'static>(Arc<Mutex<State<T>>>);

struct State<T: Send + 'static> {
    locks: VecDeque<Result<Lock<T>, Error>>,
    /// Time from which the locks are stale.
    expires_at: Instant,
    /// Time from which the locks are released, if they were not requested.
    released_at: Instant,
    /// The task that releases stale locks.
    release_task: Option<JoinHandle<()>>,
    /// Receives the elements that were released.
    released: Option<oneshot::Receiver<Vec<Name>>>,
}

impl<T: Send + 'static> PrefetchBuffer<T> {
    /// Since before the first lock was acquired. Older locks may be lost, because a purge may have removed them. Not
    /// more than the shortest `max_lock`.
    const MAX_AGE: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(State {
            locks: VecDeque::new(),
            expires_at: now,
            released_at: now,
            release_task: None,
            released: None,
        })))
    }

    /// Returns the next lock, unless it is stale.
    pub(super) fn pop(&self) -> Option<Result<Lock<T>, Error>> {
        let mut state = lock(&self.0);
        let is_fresh = Instant::now() < state.expires_at;
        is_fresh.then(|| state.locks.pop_front()).flatten()
    }

    /// Returns the number of the next element, unless it is stale; 0 for an error.
    pub(super) fn peek(&self) -> Option<u64> {
        let state = lock(&self.0);
        let next = state.locks.front().filter(|_| Instant::now() < state.expires_at);
        next.map(|next| next.as_ref().map_or(0, |lock| lock.name().element))
    }

    /// Returns whether no further elements are expected from the buffer.
    pub(super) fn is_empty(&self) -> bool {
        let state = lock(&self.0);
        state.locks.is_empty() && state.released.is_none()
    }

    /// Empties the buffer: returns the released elements, and the stale locks, which come after them.
    pub(super) async fn take_all(&self) -> (Vec<Name>, VecDeque<Result<Lock<T>, Error>>) {
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

    /// Returns a handle that fills the buffer on another thread. If `releases_stale`, locks that become stale are
    /// released, by a task of the current runtime.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver, if `releases_stale`.
    pub(super) fn filler(&self, releases_stale: bool) -> Filler<T> {
        // Created even if it will not be needed, so that a missing time driver causes a panic at the first call or
        // never.
        let release = releases_stale.then(|| (Handle::current(), Box::pin(sleep(Self::MAX_AGE))));
        Filler { state: self.0.clone(), release }
    }
}

/// Fills the buffer once, on any thread.
pub(super) struct Filler<T: Send + 'static> {
    state: Arc<Mutex<State<T>>>,
    /// The runtime and the timer of the task that releases stale locks.
    release: Option<(Handle, Pin<Box<Sleep>>)>,
}

impl<T: Send + 'static> Filler<T> {
    /// Fills the buffer, which must be empty, with `locks`. The first of them was requested at `locked_at`.
    pub(super) fn fill(self, locks: VecDeque<Result<Lock<T>, Error>>, locked_at: Instant) {
        let max_age = PrefetchBuffer::<T>::MAX_AGE;
        // Later, so that the stream can check the lock of the element that a slow disk was asked for.
        let (expires_at, released_at) = (locked_at + max_age, Instant::now() + max_age);
        let is_held = locks.iter().any(Result::is_ok);
        let has_release_task = {
            let mut state = lock(&self.state);
            (state.locks, state.expires_at, state.released_at) = (locks, expires_at, released_at);
            // The task ends with its runtime, while the stream may have moved to another.
            state.release_task.as_ref().is_some_and(|release_task| !release_task.is_finished())
        };
        // A single lock needs the task too: the caller that requested it may be gone.
        if let Some((runtime, mut sleep)) = self.release
            && is_held
            && !has_release_task
        {
            sleep.as_mut().reset(released_at);
            let release_task = runtime.spawn(release_stale(Arc::downgrade(&self.state), sleep));
            lock(&self.state).release_task = Some(release_task);
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
        let released_at = state.released_at;
        if !state.locks.is_empty() && Instant::now() < released_at {
            drop(state);
            sleep.as_mut().reset(released_at);
            continue;
        }
        state.release_task = None;
        let stale = mem::take(&mut state.locks);
        let (locks, errors): (VecDeque<_>, _) = stale.into_iter().partition(Result::is_ok);
        state.locks = errors;
        if locks.is_empty() {
            return;
        }
        let (sender, released) = oneshot::channel();
        state.released = Some(released);
        drop(state);
        let names = locks.iter().flatten().map(|lock| *lock.name()).collect();
        // They are unlocked before the stream locks them again, because its call comes later.
        drop(locks);
        // Fails if the stream was dropped, which needs no names.
        let _ = sender.send(names);
        return;
    }
}
