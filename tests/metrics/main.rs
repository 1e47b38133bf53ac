//! Metrics published to the `metrics` facade, as Prometheus scrapes them.

#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/dirq.rs"]
mod directory;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/promtool.rs"]
mod promtool;
#[path = "../common/redis.rs"]
mod servers;
#[path = "../common/wait_until.rs"]
mod wait_until;

mod blocking_recorder;
mod embedded;
mod monitoring;
mod names;
mod page;
mod queues;
mod redis;
mod redis_dicts;

use std::{sync::LazyLock, time::Duration};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use prometheus_parse::{HistogramCount, Scrape, Value};

const SECOND: Duration = Duration::from_secs(1);

/// The global recorder of this process. The tests share it and use different names.
static RECORDER: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    let builder = PrometheusBuilder::new().set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0]).unwrap();
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(blocking_recorder::BlockingRecorder(recorder)).unwrap();
    handle
});

/// Publishes all metrics and renders them in the Prometheus text format.
fn render() -> String {
    LazyLock::force(&RECORDER);
    fleeting::publish_metrics();
    RECORDER.render()
}

/// Metrics of the objects with one name.
struct ScrapedMetrics {
    scrape: Scrape,
    name: String,
}

fn scrape(name: &str) -> ScrapedMetrics {
    let lines = render().lines().map(|line| Ok(line.to_owned())).collect::<Vec<_>>();
    let scrape = Scrape::parse(lines.into_iter()).expect("the text can be parsed");
    ScrapedMetrics { scrape, name: name.to_owned() }
}

impl ScrapedMetrics {
    fn value(&self, metric: &str, label: Option<(&str, &str)>) -> &Value {
        let mut samples = self.scrape.samples.iter().filter(|sample| {
            sample.metric == metric
                && sample.labels.get("name") == Some(&self.name)
                && label.is_none_or(|(label, value)| sample.labels.get(label) == Some(value))
        });
        let value = samples.next();
        &value.unwrap_or_else(|| panic!("no metric {metric} with the name {:?}", self.name)).value
    }

    fn counter(&self, metric: &str) -> u64 {
        self.counter_of(metric, None)
    }

    fn counter_of(&self, metric: &str, label: Option<(&str, &str)>) -> u64 {
        match self.value(metric, label) {
            Value::Counter(count) => *count as u64,
            other => panic!("{metric} is {other:?}, expected a counter"),
        }
    }

    fn gauge(&self, metric: &str) -> f64 {
        self.gauge_of(metric, None)
    }

    fn gauge_of(&self, metric: &str, label: Option<(&str, &str)>) -> f64 {
        match self.value(metric, label) {
            Value::Gauge(level) => *level,
            other => panic!("{metric} is {other:?}, expected a gauge"),
        }
    }

    /// Returns the number of recorded values of at most `seconds`.
    fn within(&self, metric: &str, seconds: f64) -> u64 {
        match self.value(metric, None) {
            Value::Histogram(buckets) => {
                let bucket =
                    buckets.iter().find(|HistogramCount { less_than, .. }| *less_than == seconds);
                bucket.unwrap_or_else(|| panic!("no bucket of {seconds} in {buckets:?}")).count
                    as u64
            }
            other => panic!("{metric} is {other:?}, expected a histogram"),
        }
    }
}
