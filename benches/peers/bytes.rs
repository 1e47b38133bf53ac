//! Bytes an entry, counted by the allocator: `cargo bench --bench bytes` writes docs/bytes.md;
//! `cargo bench --bench bytes -- index` prints what the sweeper's index takes, and no more; `-- bound` what a bound does.
//!
//! Apart from `peers`: an allocator that counts would slow those figures.

#[allow(dead_code)]
mod subjects;

use std::{alloc::System, fmt::Write, sync::Arc, time::Duration};

use cap::Cap;
use dashmap::DashMap;
use fleeting::{Cache, Limit, RateLimiter, Window};
use subjects::{Bare, ByHand, Fleeting, Moka, NAMES, QuickCache, Retainer, Subject};

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
    let index = runtime.block_on(index());
    if std::env::args().any(|word| word == "index") {
        return println!("{index}");
    }
    let bound = runtime.block_on(bound());
    if std::env::args().any(|word| word == "bound") {
        return println!("{bound}");
    }
    let mut page = String::from(
        "# Bytes an entry\n\n\
         Made by `cargo bench --bench bytes`: what the allocator gave out for each entry of a 20-byte `String` \
         key (its 20 bytes included) and an `Arc<u64>` value (its 24 bytes included).\n\n",
    );
    write!(page, "| entries | DashMap<K, (V, u64)> |").expect("a string takes all");
    NAMES.iter().for_each(|name| write!(page, " {name} |").expect("a string takes all"));
    write!(page, "\n|{}\n", " --- |".repeat(NAMES.len() + 2)).expect("a string takes all");
    for entries in [100_000, 1_000_000, 1_800_000, 10_000_000] {
        let figures = runtime.block_on(async {
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
        write!(page, "| {entries} |").expect("a string takes all");
        for figure in figures {
            write!(page, " {figure:.1} |").expect("a string takes all");
        }
        page.push('\n');
    }
    page += "\n## A key of a rate limiter\n\n\
             A 20-byte `String` key (its 20 bytes included) of a million, after so many calls within its window.\n\n\
             | calls | Log | Buckets(10) | Gcra |\n| --- | --- | --- | --- |\n";
    for calls in [1, 2, 10] {
        write!(page, "| {calls} |").expect("a string takes all");
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            let figure = runtime.block_on(a_key(window, calls));
            write!(page, " {figure:.1} |").expect("a string takes all");
        }
        page.push('\n');
    }
    page += "\n";
    page += &index;
    page += "\n";
    page += &bound;
    println!("{page}");
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    std::fs::create_dir_all(docs).expect("docs/ can be made");
    std::fs::write(format!("{docs}/bytes.md"), page).expect("docs/bytes.md can be written");
}

/// What an entry takes beyond its place in a map: what is kept so that a sweep can pass over it.
async fn index() -> String {
    let mut page = String::from(
        "## The index of the sweeper\n\n\
         `u64` keys and values, each with a TTL, spread over an hour; the map has room for a deadline in each entry. The \
         last column is the difference without what an empty cache takes.\n\n\
         | entries | DashMap<u64, (u64, u64)> | fleeting | difference | of that for each entry |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    // What the first cache of a process takes for all.
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
        .expect("a string takes all");
    }
    page
}

/// What an entry takes of what a bounded cache knows of its entries, and of those that left.
async fn bound() -> String {
    let mut page = String::from(
        "## What a bound takes\n\n\
         `u64` keys and values. A cache with `max_entries` into which four times as many were written, beside one \
         without a bound that holds as many; each in bytes an entry.\n\n\
         | entries | no bound | bounded | difference |\n| --- | --- | --- | --- |\n",
    );
    for entries in [1_000, 10_000, 100_000, 1_000_000, 1_800_000] {
        let mut figures = [0.0; 2];
        for (figure, is_bounded) in figures.iter_mut().zip([false, true]) {
            let builder = Cache::builder().shards(16);
            let builder = if is_bounded { builder.max_entries(entries) } else { builder };
            let cache: Cache<u64, u64> = builder.build();
            let empty = MEMORY.allocated();
            let all = if is_bounded { 4 * entries } else { entries };
            for i in 0..all as u64 {
                cache.set(i, i).await;
            }
            assert_eq!(cache.len(), entries);
            *figure = (MEMORY.allocated() - empty) as f64 / entries as f64;
            drop(cache);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let [free, bounded] = figures;
        writeln!(page, "| {entries} | {free:.1} | {bounded:.1} | {:.1} |", bounded - free)
            .expect("a string takes all");
    }
    page
}

/// The bytes of a bare map and of a cache with so many entries.
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
    // Its sweeper may hold it a moment longer.
    tokio::time::sleep(Duration::from_millis(100)).await;
    (of_map as f64, of_cache as f64)
}

/// A bare map with room for a deadline of eight bytes: what there is to match.
fn with_deadline(entries: usize) -> f64 {
    let before = MEMORY.allocated();
    let map = DashMap::with_hasher_and_shard_amount(foldhash::fast::RandomState::default(), 64);
    for i in 0..entries {
        map.insert(key(i), (Arc::new(1_u64), i as u64));
    }
    each(before, entries)
}

async fn bytes<S: Subject>(entries: usize) -> f64 {
    let before = MEMORY.allocated();
    let subject = S::new(entries);
    for i in 0..entries {
        subject.set_ex(key(i), Arc::new(1), TTL).await;
    }
    // What some do later (moka's write buffer) is done by now.
    subject.sweep_all().await;
    each(before, entries)
}

async fn a_key(window: Window, calls: usize) -> f64 {
    const KEYS: usize = 1_000_000;

    let before = MEMORY.allocated();
    let limiter =
        RateLimiter::<String>::builder().limit(Limit::per_hour(1_000)).window(window).build();
    for _ in 0..calls {
        for i in 0..KEYS {
            limiter.check(&key(i)).await.expect("the quota is not spent");
        }
    }
    let figure = each(before, KEYS);
    drop(limiter);
    // Its sweeper may hold it a moment longer.
    tokio::time::sleep(Duration::from_millis(100)).await;
    figure
}

fn key(i: usize) -> String {
    format!("key:{i:016}")
}

fn each(before: usize, entries: usize) -> f64 {
    (MEMORY.allocated() - before) as f64 / entries as f64
}
