//! Duration of a shard lock while the shard's memory is returned.
//!
//! All keys are in one shard, which is as full as one of 64 shards with 1 M remaining and 10 M expiring entries. A
//! thread reads one key in a loop. Its longest lookup is an upper bound on the duration of the lock: it includes pauses
//! by a hypervisor and waits for a processor. The phase without returned memory shows this noise. Without the waits
//! counted by the kernel, the result is too short on a busy machine, because a thread that waits for the lock yields
//! its processor.
//!
//! The returned memory only shows in the resident memory of the process if glibc returns it to the system, with
//! `MALLOC_MMAP_THRESHOLD_=131072` in the environment.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use fleeting::{Cache, Sweep};
use tokio::{
    runtime::{Handle, Runtime},
    time::{Instant, sleep, sleep_until},
};

use super::{
    MILLISECOND, SECOND,
    measure::{ChosenShard, SHARDS, Waits, is_quick, key_of, median, quantile, resident, show},
    print,
};

const REMAINING: u64 = 1_000_000 / SHARDS as u64;
const EXPIRING: u64 = 10 * REMAINING;

type Numbers = Cache<u64, u64, ChosenShard>;
/// The longest lookup, with and without waits for a processor, in three phases: no entry is due, entries expire, memory
/// is returned.
type Longest = [(Duration, Duration); 3];

pub(crate) fn hold(runtime: &Runtime) {
    let rounds = if is_quick() { 1 } else { 6 };
    let (longest, returned): (Vec<Longest>, Vec<f64>) = (0..rounds).map(|_| round(runtime)).unzip();
    let shown = |phase: usize| {
        let (took, own) = longest.iter().map(|phases| phases[phase]).unzip();
        [took, own].map(|mut samples: Vec<Duration>| {
            samples.sort();
            format!("{} / {}", show(quantile(&samples, 0.5)), show(quantile(&samples, 1.0)))
        })
    };
    for (phase, name) in
        ["no entry is due", "its entries expire", "its memory is returned"].iter().enumerate()
    {
        let [took, own] = shown(phase);
        let value =
            format!("the longest lookup in a shard while {name}: median / worst of {rounds}");
        print("hold", &value, &format!("{took}; without waits for a processor {own}"));
    }
    print("hold", "decrease of the resident memory", &format!("{:.1} MB", median(returned)));
}

/// Returns the longest lookups, and the decrease of the resident memory in megabytes.
fn round(runtime: &Runtime) -> (Longest, f64) {
    // A short interval, so that the benchmark is short.
    let sweep = Sweep::default().every(20 * MILLISECOND);
    let builder =
        Cache::<u64, u64>::builder().shards(SHARDS).hasher(ChosenShard::default()).sweep(sweep);
    let time = if is_quick() { SECOND / 2 } else { 3 * SECOND / 2 };
    let phase = AtomicUsize::new(0);
    thread::scope(|threads| {
        runtime.block_on(async {
            let cache = builder.build();
            let deadline = Instant::now() + time + SECOND / 2;
            for n in 0..REMAINING {
                cache.set(key_of(0, n), n).await;
            }
            for n in REMAINING..REMAINING + EXPIRING {
                cache.set_ex(key_of(0, n), n, deadline - Instant::now()).await;
            }
            let (reader_cache, phase, handle) = (cache.clone(), &phase, Handle::current());
            sleep_until(deadline - time).await;
            let reader = threads.spawn(move || handle.block_on(read(&reader_cache, phase)));
            sleep_until(deadline).await;
            phase.store(1, Relaxed);
            let full = resident();
            while cache.len() as u64 > REMAINING {
                sleep(MILLISECOND).await;
            }
            phase.store(2, Relaxed);
            sleep(time).await;
            phase.store(3, Relaxed);
            (reader.join().expect("the reader does not panic"), full - resident())
        })
    })
}

async fn read(cache: &Numbers, phase: &AtomicUsize) -> Longest {
    let waits = Waits::of_this_thread();
    let mut longest = Longest::default();
    let mut waited = waits.so_far();
    for turn in 0_u64.. {
        let Some(longest) = longest.get_mut(phase.load(Relaxed)) else { break };
        // Refreshed often, so that waits long before a slow lookup are not subtracted from it.
        if turn % 64 == 0 {
            waited = waits.so_far();
        }
        let start = std::time::Instant::now();
        let value = cache.get(&key_of(0, 0)).await;
        let took = start.elapsed();
        assert_eq!(value, Some(0), "a live value is missing");
        if took > longest.1 {
            let before = std::mem::replace(&mut waited, waits.so_far());
            let own = took.saturating_sub(waited - before);
            *longest = (took.max(longest.0), own.max(longest.1));
        }
    }
    longest
}
