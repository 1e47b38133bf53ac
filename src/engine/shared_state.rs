//! State shared by all handles of a cache or a limiter and their sweeper, and its end.

#[cfg(feature = "dashboard")]
use std::sync::OnceLock;
use std::{
    hash::{BuildHasher, Hash},
    mem,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{SeedableRng, rngs::SmallRng};
use tokio::{runtime::Handle, sync::Notify, task::JoinHandle};

#[cfg(feature = "metrics")]
use crate::engine::metrics::{Histogram, RegistrationCell};
use crate::engine::{
    background::BackgroundThread,
    clock::Clock,
    event::Publisher,
    failed_loads::FailedLoads,
    panics,
    store::{LockWait, StepLimits, Store},
    sweeper::{Sweep, SweepReport},
};

/// State shared by all handles of a cache or a limiter and their sweeper.
pub(crate) struct SharedState<K, V, S> {
    pub(crate) store: Store<K, V, S>,
    pub(crate) clock: Clock,
    /// In an `Arc` of its own: streams hold it and must not keep the cache alive.
    pub(crate) publisher: Arc<Publisher<K, V>>,
    /// Present if the cache keeps errors, or refreshes values in the background. Boxed, as most caches have none.
    pub(crate) failed_loads: Option<Box<FailedLoads>>,
    sweep: Mutex<Sweep>,
    /// Runs the tasks of the cache, also if a handle is used outside of the runtime.
    pub(crate) runtime: Handle,
    /// Present if that is the runtime of the crate's own thread.
    background: Option<BackgroundThread>,
    name: String,
    random: Mutex<SmallRng>,
    paused: AtomicBool,
    sweeps: Mutex<SweepTotals>,
    /// Durations of the sweeps.
    #[cfg(feature = "metrics")]
    sweep_times: Mutex<Histogram>,
    #[cfg(feature = "metrics")]
    pub(crate) registration: RegistrationCell,
    /// Converts a text to a key, for searches on the dashboard.
    #[cfg(feature = "dashboard")]
    pub(crate) inspect: OnceLock<Inspect<K>>,
    task: Mutex<SweeperTask>,
    /// Wakes tasks that would wait for the sweeper forever, at the end of a shutdown.
    shut_down: Notify,
}

/// Converts a text to a key.
#[cfg(feature = "dashboard")]
pub(crate) type Inspect<K> = Arc<dyn Fn(&str) -> Option<K> + Send + Sync>;

/// The sweeper task, which `shutdown`, the drop of the last handle, and new settings stop.
#[derive(Default)]
struct SweeperTask {
    handle: Option<JoinHandle<()>>,
    /// True if the cache has ended, so that no other task may be started.
    ended: bool,
}

/// Totals of all sweeps.
#[derive(Clone, Copy, Default)]
pub(crate) struct SweepTotals {
    pub(crate) count: u64,
    pub(crate) total: SweepReport,
    pub(crate) last: Option<SweepReport>,
}

impl<K, V, S> SharedState<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Removes all expired entries of one shard, and those removed by tag, regardless of the capacity of subscribers.
    pub(crate) fn expire_shard(&self, shard: usize) {
        self.store.remove_tagged_of(shard, &self.clock);
        self.publisher.flush();
        let mut unrecorded = Vec::new();
        let mut shard_pass = Store::<K, V, S>::begin_shard_pass(shard);
        while !shard_pass.is_done() {
            let all = |buckets| buckets;
            let limits = StepLimits { max_expired: usize::MAX, lock_wait: LockWait::Wait };
            self.store.sweep_windows(&mut shard_pass, all, &self.clock, limits, &mut unrecorded);
            self.publisher.flush();
            // After each step and not once at the end: a large shard must not hold all of its expired values in memory.
            panics::drop_all(unrecorded.drain(..));
        }
    }
}

