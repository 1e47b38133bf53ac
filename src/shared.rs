use std::{
    hash::{BuildHasher, Hash},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{SeedableRng, rngs::SmallRng};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at},
};

use crate::{
    clock::Clock,
    event::Publisher,
    store::Store,
    sweeper::{Sweep, SweepReport, run},
    user,
};

/// The state that all handles of a cache (or a limiter) and its sweeper share.
pub(crate) struct Shared<K, V, S> {
    pub(crate) store: Store<K, V, S>,
    pub(crate) clock: Clock,
    /// In an `Arc` of its own: streams hold it and must not keep the cache alive.
    pub(crate) publisher: Arc<Publisher<K, V>>,
    pub(crate) sweep: Sweep,
    /// Runs what the cache spawns, also where a handle is used from outside of the runtime.
    pub(crate) runtime: Handle,
    name: String,
    random: Mutex<SmallRng>,
    paused: AtomicBool,
    sweeps: Mutex<Sweeps>,
    /// The sweeper, for who stops it: `shutdown`, or the drop of the last handle.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What all sweeps did.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sweeps {
    pub(crate) count: u64,
    pub(crate) total: SweepReport,
    pub(crate) last: Option<SweepReport>,
}

impl<K, V, S> Shared<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Lets all that is dead in one shard leave, room or not.
    pub(crate) fn expire_shard(&self, shard: usize) {
        let mut dead = Vec::new();
        let mut visit = Store::<K, V, S>::visit(shard);
        while !visit.is_done() {
            let now = self.clock.now();
            let all = |buckets| buckets;
            self.store.sweep_window(&mut visit, all, now, usize::MAX, true, &mut dead);
            self.publisher.flush();
            user::drop_all(dead.drain(..));
        }
    }
}

impl<K, V, S> Shared<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Makes it, and starts its sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver.
    pub(crate) fn start(
        store: Store<K, V, S>,
        causes: u8,
        event_capacity: usize,
        sweep: Sweep,
        name: String,
    ) -> Arc<Self> {
        let runtime = Handle::try_current().unwrap_or_else(|_| {
            panic!(
                "{name:?} must be built inside of a Tokio runtime, on which its sweeper runs: \
                 in `#[tokio::main]`, `#[tokio::test]`, a task, or under `Handle::enter`"
            )
        });
        let clock = Clock::new();
        let journal = store.journal().clone();
        let publisher = Publisher::new(journal, clock.clone(), causes, event_capacity);
        let random = match sweep.seed {
            Some(seed) => SmallRng::seed_from_u64(seed),
            None => rand::make_rng(),
        };
        let shared = Arc::new(Self {
            store,
            clock,
            publisher: Arc::new(publisher),
            sweep,
            runtime,
            name,
            random: Mutex::new(random),
            paused: AtomicBool::new(false),
            sweeps: Mutex::default(),
            task: Mutex::new(None),
        });
        if let Some(every) = sweep.every {
            // Made here, so that a runtime without time panics here and not in the task.
            let first = Instant::now().checked_add(every).unwrap_or_else(far_future);
            let mut interval = interval_at(first, every);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let sweeper = run(Arc::downgrade(&shared), shared.publisher.clone(), interval);
            shared.keep_task(shared.runtime.spawn(sweeper));
        }
        shared
    }
}

impl<K, V, S> Shared<K, V, S> {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, SmallRng> {
        lock(&self.random)
    }

    pub(crate) fn sweeps(&self) -> Sweeps {
        *lock(&self.sweeps)
    }

    pub(crate) fn record_sweep(&self, report: &SweepReport) {
        let mut sweeps = lock(&self.sweeps);
        sweeps.count += 1;
        sweeps.total.add(report);
        sweeps.last = Some(*report);
    }

    pub(crate) fn keep_task(&self, task: JoinHandle<()>) {
        *lock(&self.task) = Some(task);
    }

    pub(crate) fn take_task(&self) -> Option<JoinHandle<()>> {
        lock(&self.task).take()
    }
}

impl<K, V, S> Drop for Shared<K, V, S> {
    fn drop(&mut self) {
        if let Some(task) = self.take_task() {
            task.abort();
        }
        self.publisher.close();
    }
}

/// Thirty years, as Tokio's own timers put it.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(30 * 365 * 86_400)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no user code runs under this lock")
}
