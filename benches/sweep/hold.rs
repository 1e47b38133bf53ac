//! How long a shard is locked while its memory is given back.
//!
//! All keys are in one shard, which is as full as one of 64 with 1 M entries that stay and 10 M that die. A thread reads
//! one key as fast as it can, and its longest look-up is as long as the lock was held, longer by what a hypervisor takes
//! and by waits for a processor. The same for as long as nothing is given back shows how much that is. Without these
//! waits, as the kernel counts them, it is too short on a busy machine: who waits for the lock lets others run.
//!
//! That memory was given back the process shows where glibc lets it, with `MALLOC_MMAP_THRESHOLD_=131072` in the
//! environment.

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

const STAYING: u64 = 1_000_000 / SHARDS as u64;
const DYING: u64 = 10 * STAYING;

type Numbers = Cache<u64, u64, ChosenShard>;
/// While nothing is due, while they expire, while memory is given back: the longest look-up, and that without waits for a
/// processor.
type Longest = [(Duration, Duration); 3];

pub(crate) fn hold(runtime: &Runtime) {
    let rounds = if is_quick() { 1 } else { 6 };
    let (longest, given_back): (Vec<Longest>, Vec<f64>) =
        (0..rounds).map(|_| round(runtime)).unzip();
    let shown = |phase: usize| {
        let (took, own) = longest.iter().map(|phases| phases[phase]).unzip();
        [took, own].map(|mut figures: Vec<Duration>| {
            figures.sort();
            format!("{} / {}", show(quantile(&figures, 0.5)), show(quantile(&figures, 1.0)))
        })
    };
    for (phase, name) in
        ["nothing is due", "they expire", "memory is given back"].iter().enumerate()
    {
        let [took, own] = shown(phase);
        let figure = format!("the longest look-up while {name}: median / worst of {rounds}");
        print("hold", &figure, &format!("{took}; without waits for a processor {own}"));
    }
    print("hold", "what the process then has less", &format!("{:.1} MB", median(given_back)));
}

/// The longest look-ups, and how many megabytes the process has less at the end.
fn round(runtime: &Runtime) -> (Longest, f64) {
    // Often, so that it need not last long.
    let sweep = Sweep::default().every(20 * MILLISECOND);
    let builder =
        Cache::<u64, u64>::builder().shards(SHARDS).hasher(ChosenShard::default()).sweep(sweep);
    let time = if is_quick() { SECOND / 2 } else { 3 * SECOND / 2 };
    let phase = AtomicUsize::new(0);
    thread::scope(|threads| {
        runtime.block_on(async {
            let cache = builder.build();
            let deadline = Instant::now() + time + SECOND / 2;
            for n in 0..STAYING {
                cache.set(key_of(0, n), n).await;
            }
            for n in STAYING..STAYING + DYING {
                cache.set_ex(key_of(0, n), n, deadline - Instant::now()).await;
            }
            let (reader_cache, phase, handle) = (cache.clone(), &phase, Handle::current());
            sleep_until(deadline - time).await;
            let reader = threads.spawn(move || handle.block_on(read(&reader_cache, phase)));
            sleep_until(deadline).await;
            phase.store(1, Relaxed);
            let full = resident();
            while cache.len() as u64 > STAYING {
                sleep(MILLISECOND).await;
            }
            phase.store(2, Relaxed);
            sleep(time).await;
            phase.store(3, Relaxed);
            (reader.join().expect("it only reads"), full - resident())
        })
    })
}

async fn read(cache: &Numbers, phase: &AtomicUsize) -> Longest {
    let waits = Waits::of_this_thread();
    let mut longest = Longest::default();
    let mut waited = waits.so_far();
    for turn in 0_u64.. {
        let Some(longest) = longest.get_mut(phase.load(Relaxed)) else { break };
        // A fresh count, so that a long look-up is not excused by waits long before it.
        if turn % 64 == 0 {
            waited = waits.so_far();
        }
        let start = std::time::Instant::now();
        let value = cache.get(&key_of(0, 0)).await;
        let took = start.elapsed();
        assert_eq!(value, Some(0), "a live value is lost");
        if took > longest.1 {
            let before = std::mem::replace(&mut waited, waits.so_far());
            let own = took.saturating_sub(waited - before);
            *longest = (took.max(longest.0), own.max(longest.1));
        }
    }
    longest
}
