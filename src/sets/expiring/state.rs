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
    schedule::Schedule,
    shard::{ChangeOf, Shard, SweepProgress},
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
    schedule: Schedule,
    /// How often a shard was locked.
    #[cfg(test)]
    pub(super) locks: std::sync::atomic::AtomicU64,
    journal: Arc<Journal<K, V>>,
    #[cfg(feature = "metrics")]
    expired: std::sync::atomic::AtomicU64,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
    /// Wakes the sweeper when a member dies sooner than it sleeps. In an `Arc` of its own, as the sweeper
    /// waits on it while it holds nothing of the state.
    alarm: Arc<Notify>,
    name: String,
    /// The sweeper, for the drop of the last handle.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// On cache lines of its own: who locks one shard slows nobody who locks its neighbour.
#[repr(align(128))]
struct PaddedShard<S>(S);

/// A shard under its lock. When that opens, also by a panic, the sweeper knows what there is.
struct Locked<'a, S: Shard> {
    state: &'a StateOf<S>,
    index: usize,
    /// There until it is dropped.
    guard: Option<MutexGuard<'a, PaddedShard<S>>>,
}

pub(super) type StateOf<S> = SharedState<S, <S as Shard>::Key, <S as Shard>::Value>;

impl<S: Shard> StateOf<S> {
    pub(super) fn new(options: Options, shards: impl Iterator<Item = S>) -> Self {
        let clock = Clock::new();
        let journal = Arc::new(Journal::new());
        let publisher =
            Publisher::new(journal.clone(), clock.clone(), options.causes, options.event_capacity);
        let shards: Box<[_]> = shards.map(|shard| Mutex::new(PaddedShard(shard))).collect();
        Self {
            ttl: options.ttl,
            clock,
            hasher: DefaultHasher::default(),
            publisher: Arc::new(publisher),
            schedule: Schedule::new(shards.len()),
            #[cfg(test)]
            locks: Default::default(),
            shards,
            journal,
            #[cfg(feature = "metrics")]
            expired: Default::default(),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
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

    /// Lets what is dead leave a shard, as [`Shard::sweep`]; tells also how many drops panicked.
    pub(super) fn sweep(&self, shard: usize, room: usize) -> (SweepProgress, usize) {
        self.change_and_drop(shard, |members, change| {
            let progress = members.sweep(room, change);
            self.schedule.note_swept(shard, members.lowest());
            progress
        })
    }

    /// Looks at a shard under its lock.
    #[cfg(feature = "metrics")]
    pub(super) fn look<R>(&self, shard: usize, look: impl FnOnce(&S) -> R) -> R {
        look(&lock(&self.shards[shard]).0)
    }

    /// How many members' time was over and have left.
    #[cfg(feature = "metrics")]
    pub(super) fn expired(&self) -> u64 {
        self.expired.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether something may be dead in a shard at `now`.
    pub(super) fn is_due(&self, shard: usize, now: Tick) -> bool {
        self.schedule.lowest(shard).is_some_and(|score| score.after(self.ttl).is_dead(now))
    }

    /// When the next member dies: not later than this. Who lets one die sooner rings the alarm.
    pub(super) fn next_death(&self) -> Option<Instant> {
        self.clock.instant_of(self.schedule.soonest()?.after(self.ttl))
    }

    /// After a sweep: finds out when the next member dies.
    pub(super) fn renew_schedule(&self) {
        self.schedule.renew();
    }

    #[inline]
    fn change_and_drop<R>(
        &self,
        shard: usize,
        op: impl FnOnce(&mut S, &mut ChangeOf<'_, S>) -> R,
    ) -> (R, usize) {
        // Before the lock, so that it is dropped after it where `op` panics.
        let mut garbage = Garbage::new();
        let mut locked = Locked::new(self, shard);
        // Read under the lock: nobody who comes later sees an earlier time.
        let now = self.clock.now();
        let mut change = Change {
            now,
            ttl: self.ttl,
            shard,
            journal: &self.journal,
            garbage: &mut garbage,
            #[cfg(feature = "metrics")]
            expired: 0,
        };
        let outcome = op(locked.shard(), &mut change);
        #[cfg(feature = "metrics")]
        if change.expired > 0 {
            self.expired.fetch_add(change.expired, std::sync::atomic::Ordering::Relaxed);
        }
        drop(locked);
        self.publisher.flush();
        (outcome, garbage.drop_all())
    }
}

impl<'a, S: Shard> Locked<'a, S> {
    #[inline]
    fn new(state: &'a StateOf<S>, index: usize) -> Self {
        #[cfg(test)]
        state.locks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self { state, index, guard: Some(lock(&state.shards[index])) }
    }

    #[inline]
    fn shard(&mut self) -> &mut S {
        &mut self.guard.as_mut().expect("it is there until the drop").0
    }
}

impl<S: Shard> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let rings = self.state.schedule.note(self.index, guard.0.lowest());
        drop(guard);
        if rings {
            self.state.alarm.notify_one();
        }
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
