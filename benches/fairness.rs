//! Whether readers that overlap without a pause let a writer, the sweeper and its worker have their turn.
//!
//! `cargo bench --bench fairness` (Linux, about 2 minutes) prints the table of `docs/fairness.md`;
//! `cargo bench --bench fairness -- "64B, 8"` some of its rows.
//!
//! Threads read one key as fast as they can. Another one sets a key every millisecond, and small values die in the
//! same shard every 10 ms, which the sweeper has to find and a lossless subscriber is told of. The runtime has one
//! worker, which the sweeper shares with the subscriber and with a task that sleeps for 1 ms at a time: what keeps that
//! one from its turn has blocked the worker.
//!
//! A machine has fewer processors than there are threads here, so all wait for a processor, too. How much that is shows
//! where the readers read another cache. What the writer and the worker themselves waited the kernel counts, but
//! not what a reader that holds the lock did.
//!
//! No row takes longer than its time: at its end the readers stop, which lets everybody else in. What had not come by
//! then is shown as late as it was then.

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

use measure::{ChosenShard, SHARDS, Waits, is_asked_for, is_quick, key_of, quantile, show};

const MILLISECOND: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(86_400);
/// Between two deaths.
const PACE: Duration = Duration::from_millis(10);
/// Until the first death, and from the last one to the end.
const START: Duration = Duration::from_millis(200);
/// What the table promises beside the clones of all readers.
const SLACK: Duration = Duration::from_millis(2);

type Blobs = Cache<u64, Vec<u8>, ChosenShard>;

#[derive(Clone, Copy, PartialEq)]
enum Writes {
    /// The key that is read.
    Same,
    /// Another key of the shard that is read.
    Beside,
    /// A key of another cache than the one that is read.
    Elsewhere,
}

/// What one row measured.
struct Row {
    reads: u64,
    /// How long each call of the writer took, and how long without its waits for a processor.
    writes: Vec<(Duration, Duration)>,
    /// How late each small value was seen to leave.
    lags: Vec<Duration>,
    /// How late the subscriber had its event.
    heard: Vec<Duration>,
    /// How many were due and had not left at the end.
    missing: usize,
    /// The longest time for which the worker ran no other task, and did not wait for a processor.
    pause: Duration,
}

fn main() {
    println!(
        "| value | readers | one `get` alone | readers x this + 2 ms | written and due | reads a second | writes \
         | a write: p50 / p99 / worst | without its waits for a processor | due / not gone at the end \
         | lag: p50 / p99 / worst | heard: p99 / worst | the worker's longest pause |"
    );
    println!("|{}", " --- |".repeat(13));
    for (name, size) in [("64B", 64), ("4KB", 4 << 10), ("64KB", 64 << 10)] {
        let mut alone = None;
        for readers in [2, 4, 8] {
            for writes in [Writes::Beside, Writes::Same, Writes::Elsewhere] {
                let row = format!("{name}, {readers} readers, {}", writes.name());
                if is_asked_for(&row, true) {
                    let alone = *alone.get_or_insert_with(|| one_get(size));
                    let figures = measure(size, readers, writes);
                    println!(
                        "| {name} | {readers} | {} | {} | {} | {} |",
                        show(alone),
                        show(alone * readers + SLACK),
                        writes.name(),
                        figures.cells(),
                    );
                }
            }
        }
    }
}

