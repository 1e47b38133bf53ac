use std::{
    hash::Hash,
    ops::{Bound, RangeBounds},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    builder::Options,
    members::{Hashed, Owner},
};
use crate::{
    engine::{
        clock::{Clock, Deadline, Tick},
        event::{Cause, Publisher},
        hasher::DefaultHasher,
        panics::drop_all,
        store::{Departure, Journal},
    },
    sets::scores::{Cut, hash_of},
};

/// The state that all handles share with their sweeper.
pub(super) struct Shared<P, K, V> {
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    pub(super) hasher: DefaultHasher,
    /// In an `Arc` of its own: streams hold it and must not keep the members alive.
    pub(super) publisher: Arc<Publisher<K, V>>,
    parts: Box<[Mutex<Guarded<P>>]>,
    journal: Arc<Journal<K, V>>,
    /// Told when a member dies sooner than the sweeper knows of.
    alarm: Arc<Notify>,
    name: String,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What one lock guards: a set, or some of the sets.
pub(super) trait Part: Sized + Send + 'static {
    /// Of its events.
    type Key: Send + Sync + 'static;
    type Value: Send + Sync + 'static;
    type Member;

    /// Lets what is dead leave, at most `room`, and no more than is fair under one lock.
    fn sweep(&mut self, room: usize, change: &mut ChangeOf<'_, Self>) -> Swept;

    /// No score is lower than this.
    fn lowest(&self) -> Option<Tick>;
}

/// How far a sweep has come.
pub(super) enum Swept {
    All,
    Some,
    /// A lossless subscriber is full.
    NoRoom,
}

/// One change, under a lock.
pub(super) struct Change<'a, K, V, T> {
    pub(super) now: Tick,
    pub(super) ttl: Duration,
    pub(super) journal: &'a Journal<K, V>,
    pub(super) left: &'a mut Left<K, V, T>,
}

pub(super) type SharedOf<P> = Shared<P, <P as Part>::Key, <P as Part>::Value>;

pub(super) type ChangeOf<'a, P> =
    Change<'a, <P as Part>::Key, <P as Part>::Value, <P as Part>::Member>;

/// What left in a change, made before the lock and dropped after it.
pub(super) struct Left<K, V, T> {
    /// Members that nobody wants to hear of.
    pub(super) cut: Cut<Tick, T>,
    pub(super) departures: Vec<Departure<K, V>>,
    pub(super) keys: Vec<K>,
}

/// On cache lines of its own.
#[repr(align(128))]
struct Guarded<P> {
    part: P,
    /// The lowest score of which the sweeper knows.
    known: Option<Tick>,
}

enum Step {
    /// Yield to the runtime, then go on.
    Yield,
    /// A lossless subscriber has no room.
    HeldBack,
    Done,
}

impl<P: Part> SharedOf<P> {
    /// Makes it, and starts its sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver.
    pub(super) fn start(options: Options, parts: impl Iterator<Item = P>) -> Arc<Self> {
        let name = options.name;
        let runtime = Handle::try_current().unwrap_or_else(|_| {
            panic!(
                "{name:?} must be built inside of a Tokio runtime, on which its sweeper runs: \
                 in `#[tokio::main]`, `#[tokio::test]`, a task, or under `Handle::enter`"
            )
        });
        // Made here, so that a runtime without time panics here and not in the task.
        drop(sleep(Duration::ZERO));
        let clock = Clock::new();
        let journal = Arc::new(Journal::new());
        let publisher =
            Publisher::new(journal.clone(), clock.clone(), options.causes, options.event_capacity);
        let publisher = Arc::new(publisher);
        let alarm = Arc::new(Notify::new());
        let guarded = |part| Mutex::new(Guarded { part, known: None });
        let shared = Arc::new(Self {
            ttl: options.ttl,
            clock,
            hasher: DefaultHasher::default(),
            publisher: publisher.clone(),
            parts: parts.map(guarded).collect(),
            journal,
            alarm: alarm.clone(),
            name,
            task: Mutex::default(),
        });
        let sweeper = run(Arc::downgrade(&shared), publisher, alarm, options.sweep_every);
        *lock(&shared.task) = Some(runtime.spawn(sweeper));
        shared
    }

