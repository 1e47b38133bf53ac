//! The state behind all handles and claims: the entries under their lock, and the queue of those who wait.

use std::sync::PoisonError;

use rand::{SeedableRng, make_rng, rngs::SmallRng};
use tokio::sync::Notify;

use super::{entries::Entries, retries::Retries};
use crate::engine::{
    clock::{Clock, Tick},
    sync::Mutex,
};

/// The state behind all handles and claims.
pub(super) struct SharedState<K, V> {
    entries: Mutex<Entries<K, V>>,
    pub(super) clock: Clock,
    /// Who waits holds it or queues for it. Tokio's lock lets in who asked first, and forgets who gives up. One
    /// only sleeps for the first deadline, so that what comes due wakes one task and not all.
    waiters: tokio::sync::Mutex<()>,
    /// Tells the first waiter that something is due sooner than it sleeps.
    sooner: Notify,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl<K, V> SharedState<K, V> {
    pub(super) fn new(retries: Retries, seed: Option<u64>) -> Self {
        let random = seed.map_or_else(make_rng, SmallRng::seed_from_u64);
        Self {
            entries: Mutex::new(Entries::new(retries, random)),
            clock: Clock::new(),
            waiters: tokio::sync::Mutex::new(()),
            sooner: Notify::new(),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
        }
    }

    /// Calls `change` under the lock, then wakes who is to be woken.
    ///
    /// What `change` owns is dropped under the lock where it panics: let it borrow all that is the user's.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Entries<K, V>) -> R) -> R {
        // A panic of the user's leaves the entries whole: see their invariants.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut entries);
        let wakes = entries.take_wake();
        drop(entries);
        // After the lock, for which who is woken asks at once.
        if wakes {
            self.sooner.notify_one();
        }
        changed
    }

    /// Waits for its turn, then until `take` takes something.
    pub(super) async fn next<R>(
        &self,
        mut take: impl FnMut(&mut Entries<K, V>, Tick) -> Option<R>,
    ) -> R {
        let _first = self.waiters.lock().await;
        loop {
            let now = self.clock.now();
            // Under one lock: what comes sooner after a look in vain sets off `sooner`.
            let taken =
                self.with(|entries| take(entries, now).ok_or_else(|| entries.sleep_until_first()));
            let until = match taken {
                Ok(taken) => return taken,
                Err(until) => until,
            };
            // What came since the look has left a notice, which ends the wait at once.
            self.clock.timeout_at(until, self.sooner.notified()).await;
        }
    }
}
