//! `Spool`: expired events reach a real directory queue, despite crashes of the spool and disk errors.
//!
//! `FLEETING_SEED` determines the moments at which spools are killed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fleeting::{
    Cache, Cause, LosslessEvents, Spool, Sweep,
    dirq::{Purge, Queue, QueueSimple},
};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Serialize, Serializer, ser::Error as _};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_test::{assert_pending, stream_mock::StreamMockBuilder, task::spawn};
use tracing::Level;

use crate::{
    directory::{elements, make_old, scratch, test_name, tree},
    log::Log,
    patience::patience,
};

const SECOND: Duration = Duration::from_secs(1);

/// The maximum number of events that a spool holds.
const BATCH: u64 = 256;

fn bodies(queue: &Path) -> Vec<Value> {
    let read = |path: &PathBuf| fs::read(path).expect("an element can be read");
    elements(queue)
        .iter()
        .map(|path| serde_json::from_slice(&read(path)).expect("an element is JSON"))
        .collect()
}

fn keys(queue: &Path) -> Vec<u64> {
    bodies(queue).iter().map(|body| body["key"].as_u64().expect("a key is a number")).collect()
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn expired_entry_becomes_an_element() {
    let temp_dir = scratch();
    let cache = Cache::new();
    let spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
    let run = tokio::spawn(spool.run(cache.events_lossless(10)));
    cache.set_ex("ada \"the\" countess".to_owned(), BTreeMap::from([("n", 42)]), SECOND).await;
    sleep(3 * SECOND).await;
    cache.shutdown().await;
    assert_eq!(run.await.unwrap().written, 1);

    let mut bodies = bodies(temp_dir.path());
    assert_eq!(bodies.len(), 1);
    let meta = bodies[0]["meta"].take();
    let expected = json!({ "key": "ada \"the\" countess", "value": { "n": 42 }, "meta": null });
    assert_eq!(bodies[0], expected);
    assert_eq!(meta["cause"], "expired");
    let (deadline, at) = (meta["deadline"].as_f64().unwrap(), meta["at"].as_f64().unwrap());
    let lag = at - deadline;
    assert!((0.0..=1.0).contains(&lag), "the event occurred {lag} s after the deadline");
    // The spool received the event immediately, so its time is close to now on both clocks.
    let ago = seconds_since_1970() - at;
    assert!((-0.1..30.0).contains(&ago), "the event occurred {ago} s ago");
}

#[tokio::test(start_paused = true)]
async fn normal_queue_receives_fields_and_a_table() {
    let temp_dir = scratch();
    let cache = Cache::builder().publish([Cause::Expired, Cause::Removed]).build();
    let queue = Queue::builder(temp_dir.path()).schema(Spool::schema()).open().await.unwrap();
    let spool = Spool::new(queue.clone()).causes([Cause::Expired, Cause::Removed]);
    let run = tokio::spawn(spool.run(cache.events_lossless(10)));
    cache.set_ex(7, "a\tb\n", SECOND).await;
    sleep(3 * SECOND).await;
    cache.set(8, "forever").await;
    cache.remove(&8).await;
    cache.shutdown().await;
    assert_eq!(run.await.unwrap().written, 2);

    let mut names = queue.names();
    let expired = names.next().await.unwrap().unwrap();
    let expired = queue.dequeue(&expired).await.unwrap().unwrap();
    assert_eq!(expired.string("key"), Some("7"));
    assert_eq!(expired.string("value"), Some(r#""a\tb\n""#));
    let meta = expired.table("meta").unwrap();
    assert_eq!(meta["cause"], "expired");
    let [deadline, at]: [f64; 2] = ["deadline", "at"].map(|time| meta[time].parse().unwrap());
    assert!(deadline <= at && at <= deadline + 1.0, "{meta:?}");

    let removed = names.next().await.unwrap().unwrap();
    let removed = queue.dequeue(&removed).await.unwrap().unwrap();
    let meta = removed.table("meta").unwrap();
    assert_eq!(meta["cause"], "removed");
    assert_eq!(meta.get("deadline"), None, "the value was persistent");
    assert!(names.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn event_of_a_persistent_value_has_no_deadline() {
    let temp_dir = scratch();
    let cache = Cache::builder().publish([Cause::Removed]).build();
    let queue = QueueSimple::open(temp_dir.path()).await.unwrap();
    let run =
        tokio::spawn(Spool::new(queue).causes([Cause::Removed]).run(cache.events_lossless(10)));
    cache.set(8, "forever").await;
    cache.remove(&8).await;
    cache.shutdown().await;
    assert_eq!(run.await.unwrap().written, 1);
    let bodies = bodies(temp_dir.path());
    assert_eq!(bodies[0]["meta"].get("deadline"), None, "{bodies:?}");
}

/// A batch that is longer than the queue's bound would never be accepted.
#[tokio::test]
async fn burst_that_exceeds_the_bound_of_the_queue_is_no_failure() {
    const EVENTS: u64 = 1_000;
    let temp_dir = scratch();
    let queue = QueueSimple::builder(temp_dir.path()).max_elements(100);
    let queue = queue.wait_for_room(Duration::from_millis(1)).open().await.unwrap();
    let cache = Cache::new();
    let events = cache.events_lossless(EVENTS as usize);
    for key in 0..EVENTS {
        cache.set_ex(key, (), Duration::ZERO).await;
    }
    cache.shutdown().await;
    let run = tokio::spawn(Spool::new(queue.clone()).run(events));
    let mut found = 0;
    while found < EVENTS {
        let mut jobs = queue.locked();
        while let Some(job) = jobs.next().await {
            job.unwrap().ack().await.unwrap();
            found += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    let stats = run.await.unwrap();
    assert_eq!((stats.written, stats.failures), (EVENTS, 0));
}

#[tokio::test]
async fn queue_with_another_schema_is_rejected() {
    let temp_dir = scratch();
    let schema = "key:binary,value:string,meta:table".parse().unwrap();
    for queue in [Queue::builder(temp_dir.path()).schema(schema), Queue::builder(temp_dir.path())] {
        let queue = queue.open().await.unwrap();
        let refused = std::panic::catch_unwind(|| Spool::new(queue));
        assert!(refused.is_err(), "the schema has no key of type string");
    }
    let more = "key:string,value:string,meta:table?,more:binary?".parse().unwrap();
    Spool::new(Queue::builder(temp_dir.path()).schema(more).open().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn spool_writes_only_the_chosen_causes() {
    let all = [Cause::Expired, Cause::Removed, Cause::Replaced];
    for (causes, expected) in [
        (None, vec![1]),
        (Some(vec![Cause::Removed]), vec![2]),
        (Some(vec![Cause::Replaced, Cause::Removed]), vec![3, 2]),
        (Some(vec![]), vec![]),
    ] {
        let temp_dir = scratch();
        let cache = Cache::builder().publish(all).build();
        let mut spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
        if let Some(causes) = causes {
            spool = spool.causes(causes);
        }
        let mut events = cache.events_lossless(10);
        cache.set_ex(1, 0, Duration::ZERO).await;
        cache.set(2, 0).await;
        cache.set(3, 0).await;
        cache.set(3, 1).await;
        cache.remove(&2).await;
        cache.sweep().await;
        cache.shutdown().await;
        let stats = spool.run(&mut events).await;
        let mut keys = keys(temp_dir.path());
        assert_eq!((stats.written as usize, stats.in_hand), (keys.len(), 0));
        let mut expected = expected;
        keys.sort();
        expected.sort();
        assert_eq!(keys, expected);
    }
}

#[tokio::test]
async fn spool_keeps_the_order_of_the_events() {
    let temp_dir = scratch();
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    let spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
    let mut events = cache.events_lossless(10_000);
    for key in 0..3_000_u64 {
        cache.set_ex(key, (), SECOND).await;
        cache.expire_now(&key).await;
    }
    cache.shutdown().await;
    let stats = spool.run(&mut events).await;
    assert_eq!((stats.written, stats.in_hand, stats.stalled), (3_000, 0, None));
    assert_eq!(keys(temp_dir.path()), (0..3_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn concurrent_runs_end_when_their_own_events_are_written() {
    let temp_dir = scratch();
    let spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
    let caches: Vec<Cache<u64, u64>> = (0..3).map(|_| Cache::new()).collect();
    let runs: Vec<_> =
        caches.iter().map(|cache| tokio::spawn(spool.run(cache.events_lossless(100)))).collect();
    for key in 0..3_000 {
        caches[key as usize % 3].set_ex(key, 0, Duration::ZERO).await;
    }
    for (cache, run) in caches.iter().zip(runs) {
        cache.shutdown().await;
        timeout(patience(), run).await.expect("a run does not wait for another's stream").unwrap();
    }
    let mut keys = keys(temp_dir.path());
    keys.sort();
    assert_eq!(keys, (0..3_000).collect::<Vec<_>>());
}

/// Serde cannot serialize some values.
#[derive(Clone)]
enum Odd {
    Fails,
    Panics,
    Fine,
}

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fails => Err(S::Error::custom("it fails on purpose")),
            Self::Panics => panic!("it panics on purpose"),
            Self::Fine => serializer.serialize_str("fine"),
        }
    }
}

#[tokio::test]
async fn event_that_json_cannot_represent_is_counted_and_not_written() {
    let temp_dir = scratch();
    let cache = Cache::new();
    let mut events = cache.events_lossless(10);
    let nested = |levels| (0..levels).fold(Value::from(1), |value, _| json!([value]));
    let number = |number: f64| (number, Value::Null);
    let values = [
        number(f64::NAN),
        number(0.5),
        number(f64::INFINITY),
        (1.0, nested(125)),
        (2.0, nested(126)),
    ];
    for (key, value) in values.into_iter().enumerate() {
        cache.set_ex(key, value, SECOND).await;
        cache.expire_now(&key).await;
    }
    cache.shutdown().await;
    let spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
    let stats = spool.run(&mut events).await;
    assert_eq!((stats.written, stats.unwritable, stats.in_hand), (2, 3, 0));
    assert_eq!(keys(temp_dir.path()), [1, 3]);
}

#[tokio::test]
async fn event_that_serde_rejects_is_counted_and_blocks_no_other() {
    let temp_dir = scratch();
    let cache = Cache::new();
    let mut events = cache.events_lossless(10);
    for (key, value) in [Odd::Fails, Odd::Fine, Odd::Panics, Odd::Fine].into_iter().enumerate() {
        cache.set_ex(key, value, SECOND).await;
        cache.expire_now(&key).await;
    }
    cache.shutdown().await;
    let (log, _guard) = Log::start(Level::INFO);
    let stats =
        Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap()).run(&mut events).await;
    assert_eq!((stats.written, stats.unwritable, stats.in_hand), (2, 2, 0));
    assert_eq!(keys(temp_dir.path()), [1, 3]);
    let log_lines = log.lines("serialization failed");
    assert_eq!(log_lines.len(), 2, "{log_lines:?}");
    assert!(
        log_lines[0].contains("it fails on purpose") && log_lines[1].contains("panicked"),
        "{log_lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn skip_too_large_skips_events_that_would_block_the_others() {
    for kind in ["simple", "normal"] {
        for skips in [false, true] {
            let temp_dir = scratch();
            let cache = Cache::new();
            let mut events = cache.events_lossless(100);
            for key in 0..10_u64 {
                let value = "x".repeat(if key % 4 == 1 { 2_000 } else { 10 });
                cache.set_ex(key, value, SECOND).await;
                cache.expire_now(&key).await;
            }
            cache.shutdown().await;
            let simple = QueueSimple::builder(temp_dir.path()).max_size(1_000);
            let normal = Queue::builder(temp_dir.path()).max_size(1_000).schema(Spool::schema());
            let spool = match kind {
                "simple" => Spool::new(simple.open().await.unwrap()),
                _ => Spool::new(normal.open().await.unwrap()),
            };
            let run = timeout(60 * SECOND, spool.clone().skip_too_large(skips).run(&mut events));
            assert_eq!(run.await.is_ok(), skips, "{kind}");
            let stats = spool.stats();
            if skips {
                assert_eq!((stats.written, stats.skipped, stats.in_hand), (7, 3, 0), "{kind}");
                assert_eq!(stats.stalled, None);
            } else {
                assert_eq!((stats.written, stats.skipped, stats.in_hand), (1, 0, 9), "{kind}");
                assert!(stats.stalled.unwrap() > 50 * SECOND);
                // Setting `skip_too_large` later loses only the events that are too large.
                let stats = spool.skip_too_large(true).run(&mut events).await;
                assert_eq!((stats.written, stats.skipped, stats.in_hand), (7, 3, 0), "{kind}");
            }
        }
    }
}

/// A disk without space for one element may have space for others.
#[tokio::test(start_paused = true)]
async fn batch_is_at_most_one_mebibyte() {
    let temp_dir = scratch();
    let cache = Cache::new();
    let mut events = cache.events_lossless(1_000);
    for key in 0..40_u64 {
        cache.set_ex(key, "x".repeat(100_000), SECOND).await;
        cache.expire_now(&key).await;
    }
    cache.set_ex(40, "x".repeat(3 << 20), SECOND).await;
    cache.expire_now(&40).await;
    cache.shutdown().await;
    let queue = QueueSimple::open(temp_dir.path().join("queue")).await.unwrap();
    let spool = Spool::new(queue.clone());
    // If writing fails, the events in hand are visible in the statistics.
    let away = temp_dir.path().join("away");
    fs::rename(queue.path(), &away).unwrap();
    fs::write(queue.path(), "in the way").unwrap();
    assert!(timeout(SECOND, spool.run(&mut events)).await.is_err());
    let in_hand = spool.stats().in_hand;
    assert!((10..=11).contains(&in_hand), "{in_hand} events are in hand");
    fs::remove_file(queue.path()).unwrap();
    fs::rename(&away, queue.path()).unwrap();
    let stats = spool.run(&mut events).await;
    assert_eq!((stats.written, stats.in_hand), (41, 0));
    assert_eq!(keys(queue.path()), (0..=40).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn spool_purges_its_queue_at_the_interval() {
    let temp_dir = scratch();
    let cache: Cache<u64, u64> = Cache::new();
    let queue = QueueSimple::open(temp_dir.path()).await.unwrap();
    let spool = Spool::new(queue.clone());
    let mut events = cache.events_lossless(100);
    let mut write = async |spool: &Spool, key| {
        cache.set_ex(key, 0, SECOND).await;
        cache.expire_now(&key).await;
        let _ = timeout(SECOND, spool.run(&mut events)).await;
        assert_eq!(spool.stats().in_hand, 0);
    };
    let plant = |lock: &str| {
        fs::create_dir_all(temp_dir.path().join("00000000")).unwrap();
        for file in ["00000000/00000000000001.tmp", lock] {
            let path = temp_dir.path().join(file);
            fs::write(&path, "").unwrap();
            make_old(&path, 1_000 * SECOND);
        }
    };
    let path_exists = |file: &str| tree(temp_dir.path()).iter().any(|path| path == file);
    let (draft, lock) = ("00000000/00000000000001.tmp", "00000000/00000000000002.lck");
    plant(lock);
    write(&spool, 1).await;
    assert!(!path_exists(draft), "the first write purges the queue");
    assert!(path_exists(lock), "locks of consumers are kept");
    plant(lock);
    write(&spool, 2).await;
    assert!(path_exists(draft), "the interval has not passed");
    sleep(600 * SECOND).await;
    write(&spool, 3).await;
    assert!(!path_exists(draft));
    let spool = spool.purge_every(60 * SECOND, Purge::default());
    sleep(60 * SECOND).await;
    write(&spool, 4).await;
    assert!(!path_exists(lock));
    assert_eq!(queue.count().await.unwrap(), 4);
}

/// Many expirations through a spool whose future is dropped at random moments, and sometimes its whole runtime
/// with it, as in a crash. A consumer that does not use the library takes the elements concurrently.
#[test]
fn lossless_events_survive_a_spool_that_is_killed_repeatedly() {
    // A million in the long form.
    let is_long = std::env::var_os("FLEETING_DIRQ_SECONDS").is_some();
    let min_events: u64 = if is_long { 1_000_000 } else { 200_000 };
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let temp_dir = scratch();
    let done = Arc::new(AtomicBool::new(false));
    let consumer = thread::spawn({
        let (path, done) = (temp_dir.path().to_owned(), done.clone());
        move || consume(&path, &done)
    });

    let runtime = runtime();
    let (cache, mut events) = runtime.block_on(async {
        let sweep = Sweep::default().every(Duration::from_millis(5)).sample(1.0).budget(1.0);
        let cache: Cache<u64, ()> = Cache::builder().sweep(sweep).build();
        let events = cache.events_lossless(4_096);
        (cache, events)
    });
    // On a fast machine, more events are written until the spool was killed often enough.
    let is_enough = Arc::new(AtomicBool::new(false));
    let stop = is_enough.clone();
    let writer = runtime.spawn(async move {
        let mut events = 0;
        while events < min_events || !stop.load(Relaxed) {
            if events >= min_events && !cache.is_empty() {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            cache.set_ex(events, (), Duration::from_millis(events % 20)).await;
            events += 1;
        }
        // The sweeper delivers events as the spool takes them, and not all at the end.
        while !cache.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        cache.shutdown().await;
        events
    });
    let start = Instant::now();
    let queue = runtime.block_on(QueueSimple::open(temp_dir.path())).unwrap();
    let spool = Spool::new(queue);
    let (mut drops, mut crashes) = (0, 0);
    let (mut written, mut progress) = (0, Instant::now());
    let stats = loop {
        is_enough.store(drops > 100 && crashes > 10, Relaxed);
        let until = Duration::from_micros(random.random_range(0..150_000));
        if random.random_range(0..10) == 0 {
            crashes += 1;
            crash(&spool, &mut events, until);
            continue;
        }
        match runtime.block_on(async { timeout(until, spool.run(&mut events)).await }) {
            Ok(stats) => break stats,
            Err(_) => drops += 1,
        }
        if spool.stats().written > written {
            (written, progress) = (spool.stats().written, Instant::now());
        }
        assert!(
            progress.elapsed() < patience(),
            "the spool makes no progress: {:?}",
            spool.stats()
        );
    };
    done.store(true, Relaxed);
    let seen = consumer.join().expect("the consumer failed");
    let events = runtime.block_on(writer).expect("the writer failed");

    let duplicates: u64 = seen.values().map(|&times| u64::from(times - 1)).sum();
    println!(
        "seed {seed}: {drops} drops, {crashes} crashes, {duplicates} duplicates, in {:?}",
        start.elapsed()
    );
    assert!(seen.into_keys().eq(0..events), "events are lost, seed {seed}");
    assert!(
        duplicates <= crashes * BATCH,
        "{duplicates} duplicates after {crashes} crashes, seed {seed}"
    );
    assert_eq!((stats.in_hand, stats.unwritable, stats.stalled), (0, 0, None));
    assert!(stats.written >= events, "{stats:?}");
}

/// Unless a runtime is shut down, no event is duplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_run_neither_loses_nor_duplicates_an_event() {
    const MIN_EVENTS: u64 = 50_000;
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let temp_dir = scratch();
    let cache: Cache<u64, ()> = Cache::new();
    let mut events = cache.events_lossless(4_096);
    // On a fast machine, more events are written until the spool was dropped often enough.
    let is_enough = Arc::new(AtomicBool::new(false));
    let stop = is_enough.clone();
    let writer = tokio::spawn(async move {
        let mut events = 0;
        while events < MIN_EVENTS || !stop.load(Relaxed) {
            if events >= MIN_EVENTS && !cache.is_empty() {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            cache.set_ex(events, (), Duration::ZERO).await;
            events += 1;
        }
        cache.shutdown().await;
        events
    });
    let spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
    let mut drops = 0;
    let stats = loop {
        is_enough.store(drops > 50, Relaxed);
        let until = Duration::from_micros(random.random_range(0..3_000));
        match timeout(until, spool.run(&mut events)).await {
            Ok(stats) => break stats,
            Err(_) => drops += 1,
        }
        assert!(spool.stats().in_hand as u64 <= BATCH);
    };
    println!("seed {seed}: {drops} drops");
    let events = writer.await.unwrap();
    assert_eq!((stats.written, stats.in_hand), (events, 0));
    let mut keys = keys(temp_dir.path());
    keys.sort();
    assert!(keys.into_iter().eq(0..events), "each event once, seed {seed}");
}

/// Runs the spool on a separate runtime, which is shut down while the spool is running.
fn crash(spool: &Spool, events: &mut LosslessEvents<u64, ()>, until: Duration) {
    let runtime = runtime();
    let _ = runtime.block_on(async { timeout(until, spool.run(events)).await });
    runtime.shutdown_background();
}

/// Consumes elements until there are no more. Returns how often each key occurred.
fn consume(queue: &Path, done: &AtomicBool) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    loop {
        let last = done.load(Relaxed);
        for path in elements(queue) {
            let body: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            *seen.entry(body["key"].as_u64().unwrap()).or_default() += 1;
            fs::remove_file(path).unwrap();
        }
        if last {
            return seen;
        }
    }
}

#[tokio::test]
async fn failing_queue_delays_the_sweeper_and_no_reader_or_writer() {
    const EVENTS: u64 = 10_000;
    const CAPACITY: usize = 100;
    let temp_dir = scratch();
    let (queue, away) = (temp_dir.path().join("queue"), temp_dir.path().join("away"));
    let sweep = Sweep::default().every(Duration::from_millis(1)).sample(1.0);
    let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).build();
    let spool = Spool::new(QueueSimple::open(&queue).await.unwrap());
    fs::rename(&queue, &away).unwrap();
    fs::write(&queue, "in the way").unwrap();
    let (log, _guard) = Log::start(Level::INFO);
    let mut run = spawn(spool.run(cache.events_lossless(CAPACITY)));
    assert_pending!(run.poll());

    for key in 0..EVENTS {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    // The spool retries, and holds its events.
    let until = |wanted: fn(fleeting::SpoolStats) -> bool| {
        let spool = spool.clone();
        async move {
            while !wanted(spool.stats()) {
                sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let stalled = until(|stats| stats.failures >= 3);
    tokio::select! {
        stats = &mut run => panic!("the run ended with {stats:?}"),
        stalled = timeout(patience(), stalled) => stalled.expect("the spool reports the stall"),
    }
    let stats = spool.stats();
    assert_eq!(stats.written, 0);
    assert!((1..=BATCH as usize).contains(&stats.in_hand), "{stats:?}");
    assert!(stats.stalled.unwrap() > Duration::ZERO);
    // The sweeper waits: expired entries stay in memory, but cannot be read.
    let held = EVENTS as usize - CAPACITY - stats.in_hand;
    assert!(cache.stats().resident >= held, "{EVENTS} events: {:?}", cache.stats());
    assert_eq!(cache.get(&0).await, None);
    // Readers and writers do not wait, even on a runtime that does nothing else.
    for key in EVENTS..2 * EVENTS {
        cache.set_ex(key, key, patience()).now_or_never();
        assert_eq!(cache.get(&key).now_or_never().flatten(), Some(key));
        if key % 32 == 0 {
            tokio::task::yield_now().await;
        }
    }

    fs::remove_file(&queue).unwrap();
    fs::rename(&away, &queue).unwrap();
    let end = async {
        until(|stats| stats.stalled.is_none()).await;
        while cache.len() > EVENTS as usize {
            sleep(Duration::from_millis(5)).await;
        }
        cache.shutdown().await;
        std::future::pending::<()>().await;
    };
    let stats = tokio::select! {
        stats = timeout(patience(), run) => stats.expect("the run ends with the stream"),
        () = end => unreachable!("it is never over"),
    };
    assert_eq!((stats.written, stats.in_hand), (EVENTS, 0));
    let mut keys = keys(&queue);
    keys.sort();
    assert_eq!(keys, (0..EVENTS).collect::<Vec<_>>(), "each event once");
    // One message per change, regardless of the number of attempts.
    let log_lines = (log.lines("spool write failed"), log.lines("spool writes succeed again"));
    assert_eq!((log_lines.0.len(), log_lines.1.len()), (1, 1), "{log_lines:?}");
    assert!(
        log_lines.0[0].contains("queue=") && log_lines.0[0].contains("error="),
        "{log_lines:?}"
    );
}

/// Pauses between attempts grow up to a maximum.
#[tokio::test(start_paused = true)]
async fn spool_retries_with_pauses_that_double_up_to_five_seconds() {
    let temp_dir = scratch();
    let path = temp_dir.path().join("queue");
    let cache = Cache::new();
    let spool = Spool::new(QueueSimple::open(&path).await.unwrap());
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "in the way").unwrap();
    let run = tokio::spawn(spool.run(cache.events_lossless(10)));
    cache.set_ex(1, 1, Duration::ZERO).await;
    cache.shutdown().await;
    let start = tokio::time::Instant::now();
    let mut tries = Vec::new();
    while tries.len() < 12 {
        sleep(Duration::from_millis(10)).await;
        if spool.stats().failures > tries.len() as u64 {
            tries.push(start.elapsed());
        }
    }
    let pauses: Vec<_> = tries.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    for (pause, expected) in pauses.iter().zip([50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000])
    {
        assert!(pause.abs_diff(expected) <= 20, "{pauses:?}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(timeout(10 * SECOND, run).await.unwrap().unwrap().written, 1);
}

#[tokio::test(start_paused = true)]
async fn spool_accepts_any_stream_of_events() {
    let temp_dir = scratch();
    let cache = Cache::new();
    let mut events = cache.events_lossless(10);
    cache.set_ex(1_u64, 1, SECOND).await;
    cache.expire_now(&1).await;
    let event = events.recv().await.unwrap();
    let spool = Spool::new(QueueSimple::open(temp_dir.path()).await.unwrap());
    let own = StreamMockBuilder::new().next(event.clone()).wait(SECOND).next(event).build();
    assert_eq!(spool.run(own).await.written, 2);
    assert_eq!(keys(temp_dir.path()), [1, 1]);
}

/// On a full file system of 1 MiB, from which a consumer that does not use the library takes elements.
#[test]
fn full_disk_loses_no_event() {
    run_on_small_disk("full_disk_loses_no_event", "size=1m", write_until_disk_is_full);
}

/// Each add creates a directory, so inodes can run out in the middle of a batch.
#[test]
fn disk_that_becomes_full_within_a_batch_duplicates_no_event() {
    let test = "disk_that_becomes_full_within_a_batch_duplicates_no_event";
    run_on_small_disk(test, "nr_inodes=300", write_batches_until_no_inodes_are_left);
}

/// Runs this test again in a separate mount namespace.
fn run_on_small_disk(test: &str, options: &str, work: fn(&Path)) {
    if let Some(disk) = std::env::var_os("FLEETING_SMALL_DISK") {
        return work(Path::new(&disk));
    }
    let temp_dir = scratch();
    let own = ["--user", "--map-root-user", "--mount"];
    let mounts = "mount -t tmpfs tmpfs \"$1\"";
    let mut can_mount = Command::new("unshare");
    can_mount.args(own).args(["sh", "-c", mounts, "sh"]).arg(temp_dir.path());
    let can_mount = can_mount.output().expect("unshare of util-linux runs");
    if !can_mount.status.success() {
        // In a sandbox, only the test above covers write errors, by a file in the place of the queue.
        println!("no mounts here: {}", String::from_utf8_lossy(&can_mount.stderr));
        return;
    }
    let test = test_name(module_path!(), test);
    let script = format!(
        "mount -t tmpfs -o {options} tmpfs \"$1\" && exec \"$2\" --exact {test} --nocapture --test-threads 1"
    );
    let output = Command::new("unshare")
        .args(own)
        .args(["sh", "-c", &script, "sh"])
        .arg(temp_dir.path())
        .arg(std::env::current_exe().expect("the path of the test binary is known"))
        .env("FLEETING_SMALL_DISK", temp_dir.path())
        .output()
        .expect("unshare of util-linux runs");
    let (output_text, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && output_text.contains("the disk was full"),
        "in a mount namespace of its own, which the kernel must allow (user.max_user_namespaces):\n\
         {output_text}\n{complaint}"
    );
}

/// Returns a stream of `events` expired entries of a cache.
async fn expired(events: u64) -> LosslessEvents<u64, String> {
    let cache: Cache<u64, String> = Cache::new();
    let expired = cache.events_lossless(10_000);
    for key in 0..events {
        cache.set_ex(key, "x".repeat(200), Duration::ZERO).await;
    }
    cache.shutdown().await;
    expired
}

fn write_batches_until_no_inodes_are_left(disk: &Path) {
    const EVENTS: u64 = 1_000;
    runtime().block_on(async {
        let builder = Queue::builder(disk.join("queue")).schema(Spool::schema());
        let queue = builder.max_elements(1).open().await.unwrap();
        let spool = Spool::new(queue.clone());
        let mut events = expired(EVENTS).await;
        let run = tokio::spawn({
            let spool = spool.clone();
            async move { spool.run(&mut events).await }
        });
        let mut seen = vec![0_u8; EVENTS as usize];
        while !run.is_finished() || queue.count().await.unwrap() > 0 {
            let stats = spool.stats();
            if stats.stalled.is_some() || run.is_finished() {
                let mut names = queue.names();
                for _ in 0..20 {
                    let Some(name) = names.next().await else { break };
                    // Deleted directly, because there is no inode left even for a lock.
                    let element = queue.path().join(name.unwrap().to_string());
                    let key = fs::read_to_string(element.join("key")).unwrap();
                    seen[key.parse::<usize>().unwrap()] += 1;
                    fs::remove_dir_all(element).unwrap();
                }
            }
            let _ = queue.purge(Purge::default()).await;
            sleep(Duration::from_millis(1)).await;
        }
        let stats = run.await.unwrap();
        assert!(stats.failures > 0, "the disk was never full: {stats:?}");
        assert_eq!((stats.written, stats.in_hand), (EVENTS, 0));
        let duplicated = seen.iter().filter(|&&times| times > 1).count();
        let lost = seen.iter().filter(|&&times| times == 0).count();
        assert_eq!((lost, duplicated), (0, 0));
        println!("the disk was full, {} times", stats.failures);
    });
}

fn write_until_disk_is_full(queue: &Path) {
    const EVENTS: u64 = 2_000;
    runtime().block_on(async {
        let mut events = expired(EVENTS).await;
        let spool = Spool::new(QueueSimple::open(queue).await.unwrap());
        let run = tokio::spawn({
            let spool = spool.clone();
            async move { spool.run(&mut events).await }
        });
        let mut seen = vec![0_u8; EVENTS as usize];
        let (mut stalls, mut most) = (0, 0);
        while !run.is_finished() {
            let stats = spool.stats();
            if stats.stalled.is_some() || stats.written == EVENTS {
                stalls += u32::from(stats.stalled.is_some());
                most = most.max(elements(queue).len());
                // Space for less than a batch.
                for path in elements(queue).into_iter().take(100) {
                    let body: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                    seen[body["key"].as_u64().unwrap() as usize] += 1;
                    fs::remove_file(path).unwrap();
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
        let stats = run.await.unwrap();
        keys(queue).iter().for_each(|&key| seen[key as usize] += 1);
        println!("{} failures, {stalls} looks at a stall, {most} elements at most", stats.failures);
        assert!(stats.failures > 0 && stalls > 0, "the disk was never full: {stats:?}");
        assert!(most > 100 && (most as u64) < EVENTS / 2, "the disk holds {most} elements");
        assert_eq!((stats.written, stats.in_hand), (EVENTS, 0));
        assert!(seen.iter().all(|&times| times == 1), "each event once");
        let files =
            fs::read_dir(queue).unwrap().flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
        let leftovers =
            files.filter(|file| file.as_ref().unwrap().path().extension().is_some()).count();
        assert_eq!(leftovers, 0, "incomplete elements were purged");
        println!("the disk was full");
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime can be created")
}

fn seed() -> u64 {
    let seed = std::env::var("FLEETING_SEED").ok();
    let seed = seed.map_or(7, |seed| seed.parse().expect("FLEETING_SEED is a number"));
    println!("seed {seed}");
    seed
}
