//! Bytes per entry, counted by the allocator: `cargo bench --bench bytes` writes docs/bytes.md;
//! `cargo bench --bench bytes -- index` only prints the memory of the sweeper's index, `-- bound` that of a bound, and
//! `-- limiter` that of the keys of a rate limiter.
//!
//! Separate from `peers`, because a counting allocator would slow the calls that are measured there.

#[allow(dead_code)]
mod candidates;

use std::{alloc::System, fmt::Write, sync::Arc, time::Duration};

use candidates::{Bare, ByHand, Candidate, Fleeting, Moka, NAMES, QuickCache, Retainer};
use cap::Cap;
use dashmap::DashMap;
use fleeting::{Cache, Limit, RateLimiter, Window};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

const TTL: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3_600);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let is_asked = |part: &str| std::env::args().any(|word| word == part);
    if is_asked("limiter") {
        return println!("{}", runtime.block_on(limiter_keys()));
    }
    let index = runtime.block_on(index());
    if is_asked("index") {
        return println!("{index}");
    }
    let bound = runtime.block_on(bound());
    if is_asked("bound") {
        return println!("{bound}");
    }
    let mut page = String::from(
        "# Bytes per entry\n\n\
         Made by `cargo bench --bench bytes`: allocated bytes per entry with a 20-byte `String` key (its 20 bytes \
         included) and an `Arc<u64>` value (its 24 bytes included).\n\n",
    );
    write!(page, "| entries | DashMap<K, (V, u64)> |").expect("writing to a String cannot fail");
    NAMES
        .iter()
        .for_each(|name| write!(page, " {name} |").expect("writing to a String cannot fail"));
    write!(page, "\n|{}\n", " --- |".repeat(NAMES.len() + 2))
        .expect("writing to a String cannot fail");
    for entries in [100_000, 1_000_000, 1_800_000, 10_000_000] {
        let samples = runtime.block_on(async {
            [
                with_deadline(entries),
                bytes::<Bare>(entries).await,
                bytes::<ByHand>(entries).await,
                bytes::<Moka>(entries).await,
                bytes::<QuickCache>(entries).await,
                bytes::<Retainer>(entries).await,
                bytes::<Fleeting>(entries).await,
            ]
        });
        write!(page, "| {entries} |").expect("writing to a String cannot fail");
        for value in samples {
            write!(page, " {value:.1} |").expect("writing to a String cannot fail");
        }
        page.push('\n');
    }
    page += "\n";
    page += &runtime.block_on(limiter_keys());
    page += "\n";
    page += &index;
    page += "\n";
    page += &bound;
    println!("{page}");
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    std::fs::create_dir_all(docs).expect("docs/ can be created");
    std::fs::write(format!("{docs}/bytes.md"), page).expect("docs/bytes.md can be written");
}

/// Returns a table with the memory of the keys of a rate limiter.
async fn limiter_keys() -> String {
    let mut page = String::from(
        "## A key of a rate limiter\n\n\
         Bytes per key of a million 20-byte `String` keys (their 20 bytes included), by the number of calls within the \
         window.\n\n\
         | calls | Log | Buckets(10) | Gcra |\n| --- | --- | --- | --- |\n",
    );
    for calls in [1, 2, 10] {
        write!(page, "| {calls} |").expect("writing to a String cannot fail");
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            let value = a_key(window, calls).await;
            write!(page, " {value:.1} |").expect("writing to a String cannot fail");
        }
        page.push('\n');
    }
    page
}

