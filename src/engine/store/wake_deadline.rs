//! Lock-free lower bound on the next expiry, so that the sweeper may skip a shard or sleep.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

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
    /// Returns whether no entry of the shard is past its stale window at `now`, judged without the lock.
    #[inline]
    pub(crate) fn has_nothing_due(&self, shard: usize, now: Tick) -> bool {
        self.context.meta[shard].earliest_expiry.load(Relaxed)
            > Deadline::from(self.stale_cutoff(now)).order()
    }

    /// Returns the time until the next entry is past its stale window; `None` if no entry expires. May be too short.
    pub(crate) fn until_due(&self, now: Tick) -> Option<Duration> {
        let earliest =
            self.context.meta.iter().map(|meta| meta.earliest_expiry.load(Relaxed)).min()?;
        let due = Tick::from_nanoseconds(earliest).later(self.stale_window);
        (earliest != Deadline::PERSISTENT.order()).then(|| due.since(now))
    }

    /// Arms the wake deadline: a write of an entry that is due before `at` wakes the sweeper. Returns false, without
    /// arming it, if an entry is already due before `at`.
    pub(crate) fn arm_wake_deadline(&self, at: Tick) -> bool {
        let wake_deadline = Deadline::from(self.stale_cutoff(at)).order();
        self.context.wake_deadline.store(wake_deadline, Relaxed);
        // Pairs with the fence in `note_earliest_expiry`, see there. A tag removal needs no fence: `remove_tag` requests the
        // wake-up in any case.
        fence(SeqCst);
        let mut earliest = self.context.meta.iter().map(|meta| meta.earliest_expiry.load(Relaxed));
        let may_sleep = earliest.all(|earliest| earliest >= wake_deadline)
            && !self.has_tag_removals()
            && !self.has_deferred_evictions();
        if !may_sleep {
            self.disarm_wake_deadline();
        }
        may_sleep
    }

    /// Disarms the wake deadline, because the sweeper is awake.
    pub(crate) fn disarm_wake_deadline(&self) {
        self.context.wake_deadline.store(0, Relaxed);
        self.context.journal.take_wake_request();
    }
}
