//! The state that all handles share with their sweeper: the shards behind their locks. Every change goes
//! through [`SharedState::change`], which does what must come after the lock.

use std::{
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::{
    builder::Options,
    change::{Change, Garbage},
    shard::{ChangeOf, Shard},
};
use crate::engine::{
    clock::{Clock, Tick},
    event::Publisher,
    hasher::DefaultHasher,
    store::Journal,
};

/// The state that all handles share with their sweeper.
pub(super) struct SharedState<S, K, V> {
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    pub(super) hasher: DefaultHasher,
    /// In an `Arc` of its own: streams and the sweeper hold it and must not keep the members alive.
    pub(super) publisher: Arc<Publisher<K, V>>,
    shards: Box<[Mutex<PaddedShard<S>>]>,
    journal: Arc<Journal<K, V>>,
    /// Wakes the sweeper when a member dies sooner than it sleeps. In an `Arc` of its own, as the sweeper
    /// waits on it while it holds nothing of the state.
    alarm: Arc<Notify>,
    name: String,
    /// The sweeper, for the drop of the last handle.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// On cache lines of its own: who locks one shard slows nobody who locks its neighbour.
#[repr(align(128))]
struct PaddedShard<S> {
    shard: S,
    /// The lowest score of which the sweeper knows; `None` where it knows of none.
    scheduled: Option<Tick>,
}

pub(super) type StateOf<S> = SharedState<S, <S as Shard>::Key, <S as Shard>::Value>;

impl<S: Shard> StateOf<S> {
    pub(super) fn new(options: Options, shards: impl Iterator<Item = S>) -> Self {
        let clock = Clock::new();
        let journal = Arc::new(Journal::new());
        let publisher =
            Publisher::new(journal.clone(), clock.clone(), options.causes, options.event_capacity);
        let locked = |shard| Mutex::new(PaddedShard { shard, scheduled: None });
        Self {
            ttl: options.ttl,
            clock,
            hasher: DefaultHasher::default(),
            publisher: Arc::new(publisher),
            shards: shards.map(locked).collect(),
            journal,
            alarm: Arc::new(Notify::new()),
            name: options.name,
            task: Mutex::default(),
        }
    }

    /// Calls `op` under the lock of a shard. What leaves in it is told and dropped after it.
    #[inline]
    pub(super) fn change<R>(
        &self,
        shard: usize,
        op: impl FnOnce(&mut S, &mut ChangeOf<'_, S>) -> R,
    ) -> R {
        self.change_and_drop(shard, op).0
    }

    /// As [`change`](Self::change); tells also how many drops panicked.
    #[inline]
    pub(super) fn change_and_drop<R>(
        &self,
        shard: usize,
        op: impl FnOnce(&mut S, &mut ChangeOf<'_, S>) -> R,
    ) -> (R, usize) {
        // Before the guard, so that it is dropped after it where `op` panics.
        let mut garbage = Garbage::new();
        let mut locked = lock(&self.shards[shard]);
        // Read under the lock: nobody who comes later sees an earlier time.
        let now = self.clock.now();
        let mut change =
            Change { now, ttl: self.ttl, shard, journal: &self.journal, garbage: &mut garbage };
        let outcome = op(&mut locked.shard, &mut change);
        let lowest = locked.shard.lowest();
        let is_sooner =
            lowest.is_some_and(|score| locked.scheduled.is_none_or(|known| score < known));
        if is_sooner {
            locked.scheduled = lowest;
        }
        drop(locked);
        if is_sooner {
            self.alarm.notify_one();
        }
        self.publisher.flush();
        (outcome, garbage.drop_all())
    }

    /// When the next member dies. What is there now is known to the sweeper from now on.
    pub(super) fn next_death(&self) -> Option<Instant> {
        let lowest = |locked: &Mutex<PaddedShard<S>>| {
            let mut locked = lock(locked);
            // Under the lock: what comes right after it is compared with this, and rings the alarm.
            locked.scheduled = locked.shard.lowest();
            locked.scheduled
        };
        let lowest = self.shards.iter().filter_map(lowest).min()?;
        self.clock.instant_of(lowest.after(self.ttl))
    }
}

impl<S, K, V> SharedState<S, K, V> {
    pub(super) fn ticks(&self, scores: &impl RangeBounds<Instant>) -> (Bound<Tick>, Bound<Tick>) {
        let tick = |bound: Bound<&Instant>| bound.map(|instant| self.clock.tick_of(*instant));
        (tick(scores.start_bound()), tick(scores.end_bound()))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn alarm(&self) -> &Arc<Notify> {
        &self.alarm
    }

    pub(super) fn keep_task(&self, task: JoinHandle<()>) {
        *lock(&self.task) = Some(task);
    }
}

impl<S, K, V> Drop for SharedState<S, K, V> {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        self.publisher.close();
    }
}

/// Somebody's code may have panicked under the lock; what it guards is whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
