//! Serialization of stats, reports and events with serde.

use std::time::{Duration, SystemTime};

use fleeting::{Cache, Cause, Lagged, Sweep};
use serde_json::{Value, json, to_value};
use tokio::time::{advance, sleep};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn stats_and_sweep_reports_serialize_with_their_field_names() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    cache.set_ex("ada", 1, SECOND).await;
    cache.get("ada").await;
    cache.get("eve").await;
    advance(SECOND).await;
    let report = to_value(cache.sweep().await).unwrap();
    let Value::Object(report) = report else { panic!("{report}") };
    assert_eq!((&report["passes"], &report["expired"]), (&json!(2), &json!(1)));
    assert!(report["elapsed"].is_f64() && report["held_back"] == json!(false), "{report:?}");
    let stats = to_value(cache.stats()).unwrap();
    for (name, count) in [("hits", 1), ("misses", 1), ("expired", 1), ("sweeps", 1), ("weight", 0)]
    {
        assert_eq!(stats[name], json!(count), "{name} in {stats}");
    }
    assert_eq!(stats["last_sweep"], Value::Object(report));
}

#[tokio::test(start_paused = true)]
async fn events_serialize_with_wall_clock_times() {
    let cache = Cache::builder().publish([Cause::Expired, Cause::Removed]).build();
    let mut events = cache.events();
    cache.set_ex("ada".to_owned(), (1, "x"), SECOND).await;
    cache.set("eve".to_owned(), (2, "y")).await;
    cache.remove("eve").await;
    let removed = to_value(&*events.recv().await.unwrap().unwrap()).unwrap();
    assert_eq!(removed["deadline"], Value::Null);
    assert_eq!((&removed["key"], &removed["cause"]), (&json!("eve"), &json!("removed")));

    sleep(2 * SECOND).await;
    let expired = events.recv().await.unwrap().unwrap();
    let serialized = to_value(&*expired).unwrap();
    assert_eq!((&serialized["value"], &serialized["cause"]), (&json!([1, "x"]), &json!("expired")));
    let number = |name: &str| serialized[name].as_f64().unwrap();
    let lag = number("at") - number("deadline");
    assert!((lag - expired.lag().unwrap().as_secs_f64()).abs() < 1e-3, "{serialized}");
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((number("deadline") - now).abs() < 600.0, "{serialized}");
    assert_eq!(to_value(Lagged(3)).unwrap(), json!(3));
}
