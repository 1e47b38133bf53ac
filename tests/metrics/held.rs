//! Recorders that take their time, and that publish themselves.

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

use super::{page, told};

const NAME: &str = "held";

static HELD: Mutex<Held> = Mutex::new(Held::NotYet);
static CHANGED: Condvar = Condvar::new();

#[derive(Clone, Copy, PartialEq)]
enum Held {
    NotYet,
    Now,
    NoMore,
}

/// What was read by the thread and not told yet is told before a call of `publish_metrics` returns.
#[tokio::test]
async fn what_is_published_is_exact_although_the_thread_has_not_told_all() {
    page();
    let cache = Cache::builder().name(NAME).build();
    // Another test may be the one who tells of it.
    let mut sets = 0;
    while *HELD.lock().unwrap() == Held::NotYet {
        cache.set("ada", 42).await;
        sets += 1;
        thread::sleep(Duration::from_millis(10));
    }
    let (done, is_done) = channel();
    let publishing = thread::spawn(move || {
        let told = told(NAME).counter("fleeting_cache_sets_total");
        let _ = done.send(());
        told
    });
    // It waits for the thread, so nothing comes.
    let early = is_done.recv_timeout(Duration::from_millis(200));
    change(Held::NoMore);
    assert_eq!(publishing.join().unwrap(), sets);
    assert_eq!(early, Err(RecvTimeoutError::Timeout));
}

/// A recorder that publishes while it is being told doesn't wait for itself.
#[tokio::test]
async fn a_recorder_may_publish() {
    let _cache: Cache<u64, u64> = Cache::builder().name("published").build();
    let recorder = Publishing::default();
    metrics::with_local_recorder(&recorder, fleeting::publish_metrics);
    assert!(recorder.has_published.get());
}

#[derive(Default)]
struct Publishing {
    has_published: Cell<bool>,
}

impl Recorder for Publishing {
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

/// Holds the first set of the cache back that the thread tells of.
pub(super) struct Holding(pub(super) PrometheusRecorder);

struct HoldingCounter(Counter);

impl CounterFn for HoldingCounter {
    fn increment(&self, value: u64) {
        let is_held = value > 0 && thread::current().name() == Some("fleeting-metrics");
        if is_held && *HELD.lock().unwrap() == Held::NotYet {
            change(Held::Now);
            wait_until(Held::NoMore);
        }
        self.0.increment(value);
    }

    fn absolute(&self, value: u64) {
        self.0.absolute(value);
    }
}

impl Recorder for Holding {
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
        if key.labels().any(|label| label.value() == NAME) {
            return Counter::from_arc(Arc::new(HoldingCounter(counter)));
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

fn change(held: Held) {
    *HELD.lock().unwrap() = held;
    CHANGED.notify_all();
}

fn wait_until(held: Held) {
    let guard = HELD.lock().unwrap();
    drop(CHANGED.wait_while(guard, |now| *now != held).unwrap());
}
