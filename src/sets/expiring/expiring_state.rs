//! State shared by all handles and their sweeper: the shards and their locks. Every change goes through
//! [`ExpiringState::change`], which also does the work that must follow the unlock.

use std::{
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::{
    builder::SetOptions,
    change::{Change, UnusedValues},
    schedule::Schedule,
    shard::{ChangeOf, SetShard, SweepProgress},
};
use crate::engine::{
    clock::{Clock, Tick},
    event::Publisher,
    hasher::DefaultHasher,
    store::Journal,
};

/// State shared by all handles and their sweeper.
pub(super) struct ExpiringState<S, K, V> {
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    pub(super) hasher: DefaultHasher,
    /// In its own `Arc`: streams and the sweeper hold it, and must not keep the members in memory.
    pub(super) publisher: Arc<Publisher<K, V>>,
    shards: Box<[Mutex<PaddedShard<S>>]>,
    schedule: Schedule,
    /// Number of times that a shard was locked.
    #[cfg(test)]
    pub(super) lock_count: std::sync::atomic::AtomicU64,
    journal: Arc<Journal<K, V>>,
    #[cfg(feature = "metrics")]
    pub(super) sweep_every: Duration,
    #[cfg(feature = "metrics")]
    expired: std::sync::atomic::AtomicU64,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::RegistrationCell,
    /// Wakes the sweeper if a member expires sooner than the sweeper would wake. In its own `Arc`, as the sweeper waits
    /// on it while it holds no reference to the state.
    sweeper_wake: Arc<Notify>,
    name: String,
    /// The sweeper task; aborted when the last handle is dropped.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A shard on its own cache lines, so that locking one shard does not slow threads that lock its neighbor.
#[repr(align(128))]
struct PaddedShard<S>(S);

/// A locked shard. On drop, also during a panic, it records the shard's lowest score for the sweeper.
struct Locked<'a, S: SetShard> {
    state: &'a StateOf<S>,
    index: usize,
    /// `Some` until the drop.
    guard: Option<MutexGuard<'a, PaddedShard<S>>>,
}

pub(super) type StateOf<S> = ExpiringState<S, <S as SetShard>::Key, <S as SetShard>::Value>;

impl<S: SetShard> StateOf<S> {
    pub(super) fn new(options: SetOptions, shards: impl Iterator<Item = S>) -> Self {
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
            lock_count: Default::default(),
            shards,
            journal,
            #[cfg(feature = "metrics")]
            sweep_every: options.sweep_every,
            #[cfg(feature = "metrics")]
            expired: Default::default(),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
            sweeper_wake: Arc::new(Notify::new()),
            name: options.name,
            task: Mutex::default(),
        }
    }

    /// Calls `op` under the lock of a shard. Afterwards sends the events of that change and drops the values that it
    /// removed.
    #[inline]
    pub(super) fn change<R>(
        &self,
        shard: usize,
        op: impl FnOnce(&mut S, &mut ChangeOf<'_, S>) -> R,
    ) -> R {
        self.change_and_drop(shard, op).0
    }

    /// Removes expired members of a shard, as [`SetShard::sweep`]. Also returns the number of drops that panicked.
    pub(super) fn sweep(&self, shard: usize, room: usize) -> (SweepProgress, usize) {
        self.change_and_drop(shard, |members, change| {
            let progress = members.sweep(room, change);
            self.schedule.record_swept(shard, members.lowest());
            progress
        })
    }

    /// Calls `read` with a locked shard.
    #[cfg(feature = "metrics")]
    pub(super) fn read_shard<R>(&self, shard: usize, read: impl FnOnce(&S) -> R) -> R {
        read(&lock(&self.shards[shard]).0)
    }

    /// Returns the number of members that were removed because they expired.
    #[cfg(feature = "metrics")]
    pub(super) fn expired(&self) -> u64 {
        self.expired.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns whether a shard may have expired members at `now`.
    pub(super) fn is_due(&self, shard: usize, now: Tick) -> bool {
        self.schedule.lowest(shard).is_some_and(|score| score.after(self.ttl).is_expired(now))
    }

    /// Returns a lower bound on the time at which the next member expires. A push that expires sooner wakes the
    /// sweeper.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.clock.instant_of(self.schedule.lowest_of_all()?.after(self.ttl))
    }

    /// Recomputes the time of the next expiry after a sweep.
    pub(super) fn recompute_schedule(&self) {
        self.schedule.recompute();
    }

    #[inline]
    fn change_and_drop<R>(
        &self,
        shard: usize,
        op: impl FnOnce(&mut S, &mut ChangeOf<'_, S>) -> R,
    ) -> (R, usize) {
        // Declared before the lock is taken, so that they are dropped after unlock even if `op` panics.
        let mut drop_queue = UnusedValues::new();
        let _flush = self.publisher.flush_on_panic();
        let mut locked = Locked::new(self, shard);
        // Read under the lock, so that time never goes backwards from one change of this shard to the next.
        let now = self.clock.now();
        let mut change = Change {
            now,
            ttl: self.ttl,
            shard,
            journal: &self.journal,
            drop_queue: &mut drop_queue,
            #[cfg(feature = "metrics")]
            expired: 0,
        };
        let outcome = op(locked.shard(), &mut change);
        #[cfg(feature = "metrics")]
        if change.expired > 0 {
            self.expired.fetch_add(change.expired, std::sync::atomic::Ordering::Relaxed);
        }
        // Before the events are sent and values are dropped, as both may wake or run code that calls the sets.
        drop(locked);
        self.publisher.flush();
        (outcome, drop_queue.drop_all())
    }
}

impl<'a, S: SetShard> Locked<'a, S> {
    #[inline]
    fn new(state: &'a StateOf<S>, index: usize) -> Self {
        #[cfg(test)]
        state.lock_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self { state, index, guard: Some(lock(&state.shards[index])) }
    }

    #[inline]
    fn shard(&mut self) -> &mut S {
        &mut self.guard.as_mut().expect("the guard is only taken by drop").0
    }
}

impl<S: SetShard> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let wakes_sweeper = self.state.schedule.record_lowest(self.index, guard.0.lowest());
        // Before the notification, so that the woken sweeper does not wait for this lock.
        drop(guard);
        if wakes_sweeper {
            self.state.sweeper_wake.notify_one();
        }
    }
}

impl<S, K, V> ExpiringState<S, K, V> {
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

    pub(super) fn sweeper_wake(&self) -> &Arc<Notify> {
        &self.sweeper_wake
    }

    pub(super) fn keep_task(&self, task: JoinHandle<()>) {
        *lock(&self.task) = Some(task);
    }
}

impl<S, K, V> Drop for ExpiringState<S, K, V> {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        self.publisher.close();
    }
}

/// Ignores poisoning: user code may have panicked under the lock, but it runs only when the data is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
