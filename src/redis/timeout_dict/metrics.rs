//! Metrics of a dictionary for the `metrics` facade: what this process did, and the numbers of entries, which are
//! measured on the server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::future::try_join_all;
use tokio::runtime::Handle;

use super::{counters::DictCounters, layout::Layout};
use crate::{
    engine::metrics::{
        Measurement, MetricValues, RegistrationCell, RunningMeasurement, Series, Source, register,
    },
    redis::{Client, Error},
    timeout_dict::SERIES as EMBEDDED_SERIES,
};

static SERIES: [Series; EMBEDDED_SERIES.len()] =
    Series::all_of(EMBEDDED_SERIES, "backend", "redis");

/// The metrics of all dictionaries of this process: several handles of one are counted and measured once.
static SHARED: Mutex<BTreeMap<DictId, Weak<DictMetrics>>> = Mutex::new(BTreeMap::new());

/// Servers, and the key of the first index on them.
type DictId = (String, Vec<u8>);

/// Metrics of all handles of this process on one dictionary.
pub(super) struct DictMetrics {
    pub(super) counters: Arc<DictCounters>,
    id: DictId,
    /// The first that exists measures the dictionary.
    handles: Mutex<Vec<Weak<MeasuredHandle>>>,
    measurement: Arc<Measurement<StateCounts>>,
    registration: RegistrationCell,
}

/// A handle that was used, so that it may send commands to the server.
pub(super) struct MeasuredHandle {
    client: Client,
    layout: Arc<Layout>,
    runtime: Handle,
}

/// Numbers of entries by state.
#[derive(Clone, Copy, Default)]
struct StateCounts {
    entries: u64,
    dead: u64,
    due: u64,
    resting: u64,
    /// Time since the deadline of the entry that has been due for longest, or zero.
    oldest: Duration,
}

impl DictMetrics {
    /// Returns the metrics of a dictionary, and registers them with the exporter if they are new.
    pub(super) fn of(client: &Client, name: &str, layout: &Layout) -> Arc<Self> {
        let id = (client.servers().to_owned(), layout.shards()[0].index.clone());
        let mut shared = shared();
        if let Some(metrics) = shared.get(&id).and_then(Weak::upgrade) {
            return metrics;
        }
        let metrics = Arc::new(Self {
            counters: Arc::default(),
            id: id.clone(),
            handles: Mutex::default(),
            measurement: Arc::default(),
            registration: RegistrationCell::new(),
        });
        shared.insert(id, Arc::downgrade(&metrics));
        drop(shared);
        let source: Weak<Self> = Arc::downgrade(&metrics);
        register(&SERIES, name, source, &metrics.registration);
        metrics
    }

    /// Adds a handle that may measure the dictionary on the current runtime, until the result is dropped.
    pub(super) fn add_handle(&self, client: &Client, layout: &Arc<Layout>) -> Arc<MeasuredHandle> {
        let (client, layout, runtime) = (client.clone(), layout.clone(), Handle::current());
        let handle = Arc::new(MeasuredHandle { client, layout, runtime });
        let mut handles = self.handles();
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(&handle));
        handle
    }

    fn handles(&self) -> MutexGuard<'_, Vec<Weak<MeasuredHandle>>> {
        // The list is consistent at every point where a thread can panic.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DictMetrics {
    fn drop(&mut self) {
        let mut shared = shared();
        // A new handle may have replaced them.
        if shared.get(&self.id).is_some_and(|metrics| metrics.strong_count() == 0) {
            shared.remove(&self.id);
        }
    }
}

impl MeasuredHandle {
    /// Counts the entries in a task. If its runtime has ended, or does so before the reply, the counts are unknown.
    fn spawn_measurement(&self, running: RunningMeasurement<StateCounts>) {
        let (client, layout) = (self.client.clone(), self.layout.clone());
        self.runtime.spawn(async move {
            // A failure is not logged: the client reports an unreachable server once, and callers get the errors.
            let counts = measure(&client, &layout).await.ok();
            running.end(counts, 1);
        });
    }
}

/// Counts the entries in all shards concurrently. A script per shard, since a cluster keeps the shards on several
/// nodes.
async fn measure(client: &Client, layout: &Layout) -> Result<StateCounts, Error> {
    let calls = layout.shards().iter().map(|shard| {
        let call = layout.scripts.measure.call(&shard.all()).arg(&shard.record_prefix);
        call.send_idempotent::<(u64, u64, u64, u64, u64)>(client)
    });
    let mut sum = StateCounts::default();
    for (entries, dead, due, resting, oldest) in try_join_all(calls).await? {
        // Saturating, as in `len`.
        sum.entries = sum.entries.saturating_add(entries);
        sum.dead = sum.dead.saturating_add(dead);
        sum.due = sum.due.saturating_add(due);
        sum.resting = sum.resting.saturating_add(resting);
        sum.oldest = sum.oldest.max(Duration::from_micros(oldest));
    }
    Ok(sum)
}

impl Source for DictMetrics {
    fn read(&self, values: &mut MetricValues) {
        let counts = self.measurement.read(|running| {
            let handle = self.handles().iter().find_map(Weak::upgrade);
            if let Some(handle) = handle {
                handle.spawn_measurement(running);
            }
        });
        // An unknown number must not look like an empty dictionary.
        let level = |level: fn(StateCounts) -> f64| counts.map_or(f64::NAN, level);
        values.level(level(|counts| counts.entries as f64));
        values.level(level(|counts| counts.dead as f64));
        values.level(level(|counts| counts.due as f64));
        values.level(self.counters.held() as f64);
        values.level(level(|counts| counts.resting as f64));
        values.level(level(|counts| counts.oldest.as_secs_f64()));
        self.counters.totals().into_iter().for_each(|total| values.count(total));
    }
}

fn shared() -> MutexGuard<'static, BTreeMap<DictId, Weak<DictMetrics>>> {
    // The map is consistent at every point where a thread can panic.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}
