//! Costs of loaders, many keys at once and idle entries, compared with moka and with a plain `get`:
//! `cargo bench --bench loaders` prints the tables of docs/loaders.md.
//!
//! Every number is the median of rounds in which all candidates take turns. `FLEETING_QUICK=1` makes the run short.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::Cache;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{task::JoinSet, time::Instant};

type Value = Arc<u64>;
type Fleeting = Cache<String, Value>;
type Moka = moka::future::Cache<String, Value>;

const TTL: Duration = Duration::from_secs(86_400);

/// Number of keys per call of `get_many` and `set_many`.
const MANY: usize = 100;

struct Sizes {
    calls: usize,
    rounds: usize,
    entries: [usize; 2],
}

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let sizes = match quick {
        true => Sizes { calls: 20_000, rounds: 3, entries: [1_000, 100_000] },
        false => Sizes { calls: 400_000, rounds: 11, entries: [10_000, 1_000_000] },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        println!(
            "| | `get` | `get_or_set_with` | `get` with `time_to_idle` | `get` with `time_to_idle` and TTL | moka, \
             `get` | moka, `get_with` |"
        );
        println!("|{}", " --- |".repeat(7));
        for entries in sizes.entries {
            hits(entries, &sizes).await;
        }
        println!("\n| | fleeting | moka |\n| --- | --- | --- |");
        misses(&sizes).await;
        waiters(&sizes).await;
        dogpile().await;
        println!(
            "\n| | {MANY} calls of `get` | `get_many` | {MANY} calls of `set_ex` | `set_many` |\n|{}",
            " --- |".repeat(5)
        );
        for entries in sizes.entries {
            many(entries, &sizes).await;
        }
    });
}

async fn hits(entries: usize, sizes: &Sizes) {
    let keys: Vec<String> = (0..entries).map(|n| format!("key:{n:016}")).collect();
    let (plain, idle) = (Fleeting::new(), Fleeting::builder().time_to_idle(TTL).build());
    let both = Fleeting::builder().time_to_idle(TTL).time_to_live(2 * TTL).build();
    let moka = Moka::builder().time_to_live(TTL).build();
    for key in &keys {
        plain.set_ex(key.clone(), Arc::new(1), TTL).await;
        idle.set(key.clone(), Arc::new(1)).await;
        both.set(key.clone(), Arc::new(1)).await;
        moka.insert(key.clone(), Arc::new(1)).await;
    }
    moka.run_pending_tasks().await;
    let calls = random(entries, sizes.calls);
    let mut samples = vec![Vec::new(); 6];
    for _ in 0..sizes.rounds {
        let round = [
            timed(&calls, async |n| plain.get(&keys[n]).await.is_some()).await,
            timed(&calls, async |n| {
                *plain.get_or_set_with(&keys[n], TTL, async || Arc::new(2)).await == 1
            })
            .await,
            timed(&calls, async |n| idle.get(&keys[n]).await.is_some()).await,
            timed(&calls, async |n| both.get(&keys[n]).await.is_some()).await,
            timed(&calls, async |n| moka.get(&keys[n]).await.is_some()).await,
            timed(&calls, async |n| {
                *moka.get_with_by_ref(&keys[n], async { Arc::new(2) }).await == 1
            })
            .await,
        ];
        samples.iter_mut().zip(round).for_each(|(all, value)| all.push(value));
    }
    let samples: Vec<f64> = samples.into_iter().map(median).collect();
    let cells: Vec<String> =
        samples.iter().map(|ns| format!("{ns:.0} ns ({:.2})", ns / samples[0])).collect();
    println!("| a hit, {entries} entries | {} |", cells.join(" | "));
}

/// Measures misses with a loader that returns immediately.
async fn misses(sizes: &Sizes) {
    let calls = sizes.calls / 4;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let keys: Vec<String> = (0..calls).map(|n| format!("key:{n:016}")).collect();
    let all: Vec<usize> = (0..calls).collect();
    for _ in 0..sizes.rounds {
        let cache = Fleeting::new();
        ours.push(
            timed(&all, async |n| {
                *cache.get_or_set_with(&keys[n], TTL, async || Arc::new(2)).await == 2
            })
            .await,
        );
        let moka = Moka::builder().time_to_live(TTL).build();
        theirs.push(
            timed(&all, async |n| {
                *moka.get_with_by_ref(&keys[n], async { Arc::new(2) }).await == 2
            })
            .await,
        );
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "| a miss, with an immediate load | {ours:.0} ns ({:.2}) | {theirs:.0} ns |",
        ours / theirs
    );
}

