//! What caches and limiters tell, in OpenTelemetry.
//!
//! ```text
//! cargo run --example opentelemetry
//! ```
//!
//! The figures go to the `metrics` facade, whose recorder hands them to a meter of OpenTelemetry. A program gives its
//! provider a reader that sends them on (`opentelemetry_otlp`); this one has a reader that keeps them, and prints the
//! sums.

use std::{error::Error, time::Duration};

use fleeting::{Cache, Limit, RateLimiter};
use metrics_exporter_opentelemetry::Recorder;
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter,
    data::{AggregatedMetrics, MetricData},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let exporter = InMemoryMetricExporter::default();
    let (provider, _) = Recorder::builder("a service")
        .with_meter_provider(|provider| provider.with_periodic_exporter(exporter.clone()))
        .install()?;

    let sessions: Cache<String, u64> = Cache::builder().name("sessions").build();
    let logins: RateLimiter<String> =
        RateLimiter::builder().name("logins").limit(Limit::per_minute(1)).build();
    sessions.set_ex("ada".into(), 42, Duration::from_secs(30)).await;
    sessions.get("ada").await;
    sessions.get("eve").await;
    for _ in 0..3 {
        let _ = logins.check("ada").await;
    }

    // By itself all is told twice a second.
    fleeting::publish_metrics();
    provider.force_flush()?;
    if let Some(metrics) = exporter.get_finished_metrics()?.last() {
        for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
            let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() else { continue };
            for point in sum.data_points() {
                let labels = point.attributes().map(|label| label.value.to_string());
                let labels: Vec<_> = labels.collect();
                println!("{} {} {}", metric.name(), labels.join(" "), point.value());
            }
        }
    }
    provider.shutdown()?;
    Ok(())
}
