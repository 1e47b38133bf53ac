//! Dictionaries on Redis: their numbers of entries are measured on a real server.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fleeting::redis::{Client, TimeoutDict};
use tokio::time::sleep;
use tracing::Level;

use crate::{
    SECOND, ScrapedMetrics,
    log::Log,
    patience::patience,
    scrape,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

type Jobs = TimeoutDict<String, u32>;

fn gauge(metrics: &ScrapedMetrics, name: &str) -> f64 {
    metrics.gauge_of(&format!("fleeting_dict_{name}"), Some(("backend", "redis")))
}

/// Returns entries, dead, due, leased and resting ones, as soon as they are `expected`.
async fn until_counts(dict: &str, expected: [f64; 5]) {
    let start = Instant::now();
    loop {
        // Called on the only thread of the runtime, so it does not wait for the reply of the server.
        let metrics = scrape(dict);
        let counts = ["entries", "dead", "due", "leased", "resting"].map(|of| gauge(&metrics, of));
        if counts.map(|count| count.to_bits()) == expected.map(f64::to_bits) {
            return;
        }
        assert!(start.elapsed() < patience(), "{counts:?}, expected {expected:?}");
        // Each scrape reads all metrics of the process, and the entries are counted every few seconds.
        sleep(SECOND / 4).await;
    }
}

#[tokio::test]
async fn redis_dict_metrics_count_its_entries_on_the_server_and_the_claims_of_this_process() {
    let server = Server::start();
    let name = "jobs on redis";
    let client = connect(server.url()).await;
    let build = || {
        let jobs = TimeoutDict::builder(&client, name).max_attempts(2).backoff(HOUR, HOUR);
        jobs.build().unwrap()
    };
    let jobs: Jobs = build();
    // A handle that is not used sends nothing to the server.
    assert!(gauge(&scrape(name), "entries").is_nan());
    sleep(SECOND / 5).await;
    assert!(!server.ask("INFO commandstats").contains("evalsha"));

    let claim = async |key: &str| {
        jobs.set(key.to_owned(), 1, Duration::ZERO).await.unwrap();
        jobs.claim_expired(1, HOUR).await.unwrap().pop().expect("an entry is due")
    };
    claim("dead").await.retry_in(Duration::ZERO).await.unwrap();
    let again = jobs.claim_expired(1, HOUR).await.unwrap().pop().expect("an entry is due");
    assert!(again.fail("no").await.unwrap());
    assert!(claim("resting").await.fail("not yet").await.unwrap());
    let held = claim("held").await;
    assert!(claim("acked").await.ack().await.unwrap());
    for key in ["due 1", "due 2"] {
        jobs.set(key.to_owned(), 1, Duration::ZERO).await.unwrap();
    }
    assert_eq!(jobs.take_expired(1).await.unwrap().len(), 1);
    jobs.set("later".to_owned(), 1, HOUR).await.unwrap();
    // Handles on the same dictionary are measured and counted once, also those of another client.
    let other = Jobs::new(&connect(server.url()).await, name).unwrap();
    assert!(!other.set_nx("later".to_owned(), 1, HOUR).await.unwrap());
    let second = build();
    until_counts(name, [5.0, 1.0, 1.0, 1.0, 1.0]).await;

    let metrics = scrape(name);
    let oldest = gauge(&metrics, "oldest_due_seconds");
    assert!(oldest > 0.0 && oldest < patience().as_secs_f64(), "{oldest}");
    let totals = ["taken", "claims", "acked", "failed"].map(|of| {
        let series = format!("fleeting_dict_{of}_total");
        metrics.counter_of(&series, Some(("backend", "redis")))
    });
    assert_eq!(totals, [1, 5, 1, 3]);

    drop((jobs, second));
    // A dropped claim has failed. The handle that remains measures the dictionary.
    drop(held);
    until_counts(name, [5.0, 1.0, 1.0, 0.0, 2.0]).await;
    other.clear().await.unwrap();
    until_counts(name, [0.0; 5]).await;
}

#[tokio::test]
async fn embedded_dict_of_the_same_name_has_metrics_of_its_own() {
    let (log, _guard) = Log::start(Level::WARN);
    let server = Server::shared();
    let name = "same name in memory";
    let embedded = fleeting::TimeoutDict::<u32, u32>::builder().name(name).build();
    let shared = Jobs::new(&connect(server.url()).await, name).unwrap();
    embedded.set(1, 1, HOUR).await;
    for key in ["a", "b"] {
        shared.set(key.to_owned(), 1, HOUR).await.unwrap();
    }
    until_counts(name, [2.0, 0.0, 0.0, 0.0, 0.0]).await;
    let page = crate::render();
    assert!(page.contains(&format!("fleeting_dict_entries{{name=\"{name}\"}} 1\n")), "{page}");
    assert_eq!(log.lines("several objects have the same name"), [""; 0]);
    shared.clear().await.unwrap();
}

#[tokio::test]
async fn compat_dict_is_measured_without_failures() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let jobs = TimeoutDict::<String, BTreeMap<String, String>>::compat(&client, "compat set");
    for (key, ttl) in [("a", Duration::ZERO), ("b", Duration::ZERO), ("c", HOUR)] {
        let value = BTreeMap::from([("field".to_owned(), "value".to_owned())]);
        jobs.set(key.to_owned(), value, ttl).await.unwrap();
    }
    let _held = jobs.claim_expired(1, HOUR).await.unwrap();
    until_counts("compat set", [3.0, 0.0, 1.0, 1.0, 0.0]).await;
}

#[tokio::test]
async fn numbers_of_an_unreachable_server_are_unknown_and_its_outage_is_logged_once() {
    let (log, _guard) = Log::start(Level::WARN);
    let mut server = Server::durable();
    let name = "jobs of an outage";
    let client =
        Client::builder(server.url()).prefix(name).timeout(patience() / 60).connect().await;
    let client = client.unwrap();
    let jobs = Jobs::new(&client, name).unwrap();
    jobs.set("ada".to_owned(), 1, HOUR).await.unwrap();
    until_counts(name, [1.0, 0.0, 0.0, 0.0, 0.0]).await;
    let outage = || {
        let metrics = scrape(name);
        ["", "_seconds"].map(|of| metrics.gauge(&format!("fleeting_redis_client_unreachable{of}")))
    };
    assert_eq!(outage(), [0.0, 0.0]);

    server.kill();
    let unknown = [f64::NAN, f64::NAN, f64::NAN, 0.0, f64::NAN];
    until_counts(name, unknown).await;
    // No call but those of the measurements is sent. Another measurement fails.
    let failures = || scrape(name).counter("fleeting_redis_client_failures_total");
    let (before, start) = (failures(), Instant::now());
    while failures() == before || outage()[0] != 1.0 {
        assert!(start.elapsed() < patience(), "no further measurement");
        sleep(SECOND / 20).await;
    }
    assert!(outage()[1] >= 0.9, "{:?}", outage());
    let lines = log.lines("");
    assert!(lines.len() == 1 && lines[0].contains("server is unreachable"), "{lines:?}");

    server.restart();
    until_counts(name, [1.0, 0.0, 0.0, 0.0, 0.0]).await;
    assert_eq!(outage(), [0.0, 0.0]);
    assert_eq!(log.lines("").len(), 1);
}
