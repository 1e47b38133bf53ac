//! What all that has a name tells of itself to the `metrics` facade, twice a second.
//!
//! 1. Nothing is told where it happens: who counts does so as without this. A thread reads it, and tells.
//! 2. Things of one kind and name are one: their figures are added up, and what has ended stays counted.
//! 3. Labels are the names that a program gives, and words of ours; never keys.
//! 4. A recorder is somebody's code, and is called under no lock; so is what is read.

mod export_order;
mod histogram;
#[cfg(feature = "dashboard")]
mod reading;
mod registry;
mod series;
mod source;
mod values;

use self::registry::publish;
pub(crate) use self::{
    histogram::Histogram,
    registry::{Slot, register},
    series::{Series, counter, gauge, histogram},
    source::Source,
    values::MetricValues,
};
#[cfg(feature = "dashboard")]
pub(crate) use self::{
    reading::Reading,
    registry::look,
    source::{DeniedKey, KeyName},
};

/// Tells the recorder of the [`metrics`](https://docs.rs/metrics) facade what all figures are now (feature `metrics`).
///
/// A thread does so twice a second by itself. Call it where they are to be exact: before a page of them is made. The
/// [guide](crate::guide::metrics) has the names. It costs some microseconds for each cache, limiter and the like, and
/// waits until what the thread is telling at that moment is told.
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
