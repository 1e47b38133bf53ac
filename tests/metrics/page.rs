//! The rendered text as a whole: names, units and help texts follow the conventions of Prometheus and
//! OpenMetrics.

use std::collections::{BTreeMap, BTreeSet};

use fleeting::{Cache, ExpiringSet, Limit, RateLimiter, TimeoutDict};

use crate::{SECOND, patience::patience, promtool::ask_promtool, render, scrape};

/// Checked by `promtool check metrics`, and by the stricter rules of this crate.
#[tokio::test]
async fn metric_names_types_and_help_follow_the_conventions() {
    let cache: Cache<u64, u64> = Cache::builder().name("a \"quoted\" name\\").build();
    let _limiter: RateLimiter<u64> = RateLimiter::builder().limit(Limit::per_second(1)).build();
    let _set: ExpiringSet<u64> = ExpiringSet::new(SECOND);
    let _dict: TimeoutDict<u64, u64> = TimeoutDict::new();
    let _events = cache.events();
    cache.set_ex(1, 1, SECOND / 1_000).await;
    while !cache.is_empty() {
        tokio::time::sleep(SECOND / 100).await;
    }
    let text = render();
    ask_promtool(&text);
    let (mut types, mut help, mut samples) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "TYPE", name, kind] => {
                assert!(
                    types.insert(name.to_owned(), kind.to_owned()).is_none(),
                    "duplicate: {line}"
                );
            }
            ["#", "HELP", name, help_text] => {
                assert!(help_text.ends_with('.') && help_text.len() > 10, "{line}");
                assert!(help.insert(name.to_owned()), "duplicate: {line}");
            }
            [""] => {}
            _ => _ = samples.insert(line.split('{').next().unwrap().to_owned()),
        }
    }
    assert!(types.len() > 30, "{} families in:\n{text}", types.len());
    for (name, kind) in &types {
        assert!(name.starts_with("fleeting_"), "{name}");
        let is_snake = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(is_snake && !name.contains("__"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        for wrong in
            ["_counter", "_gauge", "_histogram", "_ms", "_milliseconds", "_micros", "_info"]
        {
            assert!(!name.contains(wrong), "{name}");
        }
        for reserved in ["_count", "_sum", "_bucket"] {
            assert!(!name.ends_with(reserved), "{name}");
        }
        assert!(help.contains(name), "{name} has no help");
    }
    for sample in samples {
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| sample.strip_suffix(suffix))
            .find(|family| types.get(*family).is_some_and(|kind| kind == "histogram"));
        assert!(types.contains_key(family.unwrap_or(&sample)), "{sample} has no type");
    }
}

/// A background thread exports the metrics without a call of `publish_metrics`.
#[tokio::test]
async fn background_thread_exports_metrics() {
    render();
    let cache = Cache::builder().name("by itself").build();
    cache.set(1, 1).await;
    let begin = std::time::Instant::now();
    while !crate::RECORDER.render().contains("fleeting_cache_sets_total{name=\"by itself\"} 1") {
        assert!(begin.elapsed() < patience(), "the metrics are not exported");
        tokio::time::sleep(SECOND / 20).await;
    }
    cache.set(2, 2).await;
    while !crate::RECORDER.render().contains("fleeting_cache_sets_total{name=\"by itself\"} 2") {
        assert!(begin.elapsed() < patience(), "the metrics are no longer exported");
        tokio::time::sleep(SECOND / 20).await;
    }
}

/// A recorder that is installed late receives all values so far.
#[tokio::test(start_paused = true)]
async fn late_recorder_receives_all_values() {
    let cache = Cache::builder().name("late").build();
    let mut events = cache.events();
    for key in 0..10 {
        cache.set_ex(key, key, SECOND).await;
    }
    tokio::time::sleep(3 * SECOND).await;
    for _ in 0..10 {
        events.recv().await.unwrap().unwrap();
    }
    render();
    let buckets =
        metrics_exporter_prometheus::PrometheusBuilder::new().set_buckets(&[1.0]).unwrap();
    let recorder = buckets.build_recorder();
    metrics::with_local_recorder(&recorder, fleeting::publish_metrics);
    let text = recorder.handle().render();
    for line in [
        "fleeting_cache_sets_total{name=\"late\"} 10",
        "fleeting_cache_departures_total{name=\"late\",cause=\"expired\"} 10",
        "fleeting_cache_event_lag_seconds_bucket{name=\"late\",le=\"1\"} 10",
        "# HELP fleeting_cache_sets_total Values written.",
    ] {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
    assert_eq!(scrape("late").within("fleeting_cache_event_lag_seconds", 1.0), 10);
}
