//! Directory queues and spools on real files; their metrics are named by their paths.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use fleeting::{
    Cache, Spool,
    dirq::{Element, Queue, QueueSimple, Schema},
};

use crate::{SECOND, directory::scratch, patience::patience, scrape};

/// Returns another path of a queue, by which it can be changed before it is first measured at its own.
fn other_path(queue: &Path) -> PathBuf {
    fs::create_dir_all(queue).unwrap();
    queue.join("..").join(queue.file_name().unwrap())
}

/// Returns length, locked, resting, dead, and the age of the oldest element in seconds, as soon as the length is
/// `length`, which may be NaN.
fn depth(queue: &Path, length: f64) -> [f64; 5] {
    let start = Instant::now();
    let mut before = None;
    loop {
        let metrics = scrape(queue.to_str().unwrap());
        let depth = ["length", "locked", "resting", "dead", "oldest_seconds"]
            .map(|name| metrics.gauge(&format!("fleeting_queue_{name}")));
        // The numbers are exported one by one: a scrape in between gets some of an older measurement.
        let bits = depth.map(f64::to_bits);
        let is_whole = before.replace(bits) == Some(bits);
        if is_whole && (depth[0] == length || depth[0].is_nan() && length.is_nan()) {
            return depth;
        }
        assert!(start.elapsed() < patience(), "the length is {}, expected {length}", depth[0]);
        // Each scrape reads all metrics of the process.
        thread::sleep(Duration::from_millis(200));
    }
}

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
async fn queue_metrics_measure_locked_resting_and_dead_elements_and_the_oldest() {
    let folder = scratch();
    let hour = 3600 * SECOND;
    let path = folder.path().join("simple");
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let add = |age: u64| {
        let (dir, name) = (now - age - now % 60, format!("{:08x}000000", now - age));
        fs::create_dir_all(path.join(format!("{dir:08x}"))).unwrap();
        fs::write(path.join(format!("{dir:08x}/{name}")), "x").unwrap();
    };
    (0..5).for_each(|n| add(1_000 - n));
    {
        let queue = QueueSimple::builder(other_path(&path)).backoff(hour, hour).max_attempts(2);
        let queue = queue.open().await.unwrap();
        // The first one is dead, and the second one is locked.
        let first = queue.locked().next().await.unwrap().unwrap();
        let name = *first.name();
        first.retry_in(Duration::ZERO).await.unwrap();
        let again = queue.locked().next().await.unwrap().unwrap();
        assert_eq!(again.name(), &name);
        drop(again);
        let mut jobs = queue.locked();
        let second = jobs.next().await.unwrap().unwrap();
        assert!(queue.lock(second.name()).await.is_ok_and(|locked| !locked));
        std::mem::forget(second);
        drop(jobs.next().await.unwrap().unwrap()); // rests
        assert_eq!(queue.dead_len().await.unwrap(), 1);
    }
    let queue = QueueSimple::open(&path).await.unwrap();
    // Two handles on one path are one queue.
    let _second = QueueSimple::open(&path).await.unwrap();
    let [_, locked, resting, dead, oldest] = depth(queue.path(), 5.0);
    assert_eq!([locked, resting, dead], [1.0, 1.0, 1.0]);
    // Without the dead letter.
    let age = (SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() - now) as f64 + 999.0;
    assert!((age - 11.0 - patience().as_secs_f64()..=age + 1.0).contains(&oldest), "{oldest}");

    let path = folder.path().join("normal");
    let schema = Schema::new([("body", "string")]).unwrap();
    {
        let queue = Queue::builder(other_path(&path)).schema(schema).open().await.unwrap();
        let name = queue.add(Element::new().with("body", "one")).await.unwrap();
        queue.add(Element::new().with("body", "two")).await.unwrap();
        assert!(queue.lock(&name).await.unwrap());
    }
    let queue = Queue::builder(&path).open().await.unwrap();
    assert_eq!(depth(queue.path(), 2.0)[1..4], [1.0, 0.0, 0.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_measured_every_ten_seconds_and_unknown_numbers_are_not_zero() {
    let folder = scratch();
    let path = folder.path().join("queue");
    QueueSimple::open(other_path(&path)).await.unwrap().add("one").await.unwrap();
    let start = Instant::now();
    let queue = QueueSimple::open(&path).await.unwrap();
    depth(&path, 1.0);
    queue.add("two").await.unwrap();
    depth(&path, 2.0);
    assert!(start.elapsed() >= 10 * SECOND);
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "not a directory").unwrap();
    assert!(depth(&path, f64::NAN).iter().all(|number| number.is_nan()));
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