/// Returns a table with the memory of the expiry index, by which a sweep skips entries.
async fn index() -> String {
    let mut page = String::from(
        "## The index of the sweeper\n\n\
         `u64` keys and values, with deadlines spread over an hour, in bytes per entry. The map has space for a \
         deadline in each entry. The last column is the difference without the memory of an empty cache.\n\n\
         | entries | DashMap<u64, (u64, u64)> | fleeting | difference | difference without an empty cache |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    // The first cache of a process also allocates memory that later caches share.
    numbers(0).await;
    let (map, cache) = numbers(0).await;
    let empty = cache - map;
    for entries in [10_000, 100_000, 1_000_000, 10_000_000] {
        let (map, cache) = numbers(entries).await;
        let each = |bytes: f64| bytes / entries as f64;
        writeln!(
            page,
            "| {entries} | {:.2} | {:.2} | {:.2} | {:.2} |",
            each(map),
            each(cache),
            each(cache - map),
            each(cache - map - empty),
        )
        .expect("writing to a String cannot fail");
    }
    page
}

/// Returns a table with the memory of a bound: data about entries, and about evicted keys.
async fn bound() -> String {
    let mut page = String::from(
        "## Memory of a bound\n\n\
         `u64` keys and values, in bytes per entry. A cache with `max_entries`, into which four times as many entries \
         were written, is compared with a cache without a bound that holds the same number.\n\n\
         | entries | no bound | bounded | difference |\n| --- | --- | --- | --- |\n",
    );
    for entries in [1_000, 10_000, 100_000, 1_000_000, 1_800_000] {
        let mut samples = [0.0; 2];
        for (value, is_bounded) in samples.iter_mut().zip([false, true]) {
            let builder = Cache::builder().shards(16);
            let builder = if is_bounded { builder.max_entries(entries) } else { builder };
            let cache: Cache<u64, u64> = builder.build();
            let empty = MEMORY.allocated();
            let all = if is_bounded { 4 * entries } else { entries };
            for i in 0..all as u64 {
                cache.set(i, i).await;
            }
            assert_eq!(cache.len(), entries);
            *value = (MEMORY.allocated() - empty) as f64 / entries as f64;
            drop(cache);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let [free, bounded] = samples;
        writeln!(page, "| {entries} | {free:.1} | {bounded:.1} | {:.1} |", bounded - free)
            .expect("writing to a String cannot fail");
    }
    page
}

/// Returns the bytes of a bare map and of a cache with this number of entries.
async fn numbers(entries: u64) -> (f64, f64) {
    let before = MEMORY.allocated();
    let map = DashMap::with_hasher_and_shard_amount(foldhash::fast::RandomState::default(), 64);
    for i in 0..entries {
        map.insert(i, (i, i));
    }
    let of_map = MEMORY.allocated() - before;
    drop(map);
    let before = MEMORY.allocated();
    let cache: Cache<u64, u64> = Cache::builder().shards(64).build();
    for i in 0..entries {
        cache.set_ex(i, i, TTL + HOUR.mul_f64(i as f64 / entries as f64)).await;
    }
    let of_cache = MEMORY.allocated() - before;
    drop(cache);
    // The sweeper may own the store for a moment longer.
    tokio::time::sleep(Duration::from_millis(100)).await;
    (of_map as f64, of_cache as f64)
}

/// Returns the bytes of a bare map with space for a deadline of eight bytes: the baseline.
fn with_deadline(entries: usize) -> f64 {
    let before = MEMORY.allocated();
    let map = DashMap::with_hasher_and_shard_amount(foldhash::fast::RandomState::default(), 64);
    for i in 0..entries {
        map.insert(key(i), (Arc::new(1_u64), i as u64));
    }
    each(before, entries)
}

async fn bytes<S: Candidate>(entries: usize) -> f64 {
    let before = MEMORY.allocated();
    let candidate = S::new(entries);
    for i in 0..entries {
        candidate.set_ex(key(i), Arc::new(1), TTL).await;
    }
    // Deferred work, such as moka's write buffer, is done by now.
    candidate.sweep_all().await;
    each(before, entries)
}

async fn a_key(window: Window, calls: usize) -> f64 {
    const KEYS: usize = 1_000_000;

    // So long that no key is idle again before the memory is read, in `Gcra` after a thousandth of it.
    let limit = Limit::new(1_000, 365 * TTL);
    let before = MEMORY.allocated();
    let limiter = RateLimiter::<String>::builder().limit(limit).window(window).build();
    for _ in 0..calls {
        for i in 0..KEYS {
            limiter.check(&key(i)).await.expect("the quota suffices");
        }
    }
    let value = each(before, KEYS);
    drop(limiter);
    // The sweeper may own the store for a moment longer.
    tokio::time::sleep(Duration::from_millis(100)).await;
    value
}

fn key(i: usize) -> String {
    format!("key:{i:016}")
}

fn each(before: usize, entries: usize) -> f64 {
    (MEMORY.allocated() - before) as f64 / entries as f64
}
