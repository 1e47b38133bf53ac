//! Memory after mass expiration, and delays of lookups while it is returned.
//!
//! `cargo bench --bench memory` (Linux, about 2 minutes, 600 MB) prints the resident memory with few entries, with 10
//! million more, and after these have expired; and the delays of a thread that reads 1,000 live keys during the whole
//! run. It does so twice in one process, because glibc adapts: at first it maps each large table separately, and after
//! it has freed some, it allocates tables of that size from its arenas, which may keep freed memory. With
//! `MALLOC_MMAP_THRESHOLD_=131072` in the environment it does not, so that all remaining memory is the cache's.
//!
//! A lookup is delayed if it waits for a lock, or if its thread waits for a processor. The kernel counts the latter
//! (`/proc/thread-self/schedstat`), so the rest is an upper bound on waits for locks. It still includes pauses by a
//! hypervisor, and times for which the holder of the lock had no processor. The phase with a paused sweeper shows this
//! noise.

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
const EXPIRING: u64 = 10 * MILLION;
/// Number of keys that are read; they are the lowest keys.
const READ: u64 = 1_000;
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// TTL of the expiring entries: longer than adding them and the first phase take.
const TTL: Duration = Duration::from_secs(15);
const BASELINE: Duration = Duration::from_secs(5);
/// Time after which every shard has returned its memory: one of 64 shards per tick of 100 ms.
const SETTLING: Duration = Duration::from_secs(10);

const PHASES: [&str; 3] = ["sweeper paused", "expiring", "returning memory"];
/// Resolution of the histogram, in nanoseconds.
const RESOLUTION: usize = 10;
/// Lookups that take longer are recorded individually.
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
        "| remaining entries | mass expiration | MB with these alone | MB with 10 M more | MB after these expired \
         | MB 10 s later | relative to these alone |"
    );
    println!("|{}", " --- |".repeat(7));
    for remaining in [READ, MILLION] {
        late.extend(measure(&runtime, remaining));
    }
    println!(
        "\n| remaining entries | mass expiration | phase | lookups | p50 | p99.9 | worst \
         | worst without waits for a processor | of these above 1 ms |"
    );
    println!("|{}", " --- |".repeat(9));
    late.iter().for_each(|row| println!("{row}"));
}

/// Prints the resident memory of each phase. Returns table rows with the durations of lookups.
fn measure(runtime: &Runtime, remaining: u64) -> Vec<String> {
    let cache = {
        let _inside = runtime.enter();
        Numbers::new()
    };
    runtime.block_on(async {
        for key in 0..remaining {
            cache.set(key, key).await;
        }
        sleep(2 * SECOND).await;
    });
    let alone = resident();
    let mut rows = Vec::new();
    for run in 1..=2 {
        let phase = Arc::new(AtomicUsize::new(0));
        let reader = {
            let (cache, phase, handle) = (cache.clone(), phase.clone(), runtime.handle().clone());
            move || read(&handle, &cache, &phase)
        };
        let mut reader = Some(reader);
        let deadline = Instant::now() + TTL;
        let (full, expired, latencies) = runtime.block_on(async {
            for key in remaining..remaining + EXPIRING {
                cache.set_ex(key, key, deadline - Instant::now()).await;
            }
            cache.pause_sweeper();
            assert!(deadline - Instant::now() > BASELINE, "the machine is too slow for this");
            let full = resident();
            sleep_until(deadline - BASELINE).await;
            let reader = thread::spawn(reader.take().expect("one reader per mass expiration"));
            sleep_until(deadline).await;
            phase.store(1, Relaxed);
            cache.resume_sweeper();
            while cache.len() as u64 > remaining {
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
            "| {remaining} | {run} | {alone:.1} | {full:.1} | {expired:.1} | {settled:.1} | {:.2} x |",
            settled / alone
        );
        let named = PHASES.iter().zip(latencies);
        rows.extend(
            named.map(|(phase, l)| format!("| {remaining} | {run} | {phase} | {}", l.row())),
        );
    }
    rows
}

/// Reads until the last phase is over. Returns the latencies of each phase.
fn read(handle: &Handle, cache: &Numbers, phase: &AtomicUsize) -> Vec<Latencies> {
    let mut phases: Vec<Latencies> = PHASES.iter().map(|_| Latencies::default()).collect();
    let waits = Waits::of_this_thread();
    let mut waited = waits.so_far();
    handle.block_on(async {
        for key in (0..READ).cycle() {
            let Some(latencies) = phases.get_mut(phase.load(Relaxed)) else { return };
            // Refreshed often, so that waits long before a slow lookup are not subtracted from it.
            if key % 64 == 0 {
                waited = waits.so_far();
            }
            let start = std::time::Instant::now();
            let value = cache.get(&key).await;
            let latency = start.elapsed();
            assert_eq!(value, Some(key), "a live value is missing");
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
    /// Number of lookups by duration, in steps of [`RESOLUTION`].
    counts: Vec<u64>,
    late: Vec<(Duration, Duration)>,
}

impl Latencies {
    fn add(&mut self, latency: Duration, waited: impl FnOnce() -> Duration) {
        let step = latency.min(LATE).as_nanos() as usize / RESOLUTION;
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

    /// Returns the duration that at least `rank` lookups did not exceed.
    fn quantile(&self, rank: u64) -> usize {
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        RESOLUTION * step.unwrap_or(0)
    }
}

fn microseconds(worst: Option<Duration>) -> String {
    worst.map_or_else(|| format!("< {LATE:?}"), |worst| format!("{} µs", worst.as_micros()))
}