    /// Calls `op` under the lock of a part. What leaves in it is told and dropped after it.
    #[inline]
    pub(super) fn change<R>(
        &self,
        part: usize,
        op: impl FnOnce(&mut P, &mut ChangeOf<'_, P>) -> R,
    ) -> R {
        self.change_and_drop(part, op).0
    }

    /// As [`change`](Self::change); tells also how many drops panicked.
    #[inline]
    fn change_and_drop<R>(
        &self,
        part: usize,
        op: impl FnOnce(&mut P, &mut ChangeOf<'_, P>) -> R,
    ) -> (R, usize) {
        let mut left = Left { cut: Cut::default(), departures: Vec::new(), keys: Vec::new() };
        let mut guarded = lock(&self.parts[part]);
        // Read under the lock: nobody who comes later sees an earlier time.
        let now = self.clock.now();
        let mut change = Change { now, ttl: self.ttl, journal: &self.journal, left: &mut left };
        let outcome = op(&mut guarded.part, &mut change);
        let lowest = guarded.part.lowest();
        let is_news = lowest.is_some_and(|score| guarded.known.is_none_or(|known| score < known));
        if is_news {
            guarded.known = lowest;
        }
        drop(guarded);
        if is_news {
            self.alarm.notify_one();
        }
        self.publisher.flush();
        (outcome, left.drop_all())
    }

    /// When the next member dies. What is there now is known from now on.
    fn next_death(&self) -> Option<Instant> {
        let lowest = |guarded: &Mutex<Guarded<P>>| {
            let mut guarded = lock(guarded);
            guarded.known = guarded.part.lowest();
            guarded.known
        };
        let lowest = self.parts.iter().filter_map(lowest).min()?;
        self.clock.instant_of(lowest.after(self.ttl))
    }

    /// Lets a fair piece of what is dead leave, from a part on. What panics in user code is logged, and that
    /// part waits for the next sweep.
    fn sweep(&self, from: &mut usize) -> Step {
        while *from < self.parts.len() {
            let room = self.publisher.room();
            let sweep = || self.change_and_drop(*from, |part, change| part.sweep(room, change));
            let Ok((swept, panicked)) = catch_unwind(AssertUnwindSafe(sweep)) else {
                tracing::error!(set = self.name, "a sweep panicked; the next one goes on");
                *from += 1;
                return Step::Yield;
            };
            if panicked > 0 {
                tracing::error!(set = self.name, panicked, "the Drop of expired members panicked");
            }
            match swept {
                Swept::All => *from += 1,
                Swept::Some => return Step::Yield,
                Swept::NoRoom => return Step::HeldBack,
            }
        }
        Step::Done
    }
}

impl<P, K, V> Shared<P, K, V> {
    pub(super) fn ticks(&self, scores: &impl RangeBounds<Instant>) -> (Bound<Tick>, Bound<Tick>) {
        let tick = |bound: Bound<&Instant>| bound.map(|instant| self.clock.tick_of(*instant));
        (tick(scores.start_bound()), tick(scores.end_bound()))
    }

    #[inline]
    pub(super) fn hashed<T: Hash>(&self, member: T) -> Hashed<T> {
        Hashed { hash: hash_of(&self.hasher, &member), member: Some(member) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }
}

impl<P, K, V> Drop for Shared<P, K, V> {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        self.publisher.close();
    }
}

impl<K, V, T> Change<'_, K, V, T> {
    /// Whether what has this score is dead.
    #[inline]
    pub(super) fn is_dead(&self, score: Tick) -> bool {
        score.after(self.ttl).is_dead(self.now)
    }

    /// Makes ready to tell of `count` departures; `None` where nobody wants to hear of their cause.
    #[inline]
    pub(super) fn prepare<O>(&mut self, count: usize, cause: Cause, owner: O) -> Option<Cause>
    where
        O: Owner<T, Key = K, Value = V>,
    {
        let told = self.journal.wants(cause).then_some(cause)?;
        owner.prepare(count, &mut self.left.keys);
        Some(told)
    }

    /// Records departures, for which it was made ready.
    pub(super) fn tell<O>(
        &mut self,
        cause: Cause,
        departed: impl IntoIterator<Item = (Deadline, T)>,
    ) where
        O: Owner<T, Key = K, Value = V>,
    {
        let departure = |(deadline, member)| {
            let (key, value) = O::event(&mut self.left.keys, member);
            Departure { key, value, cause, deadline, at: self.now }
        };
        let mut departures = departed.into_iter().map(departure).collect();
        self.journal.record_all(cause, &mut departures);
        self.left.departures.append(&mut departures);
    }
}

impl<K, V, T> Left<K, V, T> {
    /// Drops all, one by one; tells how many panicked.
    #[inline]
    fn drop_all(self) -> usize {
        self.cut.drop_all() + drop_all(self.departures) + drop_all(self.keys)
    }
}

/// The sweeper: sleeps until the next death, but sweeps no more often than `every`.
async fn run<P: Part>(
    shared: Weak<SharedOf<P>>,
    publisher: Arc<Publisher<P::Key, P::Value>>,
    alarm: Arc<Notify>,
    every: Duration,
) {
    let mut earliest = Instant::now();
    loop {
        let Some(next) = shared.upgrade().map(|shared| shared.next_death()) else { return };
        let Some(death) = next else {
            alarm.notified().await;
            continue;
        };
        if timeout_at(death.max(earliest), alarm.notified()).await.is_ok() {
            continue;
        }
        let mut part = 0;
        loop {
            let Some(step) = shared.upgrade().map(|shared| shared.sweep(&mut part)) else { return };
            match step {
                Step::Yield => tokio::task::yield_now().await,
                Step::HeldBack => publisher.wait_for_room().await,
                Step::Done => break,
            }
        }
        earliest = Instant::now().checked_add(every).unwrap_or(earliest);
    }
}

/// Somebody's code may have panicked under the lock; what it guards is whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
