//! Single flight: one load of one key, and the callers that wait for its result.
//!
//! 1. At any time at most one caller is the leader, and only the leader loads. If the leader is cancelled or panics,
//!    the flight is leaderless and one waiter is woken to become the leader. If no caller waits, the next one that
//!    joins becomes it.
//! 2. A write to the key increments the write version and supersedes a load that started before it. The result of a
//!    superseded load is not stored. It is returned only to callers that joined before the write; later ones wait until
//!    it finishes and look the key up again. So no two loads of a key run at the same time, and no caller gets a value
//!    that is older than a write it has seen.
//! 3. The removal of a tag of the value that is loaded again counts as a write, too, even if an eviction or its
//!    deadline has removed that value from memory by then.
//! 4. A background refresh leads a flight without a caller that drives it. If its runtime is not driven, a waiter ends
//!    the flight by [`end_refresh`](Flight::end_refresh). That counts as a write, so the refresh stores nothing later.
//!    A new refresh does not wait for the waiters of a leaderless flight, which may be kept without being polled: it
//!    ends that flight.

use std::{any::Any, mem, pin::pin, sync::Arc};

use tokio::sync::Notify;

use crate::engine::{
    shard::tags::TagSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// One load of one key. Shared by its leader and its followers.
pub(crate) struct Flight<V> {
    /// Number of writes to the key since the flight began. Written under the lock of the key's shard, and compared
    /// under it when a result is stored. A leader reads it without the lock when its load starts. Relaxed is enough
    /// there: if it misses a concurrent write, its result is discarded needlessly, but never stored over that write.
    write_version: AtomicU32,
    /// Tags of the value that was resident when the flight began, live or within its stale window. None of them was
    /// removed then, because the first load starts at version 0.
    tags: Option<TagSet>,
    phase: Mutex<Phase<V>>,
    notify: Notify,
}

enum Phase<V> {
    Running,
    /// The leader is a background refresh.
    Refreshing,
    /// The leader has gone, and no other caller has taken its place yet.
    Leaderless,
    Finished(Arc<LoadResult<V>>),
    /// The flight has ended without a result, because its background refresh makes no progress, or because its waiters
    /// do not take the lead.
    Stalled,
}

/// The result of a load.
pub(crate) struct LoadResult<V> {
    /// Write version when the load started.
    pub(crate) started_at_version: u32,
    /// False if the leader found a live value instead of loading one.
    pub(crate) is_loaded: bool,
    pub(crate) outcome: Outcome<V>,
}

pub(crate) type Outcome<V> = Result<V, Failure>;

/// An error of any loader's error type.
pub(crate) type Failure = Arc<dyn Any + Send + Sync>;

/// The outcome of waiting for a flight.
pub(crate) enum WaitOutcome<V> {
    /// The waiter is now the leader.
    Leader,
    Finished(Arc<LoadResult<V>>),
    /// The flight has ended without a result.
    Stalled,
}

impl<V> Flight<V> {
    /// Returns a flight whose creator is the leader, for a key whose resident value has these tags.
    pub(crate) fn new(tags: Option<TagSet>) -> Self {
        Self::in_phase(Phase::Running, tags)
    }

    /// Returns a flight that a background refresh leads, for a key whose resident value has these tags.
    pub(crate) fn of_refresh(tags: Option<TagSet>) -> Self {
        Self::in_phase(Phase::Refreshing, tags)
    }

    fn in_phase(phase: Phase<V>, tags: Option<TagSet>) -> Self {
        let (write_version, phase) = (AtomicU32::new(0), Mutex::new(phase));
        Self { write_version, tags, phase, notify: Notify::new() }
    }

    /// Counts a write to the key. Called under the lock of its shard, so a load and a store suffice.
    pub(crate) fn bump_write_version(&self) {
        self.write_version.store(self.write_version.load(Relaxed) + 1, Relaxed);
    }

    /// Returns the number of writes and of removed tags. Tags are removed without a look at the entries or flights that
    /// have them, so they are counted here.
    pub(crate) fn write_version(&self) -> u32 {
        let tags = self.tags.iter().flat_map(|tags| tags.iter());
        let removed_tags = tags.filter(|tag| tag.is_removed()).count();
        self.write_version.load(Relaxed) + removed_tags as u32
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(*self.phase(), Phase::Finished(_) | Phase::Stalled)
    }

    /// Returns whether a background refresh leads the flight.
    pub(crate) fn is_refreshing(&self) -> bool {
        matches!(*self.phase(), Phase::Refreshing)
    }

    /// Ends a flight that a background refresh leads, and returns true; does nothing if it has another leader by now.
    /// Called under the lock of the key's shard; after the unlock, the caller wakes the waiters.
    pub(crate) fn end_refresh(&self) -> bool {
        let mut phase = self.phase();
        let is_refreshing = matches!(*phase, Phase::Refreshing);
        if is_refreshing {
            self.bump_write_version();
            *phase = Phase::Stalled;
        }
        is_refreshing
    }

    /// Ends a flight without a leader, and returns true; does nothing if it has one. Called under the lock of the key's
    /// shard. Its waiters were woken when it lost its leader.
    pub(crate) fn end_leaderless(&self) -> bool {
        let mut phase = self.phase();
        let is_leaderless = matches!(*phase, Phase::Leaderless);
        if is_leaderless {
            *phase = Phase::Stalled;
        }
        is_leaderless
    }

    pub(crate) fn wake_waiters(&self) {
        self.notify.notify_waiters();
    }

    /// Makes the flight leaderless, because its leader was cancelled or panicked, and wakes all waiters. The first one
    /// that is polled leads: a single one could be a future that is kept without being polled.
    pub(crate) fn abandon(&self) {
        let mut phase = self.phase();
        if let Phase::Stalled = *phase {
            return;
        }
        *phase = Phase::Leaderless;
        drop(phase);
        self.notify.notify_waiters();
    }

    /// Sets the result and wakes all waiters.
    pub(crate) fn finish(&self, result: LoadResult<V>) {
        let finished = Phase::Finished(Arc::new(result));
        let mut phase = self.phase();
        if let Phase::Stalled = *phase {
            drop(phase);
            return;
        }
        let before = mem::replace(&mut *phase, finished);
        drop(phase);
        debug_assert!(
            matches!(before, Phase::Running | Phase::Refreshing),
            "only the leader finishes a flight"
        );
        self.notify.notify_waiters();
    }

    /// Waits until the flight finishes or this waiter becomes its leader.
    ///
    /// Cancel safe: a waiter that is dropped has not changed the flight.
    pub(crate) async fn wait(&self) -> WaitOutcome<V> {
        loop {
            // Registered before the phase is checked, so that no change after the check is missed.
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            if let Some(outcome) = self.check_phase() {
                return outcome;
            }
            notified.await;
        }
    }

    /// Returns the result, or takes the lead of a leaderless flight. `None` while a leader is loading.
    fn check_phase(&self) -> Option<WaitOutcome<V>> {
        let mut phase = self.phase();
        match &*phase {
            Phase::Running | Phase::Refreshing => None,
            Phase::Stalled => Some(WaitOutcome::Stalled),
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
