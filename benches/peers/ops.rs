//! `get`, `set_ex` and a mix of 95 lookups to 5 writes, by number of entries, distribution of keys, and tasks.

use std::{hint::black_box, sync::Arc, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;

use crate::{
    candidates::{Bare, ByHand, Candidate, Fleeting, Moka, NAMES, QuickCache, Retainer, Value},
    head, median, row,
};

pub(crate) const TTL: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Get,
    SetEx,
    Mixed,
}

pub(crate) struct Candidates {
    bare: Bare,
    by_hand: ByHand,
    moka: Moka,
    quick_cache: QuickCache,
    retainer: Retainer,
    fleeting: Fleeting,
}

pub(crate) type Keys = Arc<[String]>;

pub(crate) fn keys(count: usize) -> Keys {
    (0..count).map(|i| format!("key:{i:016}")).collect()
}

/// Returns a sequence of uniformly distributed keys.
pub(crate) fn uniform(keys: usize, calls: usize) -> Arc<[u32]> {
    let mut random = SmallRng::seed_from_u64(1);
    (0..calls).map(|_| random.random_range(0..keys as u32)).collect()
}

/// Returns a sequence of Zipf-distributed keys with exponent 0.99, as in YCSB: the frequency of key `n` is proportional
/// to `n^-0.99`.
pub(crate) fn zipf(keys: usize, calls: usize) -> Arc<[u32]> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        })
        .collect();
    let mut random = SmallRng::seed_from_u64(1);
    let rank = |x: f64| cumulated.partition_point(|&c| c < x).min(keys - 1) as u32;
    (0..calls).map(|_| rank(random.random_range(0.0..sum))).collect()
}

impl Candidates {
    pub(crate) async fn filled(keys: &Keys) -> Self {
        Self {
            bare: filled(keys).await,
            by_hand: filled(keys).await,
            moka: filled(keys).await,
            quick_cache: filled(keys).await,
            retainer: filled(keys).await,
            fleeting: filled(keys).await,
        }
    }

    /// Returns nanoseconds per call, for each candidate in the order of [`NAMES`].
    pub(crate) async fn round(
        &self,
        op: Op,
        keys: &Keys,
        calls: &Arc<[u32]>,
        tasks: usize,
    ) -> [f64; 6] {
        [
            run(&self.bare, op, keys, calls, tasks).await,
            run(&self.by_hand, op, keys, calls, tasks).await,
            run(&self.moka, op, keys, calls, tasks).await,
            run(&self.quick_cache, op, keys, calls, tasks).await,
            run(&self.retainer, op, keys, calls, tasks).await,
            run(&self.fleeting, op, keys, calls, tasks).await,
        ]
    }

    pub(crate) async fn medians(
        &self,
        op: Op,
        keys: &Keys,
        calls: &Arc<[u32]>,
        tasks: usize,
        rounds: usize,
    ) -> Vec<f64> {
        let mut samples = vec![Vec::new(); NAMES.len()];
        for _ in 0..rounds {
            for (all, value) in samples.iter_mut().zip(self.round(op, keys, calls, tasks).await) {
                all.push(value);
            }
        }
        samples.into_iter().map(median).collect()
    }
}

async fn filled<S: Candidate>(keys: &Keys) -> S {
    let candidate = S::new(keys.len());
    for key in keys.iter() {
        candidate.set_ex(key.clone(), Arc::new(1), TTL).await;
    }
    candidate
}

async fn run<S: Candidate>(
    candidate: &S,
    op: Op,
    keys: &Keys,
    calls: &Arc<[u32]>,
    tasks: usize,
) -> f64 {
    let value: Value = Arc::new(2);
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (candidate, keys, calls) = (candidate.clone(), keys.clone(), calls.clone());
            // A separate value per task: a shared one would add contention of its reference count.
            let value = Arc::new(*value + task as u64);
            tokio::spawn(async move {
                let (before, after) = calls.split_at(task * calls.len() / 3);
                match op {
                    Op::Get => get(&candidate, &keys, after.iter().chain(before)).await,
                    Op::SetEx => {
                        set_ex(&candidate, &keys, after.iter().chain(before), &value).await
                    }
                    Op::Mixed => mixed(&candidate, &keys, after.iter().chain(before), &value).await,
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no candidate panics");
    }
    start.elapsed().as_nanos() as f64 / calls.len() as f64
}

async fn get<S: Candidate>(candidate: &S, keys: &Keys, calls: impl Iterator<Item = &u32>) {
    for &call in calls {
        black_box(candidate.get(&keys[call as usize]).await);
    }
}

async fn set_ex<S: Candidate>(
    candidate: &S,
    keys: &Keys,
    calls: impl Iterator<Item = &u32>,
    value: &Value,
) {
    for &call in calls {
        candidate.set_ex(keys[call as usize].clone(), value.clone(), TTL).await;
    }
}

async fn mixed<S: Candidate>(
    candidate: &S,
    keys: &Keys,
    calls: impl Iterator<Item = &u32>,
    value: &Value,
) {
    for (i, &call) in calls.enumerate() {
        let key = &keys[call as usize];
        match i % 20 {
            0 => candidate.set_ex(key.clone(), value.clone(), TTL).await,
            _ => drop(black_box(candidate.get(key).await)),
        }
    }
}

/// All rows, or those whose names contain a word of `selected`.
pub(crate) async fn table(quick: bool, selected: &[String]) -> String {
    let mut page = String::from(
        "\n## Nanoseconds per call\n\nIn brackets: as a multiple of the baseline. \"95 : 5\" is 95 lookups to 5 writes; in \
             the section on full caches, a missing key is set.\n\n",
    );
    head(&mut page, "", &NAMES);
    let (calls, rounds) = if quick { (20_000, 3) } else { (400_000, rounds()) };
    for entries in [10_000, 1_000_000] {
        let entries = if quick { entries / 10 } else { entries };
        let rows = rows(entries, selected);
        if rows.is_empty() {
            continue;
        }
        let keys = keys(entries);
        let candidates = Candidates::filled(&keys).await;
        let spreads = [uniform(entries, calls), zipf(entries, calls)];
        for Row { name, spread, tasks, op } in rows {
            let samples = candidates.medians(op, &keys, &spreads[spread], tasks, rounds).await;
            eprintln!("{name}: {samples:.0?}");
            row(&mut page, &name, &samples);
        }
    }
    page
}

struct Row {
    name: String,
    /// Index of the row's key sequence.
    spread: usize,
    tasks: usize,
    op: Op,
}

fn rows(entries: usize, selected: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (spread, spread_name) in ["uniform", "Zipf 0.99"].into_iter().enumerate() {
        for tasks in [1, 2] {
            for (op_name, op) in [("get", Op::Get), ("set_ex", Op::SetEx), ("95 : 5", Op::Mixed)] {
                let plural = if tasks == 1 { "" } else { "s" };
                let name =
                    format!("{op_name}, {entries} entries, {spread_name}, {tasks} task{plural}");
                if selected.is_empty() || selected.iter().any(|word| name.contains(word)) {
                    rows.push(Row { name, spread, tasks, op });
                }
            }
        }
    }
    rows
}

/// Returns the number of rounds in which the candidates take turns.
pub(crate) fn rounds() -> usize {
    let set = std::env::var("FLEETING_ROUNDS").ok();
    set.map_or(9, |rounds| rounds.parse().expect("FLEETING_ROUNDS must be a number"))
}
