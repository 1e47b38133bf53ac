//! Costs and delays of the sweeper: processor share, lag, mass expiration, and durations of locks.
//!
//! `cargo bench --bench sweep` (Linux, about 2 minutes) prints the rows of docs/sweep.md, with the default settings.
//! `cargo bench --bench sweep -- NAME...` prints some rows, or those that take longer: `settings`, a table of other
//! settings (5 minutes), and `hundred-million` (6 minutes, 4 GB; with fewer entries if a number follows). Memory per
//! entry is measured by `cargo bench --bench bytes`, which has a counting allocator.

mod hold;
mod load;
mod mass_expiration;
#[path = "../measure.rs"]
mod measure;
mod settings;

use std::{sync::Arc, time::Duration};

use fleeting::{Cache, Sweep};
use tokio::runtime::Runtime;

use measure::{is_quick, is_selected};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(86_400);

type Sessions = Cache<String, Arc<u64>>;

/// Name, whether it is a default row, and the function that prints it.
type Row = (&'static str, bool, fn(&Runtime));

const ROWS: [Row; 10] = [
    ("bound", true, bound),
    ("idle", true, load::idle),
    ("busy", true, load::busy),
    ("lag", true, mass_expiration::lag),
    ("twenty", true, load::twenty),
    ("sliding", true, load::sliding),
    ("mass-expiration", true, mass_expiration::mass_expirations),
    ("hold", true, hold::hold),
    ("hundred-million", false, load::hundred_million),
    ("settings", false, settings::settings),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let selected: Vec<_> = ROWS.iter().filter(|row| is_selected(row.0, row.1)).collect();
    if selected.is_empty() {
        println!("no such row; available rows: {}", ROWS.map(|row| row.0).join(", "));
        return;
    }
    println!("| name | case | measured |\n| --- | --- | --- |");
    for (_, _, row) in selected {
        row(&runtime);
    }
}

/// Prints the guaranteed bound on staleness of the default settings.
fn bound(_: &Runtime) {
    // The fields of `Sweep` are private, so they are read from its `Debug` output.
    let shown = format!("{:?}", Sweep::default());
    let field = |name: &str, end: &str| {
        let after = shown.split_once(name).expect("a field of Sweep").1;
        after.split_once(end).expect("the end of the field").0.to_owned()
    };
    let every = field("every: Some(", "ms)").parse::<f64>().expect("milliseconds");
    let sample = field("sample: ", ",").parse::<f64>().expect("a share");
    let bound = every * (1.0 / sample).ceil();
    print("bound", "the bound on staleness by default", &format!("{bound:.0} ms"));
}

/// Returns a cache of `entries` entries with a long TTL.
async fn filled(sweep: Sweep, entries: usize) -> Sessions {
    let cache: Sessions = Cache::builder().sweep(sweep).build();
    for i in 0..entries {
        cache.set_ex(key(i), Arc::new(0), LONG).await;
    }
    cache
}

fn key(i: usize) -> String {
    format!("live:{i:015}")
}

fn million() -> usize {
    if is_quick() { 20_000 } else { 1_000_000 }
}

fn print(name: &str, case: &str, measured: &str) {
    println!("| {name} | {case} | {measured} |");
}
