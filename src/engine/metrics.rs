//! Export of the metrics of all named objects to the `metrics` facade, twice per second.
//!
//! 1. No call of a recorder is made where a metric changes: counters count as they do without this feature. A thread
//!    reads them and exports them.
//! 2. Objects of the same kind and name are one: their metrics are summed, and the counts of dropped objects stay.
//! 3. Labels are the names given by the program, and words of this crate; never keys.
//! 4. A recorder is user code, and is called under no lock. The same holds for dropping an object that was read.

mod export_order;
mod histogram;
#[cfg(any(feature = "dirq", feature = "redis"))]
mod measurement;
#[cfg(feature = "dashboard")]
mod reading;
mod registry;
mod series;
mod source;
mod values;

#[cfg(any(feature = "dirq", feature = "redis"))]
pub(crate) use self::measurement::{Measurement, RunningMeasurement};
use self::registry::publish;
pub(crate) use self::{
    histogram::Histogram,
    registry::{RegistrationCell, register},
    series::{Series, counter, gauge, histogram},
    source::Source,
    values::MetricValues,
};
#[cfg(feature = "dashboard")]
pub(crate) use self::{
    reading::Reading,
    registry::read_all,
    source::{DeniedKey, KeyName},
};

/// Exports all current metrics to the recorder of the [`metrics`](https://docs.rs/metrics) facade (feature `metrics`).
///
/// A thread does this twice per second. Call this function if the values must be exact, for example before a page of
/// metrics is rendered. The [guide](crate::guide::metrics) lists the names. A call costs some microseconds for each
/// cache, limiter and other object. If the thread is exporting at that moment, the call waits for it.
///
/// # Examples
///
/// ```
/// use fleeting::Cache;
/// use metrics_exporter_prometheus::PrometheusBuilder;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let recorder = PrometheusBuilder::new().install_recorder().unwrap();
/// let sessions = Cache::builder().name("sessions").build();
/// sessions.set("ada", 42).await;
/// sessions.get("ada").await;
///
/// fleeting::publish_metrics();
/// let page = recorder.render();
/// assert!(page.contains("fleeting_cache_hits_total{name=\"sessions\"} 1"));
/// # }
/// ```
pub fn publish_metrics() {
    publish();
}
