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
        self.notes[shard].soonest.load(Relaxed) > Deadline::from(self.over_at(now)).order()
    }

    /// Has the sweeper woken by who next writes what dies, and does not stay, before `at`; false where something there
    /// already does.
    pub(crate) fn set_alarm(&self, at: Tick) -> bool {
        let alarm = Deadline::from(self.over_at(at)).order();
        self.alarm.store(alarm, Relaxed);
        fence(SeqCst);
        let mut soonest = self.notes.iter().map(|notes| notes.soonest.load(Relaxed));
        let may_rest = soonest.all(|soonest| soonest >= alarm) && !self.has_removed();
        if !may_rest {
            self.clear_alarm();
        }
        may_rest
    }

    /// Nobody rests any more.
    pub(crate) fn clear_alarm(&self) {
        self.alarm.store(0, Relaxed);
        self.journal.take_rung();
    }

    #[cold]
    pub(super) fn note_soonest(&self, shard: usize, soonest: Deadline) {
        self.notes[shard].soonest.store(soonest.order(), Relaxed);
        // Either we see the alarm, or who sets it sees what is soonest.
        fence(SeqCst);
        if soonest.order() < self.alarm.load(Relaxed) {
            self.journal.ring();
        }
    }
}
