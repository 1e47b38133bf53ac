//! One load of one key, and those who wait for it.
//!
//! 1. At any time one of its members leads, and only who leads loads; or nobody does, and the next who looks will.
//!    Who leads and goes has one of the others told.
//! 2. A write to the key overtakes it. What began before that is for those who were there by then, and for nobody
//!    else: it is not kept, and who comes later waits until it is over and asks again. So no two loads of a key run at
//!    a time, and nobody gets what is older than a write that it has seen.

use std::{any::Any, mem, pin::pin, sync::Arc};

use tokio::sync::Notify;

use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering::Relaxed},
};

pub(crate) struct Flight<V> {
    /// How many writes there were to the key; written under the lock of those who join.
    write_version: AtomicU32,
    phase: Mutex<Phase<V>>,
    notify: Notify,
}

enum Phase<V> {
    Running,
    /// Who led has gone, and nobody has taken its place yet.
    Leaderless,
    Finished(Arc<LoadResult<V>>),
}

/// How a load ended.
pub(crate) struct LoadResult<V> {
    /// How many writes to the key there had been when it began.
    pub(crate) started_at_version: u32,
    pub(crate) outcome: Outcome<V>,
}

pub(crate) type Outcome<V> = Result<V, Failure>;

/// An error, of whichever type its loader has.
pub(crate) type Failure = Arc<dyn Any + Send + Sync>;

/// What comes of waiting.
pub(crate) enum WaitOutcome<V> {
    /// Who waited leads from now on.
    Leader,
    Finished(Arc<LoadResult<V>>),
}

impl<V> Flight<V> {
    /// Its maker leads.
    pub(crate) fn new() -> Self {
        Self {
            write_version: AtomicU32::new(0),
            phase: Mutex::new(Phase::Running),
            notify: Notify::new(),
        }
    }

    pub(crate) fn bump_write_version(&self) {
        self.write_version.store(self.write_version() + 1, Relaxed);
    }

    pub(crate) fn write_version(&self) -> u32 {
        self.write_version.load(Relaxed)
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(*self.phase(), Phase::Finished(_))
    }

    /// Who led goes, with nothing done.
    pub(crate) fn abandon(&self) {
        *self.phase() = Phase::Leaderless;
        self.notify.notify_one();
    }

    /// Who led is done.
    pub(crate) fn finish(&self, result: LoadResult<V>) {
        let finished = Phase::Finished(Arc::new(result));
        let before = mem::replace(&mut *self.phase(), finished);
        debug_assert!(matches!(before, Phase::Running), "only who leads lands");
        self.notify.notify_waiters();
    }

    /// Waits until it is over, or there is nobody who leads.
    ///
    /// Cancel safe: who was told and goes has another told.
    pub(crate) async fn wait(&self) -> WaitOutcome<V> {
        loop {
            // Before the look: who then lands or gives up tells us.
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            if let Some(outcome) = self.check_phase() {
                return outcome;
            }
            notified.await;
        }
    }

    fn check_phase(&self) -> Option<WaitOutcome<V>> {
        let mut phase = self.phase();
        match &*phase {
            Phase::Running => None,
            Phase::Finished(result) => Some(WaitOutcome::Finished(result.clone())),
            Phase::Leaderless => {
                *phase = Phase::Running;
                Some(WaitOutcome::Leader)
            }
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase<V>> {
        self.phase.lock().expect("no user code runs under this lock")
    }
}
