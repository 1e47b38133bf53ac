//! State shared by all handles and claims: the entries under their lock, and the queue of waiters.

use std::sync::{Arc, PoisonError};

use rand::{SeedableRng, make_rng, rngs::SmallRng};
use tokio::task::coop::consume_budget;

use super::{entries::Entries, turns::Turns};
use crate::engine::{
    clock::{Clock, LazyNow, Tick},
    retries::Retries,
    sync::Mutex,
};

/// State shared by all handles and claims.
pub(super) struct DictState<K, V> {
    entries: Mutex<Entries<K, V>>,
    pub(super) clock: Clock,
    /// Only the waiter whose turn it is sleeps until the first deadline, so that a due entry wakes one task and not
    /// all.
    pub(super) turns: Arc<Turns>,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::RegistrationCell,
}

impl<K, V> DictState<K, V> {
    pub(super) fn new(retries: Retries, seed: Option<u64>) -> Self {
        let rng = seed.map_or_else(make_rng, SmallRng::seed_from_u64);
        Self {
            entries: Mutex::new(Entries::new(retries, rng)),
            clock: Clock::new(),
            turns: Arc::new(Turns::new()),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
        }
    }

    /// Calls `change` under the lock, then wakes the first waiter if requested.
    ///
    /// If `change` panics, the values that it owns are dropped under the lock; so it must only borrow keys and values
    /// of the user.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Entries<K, V>) -> R) -> R {
        // Ignores poisoning: a panic in user code leaves the entries consistent; see the invariants of `entries`.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut entries);
        let wake_requested = entries.take_wake_request();
        let watch_requested = entries.take_watch_request();
        drop(entries);
        // After unlock, as the woken task immediately takes this lock.
        if wake_requested {
            self.turns.wake_waiters.notify_waiters();
        }
        if watch_requested {
            self.turns.wake_watch.notify_one();
        }
        changed
    }

    /// Ends all leases that have ended, then calls `change` under the same lock as the last of them. The lock is
    /// released in between, so that many leases do not block other callers for long.
    pub(super) async fn after_leases<R>(
        &self,
        change: impl FnOnce(&mut Entries<K, V>, &LazyNow<'_>) -> R,
    ) -> R {
        let mut change = Some(change);
        loop {
            // In a block, as it must not be held across an await.
            let changed = {
                let now = self.clock.lazy_now();
                self.with(|entries| match entries.end_leases(&now) {
                    true => None,
                    false => change.take().map(|change| change(entries, &now)),
                })
            };
            if let Some(changed) = changed {
                return changed;
            }
            consume_budget().await;
        }
    }

    /// Waits for its turn in the queue, then until `take` returns a value.
    pub(super) async fn next<R>(
        self: &Arc<Self>,
        mut take: impl FnMut(&mut Entries<K, V>, Tick) -> Option<R>,
    ) -> R
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let _turn = self.turn().await;
        loop {
            // Before the attempt, as it receives what is sent from here on.
            let notified = self.turns.wake_waiters.notified();
            self.turns.count_look();
            let now = self.clock.now();
            // The attempt and the wake deadline are set under one lock, so that an earlier deadline added after the
            // attempt always notifies.
            let taken = self.with(|entries| {
                if entries.end_leases(&now) {
                    return None;
                }
                Some(take(entries, now).ok_or_else(|| entries.arm_wake_deadline()))
            });
            let wake_at = match taken {
                Some(Ok(taken)) => return taken,
                Some(Err(wake_at)) => wake_at,
                None => {
                    consume_budget().await;
                    continue;
                }
            };
            self.clock.timeout_at(wake_at, notified).await;
        }
    }
}

impl<K, V> Drop for DictState<K, V> {
    fn drop(&mut self) {
        // Ends the watch.
        self.turns.wake_watch.notify_one();
    }
}
