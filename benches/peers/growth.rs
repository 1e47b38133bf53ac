//! The same calls from ten thousand to ten million entries: where each bends.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    head, median,
    ops::{Field, Op, TTL, keys, uniform},
    row,
    subjects::{NAMES, Subject},
};

/// One line of the picture: a title, and for each subject the figures at each size.
pub(crate) struct Lines {
    pub(crate) title: &'static str,
    pub(crate) names: Vec<&'static str>,
    pub(crate) sizes: Vec<f64>,
    /// By subject, then by size.
    pub(crate) figures: Vec<Vec<f64>>,
}

const SWEPT: [&str; 2] = ["retain", "fleeting"];

pub(crate) async fn table(quick: bool) -> (String, Vec<Lines>) {
    let sizes: &[usize] =
        if quick { &[1_000, 10_000] } else { &[10_000, 100_000, 1_000_000, 10_000_000] };
    let (calls, rounds) = if quick { (10_000, 3) } else { (400_000, 7) };
    let mut lines = vec![
        lines("get", &NAMES, sizes),
        lines("set_ex", &NAMES, sizes),
        lines("a sweep that finds 1 % dead, an entry", &SWEPT, sizes),
    ];
    for &size in sizes {
        let keys = keys(size);
        let calls = uniform(size, calls);
        let field = Field::filled(&keys).await;
        for (line, op) in [Op::Get, Op::SetEx].into_iter().enumerate() {
            let figures = field.medians(op, &keys, &calls, 1, rounds).await;
            eprintln!("{} at {size}: {figures:.0?}", lines[line].title);
            push(&mut lines[line], &figures);
        }
        drop(field);
        let figures = sweeps(size, if quick { 1 } else { 3 }).await;
        eprintln!("sweep at {size}: {figures:.1?}");
        push(&mut lines[2], &figures);
    }
    let mut page = String::from("\n## Costs that grow\n");
    for line in &lines {
        page += &format!("\n{}, nanoseconds:\n\n", line.title);
        head(&mut page, "entries", &line.names);
        for (i, size) in line.sizes.iter().enumerate() {
            let figures: Vec<f64> = line.figures.iter().map(|figures| figures[i]).collect();
            row(&mut page, &size.to_string(), &figures);
        }
    }
    (page, lines)
}

fn lines(title: &'static str, names: &[&'static str], sizes: &[usize]) -> Lines {
    Lines {
        title,
        names: names.to_vec(),
        sizes: sizes.iter().map(|&size| size as f64).collect(),
        figures: vec![Vec::new(); names.len()],
    }
}

fn push(line: &mut Lines, figures: &[f64]) {
    for (all, figure) in line.figures.iter_mut().zip(figures) {
        all.push(*figure);
    }
}

/// What it costs to let one in a hundred leave, for each that stays. moka's timers turn about once a
/// second, so there is nothing of the kind to measure.
async fn sweeps(size: usize, rounds: usize) -> Vec<f64> {
    use crate::subjects::{ByHand, Fleeting};
    let (mut by_hand, mut fleeting) = (vec![], vec![]);
    for _ in 0..rounds {
        by_hand.push(sweep::<ByHand>(size).await);
        fleeting.push(sweep::<Fleeting>(size).await);
    }
    vec![median(by_hand), median(fleeting)]
}

async fn sweep<S: Subject>(size: usize) -> f64 {
    let subject = S::new(size);
    let short = Duration::from_millis(1);
    for i in 0..size {
        let ttl = if i % 100 == 0 { short } else { TTL };
        subject.set_ex(format!("key:{i:016}"), Arc::new(1), ttl).await;
    }
    tokio::time::sleep(2 * short).await;
    let start = Instant::now();
    subject.sweep_all().await;
    start.elapsed().as_nanos() as f64 / size as f64
}
