//! Recorders that block while metrics are exported, and recorders that publish themselves.

use std::{
    cell::Cell,
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use fleeting::Cache;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::{render, scrape};

const BLOCKED_CACHE: &str = "blocked";

static BLOCK_STATE: Mutex<BlockState> = Mutex::new(BlockState::Armed);
static CHANGED: Condvar = Condvar::new();

#[derive(Clone, Copy, PartialEq)]
enum BlockState {
    Armed,
    Blocking,
    Released,
}

/// Values that the exporter thread has read but not yet exported are exported before `publish_metrics`
/// returns.
#[tokio::test]
async fn publish_metrics_waits_for_a_concurrent_export() {
    render();
    let cache = Cache::builder().name(BLOCKED_CACHE).build();
    // The export may be caused by another test, so repeat until the exporter thread is the one that exports
    // this cache.
    let mut sets = 0;
    while *BLOCK_STATE.lock().unwrap() == BlockState::Armed {
        cache.set("ada", 42).await;
        sets += 1;
        thread::sleep(Duration::from_millis(10));
    }
    let (done, is_done) = channel();
    let publishing = thread::spawn(move || {
        let metrics = scrape(BLOCKED_CACHE).counter("fleeting_cache_sets_total");
        let _ = done.send(());
        metrics
    });
    // It waits for the blocked thread, so no message arrives.
    let early = is_done.recv_timeout(Duration::from_millis(200));
    set_state(BlockState::Released);
    assert_eq!(publishing.join().unwrap(), sets);
    assert_eq!(early, Err(RecvTimeoutError::Timeout));
}

/// A recorder that calls `publish_metrics` during an export does not deadlock.
#[tokio::test]
async fn recorder_may_call_publish_metrics() {
    let _cache: Cache<u64, u64> = Cache::builder().name("published").build();
    let recorder = PublishingRecorder::default();
    metrics::with_local_recorder(&recorder, fleeting::publish_metrics);
    assert!(recorder.has_published.get());
}

#[derive(Default)]
struct PublishingRecorder {
    has_published: Cell<bool>,
}

impl Recorder for PublishingRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        if !self.has_published.replace(true) {
            fleeting::publish_metrics();
        }
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Blocks the exporter thread at the first increment of a counter of the cache `BLOCKED_CACHE`, until
/// released.
pub(super) struct BlockingRecorder(pub(super) PrometheusRecorder);

struct BlockingCounter(Counter);

impl CounterFn for BlockingCounter {
    fn increment(&self, value: u64) {
        let must_block = value > 0 && thread::current().name() == Some("fleeting-metrics");
        if must_block && *BLOCK_STATE.lock().unwrap() == BlockState::Armed {
            set_state(BlockState::Blocking);
            wait_until(BlockState::Released);
        }
        self.0.increment(value);
    }

    fn absolute(&self, value: u64) {
        self.0.absolute(value);
    }
}

impl Recorder for BlockingRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.0.describe_counter(key, unit, help);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.0.describe_gauge(key, unit, help);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        self.0.describe_histogram(key, unit, help);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let counter = self.0.register_counter(key, metadata);
        if key.labels().any(|label| label.value() == BLOCKED_CACHE) {
            return Counter::from_arc(Arc::new(BlockingCounter(counter)));
        }
        counter
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.0.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.0.register_histogram(key, metadata)
    }
}

fn set_state(state: BlockState) {
    *BLOCK_STATE.lock().unwrap() = state;
    CHANGED.notify_all();
}

fn wait_until(state: BlockState) {
    let guard = BLOCK_STATE.lock().unwrap();
    drop(CHANGED.wait_while(guard, |now| *now != state).unwrap());
}