/// What a `get` takes where nobody else is: a clone, most of it.
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
    let read_cache = if writes == Writes::Elsewhere { &other } else { &cache };
    let (read, written) = (key_of(0, 0), key_of(0, u64::from(writes == Writes::Beside)));
    let events = cache.events_lossless(10_000);
    let first_death = Instant::now() + START;
    let deaths: Vec<Instant> = (0..)
        .map(|n| first_death + n * PACE)
        .take_while(|death| *death < first_death + time - 2 * START)
        .collect();
    runtime.block_on(async {
        read_cache.set_ex(read, vec![1; size], LONG).await;
        cache.set_ex(written, vec![1; size], LONG).await;
        for (n, death) in (0..).zip(&deaths) {
            cache.set_ex(key_of(0, 2 + n), vec![0; 8], *death - Instant::now()).await;
        }
    });
    let told = Arc::<Mutex<Vec<Told>>>::default();
    runtime.spawn(listen(events, told.clone()));
    let pause = Arc::new(AtomicU64::new(0));
    runtime.spawn(take_turns(pause.clone()));
    // It has had a turn before anybody reads.
    thread::sleep(5 * MILLISECOND);
    let (begin, stop) = (Barrier::new(readers as usize + 2), AtomicBool::new(false));
    let (reads, writes, end) = thread::scope(|threads| {
        let readers: Vec<_> = (0..readers)
            .map(|_| threads.spawn(|| runtime.block_on(read_on(read_cache, read, &begin, &stop))))
            .collect();
        let writer =
            threads.spawn(|| runtime.block_on(write_on(&cache, written, size, &begin, &stop)));
        begin.wait();
        thread::sleep(time);
        let end = Instant::now();
        stop.store(true, Relaxed);
        let reads: u64 = readers.into_iter().map(|reader| reader.join().expect("it reads")).sum();
        (reads, writer.join().expect("it writes"), end)
    });
    // Those that wait come in now that nobody reads, and are as late as they are.
    thread::sleep(20 * MILLISECOND);
    let told = std::mem::take(&mut *told.lock().expect("nobody panics under it"));
    let mut row = Row {
        reads: (reads as f64 / time.as_secs_f64()) as u64,
        writes,
        lags: Vec::new(),
        heard: Vec::new(),
        missing: 0,
        pause: Duration::from_nanos(pause.load(Relaxed)),
    };
    for (n, death) in (0..).zip(deaths) {
        match told.iter().find(|told| told.key == key_of(0, 2 + n) && told.at <= end) {
            Some(told) => {
                row.lags.push(told.lag);
                row.heard.push(told.at - death);
            }
            None => {
                row.missing += 1;
                row.lags.push(end - death);
                row.heard.push(end - death);
            }
        }
    }
    row
}

struct Told {
    key: u64,
    lag: Duration,
    at: Instant,
}

async fn listen(mut events: LosslessEvents<u64, Vec<u8>>, told: Arc<Mutex<Vec<Told>>>) {
    while let Some(event) = events.recv().await {
        let lag = event.lag().expect("it had a deadline");
        let event = Told { key: event.key, lag, at: Instant::now() };
        told.lock().expect("nobody panics under it").push(event);
    }
}

/// Notes the longest time that it had no turn, while its worker waited for no processor.
async fn take_turns(pause: Arc<AtomicU64>) {
    let waits = Waits::of_this_thread();
    loop {
        let (start, waited) = (Instant::now(), waits.so_far());
        sleep(MILLISECOND).await;
        let late = start.elapsed().saturating_sub(MILLISECOND + (waits.so_far() - waited));
        pause.fetch_max(late.as_nanos() as u64, Relaxed);
    }
}

/// Reads `key` until it has to stop, and returns how often.
async fn read_on(cache: &Blobs, key: u64, begin: &Barrier, stop: &AtomicBool) -> u64 {
    begin.wait();
    let mut reads = 0;
    while !stop.load(Relaxed) {
        assert!(black_box(cache.get(&key).await).is_some(), "a live value is lost");
        reads += 1;
    }
    reads
}

/// Sets `key` every millisecond until it has to stop, and returns how long each call took.
async fn write_on(
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
        // Its thread is its own.
        thread::sleep(MILLISECOND);
    }
    writes
}

fn cache() -> (Runtime, Blobs) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // Often, so that a lag is more of the lock's than of the pause between two sweeps.
    let sweep = Sweep::default().every(PACE);
    let builder = Cache::builder().shards(SHARDS).hasher(ChosenShard::default()).sweep(sweep);
    let cache = runtime.block_on(async { builder.build() });
    (runtime, cache)
}

impl Writes {
    fn name(self) -> &'static str {
        match self {
            Writes::Same => "the key that is read",
            Writes::Beside => "keys beside it",
            Writes::Elsewhere => "another cache",
        }
    }
}

impl Row {
    fn cells(mut self) -> String {
        let (mut took, mut own): (Vec<_>, Vec<_>) = self.writes.iter().copied().unzip();
        for figures in [&mut took, &mut own, &mut self.lags, &mut self.heard] {
            figures.sort();
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
            show(quantile(&self.heard, 0.99)),
            show(quantile(&self.heard, 1.0)),
            show(self.pause),
        )
    }
}

/// Half, all but a hundredth, all.
fn spread(sorted: &[Duration]) -> String {
    [0.5, 0.99, 1.0].map(|share| show(quantile(sorted, share))).join(" / ")
}
