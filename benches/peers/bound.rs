//! Full caches: hits, sets that evict an entry, and a mix of 95 lookups to 5 writes.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    candidates::{Bare, Candidate, Fleeting, Value},
    head, median,
    ops::{Keys, TTL, keys, rounds, uniform, zipf},
    row,
};

const NAMES: [&str; 6] =
    ["DashMap", "moka", "moka, LRU", "quick_cache", "fleeting, no bound", "fleeting"];

/// Number of keys per entry of a full cache.
const KEYS_PER_ENTRY: usize = 8;

#[derive(Clone, Copy, PartialEq)]
enum Op {
    /// Lookups of resident keys.
    Hit,
    /// Sets of new keys, each of which evicts an entry.
    Evict,
    /// 95 lookups to 5 writes; a missing key is set.
    Mixed,
}

#[derive(Clone)]
struct Moka(moka::future::Cache<String, Value>);

#[derive(Clone)]
struct QuickCache(Arc<quick_cache::sync::Cache<String, Value>>);

struct Row {
    name: String,
    op: Op,
    tasks: usize,
    is_zipf: bool,
}

/// The reasons for rows above those of quick_cache, by cachegrind and by measurements in turns.
const REASONS: &str = include_str!("reasons.md");

/// Returns a table of all rows, or of those whose names contain a word of `selected`.
pub(crate) async fn table(quick: bool, selected: &[String]) -> String {
    let mut page = String::from(
        "\n## Full caches\n\nNanoseconds per call of full caches that hold 1 of 8 keys. In the rows of hits, all keys \
         are resident. The baseline is a DashMap without a bound that holds all keys, so that each write replaces a \
         value.\n\n",
    );
    head(&mut page, "", &NAMES);
    let (calls, rounds) = if quick { (20_000, 3) } else { (400_000, rounds()) };
    for entries in [10_000, 1_000_000] {
        let entries = if quick { entries / 10 } else { entries };
        for Row { name, op, tasks, is_zipf } in rows(entries, selected) {
            let keys = keys(if op == Op::Hit { entries } else { KEYS_PER_ENTRY * entries });
            let spread = if is_zipf { zipf(keys.len(), calls) } else { uniform(keys.len(), calls) };
            let candidates = Candidates::filled(entries, &keys).await;
            let samples = candidates.medians(op, &keys, &spread, tasks, rounds).await;
            eprintln!("{name}: {samples:.0?}");
            row(&mut page, &name, &samples);
        }
    }
    page += "\n";
    page += REASONS;
    if selected.is_empty() || selected.iter().any(|word| "full: with a writer".contains(word)) {
        page += &with_a_writer(quick).await;
    }
    page
}

/// Returns a table with the durations of lookups while another task writes new keys.
async fn with_a_writer(quick: bool) -> String {
    let mut page = String::from(
        "\nDurations of lookups with a million entries, one task that only writes new keys, and one that only reads. \
         The last row has no writer.\n\n",
    );
    head(&mut page, "", &["p50", "p99", "p99.9", "p99.99", "worst"]);
    let entries = if quick { 10_000 } else { 1_000_000 };
    let keys = keys(KEYS_PER_ENTRY * entries);
    let cache =
        filled(Fleeting(fleeting::Cache::builder().max_entries(entries).build()), &keys).await;
    let quick_cache = QuickCache(Arc::new(quick_cache::sync::Cache::new(entries)));
    let quick_cache = filled(quick_cache, &keys).await;
    let rows = [
        ("fleeting", lookup_times(&cache, &keys, quick, true).await),
        ("quick_cache", lookup_times(&quick_cache, &keys, quick, true).await),
        ("fleeting, without a writer", lookup_times(&cache, &keys, quick, false).await),
    ];
    for (name, mut lookup_times) in rows {
        lookup_times.sort_unstable();
        let at = |share: f64| {
            lookup_times[(share * (lookup_times.len() - 1) as f64) as usize] as f64 / 1e3
        };
        let samples = [0.5, 0.99, 0.999, 0.9999, 1.0].map(|share| format!("{:.2} µs", at(share)));
        page += &format!("| {name} | {} |\n", samples.join(" | "));
    }
    page
}

async fn lookup_times<S: Candidate>(
    candidate: &S,
    keys: &Keys,
    quick: bool,
    is_written: bool,
) -> Vec<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (candidate, keys, stop) = (candidate.clone(), keys.clone(), stop.clone());
        async move {
            let value = Arc::new(1);
            for key in keys.iter().cycle() {
                if !is_written || stop.load(Relaxed) {
                    break;
                }
                candidate.set_ex(key.clone(), value.clone(), TTL).await;
            }
        }
    });
    let calls = uniform(keys.len(), if quick { 20_000 } else { 2_000_000 });
    let mut lookup_times = Vec::with_capacity(calls.len());
    for &call in calls.iter() {
        let begin = Instant::now();
        black_box(candidate.get(&keys[call as usize]).await);
        lookup_times.push(begin.elapsed().as_nanos() as u64);
    }
    stop.store(true, Relaxed);
    writer.await.expect("no candidate panics");
    lookup_times
}

