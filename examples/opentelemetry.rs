//! Metrics of caches and limiters, exported to OpenTelemetry.
//!
//! ```text
//! cargo run --example opentelemetry
//! ```
//!
//! The metrics go to the `metrics` facade, whose recorder forwards them to an OpenTelemetry meter. A real program gives
//! its meter provider an exporter that sends them over the network (`opentelemetry_otlp`). The exporter of this example
//! keeps them in memory, and the program prints the sums.

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

    // Not needed in a program that keeps running: metrics are published twice per second.
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
