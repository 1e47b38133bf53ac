//! Directory queues and spools, on real files, by their paths.

use std::time::Duration;

use fleeting::{
    Cache, Spool,
    dirq::{Element, Queue, QueueSimple, Schema},
};

use crate::{directory::scratch, told};

#[tokio::test]
async fn queues_of_both_kinds() {
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
    let of = |queue: &str| told(folder.path().join(queue).to_str().unwrap());
    assert_eq!(of("simple").counter("fleeting_queue_added_total"), 4);
    assert_eq!(of("simple").counter("fleeting_queue_removed_total"), 2);

    let schema = Schema::new([("body", "string")]).unwrap();
    let normal = Queue::builder(folder.path().join("normal")).schema(schema).open().await.unwrap();
    let name = normal.add(Element::new().with("body", "text")).await.unwrap();
    assert!(normal.lock(&name).await.unwrap());
    normal.remove(&name).await.unwrap();
    assert!(normal.remove(&name).await.is_err());
    assert_eq!(of("normal").counter("fleeting_queue_added_total"), 1);
    assert_eq!(of("normal").counter("fleeting_queue_removed_total"), 1);
}

#[tokio::test]
async fn a_spool() {
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
    // The handle that told went with the run.
    let told = told(path.to_str().unwrap());
    assert!(told.counter("fleeting_spool_written_total") <= 5);
    assert_eq!(told.counter("fleeting_spool_failures_total"), 0);
    assert_eq!(told.gauge("fleeting_spool_in_hand"), 0.0);
    assert_eq!(told.gauge("fleeting_spool_stalled_seconds"), 0.0);
    assert_eq!(told.counter("fleeting_queue_added_total"), 5);
}