/// Measures the time from the end of a load until the last of a thousand waiters has the value.
async fn waiters(sizes: &Sizes) {
    let mut all = Vec::new();
    for round in 0..3 * sizes.rounds as u64 {
        let (cache, ended) = (Fleeting::new(), Arc::new(AtomicU64::new(0)));
        let start = Instant::now();
        let mut waits = JoinSet::new();
        for _ in 0..1_000 {
            let (cache, ended) = (cache.clone(), ended.clone());
            waits.spawn(async move {
                let load = async move || {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    ended.store(start.elapsed().as_nanos() as u64, Relaxed);
                    Arc::new(round)
                };
                cache.get_or_set_with("key", TTL, load).await;
                start.elapsed()
            });
        }
        let last = waits.join_all().await.into_iter().max().expect("a thousand");
        all.push((last - Duration::from_nanos(ended.load(Relaxed))).as_nanos() as f64);
    }
    println!(
        "| a thousand waiters for one load: time until all have the value | {:.0} µs | |",
        median(all) / 1e3
    );
}

async fn dogpile() {
    let cache: Cache<usize, usize> = Cache::new();
    let mut callers = JoinSet::new();
    for caller in 0..10_000 {
        let cache = cache.clone();
        callers.spawn(async move {
            let load = async move || {
                tokio::time::sleep(Duration::from_millis(5)).await;
                caller
            };
            cache.get_or_set_with(&(caller % 100), TTL, load).await
        });
    }
    callers.join_all().await;
    println!("| 10,000 callers of 100 missing keys: number of loads | {} | |", cache.stats().loads);
}

async fn many(entries: usize, sizes: &Sizes) {
    let keys: Vec<String> = (0..entries).map(|n| format!("key:{n:016}")).collect();
    let (cache, value) = (Fleeting::new(), Arc::new(1));
    for key in &keys {
        cache.set_ex(key.clone(), value.clone(), TTL).await;
    }
    let calls = random(entries, sizes.calls);
    let mut samples = vec![Vec::new(); 4];
    for _ in 0..sizes.rounds {
        let get = timed(&calls, async |n| cache.get(&keys[n]).await.is_some()).await;
        let start = Instant::now();
        for some in calls.chunks(MANY) {
            black_box(cache.get_many(some.iter().map(|n| &keys[*n])).await);
        }
        let get_many = start.elapsed().as_nanos() as f64 / calls.len() as f64;
        let entry = |n: usize| (keys[n].clone(), value.clone());
        let set = timed(&calls, async |n| {
            let (key, value) = entry(n);
            cache.set_ex(key, value, TTL).await.is_some()
        })
        .await;
        let start = Instant::now();
        for some in calls.chunks(MANY) {
            cache.set_many(some.iter().map(|n| entry(*n)), Some(TTL)).await;
        }
        let set_many = start.elapsed().as_nanos() as f64 / calls.len() as f64;
        let round = [get, get_many, set, set_many];
        samples.iter_mut().zip(round).for_each(|(all, value)| all.push(value));
    }
    let samples: Vec<f64> =
        samples.into_iter().map(|all| median(all) * MANY as f64 / 1e3).collect();
    let [get, get_many, set, set_many] = samples[..] else { unreachable!("there are four") };
    println!(
        "| {entries} entries | {get:.1} µs | {get_many:.1} µs ({:.2}) | {set:.1} µs | {set_many:.1} µs ({:.2}) |",
        get_many / get,
        set_many / set
    );
}

/// Returns nanoseconds per call.
async fn timed(calls: &[usize], call: impl AsyncFn(usize) -> bool) -> f64 {
    let start = Instant::now();
    for &n in calls {
        assert!(black_box(call(n).await));
    }
    start.elapsed().as_nanos() as f64 / calls.len() as f64
}

fn random(entries: usize, calls: usize) -> Vec<usize> {
    let mut random = SmallRng::seed_from_u64(1);
    (0..calls).map(|_| random.random_range(0..entries)).collect()
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
