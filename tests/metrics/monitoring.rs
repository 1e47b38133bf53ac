//! The dashboard and the alert rules in `docs` use only metrics that the crate exports, and the guide lists them all.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use fleeting::{
    Cache, ExpiringSet, Limit, RateLimiter, Spool, TimeoutDict,
    dirq::QueueSimple,
    redis::{
        Cache as RedisCache, Client, RateLimiter as RedisRateLimiter, TimeoutDict as RedisDict,
    },
};
use regex::Regex;
use serde_json::Value;

use crate::{
    SECOND,
    directory::scratch,
    promtool::check_rules,
    render,
    servers::{Server, connect},
};

const DASHBOARD: &str = include_str!("../../docs/grafana.json");
const ALERTS: &str = include_str!("../../docs/alerts.yml");
const GUIDE: &str = include_str!("../../src/guide/metrics.md");

/// Names and label values as they are exported by a process that uses every kind of object.
#[tokio::test]
async fn every_metric_of_the_dashboard_the_alerts_and_the_guide_is_exported() {
    let page = page_of_everything().await;
    let mut samples = BTreeMap::<&str, Vec<&str>>::new();
    for line in page.lines().filter(|line| line.starts_with("fleeting_")) {
        let (name, labels) = line.split_once('{').expect("each sample has a label");
        samples.entry(name).or_default().push(labels);
    }
    let families: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();

    let name = Regex::new(r"\bfleeting_[a-z]\w*(?:\{([^}]*)\})?").unwrap();
    let label = Regex::new(r#"(\w+)=\\?"(\w+)\\?""#).unwrap();
    for (file, text) in [("grafana.json", DASHBOARD), ("alerts.yml", ALERTS)] {
        let mut used = 0;
        for found in name.captures_iter(text) {
            let metric = found[0].split('{').next().unwrap();
            let exported = samples.get(metric);
            let exported = exported.unwrap_or_else(|| panic!("{file} uses unknown {metric}"));
            let selector = found.get(1).map_or("", |selector| selector.as_str());
            for pair in label.captures_iter(selector) {
                let wanted = format!("{}=\"{}\"", &pair[1], &pair[2]);
                assert!(exported.iter().any(|labels| labels.contains(&wanted)), "{file}: {wanted}");
            }
            used += 1;
        }
        assert!(used > 15, "only {used} metrics were found in {file}");
    }
    for metric in families.iter().filter(|metric| metric.starts_with("fleeting_")) {
        assert!(DASHBOARD.contains(*metric), "the dashboard does not show {metric}");
    }

    let span = Regex::new(r"`([a-z_]+)`").unwrap();
    let listed: BTreeSet<String> = GUIDE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next())
        .flat_map(|names| {
            span.captures_iter(&format!("`{names}"))
                .map(|name| name[1].to_owned())
                .collect::<Vec<_>>()
        })
        .map(|name| format!("fleeting_{name}"))
        .collect();
    let exported: BTreeSet<String> = families.iter().map(|&name| name.to_owned()).collect();
    let unlisted: Vec<_> = exported.difference(&listed).collect();
    assert!(unlisted.is_empty(), "the guide does not list {unlisted:?}");
    let unknown: Vec<_> = listed.difference(&exported).collect();
    assert!(unknown.is_empty(), "the guide lists {unknown:?}, which are not exported");
}

#[test]
fn alert_rules_are_valid() {
    check_rules(ALERTS);
}

/// Prometheus parses every query of the dashboard, with example values for Grafana's variables.
#[test]
fn queries_of_the_dashboard_are_valid() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("the dashboard has panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have the same id");
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    for (at, target) in targets.enumerate() {
        let query = target["expr"].as_str().expect("each target has a query");
        let query = query.replace("$__rate_interval", "5m");
        writeln!(rules, "      - record: query{at}\n        expr: {query:?}").unwrap();
    }
    check_rules(&rules);
}

/// Uses one object of each kind, so that all metrics have values, and renders them.
async fn page_of_everything() -> String {
    let cache: Cache<u64, u64> = Cache::builder().name("all kinds").max_entries(10).build();
    let mut events = cache.events();
    cache.get_or_set_with(&0, SECOND, || async { 0 }).await;
    cache.set_ex(1, 1, SECOND / 1_000).await;
    events.recv().await.unwrap().unwrap();
    let _limiter: RateLimiter<u64> = RateLimiter::builder().limit(Limit::per_second(1)).build();
    let set: ExpiringSet<u64> = ExpiringSet::new(SECOND / 1_000);
    let mut expired = set.events();
    set.push(1).await;
    expired.recv().await.unwrap().unwrap();
    let _dict: TimeoutDict<u64, u64> = TimeoutDict::new();

    let folder = scratch();
    let queue = QueueSimple::open(folder.path().join("all kinds")).await.unwrap();
    let run = tokio::spawn(Spool::new(queue).run(cache.events_lossless(10)));
    cache.set_ex(2, 2, SECOND / 1_000).await;
    events.recv().await.unwrap().unwrap();

    let server = Server::shared();
    let client: Client = connect(server.url()).await;
    let _shared: RedisCache<u64, u64> =
        RedisCache::builder(&client, "all kinds").near(10).build().unwrap();
    let _shared_limiter: RedisRateLimiter<u64> = RedisRateLimiter::builder(&client, "all kinds")
        .limit(Limit::per_second(1))
        .build()
        .unwrap();
    let _shared_dict: RedisDict<u64, u64> = RedisDict::new(&client, "all kinds").unwrap();
    let page = render();
    run.abort();
    page
}