fn rows(entries: usize, selected: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (op, op_name, is_zipf) in [
        (Op::Hit, "full: get, hits", false),
        (Op::Evict, "full: set that evicts an entry", false),
        (Op::Mixed, "full: 95 : 5, Zipf 0.99", true),
    ] {
        for tasks in [1, 2] {
            let plural = if tasks == 1 { "" } else { "s" };
            let name = format!("{op_name}, {entries} entries, {tasks} task{plural}");
            if selected.is_empty() || selected.iter().any(|word| name.contains(word)) {
                rows.push(Row { name, op, tasks, is_zipf });
            }
        }
    }
    rows
}

struct Candidates {
    entries: usize,
    bare: Bare,
    moka: Moka,
    moka_lru: Moka,
    quick_cache: QuickCache,
    unbounded: Fleeting,
    fleeting: Fleeting,
}

impl Candidates {
    async fn filled(entries: usize, keys: &Keys) -> Self {
        let moka = |policy| {
            let builder = moka::future::Cache::builder().max_capacity(entries as u64);
            Moka(builder.eviction_policy(policy).build())
        };
        let quick_cache = quick_cache::sync::Cache::new(entries);
        let fleeting = fleeting::Cache::builder().max_entries(entries).build();
        Self {
            entries,
            bare: filled(Bare::new(entries), &keys[..entries]).await,
            moka: filled(moka(moka::policy::EvictionPolicy::tiny_lfu()), keys).await,
            moka_lru: filled(moka(moka::policy::EvictionPolicy::lru()), keys).await,
            quick_cache: filled(QuickCache(Arc::new(quick_cache)), keys).await,
            unbounded: filled(Fleeting::new(entries), &keys[..entries]).await,
            fleeting: filled(Fleeting(fleeting), keys).await,
        }
    }

    async fn medians(
        &self,
        op: Op,
        keys: &Keys,
        calls: &Arc<[u32]>,
        tasks: usize,
        rounds: usize,
    ) -> Vec<f64> {
        // The baseline has no bound and holds all keys, so that its writes replace values.
        let within = calls.iter().map(|call| call % self.entries as u32).collect();
        let mut samples = vec![Vec::new(); NAMES.len()];
        for _ in 0..rounds {
            let round = [
                run(&self.bare, op, keys, &within, tasks).await,
                run(&self.moka, op, keys, calls, tasks).await,
                run(&self.moka_lru, op, keys, calls, tasks).await,
                run(&self.quick_cache, op, keys, calls, tasks).await,
                // Without a bound, this cache would grow to all keys.
                match op {
                    Op::Hit => run(&self.unbounded, op, keys, calls, tasks).await,
                    _ => f64::NAN,
                },
                run(&self.fleeting, op, keys, calls, tasks).await,
            ];
            samples.iter_mut().zip(round).for_each(|(all, value)| all.push(value));
        }
        samples.into_iter().map(median).collect()
    }
}

async fn filled<S: Candidate>(candidate: S, keys: &[String]) -> S {
    for key in keys {
        candidate.set_ex(key.clone(), Arc::new(1), TTL).await;
    }
    candidate
}

/// Returns nanoseconds per call.
async fn run<S: Candidate>(
    candidate: &S,
    op: Op,
    keys: &Keys,
    calls: &Arc<[u32]>,
    tasks: usize,
) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (candidate, keys, calls) = (candidate.clone(), keys.clone(), calls.clone());
            tokio::spawn(async move {
                let value = Arc::new(task as u64);
                let (before, after) = calls.split_at(task * calls.len() / 3);
                for (i, &call) in after.iter().chain(before).enumerate() {
                    let key = &keys[call as usize];
                    let writes = op == Op::Evict || op == Op::Mixed && i % 20 == 0;
                    let missed = !writes && black_box(candidate.get(key).await).is_none();
                    if writes || missed && op == Op::Mixed {
                        candidate.set_ex(key.clone(), value.clone(), TTL).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no candidate panics");
    }
    start.elapsed().as_nanos() as f64 / calls.len() as f64
}

impl Candidate for Moka {
    fn new(entries: usize) -> Self {
        Self(moka::future::Cache::new(entries as u64))
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).await
    }

    async fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.0.insert(key, value).await;
    }

    async fn len(&self) -> usize {
        self.0.entry_count() as usize
    }
}

impl Candidate for QuickCache {
    fn new(entries: usize) -> Self {
        Self(Arc::new(quick_cache::sync::Cache::new(entries)))
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key)
    }

    async fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.0.insert(key, value);
    }

    async fn len(&self) -> usize {
        self.0.len()
    }
}
