//! What is locked ahead of who asks for it, and given back when nobody asks for long.

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

/// Elements that are locked ahead, in order. Those that nobody asks for are given back when they are [`MAX_AGE`], whether
/// anybody asks again or not.
///
/// [`MAX_AGE`]: Self::MAX_AGE
pub(super) struct PrefetchBuffer<T: Send + 'static>(Arc<Mutex<State<T>>>);

struct State<T: Send + 'static> {
    locks: VecDeque<Result<Lock<T>, Error>>,
    filled_at: Instant,
    /// The task that gives them back when they are stale.
    release_task: Option<JoinHandle<()>>,
    /// Tells of those that were given back, when they are.
    released: Option<oneshot::Receiver<Vec<(DirId, Name)>>>,
}

impl<T: Send + 'static> PrefetchBuffer<T> {
    /// Who waited longer is given back, and asked for anew.
    const MAX_AGE: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Self {
        let filled_at = Instant::now();
        let state = State { locks: VecDeque::new(), filled_at, release_task: None, released: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The next, unless it is stale.
    pub(super) fn pop(&self) -> Option<Result<Lock<T>, Error>> {
        let mut state = lock(&self.0);
        let is_fresh = state.filled_at.elapsed() < Self::MAX_AGE;
        is_fresh.then(|| state.locks.pop_front()).flatten()
    }

    /// Whether nothing is still to come.
    pub(super) fn is_empty(&self) -> bool {
        let state = lock(&self.0);
        state.locks.is_empty() && state.released.is_none()
    }

    /// Takes all out: what was given back, by its queue and name, and behind that what is stale.
    pub(super) async fn take_all(&self) -> (Vec<(DirId, Name)>, VecDeque<Result<Lock<T>, Error>>) {
        let (released, locks) = {
            let mut state = lock(&self.0);
            (state.released.take(), mem::take(&mut state.locks))
        };
        let names = match released {
            // None come where the runtime shuts down.
            Some(names) => names.await.unwrap_or_default(),
            None => Vec::new(),
        };
        (names, locks)
    }

    /// Puts some in where there are none. Where they may be many, those that nobody asks for are given back in time.
    ///
    /// # Panics
    ///
    /// On a runtime without time, where they may be many.
    pub(super) fn fill(&self, locks: VecDeque<Result<Lock<T>, Error>>, may_be_many: bool) {
        let filled_at = Instant::now();
        // Made for one as well, so that it panics at the first or never.
        let sleep = may_be_many.then(|| sleep_until(filled_at + Self::MAX_AGE));
        // The first is asked for now.
        let sleep = sleep.filter(|_| locks.len() > 1);
        let has_release_task = {
            let mut state = lock(&self.0);
            (state.locks, state.filled_at) = (locks, filled_at);
            // Its runtime may have ended, and the stream gone to another.
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

/// Gives back what nobody asks for, and ends when nothing is locked ahead any more.
async fn release_stale<T: Send + 'static>(
    state: Weak<Mutex<State<T>>>,
    mut sleep: Pin<Box<Sleep>>,
) {
    loop {
        sleep.as_mut().await;
        // Who drops the stream has dropped what is in it.
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
        // A task may not wait for the disk. Who asks meanwhile waits for the names.
        spawn_blocking(move || {
            let names = locks.iter().flatten().map(Lock::queue_and_name).collect();
            drop(locks);
            let _ = sender.send(names);
        });
        return;
    }
}

fn lock<T: Send + 'static>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // No step leaves it wrong.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
