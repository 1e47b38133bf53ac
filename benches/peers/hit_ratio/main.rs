//! Hit ratios side by side: `cargo bench --bench hit_ratio` writes docs/hit-ratio.md and its picture.
//!
//! No clock is measured, so any machine will do. Who hashes with a random seed is a tenth of a point higher or lower
//! each time. `FLEETING_QUICK=1` takes the beginning of each trace, and writes nothing. `FLEETING_TRACES=folder` says where the public traces are.

mod ours;
mod page;
mod picture;
mod reference;
mod replay;
mod subjects;
mod traces;

use std::path::PathBuf;

use replay::{Subject, replay};
use traces::Trace;

/// How much room there is, in percent of the keys of a trace.
const SIZES: [usize; 4] = [1, 5, 10, 25];

const NAMES: [&str; 8] =
    ["fleeting", "moka", "moka, LRU", "quick_cache", "foyer", "LRU", "S3-FIFO", "optimum"];

/// The hit ratios of all on one trace with so much room.
pub(crate) struct Cell {
    trace: &'static str,
    size: usize,
    room: usize,
    hits: [f64; NAMES.len()],
}

fn main() {
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
            let room = (trace.keys * size / 100).max(1);
            let hits = [
                run::<ours::Fleeting>(trace, room),
                run::<subjects::Moka>(trace, room),
                run::<subjects::MokaLru>(trace, room),
                run::<subjects::QuickCache>(trace, room),
                run::<subjects::Foyer>(trace, room),
                run::<reference::Lru>(trace, room),
                run::<reference::S3Fifo>(trace, room),
                reference::optimum(trace, room),
            ];
            cells.push(Cell { trace: trace.name, size, room, hits });
        }
    }
    let page = page::write(&cells);
    println!("{page}");
    if quick {
        return;
    }
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    picture::draw(&format!("{docs}/hit-ratio.svg"), &cells);
    std::fs::write(format!("{docs}/hit-ratio.md"), page).expect("docs/ can be written");
}

fn run<S: Subject>(trace: &Trace, room: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(replay::<S>(trace, room))
}
