//! That memory comes back after mass expiry, and that no lock is held for long to give it back.
//!
//! `cargo bench --bench memory` (Linux, about 2 minutes, 600 MB) prints what a cache takes alone, with 10
//! million entries more, and after these have expired; and how late a thread was that read 1,000 live keys all
//! the while. Twice in one process, because glibc learns: it maps large tables one by one at first, and after
//! freeing some it takes as large ones from its arenas, which may keep what is freed. With
//! `MALLOC_MMAP_THRESHOLD_=131072` in the environment it does not: what then stays is the cache's.
//!
//! A look-up is late where it waits for a lock, and where its thread waits for a processor. The kernel counts
//! the second (`/proc/thread-self/schedstat`), so the rest is the most that a lock can be blamed for. It still
//! contains what a hypervisor takes, and the time for which the thread that held the lock had no processor:
//! the phase in which the sweeper is paused shows how much is noise.

mod measure;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fleeting::Cache;
use tokio::{
    runtime::{Handle, Runtime},
    time::{Instant, sleep, sleep_until},
};

use measure::{Waits, resident};

const MILLION: u64 = 1_000_000;
const DYING: u64 = 10 * MILLION;
/// The keys that are read, below all others.
const READ: u64 = 1_000;
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Longer than filling takes, and a look at the noise afterwards.
const LIFE: Duration = Duration::from_secs(15);
const BASELINE: Duration = Duration::from_secs(5);
/// Every shard has had its turn after 64 ticks of 100 ms.
const SETTLING: Duration = Duration::from_secs(10);

const PHASES: [&str; 3] = ["sweeper paused", "expiring", "giving memory back"];
const FINEST: usize = 10;
/// Look-ups that take longer are kept one by one.
const LATE: Duration = Duration::from_micros(100);

type Numbers = Cache<u64, u64>;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    println!("A process with an empty cache: {:.1} MB resident.\n", {
        let _inside = runtime.enter();
        let _cache = Numbers::new();
        resident()
    });
    let mut late = Vec::new();
    println!(
        "| entries that stay | storm | MB with these alone | and 10 M more | these expired \
         | 10 s later | of what they take alone |"
    );
    println!("|{}", " --- |".repeat(7));
    for staying in [READ, MILLION] {
        late.extend(measure(&runtime, staying));
    }
    println!(
        "\n| entries that stay | storm | phase | look-ups | p50 | p99.9 | worst \
         | worst without waits for a processor | of these over 1 ms |"
    );
    println!("|{}", " --- |".repeat(9));
    late.iter().for_each(|row| println!("{row}"));
}

/// Prints what memory did, and returns how late look-ups were.
fn measure(runtime: &Runtime, staying: u64) -> Vec<String> {
    let cache = {
        let _inside = runtime.enter();
        Numbers::new()
    };
    runtime.block_on(async {
        for key in 0..staying {
            cache.set(key, key).await;
        }
        sleep(2 * SECOND).await;
    });
    let alone = resident();
    let mut rows = Vec::new();
    for storm in 1..=2 {
        let phase = Arc::new(AtomicUsize::new(0));
        let reader = {
            let (cache, phase, handle) = (cache.clone(), phase.clone(), runtime.handle().clone());
            move || read(&handle, &cache, &phase)
        };
        let mut reader = Some(reader);
        let deadline = Instant::now() + LIFE;
        let (full, expired, latencies) = runtime.block_on(async {
            for key in staying..staying + DYING {
                cache.set_ex(key, key, deadline - Instant::now()).await;
            }
            cache.pause_sweeper();
            assert!(deadline - Instant::now() > BASELINE, "the machine is too slow for this");
            let full = resident();
            sleep_until(deadline - BASELINE).await;
            let reader = thread::spawn(reader.take().expect("one reader a storm"));
            sleep_until(deadline).await;
            phase.store(1, Relaxed);
            cache.resume_sweeper();
            while cache.len() as u64 > staying {
                sleep(10 * MILLISECOND).await;
            }
            phase.store(2, Relaxed);
            let expired = resident();
            sleep(SETTLING).await;
            phase.store(PHASES.len(), Relaxed);
            (full, expired, reader.join().expect("the reader does not panic"))
        });
        let settled = resident();
        println!(
            "| {staying} | {storm} | {alone:.1} | {full:.1} | {expired:.1} | {settled:.1} | {:.2} x |",
            settled / alone
        );
        let named = PHASES.iter().zip(latencies);
        rows.extend(
            named.map(|(phase, l)| format!("| {staying} | {storm} | {phase} | {}", l.row())),
        );
    }
    rows
}

/// Reads until the phases are over; returns the latencies of each.
fn read(handle: &Handle, cache: &Numbers, phase: &AtomicUsize) -> Vec<Latencies> {
    let mut phases: Vec<Latencies> = PHASES.iter().map(|_| Latencies::default()).collect();
    let waits = Waits::of_this_thread();
    let mut waited = waits.so_far();
    handle.block_on(async {
        for key in (0..READ).cycle() {
            let Some(latencies) = phases.get_mut(phase.load(Relaxed)) else { return };
            // A fresh count, so that a late look-up is not excused by waits long before it.
            if key % 64 == 0 {
                waited = waits.so_far();
            }
            let start = std::time::Instant::now();
            let value = cache.get(&key).await;
            let latency = start.elapsed();
            assert_eq!(value, Some(key), "a live value is lost");
            latencies.add(latency, || {
                let before = std::mem::replace(&mut waited, waits.so_far());
                waited - before
            });
        }
    });
    phases
}

#[derive(Default)]
struct Latencies {
    /// How many there were of each length, in steps of [`FINEST`] nanoseconds.
    counts: Vec<u64>,
    late: Vec<(Duration, Duration)>,
}

impl Latencies {
    fn add(&mut self, latency: Duration, waited: impl FnOnce() -> Duration) {
        let step = latency.min(LATE).as_nanos() as usize / FINEST;
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        if latency > LATE {
            self.late.push((latency, latency.saturating_sub(waited())));
        }
    }

    fn row(&self) -> String {
        let total: u64 = self.counts.iter().sum();
        let worst = self.late.iter().map(|(latency, _)| *latency).max();
        let ours = self.late.iter().map(|(_, ours)| *ours).max();
        let long = self.late.iter().filter(|(_, ours)| *ours > MILLISECOND).count();
        format!(
            "{total} | {} ns | {} ns | {} | {} | {long} |",
            self.quantile(total / 2),
            self.quantile(total - total / 1_000),
            microseconds(worst),
            microseconds(ours),
        )
    }

    /// How long the look-up took of which `rank` were no slower.
    fn quantile(&self, rank: u64) -> usize {
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        FINEST * step.unwrap_or(0)
    }
}

fn microseconds(worst: Option<Duration>) -> String {
    worst.map_or_else(|| format!("< {LATE:?}"), |worst| format!("{} µs", worst.as_micros()))
}
