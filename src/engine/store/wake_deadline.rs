//! Before when nothing dies: told to a sweeper without a lock, so that it may pass over a shard, or rest.

use std::hash::{BuildHasher, Hash};

use super::Store;
use crate::engine::{
    clock::{Deadline, Tick},
    sync::atomic::{
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Whether nothing in the shard dies before `now`, as far as is known without its lock.
    #[inline]
    pub(crate) fn has_nothing_due(&self, shard: usize, now: Tick) -> bool {
        self.meta[shard].earliest_expiry.load(Relaxed)
            > Deadline::from(self.stale_cutoff(now)).order()
    }

    /// Has the sweeper woken by who next writes what dies, and does not stay, before `at`; false where something there
    /// already does.
    pub(crate) fn arm_wake_deadline(&self, at: Tick) -> bool {
        let wake_deadline = Deadline::from(self.stale_cutoff(at)).order();
        self.wake_deadline.store(wake_deadline, Relaxed);
        fence(SeqCst);
        let mut earliest = self.meta.iter().map(|meta| meta.earliest_expiry.load(Relaxed));
        let may_sleep =
            earliest.all(|earliest| earliest >= wake_deadline) && !self.has_tag_removals();
        if !may_sleep {
            self.disarm_wake_deadline();
        }
        may_sleep
    }

    /// Nobody rests any more.
    pub(crate) fn disarm_wake_deadline(&self) {
        self.wake_deadline.store(0, Relaxed);
        self.journal.take_wake_request();
    }

    #[cold]
    pub(super) fn note_earliest_expiry(&self, shard: usize, earliest: Deadline) {
        self.meta[shard].earliest_expiry.store(earliest.order(), Relaxed);
        // Either we see the alarm, or who sets it sees what is soonest.
        fence(SeqCst);
        if earliest.order() < self.wake_deadline.load(Relaxed) {
            self.journal.request_wake();
        }
    }
}
