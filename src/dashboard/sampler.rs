//! The thread that reads all metrics once per second while a dashboard is mounted, and its samples of the last minutes.
//!
//! 1. There is one sampler per process, for any number of dashboards. It needs no runtime, and continues while Tokio's
//!    clock is paused, because the page shows real time.
//! 2. A sample is serialized once for all clients, and not at all without clients.
//! 3. No object is held while the thread sleeps, so that the last handle of a cache can end it.

use std::{
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;
use tokio::sync::watch;

use super::{
    groups::ObjectGroup,
    history::{GroupHour, GroupWithHistory, Histories},
};
use crate::engine::metrics::read_all;

const INTERVAL: Duration = Duration::from_secs(1);

static SHARED: Mutex<Weak<Sampler>> = Mutex::new(Weak::new());

pub(super) struct Sampler {
    /// Random identifier of this sampler, so that a page notices a restart of the process.
    boot: String,
    process: Process,
    histories: Mutex<Histories>,
    live: watch::Sender<Sample>,
}

/// One sample of all metrics.
#[derive(Clone, Default)]
pub(super) struct Sample {
    /// Starts at 1; 0 before the first sample.
    pub(super) number: u64,
    /// JSON, or empty if there was no client.
    pub(super) text: Arc<str>,
}

#[derive(Serialize)]
struct Message<'a, T> {
    boot: &'a str,
    number: u64,
    every_ms: u64,
    version: &'static str,
    process: &'a Process,
    groups: T,
}

/// The process, for operators who look at several of them.
#[derive(Serialize)]
struct Process {
    /// Name of the machine, if the system has one.
    host: Option<String>,
    id: u32,
    /// Time at which the sampler was started, in milliseconds since 1970.
    since_ms: u128,
}

impl Process {
    fn current() -> Self {
        #[cfg(unix)]
        let host = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
        #[cfg(not(unix))]
        let host = std::env::var("COMPUTERNAME").ok();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { host, id: std::process::id(), since_ms: since.as_millis() }
    }
}

impl Sampler {
    /// Returns the sampler of the process, starting it if needed.
    pub(super) fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sampler) = shared.upgrade() {
            return sampler;
        }
        let sampler = Arc::new(Self {
            boot: format!("{:016x}", RandomState::new().hash_one(0)),
            process: Process::current(),
            histories: Mutex::default(),
            live: watch::Sender::default(),
        });
        *shared = Arc::downgrade(&sampler);
        drop(shared);
        spawn_sampler(Arc::downgrade(&sampler));
        sampler
    }

    /// Returns the identifier of this sampler.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// Returns the current metrics with their history, as JSON.
    pub(super) fn all(&self) -> String {
        let histories = self.histories();
        self.write(histories.number(), histories.all().collect::<Vec<GroupWithHistory<'_>>>())
    }

    /// Returns the last sample, as JSON; empty if no client has subscribed.
    pub(super) fn last(&self) -> Arc<str> {
        self.live.borrow().text.clone()
    }

    /// Returns the history of the last hour, as JSON.
    pub(super) fn hour(&self) -> String {
        let histories = self.histories();
        self.write(histories.number(), histories.hour().collect::<Vec<GroupHour<'_>>>())
    }

    /// Subscribes to the samples from now on.
    pub(super) fn subscribe(&self) -> watch::Receiver<Sample> {
        self.live.subscribe()
    }

    fn sample(&self, elapsed: Duration) {
        let readings = read_all();
        let groups: Vec<_> = readings.iter().filter_map(ObjectGroup::read).collect();
        // Before the lock is taken: this may be the last handle of a cache, and its drop runs user code.
        drop(readings);
        let mut histories = self.histories();
        histories.add(groups, elapsed);
        let number = histories.number();
        let is_watched = self.live.receiver_count() > 0;
        let text = is_watched.then(|| self.write(number, histories.now().collect::<Vec<_>>()));
        // Before the send, which wakes clients that read the histories.
        drop(histories);
        self.live.send_replace(Sample { number, text: text.unwrap_or_default().into() });
    }

    fn write(&self, number: u64, groups: impl Serialize) -> String {
        let every_ms = INTERVAL.as_millis() as u64;
        let version = env!("CARGO_PKG_VERSION");
        let process = &self.process;
        let message = Message { boot: &self.boot, number, every_ms, version, process, groups };
        serde_json::to_string(&message).expect("numbers and texts can be written as JSON")
    }

    fn histories(&self) -> MutexGuard<'_, Histories> {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread, which samples until the sampler is dropped.
fn spawn_sampler(sampler: Weak<Sampler>) {
    let sample = move || {
        let mut last = Instant::now();
        while let Some(sampler) = sampler.upgrade() {
            let now = Instant::now();
            let elapsed = now - last;
            last = now;
            // The sample may drop the last handle of a cache, whose values are user code; a panic must not end the
            // thread.
            if catch_unwind(AssertUnwindSafe(|| sampler.sample(elapsed))).is_err() {
                tracing::error!("drop of a value panicked while the dashboard read its cache");
            }
            // The thread must not keep the sampler alive while it sleeps: it ends with the last dashboard.
            drop(sampler);
            thread::sleep(INTERVAL.saturating_sub(now.elapsed()));
        }
    };
    if let Err(error) = thread::Builder::new().name("fleeting-dashboard".into()).spawn(sample) {
        tracing::error!(%error, "failed to spawn the dashboard thread");
    }
}
