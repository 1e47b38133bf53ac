//! Delays of a writer, the sweeper and its worker thread that are caused by constantly overlapping readers.
//!
//! `cargo bench --bench fairness` (Linux, about 2 minutes) prints the table of `docs/fairness.md`;
//! `cargo bench --bench fairness -- "64B, 8"` prints some of its rows.
//!
//! Threads read one key in a loop. Another thread sets a key every millisecond. In the same shard, a small value
//! expires every 10 ms, is removed by the sweeper, and reported to a lossless subscriber. The runtime has one worker,
//! which runs the sweeper, the subscriber, and a task that sleeps for 1 ms at a time. If that task is late, something
//! has blocked the worker.
//!
//! There are more threads than processors, so all threads also wait for a processor. The rows in which the readers read
//! another cache show this noise. The kernel counts such waits of the writer and of the worker, but they may also wait
//! for a reader that has lost its processor while it holds the lock.
//!
//! Every row has a fixed duration. At its end the readers stop, so that all other threads can continue. An event that
//! is missing by then counts with its delay at that time.

mod measure;

use std::{
    hint::black_box,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fleeting::{Cache, LosslessEvents, Sweep};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

use measure::{ChosenShard, SHARDS, Waits, is_quick, is_selected, key_of, quantile, show};

const MILLISECOND: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(86_400);
/// Time between two expirations, and between two sweeps.
const PACE: Duration = Duration::from_millis(10);
/// Time before the first expiration, and from the last one to the end of the row.
const START: Duration = Duration::from_millis(200);
/// Allowance of the table in addition to one `get` per reader.
const SLACK: Duration = Duration::from_millis(2);

type Blobs = Cache<u64, Vec<u8>, ChosenShard>;

#[derive(Clone, Copy, PartialEq)]
enum Writes {
    /// The key that is being read.
    SameKey,
    /// Another key in the same shard.
    SameShard,
    /// A key of another cache.
    OtherCache,
}

/// Measurements of one row.
struct Row {
    reads: u64,
    /// Duration of each call of the writer, and the same without its waits for a processor.
    writes: Vec<(Duration, Duration)>,
    /// Lag of each expiration.
    lags: Vec<Duration>,
    /// Delay from each deadline until the subscriber received the event.
    delays: Vec<Duration>,
    /// Number of due entries without an event at the end.
    missing: usize,
    /// The longest time for which the worker did not run its other task, without waits for a processor.
    pause: Duration,
}

fn main() {
    println!(
        "| value | readers | one `get` alone | readers x this + 2 ms | written and due entries | reads/s | writes \
         | a write: p50 / p99 / worst | the same without the writer's waits for a processor \
         | due / not removed at the end | lag: p50 / p99 / worst | event received: p99 / worst \
         | the longest pause of the runtime's only worker |"
    );
    println!("|{}", " --- |".repeat(13));
    for (name, size) in [("64B", 64), ("4KB", 4 << 10), ("64KB", 64 << 10)] {
        let mut alone = None;
        for readers in [2, 4, 8] {
            for writes in [Writes::SameShard, Writes::SameKey, Writes::OtherCache] {
                let row = format!("{name}, {readers} readers, {}", writes.name());
                if is_selected(&row, true) {
                    let alone = *alone.get_or_insert_with(|| one_get(size));
                    let samples = measure(size, readers, writes);
                    println!(
                        "| {name} | {readers} | {} | {} | {} | {} |",
                        show(alone),
                        show(alone * readers + SLACK),
                        writes.name(),
                        samples.cells(),
                    );
                }
            }
        }
    }
}

/// Returns the duration of a `get` without other threads, most of which is the clone of the value.
fn one_get(size: usize) -> Duration {
    let (runtime, cache) = cache();
    let mut rounds = Vec::new();
    runtime.block_on(async {
        cache.set_ex(key_of(0, 0), vec![1; size], LONG).await;
        for _ in 0..101 {
            let start = Instant::now();
            for _ in 0..100 {
                black_box(cache.get(&key_of(0, 0)).await);
            }
            rounds.push(start.elapsed() / 100);
        }
    });
    rounds.sort();
    quantile(&rounds, 0.5)
}

fn measure(size: usize, readers: u32, writes: Writes) -> Row {
    let time = if is_quick() { 500 } else { 3_000 } * MILLISECOND;
    let (runtime, cache) = cache();
    let other = runtime.block_on(async {
        let builder = Cache::builder().shards(SHARDS).hasher(ChosenShard::default());
        builder.sweep(Sweep::manual()).build()
    });
    let read_cache = if writes == Writes::OtherCache { &other } else { &cache };
    let (read, written) = (key_of(0, 0), key_of(0, u64::from(writes == Writes::SameShard)));
    let events = cache.events_lossless(10_000);
    let first_deadline = Instant::now() + START;
    let deadlines: Vec<Instant> = (0..)
        .map(|n| first_deadline + n * PACE)
        .take_while(|deadline| *deadline < first_deadline + time - 2 * START)
        .collect();
    runtime.block_on(async {
        read_cache.set_ex(read, vec![1; size], LONG).await;
        cache.set_ex(written, vec![1; size], LONG).await;
        for (n, deadline) in (0..).zip(&deadlines) {
            cache.set_ex(key_of(0, 2 + n), vec![0; 8], *deadline - Instant::now()).await;
        }
    });
    let received = Arc::<Mutex<Vec<Received>>>::default();
    runtime.spawn(listen(events, received.clone()));
    let pause = Arc::new(AtomicU64::new(0));
    runtime.spawn(measure_pauses(pause.clone()));
    // Both tasks run once before the readers start.
    thread::sleep(5 * MILLISECOND);
    let (begin, stop) = (Barrier::new(readers as usize + 2), AtomicBool::new(false));
    let (reads, writes, end) = thread::scope(|threads| {
        let readers: Vec<_> = (0..readers)
            .map(|_| {
                threads.spawn(|| runtime.block_on(read_until(read_cache, read, &begin, &stop)))
            })
            .collect();
        let writer =
            threads.spawn(|| runtime.block_on(write_until(&cache, written, size, &begin, &stop)));
        begin.wait();
        thread::sleep(time);
        let end = Instant::now();
        stop.store(true, Relaxed);
        let reads: u64 = readers
            .into_iter()
            .map(|reader| reader.join().expect("the reader does not panic"))
            .sum();
        (reads, writer.join().expect("the writer does not panic"), end)
    });
    // Without readers, all waiting threads continue. Later events count as missing.
    thread::sleep(20 * MILLISECOND);
    let received = std::mem::take(&mut *received.lock().expect("not poisoned"));
    let mut row = Row {
        reads: (reads as f64 / time.as_secs_f64()) as u64,
        writes,
        lags: Vec::new(),
        delays: Vec::new(),
        missing: 0,
        pause: Duration::from_nanos(pause.load(Relaxed)),
    };
    for (n, deadline) in (0..).zip(deadlines) {
        match received
            .iter()
            .find(|received| received.key == key_of(0, 2 + n) && received.at <= end)
        {
            Some(received) => {
                row.lags.push(received.lag);
                row.delays.push(received.at - deadline);
            }
            None => {
                row.missing += 1;
                row.lags.push(end - deadline);
                row.delays.push(end - deadline);
            }
        }
    }
    row
}

struct Received {
    key: u64,
    lag: Duration,
    at: Instant,
}

async fn listen(mut events: LosslessEvents<u64, Vec<u8>>, received: Arc<Mutex<Vec<Received>>>) {
    while let Some(event) = events.recv().await {
        let lag = event.lag().expect("it had a deadline");
        let event = Received { key: event.key, lag, at: Instant::now() };
        received.lock().expect("not poisoned").push(event);
    }
}

/// Records the longest time for which this task did not run, without the waits of its worker for a processor.
async fn measure_pauses(pause: Arc<AtomicU64>) {
    let waits = Waits::of_this_thread();
    loop {
        let (start, waited) = (Instant::now(), waits.so_far());
        sleep(MILLISECOND).await;
        let late = start.elapsed().saturating_sub(MILLISECOND + (waits.so_far() - waited));
        pause.fetch_max(late.as_nanos() as u64, Relaxed);
    }
}

/// Reads `key` until `stop` is set. Returns the number of reads.
async fn read_until(cache: &Blobs, key: u64, begin: &Barrier, stop: &AtomicBool) -> u64 {
    begin.wait();
    let mut reads = 0;
    while !stop.load(Relaxed) {
        assert!(black_box(cache.get(&key).await).is_some(), "a live value is missing");
        reads += 1;
    }
    reads
}

/// Sets `key` every millisecond until `stop` is set. Returns the duration of each call, with and without waits for a
/// processor.
async fn write_until(
    cache: &Blobs,
    key: u64,
    size: usize,
    begin: &Barrier,
    stop: &AtomicBool,
) -> Vec<(Duration, Duration)> {
    begin.wait();
    let waits = Waits::of_this_thread();
    let mut writes = Vec::new();
    while !stop.load(Relaxed) {
        let value = vec![2; size];
        let waited = waits.so_far();
        let start = Instant::now();
        let replaced = cache.set_ex(key, value, LONG).await;
        let took = start.elapsed();
        writes.push((took, took.saturating_sub(waits.so_far() - waited)));
        drop(replaced);
        // Blocking is fine: nothing else runs on this thread.
        thread::sleep(MILLISECOND);
    }
    writes
}

fn cache() -> (Runtime, Blobs) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // A short interval, so that the lag shows waits for the lock rather than for the next sweep.
    let sweep = Sweep::default().every(PACE);
    let builder = Cache::builder().shards(SHARDS).hasher(ChosenShard::default()).sweep(sweep);
    let cache = runtime.block_on(async { builder.build() });
    (runtime, cache)
}

impl Writes {
    fn name(self) -> &'static str {
        match self {
            Writes::SameKey => "the key that is read",
            Writes::SameShard => "other keys of its shard",
            Writes::OtherCache => "another cache",
        }
    }
}

impl Row {
    fn cells(mut self) -> String {
        let (mut took, mut own): (Vec<_>, Vec<_>) = self.writes.iter().copied().unzip();
        for samples in [&mut took, &mut own, &mut self.lags, &mut self.delays] {
            samples.sort();
        }
        format!(
            "{} | {} | {} | {} | {} / {} | {} | {} / {} | {}",
            self.reads,
            took.len(),
            spread(&took),
            spread(&own),
            self.lags.len(),
            self.missing,
            spread(&self.lags),
            show(quantile(&self.delays, 0.99)),
            show(quantile(&self.delays, 1.0)),
            show(self.pause),
        )
    }
}

/// Formats median, 99th percentile and maximum.
fn spread(sorted: &[Duration]) -> String {
    [0.5, 0.99, 1.0].map(|share| show(quantile(sorted, share))).join(" / ")
}
