//! Calls from threads without a runtime, by the number of threads: `cargo bench --bench peers -- cores` writes
//! docs/cores.md.

use std::{
    hint::black_box,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use dashmap::DashMap;

use crate::{
    candidates::Value,
    head, median,
    ops::{Keys, TTL, keys, rounds, uniform, zipf},
    row,
};

const ENTRIES: usize = 10_000;

const NAMES: [&str; 4] = ["DashMap", "moka::sync", "quick_cache", "fleeting, sync()"];

trait Candidate: Send + Sync {
    fn get(&self, key: &str) -> Option<Value>;
    fn set_ex(&self, key: String, value: Value, ttl: Duration);
}

impl Candidate for DashMap<String, Value, foldhash::fast::RandomState> {
    fn get(&self, key: &str) -> Option<Value> {
        DashMap::get(self, key).map(|value| value.clone())
    }

    fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.insert(key, value);
    }
}

impl Candidate for moka::sync::Cache<String, Value> {
    fn get(&self, key: &str) -> Option<Value> {
        moka::sync::Cache::get(self, key)
    }

    fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.insert(key, value);
    }
}

impl Candidate for quick_cache::sync::Cache<String, Value> {
    fn get(&self, key: &str) -> Option<Value> {
        quick_cache::sync::Cache::get(self, key)
    }

    fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.insert(key, value);
    }
}

impl Candidate for fleeting::SyncCache<String, Value> {
    fn get(&self, key: &str) -> Option<Value> {
        fleeting::SyncCache::get(self, key)
    }

    fn set_ex(&self, key: String, value: Value, ttl: Duration) {
        fleeting::SyncCache::set_ex(self, key, value, ttl);
    }
}

/// Returns the page, for 1, 2, 4, ... threads, up to the number of processors.
pub(crate) fn page(quick: bool) -> String {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut page = format!(
        "# Threads without a runtime\n\n\
         Made by `cargo bench --bench peers -- cores` on {processors} processors: nanoseconds from the first call to the \
         last, divided by the calls of one thread, and in brackets as a multiple of `DashMap`. Medians of rounds in which \
         all candidates take turns. {ENTRIES} entries, 20-byte `String` keys, `Arc` values. moka's TTL is that of the \
         cache, a day; `DashMap` and quick_cache have none.\n\n\
         The page `docs/decisions/cache-lines.md` lists the memory that a call writes, and the expectations for more \
         processors than were measured here. Tables of larger machines are welcome.\n\n",
    );
    head(&mut page, "", &NAMES);
    let (calls, rounds) = if quick { (20_000, 3) } else { (400_000, rounds()) };
    let keys = keys(ENTRIES);
    let hasher = foldhash::fast::RandomState::default();
    let fleeting = fleeting::Cache::builder().background_thread().build();
    let candidates: [Box<dyn Candidate>; 4] = [
        Box::new(DashMap::with_hasher_and_shard_amount(hasher, 64)),
        Box::new(moka::sync::Cache::builder().time_to_live(TTL).build()),
        Box::new(quick_cache::sync::Cache::new(2 * ENTRIES)),
        Box::new(fleeting.sync().clone()),
    ];
    for candidate in &candidates {
        keys.iter().for_each(|key| candidate.set_ex(key.clone(), Arc::new(1), TTL));
    }
    let (uniform, zipf) = (uniform(ENTRIES, calls), zipf(ENTRIES, calls));
    let hot: Arc<[u32]> = vec![7; calls].into();
    let rows = [
        ("get, uniform", &uniform, usize::MAX),
        ("get, Zipf 0.99", &zipf, usize::MAX),
        ("get, one hot key", &hot, usize::MAX),
        ("95 : 5, Zipf 0.99", &zipf, 20),
        ("set_ex, uniform", &uniform, 1),
    ];
    for (name, calls, write_every) in rows {
        let mut threads = 1;
        while threads <= processors {
            let mut samples = [const { Vec::new() }; 4];
            for _ in 0..rounds {
                for (samples, candidate) in samples.iter_mut().zip(&candidates) {
                    samples.push(run(&**candidate, &keys, calls, write_every, threads));
                }
            }
            let plural = if threads == 1 { "" } else { "s" };
            let medians = samples.map(median);
            row(&mut page, &format!("{name}, {threads} thread{plural}"), &medians);
            threads *= 2;
        }
    }
    page
}

/// Returns the nanoseconds per call of a thread, of which every `write_every`th is a write.
fn run(
    candidate: &dyn Candidate,
    keys: &Keys,
    calls: &[u32],
    write_every: usize,
    threads: usize,
) -> f64 {
    let barrier = Barrier::new(threads + 1);
    let start = thread::scope(|scope| {
        for thread in 0..threads {
            let (before, after) = calls.split_at(thread * calls.len() / threads);
            let barrier = &barrier;
            scope.spawn(move || {
                // A separate value per thread: a shared one would add contention of its reference count.
                let value = Arc::new(thread as u64);
                barrier.wait();
                for (number, &call) in after.iter().chain(before).enumerate() {
                    let key = &keys[call as usize];
                    if (number + 1) % write_every == 0 {
                        candidate.set_ex(key.clone(), value.clone(), TTL);
                    } else {
                        black_box(candidate.get(key));
                    }
                }
            });
        }
        barrier.wait();
        Instant::now()
    });
    start.elapsed().as_nanos() as f64 / calls.len() as f64
}
