//! The page as a whole: names, units and words as Prometheus and OpenMetrics want them.

use std::collections::{BTreeMap, BTreeSet};

use fleeting::{Cache, ExpiringSet, Limit, RateLimiter, TimeoutDict};

use crate::{SECOND, page, promtool::ask_promtool, told};

/// As `promtool check metrics` says, and by our own rules, which are stricter.
#[tokio::test]
async fn names_types_and_help_keep_to_the_conventions() {
    let cache: Cache<u64, u64> = Cache::builder().name("a \"quoted\" name\\").build();
    let _limiter: RateLimiter<u64> = RateLimiter::builder().limit(Limit::per_second(1)).build();
    let _set: ExpiringSet<u64> = ExpiringSet::new(SECOND);
    let _dict: TimeoutDict<u64, u64> = TimeoutDict::new();
    let _events = cache.events();
    cache.set_ex(1, 1, SECOND / 1_000).await;
    while !cache.is_empty() {
        tokio::time::sleep(SECOND / 100).await;
    }
    let page = page();
    ask_promtool(&page);
    let (mut types, mut help, mut samples) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for line in page.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "TYPE", name, kind] => {
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
            }
            ["#", "HELP", name, text] => {
                assert!(text.ends_with('.') && text.len() > 10, "{line}");
                assert!(help.insert(name.to_owned()), "twice: {line}");
            }
            [""] => {}
            _ => _ = samples.insert(line.split('{').next().unwrap().to_owned()),
        }
    }
    assert!(types.len() > 30, "{} families in:\n{page}", types.len());
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

/// Nobody has to ask: a thread tells.
#[tokio::test]
async fn all_is_told_by_itself() {
    page();
    let cache = Cache::builder().name("by itself").build();
    cache.set(1, 1).await;
    let begin = std::time::Instant::now();
    while !crate::RECORDER.render().contains("fleeting_cache_sets_total{name=\"by itself\"} 1") {
        assert!(begin.elapsed() < 120 * SECOND, "nothing tells");
        tokio::time::sleep(SECOND / 20).await;
    }
    cache.set(2, 2).await;
    while !crate::RECORDER.render().contains("fleeting_cache_sets_total{name=\"by itself\"} 2") {
        assert!(begin.elapsed() < 120 * SECOND, "nothing tells any more");
        tokio::time::sleep(SECOND / 20).await;
    }
}

/// One that comes late is told all that there was.
#[tokio::test(start_paused = true)]
async fn a_recorder_that_comes_late_hears_of_all() {
    let cache = Cache::builder().name("late").build();
    let mut events = cache.events();
    for key in 0..10 {
        cache.set_ex(key, key, SECOND).await;
    }
    tokio::time::sleep(3 * SECOND).await;
    for _ in 0..10 {
        events.recv().await.unwrap().unwrap();
    }
    page();
    let buckets =
        metrics_exporter_prometheus::PrometheusBuilder::new().set_buckets(&[1.0]).unwrap();
    let recorder = buckets.build_recorder();
    metrics::with_local_recorder(&recorder, fleeting::publish_metrics);
    let page = recorder.handle().render();
    for line in [
        "fleeting_cache_sets_total{name=\"late\"} 10",
        "fleeting_cache_departures_total{name=\"late\",cause=\"expired\"} 10",
        "fleeting_cache_event_lag_seconds_bucket{name=\"late\",le=\"1\"} 10",
        "# HELP fleeting_cache_sets_total Values written.",
    ] {
        assert!(page.contains(line), "no {line} in:\n{page}");
    }
    assert_eq!(told("late").within("fleeting_cache_event_lag_seconds", 1.0), 10);
}
