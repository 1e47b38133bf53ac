//! State shared by all handles and claims: the entries under their lock, and the queue of waiters.

use std::sync::PoisonError;

use rand::{SeedableRng, make_rng, rngs::SmallRng};
use tokio::sync::Notify;

use super::{entries::Entries, retries::Retries};
use crate::engine::{
    clock::{Clock, Tick},
    sync::Mutex,
};

/// State shared by all handles and claims.
pub(super) struct SharedState<K, V> {
    entries: Mutex<Entries<K, V>>,
    pub(super) clock: Clock,
    /// Each waiter holds this lock or queues for it. Tokio's mutex is FIFO and forgets cancelled waiters.
    /// Only its holder sleeps until the first deadline, so that a due entry wakes one task and not all.
    waiter_queue: tokio::sync::Mutex<()>,
    /// Wakes the first waiter if something is due before its wake deadline.
    wake_first_waiter: Notify,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl<K, V> SharedState<K, V> {
    pub(super) fn new(retries: Retries, seed: Option<u64>) -> Self {
        let rng = seed.map_or_else(make_rng, SmallRng::seed_from_u64);
        Self {
            entries: Mutex::new(Entries::new(retries, rng)),
            clock: Clock::new(),
            waiter_queue: tokio::sync::Mutex::new(()),
            wake_first_waiter: Notify::new(),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
        }
    }

    /// Calls `change` under the lock, then wakes the first waiter if requested.
    ///
    /// If `change` panics, the values that it owns are dropped under the lock; so it must only borrow keys
    /// and values of the user.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Entries<K, V>) -> R) -> R {
        // Ignores poisoning: a panic in user code leaves the entries consistent; see the invariants of
        // `entries`.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut entries);
        let wake_requested = entries.take_wake_request();
        drop(entries);
        // After unlock, as the woken task immediately takes this lock.
        if wake_requested {
            self.wake_first_waiter.notify_one();
        }
        changed
    }

    /// Waits for its turn in the queue, then until `take` returns a value.
    pub(super) async fn next<R>(
        &self,
        mut take: impl FnMut(&mut Entries<K, V>, Tick) -> Option<R>,
    ) -> R {
        let _turn = self.waiter_queue.lock().await;
        loop {
            let now = self.clock.now();
            // The attempt and the wake deadline are set under one lock, so that an earlier deadline added
            // after the attempt always notifies.
            let taken =
                self.with(|entries| take(entries, now).ok_or_else(|| entries.arm_wake_deadline()));
            let wake_at = match taken {
                Ok(taken) => return taken,
                Err(wake_at) => wake_at,
            };
            // A notification sent since the attempt is stored as a permit and ends the wait immediately. A call that is
            // dropped here passes its turn on. The next waiter begins with an attempt, so a notification that the
            // dropped call has consumed is not lost.
            self.clock.timeout_at(wake_at, self.wake_first_waiter.notified()).await;
        }
    }
}
