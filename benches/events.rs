//! Costs of an event for the writer that causes it: `cargo bench --bench events` writes docs/events.md.
//!
//! Every number is the median of rounds in which all candidates take turns, on one machine in one run. Idle subscribers
//! never read. Waiting subscribers have been polled; after each event that woke them, they are polled again outside the
//! measured time. `FLEETING_QUICK=1` makes the run short, and writes nothing.

use std::{
    fmt::Write,
    hint::{black_box, spin_loop},
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, Events, Sweep};
use futures::Stream;
use tokio::{
    runtime::{Builder, Runtime},
    task::unconstrained,
};

const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];
const MANY: usize = 1_000;

/// Calls per round of a single writer: about a millisecond.
const CALLS: u64 = 2_000;

/// Calls per round of each of several writers.
const CALLS_PER_WRITER: u64 = 50_000;

/// Keys of each of these writers: too many for the processor caches, as in a real cache.
const KEYS: u64 = 100_000;

type Numbers = Cache<u64, u64>;

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let (rounds, long_rounds) = if quick { (101, 31) } else { (2_001, 401) };
    let runtime =
        Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let _inside = runtime.enter();
    let mut page = String::from(
        "# Costs of an event\n\n\
         Made by `cargo bench --bench events`: medians of rounds in which all candidates take turns, on one machine in \
         one run. Keys and values are `u64`; the subscribers are streams of `events()` with a capacity of 1,024.\n\n",
    );
    page += &one_writer(&runtime, rounds);
    page += &two_writers(long_rounds);
    println!("{page}");
    if !quick {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/events.md");
        std::fs::write(path, page).expect("docs/events.md can be written");
    }
}

/// Measures a `set` and a `remove` of the same key. Only the second causes an event.
fn one_writer(runtime: &Runtime, rounds: usize) -> String {
    let caches: [Numbers; 5] = std::array::from_fn(|_| cache());
    let subscribe =
        |cache: usize, count| -> Vec<_> { (0..count).map(|_| caches[cache].events()).collect() };
    let idle = [subscribe(1, 1), subscribe(2, MANY), subscribe(3, 1)];
    let others = subscribe(3, MANY).into_iter().map(|events| events.only([Cause::Replaced]));
    let mut others: Vec<_> = others.collect();
    others.iter_mut().for_each(wait);
    let mut waiting = subscribe(4, MANY);
    let mut samples = [const { Vec::new() }; 5];
    for _ in 0..rounds {
        for (cache, value) in caches.iter().zip(&mut samples).take(4) {
            value.push(time(CALLS, || set_and_remove(runtime, cache, CALLS)));
        }
        let mut woken = Duration::ZERO;
        for _ in 0..8 {
            waiting.iter_mut().for_each(wait);
            let start = Instant::now();
            set_and_remove(runtime, &caches[4], 1);
            woken += start.elapsed();
        }
        samples[4].push(woken.as_nanos() as f64 / 8.0);
    }
    drop((idle, others));
    let samples = samples.map(median);
    let mut page = String::from(
        "## A `set` and a `remove`, with one event\n\n\
         | subscribers | ns | more than without a subscriber |\n| --- | --- | --- |\n",
    );
    for (name, value) in [
        "none",
        "1, idle",
        "1,000, idle",
        "1, idle, and 1,000 that wait for other causes",
        "1,000, that wait for this event and are woken",
    ]
    .into_iter()
    .zip(samples)
    {
        writeln!(page, "| {name} | {value:.0} | {:.0} |", value - samples[0])
            .expect("writing to a String cannot fail");
    }
    page + "\n"
}

/// Measures sets that replace a value, on two threads with separate keys.
fn two_writers(rounds: usize) -> String {
    let mut page = String::from(
        "## Sets that replace a value, in millions per second\n\n\
         Two threads on a machine with two processors. If they write many keys, they contend for the shards, with \
         or without events.\n\n\
         | keys per writer | subscribers | 1 writer | 2 writers | ratio |\n| --- | --- | --- | --- | --- |\n",
    );
    for keys in [1, KEYS] {
        let mut samples = [const { Vec::new() }; 4];
        let mut caches = subscribed();
        for _ in 0..rounds {
            if keys == 1 {
                // New caches with new hash seeds: otherwise the two keys might share a shard in all rounds.
                caches = subscribed();
            }
            for (row, cache) in caches.0.iter().enumerate() {
                replace_concurrently(cache, 2, keys, keys);
                for writers in [1, 2] {
                    let rate = replace_concurrently(cache, writers, keys, CALLS_PER_WRITER);
                    samples[2 * row + writers as usize - 1].push(rate);
                }
            }
        }
        let [plain_one, plain_two, one, two] = samples.map(median);
        for (name, one, two) in [("none", plain_one, plain_two), ("100, idle", one, two)] {
            writeln!(page, "| {keys} | {name} | {one:.2} | {two:.2} | {:.2} |", two / one)
                .expect("writing to a String cannot fail");
        }
    }
    page
}

/// Returns a cache without subscribers, and one with a hundred.
fn subscribed() -> ([Numbers; 2], Vec<Events<u64, u64>>) {
    let caches = [cache(), cache()];
    let idle = (0..100).map(|_| caches[1].events()).collect();
    (caches, idle)
}

fn cache() -> Numbers {
    Cache::builder().sweep(Sweep::manual()).publish(ALL).build()
}

fn set_and_remove(runtime: &Runtime, cache: &Numbers, calls: u64) {
    runtime.block_on(unconstrained(async {
        for key in 0..calls {
            black_box(cache.set(key % 512, key).await);
            black_box(cache.remove(&(key % 512)).await);
        }
    }));
}

/// Returns millions of sets per second, for all writers together.
fn replace_concurrently(cache: &Numbers, writers: u64, keys: u64, calls: u64) -> f64 {
    // The writers spin for each other, so that all of them have a processor when the first one starts.
    let ready = AtomicU64::new(0);
    let write = |writer: u64| {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(unconstrained(async {
            ready.fetch_add(1, Relaxed);
            while ready.load(Relaxed) < writers {
                spin_loop();
            }
            let start = Instant::now();
            for n in 0..calls {
                // A multiplicative hash, so that keys are not written in the order of memory.
                let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                black_box(cache.set((writer << 32) | (key % keys), n).await);
            }
            (start, Instant::now())
        }))
    };
    let spans: Vec<_> = thread::scope(|scope| {
        let write = &write;
        let threads: Vec<_> =
            (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the writer does not panic"))
            .collect()
    });
    let start = spans.iter().map(|(start, _)| *start).min().expect("at least one writer");
    let end = spans.iter().map(|(_, end)| *end).max().expect("at least one writer");
    (writers * calls) as f64 / (end - start).as_nanos() as f64 * 1e3
}

/// Polls all available events, and registers a waker for the next one.
fn wait(events: &mut Events<u64, u64>) {
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(next) = Pin::new(&mut *events).poll_next(&mut cx) {
        black_box(next);
    }
}

/// Returns nanoseconds per call.
fn time(calls: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
