//! Costs of the same calls from ten thousand to ten million entries.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    candidates::{Candidate, NAMES},
    head, median,
    ops::{Candidates, Op, TTL, keys, uniform},
    row,
};

/// One panel of the picture: a title, and for each candidate the nanoseconds at each size.
pub(crate) struct Lines {
    pub(crate) title: &'static str,
    pub(crate) names: Vec<&'static str>,
    pub(crate) sizes: Vec<f64>,
    /// By candidate, then by size.
    pub(crate) samples: Vec<Vec<f64>>,
}

const SWEEP: &str = "a sweep with 1 % of the entries expired";

const SWEPT: [&str; 2] = ["retain", "fleeting"];

pub(crate) async fn table(quick: bool) -> (String, Vec<Lines>) {
    let sizes: &[usize] =
        if quick { &[1_000, 10_000] } else { &[10_000, 100_000, 1_000_000, 10_000_000] };
    let (calls, rounds) = if quick { (10_000, 3) } else { (400_000, 7) };
    let mut lines = vec![
        lines("get", &NAMES, sizes),
        lines("set_ex", &NAMES, sizes),
        lines(SWEEP, &SWEPT, sizes),
    ];
    for &size in sizes {
        let keys = keys(size);
        let calls = uniform(size, calls);
        let candidates = Candidates::filled(&keys).await;
        for (line, op) in [Op::Get, Op::SetEx].into_iter().enumerate() {
            let samples = candidates.medians(op, &keys, &calls, 1, rounds).await;
            eprintln!("{} at {size}: {samples:.0?}", lines[line].title);
            push(&mut lines[line], &samples);
        }
        drop(candidates);
        let samples = sweeps(size, if quick { 1 } else { 3 }).await;
        eprintln!("sweep at {size}: {samples:.1?}");
        push(&mut lines[2], &samples);
    }
    let mut page = String::from("\n## Costs by number of entries\n");
    for line in &lines {
        let unit = if line.title == SWEEP { "nanoseconds per entry" } else { "nanoseconds" };
        page += &format!("\n{}, {unit}:\n\n", line.title);
        head(&mut page, "entries", &line.names);
        for (i, size) in line.sizes.iter().enumerate() {
            let samples: Vec<f64> = line.samples.iter().map(|samples| samples[i]).collect();
            row(&mut page, &size.to_string(), &samples);
        }
    }
    (page, lines)
}

fn lines(title: &'static str, names: &[&'static str], sizes: &[usize]) -> Lines {
    Lines {
        title,
        names: names.to_vec(),
        sizes: sizes.iter().map(|&size| size as f64).collect(),
        samples: vec![Vec::new(); names.len()],
    }
}

fn push(line: &mut Lines, samples: &[f64]) {
    for (all, value) in line.samples.iter_mut().zip(samples) {
        all.push(*value);
    }
}

/// Returns the nanoseconds of a sweep that removes one in a hundred entries, per resident entry. moka has no such
/// sweep: its timers advance about once per second.
async fn sweeps(size: usize, rounds: usize) -> Vec<f64> {
    use crate::candidates::{ByHand, Fleeting};
    let (mut by_hand, mut fleeting) = (vec![], vec![]);
    for _ in 0..rounds {
        by_hand.push(sweep::<ByHand>(size).await);
        fleeting.push(sweep::<Fleeting>(size).await);
    }
    vec![median(by_hand), median(fleeting)]
}

async fn sweep<S: Candidate>(size: usize) -> f64 {
    let candidate = S::new(size);
    let short = Duration::from_millis(1);
    for i in 0..size {
        let ttl = if i % 100 == 0 { short } else { TTL };
        candidate.set_ex(format!("key:{i:016}"), Arc::new(1), ttl).await;
    }
    tokio::time::sleep(2 * short).await;
    let start = Instant::now();
    candidate.sweep_all().await;
    start.elapsed().as_nanos() as f64 / size as f64
}
