//! Directory queues and spools on real files; their metrics are named by their paths.

use std::time::Duration;

use fleeting::{
    Cache, Spool,
    dirq::{Element, Queue, QueueSimple, Schema},
};

use crate::{directory::scratch, scrape};

#[tokio::test]
async fn queue_metrics_count_added_and_removed_elements() {
    let folder = scratch();
    let simple = QueueSimple::open(folder.path().join("simple")).await.unwrap();
    let name = simple.add(b"one").await.unwrap();
    simple.add_many(["two", "three", "four"]).await.unwrap();
    assert!(simple.dequeue(&name).await.unwrap().is_some());
    assert!(simple.dequeue(&name).await.unwrap().is_none());
    let mut locked = simple.locked();
    locked.next().await.unwrap().unwrap().ack().await.unwrap();
    drop(locked.next().await.unwrap().unwrap());
    drop(locked);
    let metrics_of = |queue: &str| scrape(folder.path().join(queue).to_str().unwrap());
    assert_eq!(metrics_of("simple").counter("fleeting_queue_added_total"), 4);
    assert_eq!(metrics_of("simple").counter("fleeting_queue_removed_total"), 2);

    let schema = Schema::new([("body", "string")]).unwrap();
    let structured =
        Queue::builder(folder.path().join("structured")).schema(schema).open().await.unwrap();
    let name = structured.add(Element::new().with("body", "text")).await.unwrap();
    assert!(structured.lock(&name).await.unwrap());
    structured.remove(&name).await.unwrap();
    assert!(structured.remove(&name).await.is_err());
    assert_eq!(metrics_of("structured").counter("fleeting_queue_added_total"), 1);
    assert_eq!(metrics_of("structured").counter("fleeting_queue_removed_total"), 1);
}

#[tokio::test]
async fn spool_metrics_end_with_its_run() {
    let folder = scratch();
    let path = folder.path().join("expired");
    let spool = Spool::new(QueueSimple::open(&path).await.unwrap());
    let cache = Cache::new();
    let writing = tokio::spawn(spool.run(cache.events_lossless(10)));
    for key in 0..5 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    cache.shutdown().await;
    assert_eq!(writing.await.unwrap().written, 5);
    // The spool's gauges ended with its run; its counters may have missed the last writes.
    let metrics = scrape(path.to_str().unwrap());
    assert!(metrics.counter("fleeting_spool_written_total") <= 5);
    assert_eq!(metrics.counter("fleeting_spool_failures_total"), 0);
    assert_eq!(metrics.gauge("fleeting_spool_in_hand"), 0.0);
    assert_eq!(metrics.gauge("fleeting_spool_stalled_seconds"), 0.0);
    assert_eq!(metrics.counter("fleeting_queue_added_total"), 5);
}
