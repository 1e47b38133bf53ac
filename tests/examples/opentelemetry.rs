//! Tests of the example `opentelemetry`: counters of caches and limiters reach an OpenTelemetry exporter.

use std::process::Command;

use crate::example::example;

#[test]
fn counters_reach_an_opentelemetry_exporter() {
    let output = Command::new(example("opentelemetry")).output().expect("the example runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let lines = String::from_utf8_lossy(&output.stdout);
    for line in [
        "fleeting_cache_hits_total sessions 1",
        "fleeting_cache_misses_total sessions 1",
        "fleeting_cache_sets_total sessions 1",
        "fleeting_limiter_allowed_total logins 1",
        "fleeting_limiter_denied_total logins 2",
    ] {
        assert!(lines.lines().any(|other| other == line), "no {line} in:\n{lines}");
    }
    let causes = lines.lines().filter(|line| line.starts_with("fleeting_cache_departures_total"));
    assert_eq!(causes.count(), 4, "{lines}");
}
