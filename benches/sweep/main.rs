//! What the sweeper costs and gives: processor share, lag, the end of a storm, how long it holds a lock.
//!
//! `cargo bench --bench sweep` (Linux, about 2 minutes) prints a row for each of these, all with the default settings.
//! `cargo bench --bench sweep -- NAME...` prints some, also those that take longer: `settings`, the table of
//! `docs/sweep.md` (5 minutes), and `hundred-million` (6 minutes, 4 GB; with fewer entries where a number follows). What
//! an entry takes in memory another bench tells, whose allocator counts: `cargo bench --bench bytes`.

mod hold;
mod load;
#[path = "../measure.rs"]
mod measure;
mod settings;
mod storm;

use std::{sync::Arc, time::Duration};

use fleeting::{Cache, Sweep};
use tokio::runtime::Runtime;

use measure::{is_asked_for, is_quick};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(86_400);

type Sessions = Cache<String, Arc<u64>>;

/// A name, whether it is measured where none is named, and what prints it.
type Row = (&'static str, bool, fn(&Runtime));

const ROWS: [Row; 10] = [
    ("bound", true, bound),
    ("idle", true, load::idle),
    ("busy", true, load::busy),
    ("lag", true, storm::lag),
    ("twenty", true, load::twenty),
    ("sliding", true, load::sliding),
    ("storm", true, storm::storms),
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
    let asked: Vec<_> = ROWS.iter().filter(|row| is_asked_for(row.0, row.1)).collect();
    if asked.is_empty() {
        println!("There are {}.", ROWS.map(|row| row.0).join(", "));
        return;
    }
    println!("| name | figure | measured |\n| --- | --- | --- |");
    for (_, _, row) in asked {
        row(&runtime);
    }
}

/// The promise, as the settings have it.
fn bound(_: &Runtime) {
    // Its fields are nobody's but its own; `Debug` shows them.
    let shown = format!("{:?}", Sweep::default());
    let field = |name: &str, end: &str| {
        let after = shown.split_once(name).expect("a field of Sweep").1;
        after.split_once(end).expect("another one follows").0.to_owned()
    };
    let every = field("every: Some(", "ms)").parse::<f64>().expect("milliseconds");
    let sample = field("sample: ", ",").parse::<f64>().expect("a share");
    let bound = every * (1.0 / sample).ceil();
    print("bound", "the bound on staleness by default", &format!("{bound:.0} ms"));
}

/// A cache of `entries` that live long.
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

fn print(name: &str, figure: &str, measured: &str) {
    println!("| {name} | {figure} | {measured} |");
}
