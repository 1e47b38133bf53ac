//! Hit ratios of several caches: `cargo bench --bench hit_ratio` writes docs/hit-ratio.md and its picture.
//!
//! The results do not depend on the machine. Caches with a random hash seed vary: most cells by a tenth of a percentage
//! point, a few by more than one.
//!
//! `cargo bench --bench hit_ratio -- scans` only runs the whole grid of scans, and prints it.
//! `FLEETING_QUICK=1` uses the beginning of each trace, and writes nothing. `FLEETING_TRACES` is the directory of the
//! public traces.

mod candidates;
mod fleeting_cache;
mod page;
mod picture;
mod reference;
mod replay;
mod scans;
mod traces;

use std::path::PathBuf;

use replay::{Candidate, replay};
use traces::Trace;

/// Capacities of the caches, in percent of the keys of a trace.
const SIZES: [usize; 4] = [1, 5, 10, 25];

/// The bound of the cells of scans that are on the page. With other bounds they take longer.
const SCANNED_BOUND: u32 = 1_000;

const NAMES: [&str; 8] =
    ["fleeting", "moka", "moka, LRU", "quick_cache", "foyer", "LRU", "S3-FIFO", "optimum"];

/// Hit ratios of all candidates for one trace and one capacity.
pub(crate) struct Cell {
    trace: &'static str,
    size: usize,
    capacity: usize,
    hits: [f64; NAMES.len()],
}

fn main() {
    if std::env::args().any(|word| word == "scans") {
        return print_scans();
    }
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let shared = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let folder = std::env::var_os("FLEETING_TRACES").map_or(shared.into(), PathBuf::from);
    let mut traces = traces::public(&folder);
    traces.extend(traces::made());
    if quick {
        traces.iter_mut().for_each(|trace| trace.shorten(20_000));
    }
    let mut cells = Vec::new();
    for trace in &traces {
        for size in SIZES {
            let capacity = (trace.keys * size / 100).max(1);
            let hits = [
                run::<fleeting_cache::Fleeting>(trace, capacity),
                run::<candidates::Moka>(trace, capacity),
                run::<candidates::MokaLru>(trace, capacity),
                run::<candidates::QuickCache>(trace, capacity),
                run::<candidates::Foyer>(trace, capacity),
                run::<reference::Lru>(trace, capacity),
                run::<reference::S3Fifo>(trace, capacity),
                reference::optimum(trace, capacity),
            ];
            cells.push(Cell { trace: trace.name, size, capacity, hits });
        }
    }
    let outcomes = run_scans(|cell| cell.bound() == SCANNED_BOUND && !quick);
    let page = page::write(&cells, &scans::table(&outcomes));
    println!("{page}");
    if quick {
        return;
    }
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    picture::draw(&format!("{docs}/hit-ratio.svg"), &cells);
    std::fs::write(format!("{docs}/hit-ratio.md"), page).expect("docs/ can be written");
}

/// Prints the results of all cells of the grid of scans, and a table of them.
fn print_scans() {
    let outcomes = run_scans(|_| true);
    for scans::Outcome { cell, is_tuned, kept: [fleeting, moka, quick_cache] } in &outcomes {
        println!("{fleeting:.2}\t{moka:.2}\t{quick_cache:.2}\t{is_tuned}\t{cell:?}");
    }
    println!("{}", scans::table(&outcomes));
}

fn run_scans(is_chosen: impl Fn(scans::Cell) -> bool) -> Vec<scans::Outcome> {
    let chosen = scans::cells().into_iter().filter(|(cell, _)| is_chosen(*cell));
    let outcome = |(cell, is_tuned)| {
        let kept = runtime().block_on(async {
            [
                scans::run::<fleeting_cache::Fleeting>(cell).await,
                scans::run::<candidates::Moka>(cell).await,
                scans::run::<candidates::QuickCache>(cell).await,
            ]
        });
        scans::Outcome { cell, is_tuned, kept }
    };
    chosen.map(outcome).collect()
}

fn run<S: Candidate>(trace: &Trace, capacity: usize) -> f64 {
    runtime().block_on(replay::<S>(trace, capacity))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}