impl<K, V, S> SharedState<K, V, S> {
    /// Returns the state of a cache on the current Tokio runtime, or on that of the crate's own thread. Its sweeper is
    /// started by [`sweeper::start`](super::sweeper::start).
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, unless `in_background`.
    pub(crate) fn new(
        store: Store<K, V, S>,
        causes: u8,
        event_capacity: usize,
        sweep: Sweep,
        name: String,
        in_background: bool,
    ) -> Self
    where
        K: Hash + Eq,
        S: BuildHasher + Clone,
    {
        let (background, runtime, clock) = if in_background {
            let (thread, runtime) = BackgroundThread::join();
            // The clock of that runtime cannot be paused.
            (Some(thread), runtime, Clock::real())
        } else {
            (None, current_runtime(&name), Clock::new())
        };
        let journal = store.journal().clone();
        let publisher = Publisher::new(journal, clock.clone(), causes, event_capacity);
        let random = match sweep.seed {
            Some(seed) => SmallRng::seed_from_u64(seed),
            None => rand::make_rng(),
        };
        Self {
            store,
            clock,
            publisher: Arc::new(publisher),
            failed_loads: None,
            sweep: Mutex::new(sweep),
            runtime,
            background,
            name,
            random: Mutex::new(random),
            paused: AtomicBool::new(false),
            sweeps: Mutex::default(),
            #[cfg(feature = "metrics")]
            sweep_times: Mutex::default(),
            #[cfg(feature = "metrics")]
            registration: RegistrationCell::new(),
            #[cfg(feature = "dashboard")]
            inspect: OnceLock::new(),
            task: Mutex::default(),
            shut_down: Notify::new(),
        }
    }

    /// Keeps failed loads of at most `max` keys, and their errors for this TTL.
    pub(crate) fn with_failed_loads(mut self, negative_ttl: Option<Duration>, max: usize) -> Self {
        let failed_loads = FailedLoads::new(self.clock.clone(), negative_ttl, max);
        self.failed_loads = Some(Box::new(failed_loads));
        self
    }

    /// Returns whether the [runtime](Self::runtime) is that of the crate's own thread, which always drives it.
    pub(crate) fn runs_in_background(&self) -> bool {
        self.background.is_some()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_paused(&self) -> bool {
        // `Relaxed`: no other data depends on the flag.
        self.paused.load(Relaxed)
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, SmallRng> {
        lock(&self.random)
    }

    pub(crate) fn sweeps(&self) -> SweepTotals {
        *lock(&self.sweeps)
    }

    pub(crate) fn record_sweep(&self, report: &SweepReport) {
        let mut sweeps = lock(&self.sweeps);
        sweeps.count += 1;
        sweeps.total.add(report);
        sweeps.last = Some(*report);
        #[cfg(feature = "metrics")]
        lock(&self.sweep_times).record(report.elapsed);
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn sweep_times(&self) -> Histogram {
        lock(&self.sweep_times).clone()
    }

    /// Returns the current settings of the sweeper.
    pub(crate) fn sweep(&self) -> Sweep {
        *lock(&self.sweep)
    }

    /// Applies new settings and replaces the sweeper task by the one that `start` returns; returns the old task. After
    /// the [end](Self::end_task), no task is started.
    pub(crate) fn replace_task(
        &self,
        sweep: Sweep,
        start: impl FnOnce() -> Option<JoinHandle<()>>,
    ) -> Option<JoinHandle<()>> {
        // One lock for all of it, so that concurrent calls do not mix settings and tasks. Lock order: `task`, then
        // `sweep`, then `random`.
        let mut task = lock(&self.task);
        *lock(&self.sweep) = sweep;
        if let Some(seed) = sweep.seed {
            *self.random() = SmallRng::seed_from_u64(seed);
        }
        if task.ended {
            return None;
        }
        mem::replace(&mut task.handle, start())
    }

    /// Takes the sweeper task, and prevents another one from being started.
    pub(crate) fn end_task(&self) -> Option<JoinHandle<()>> {
        let mut task = lock(&self.task);
        task.ended = true;
        task.handle.take()
    }

    /// Ends the event streams, and wakes the tasks that wait for [`after_shutdown`](Self::after_shutdown).
    pub(crate) fn close(&self) {
        self.publisher.close();
        self.shut_down.notify_waiters();
    }

    /// Waits until the cache was shut down.
    pub(crate) async fn after_shutdown(&self) {
        let mut shut_down = pin!(self.shut_down.notified());
        // Before the check, so that no end after it is missed.
        shut_down.as_mut().enable();
        if !lock(&self.task).ended {
            shut_down.await;
        }
    }
}

impl<K, V, S> Drop for SharedState<K, V, S> {
    fn drop(&mut self) {
        // The task holds only a `Weak`, but might sleep for hours before it notices.
        if let Some(task) = self.end_task() {
            task.abort();
        }
        // Streams hold the publisher and may outlive this state: they must see the end.
        self.publisher.close();
    }
}

fn current_runtime(name: &str) -> Handle {
    Handle::try_current().unwrap_or_else(|_| {
        panic!(
            "{name:?} must be built inside of a Tokio runtime, on which its sweeper runs (in `#[tokio::main]`, \
             `#[tokio::test]`, a task, or under `Handle::enter`), or with `background_thread()` anywhere"
        )
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no user code runs under this lock")
}
