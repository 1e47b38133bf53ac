//! The field side by side: `cargo bench --bench peers` writes docs/peers.md and its pictures.
//!
//! Every figure is the median of rounds in which the subjects take turns, on one machine in one run: the
//! ratios are what counts. `FLEETING_QUICK=1` makes it short, and writes nothing.
//!
//! `cargo bench --bench peers -- "get, 1000000 entries, uniform"` prints those rows of the first table whose names
//! contain one of the words given, and writes nothing. `FLEETING_ROUNDS=31` makes them more certain.

mod bound;
mod growth;
mod ops;
mod pictures;
mod storm;
mod subjects;

use std::fmt::Write;

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    // Cargo adds `--bench`.
    let asked: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !asked.is_empty() {
        println!("{}", runtime.block_on(ops::table(quick, &asked)));
        return println!("{}", runtime.block_on(bound::table(quick, &asked)));
    }
    let mut page = format!(
        "# The field, side by side\n\n\
         Made by `cargo bench --bench peers`: medians of rounds in which all take turns, on one machine in \
         one run. What counts is the ratio. 20-byte `String` keys, `Arc` values. DashMap alone (no clock, no \
         deadline) is the floor.\n\n\
         | | how it was driven |\n| --- | --- |\n\
         | DashMap {} | 64 shards, foldhash; no TTL |\n\
         | DashMap + now | the same with an `Instant` in each value, `Instant::now()` in each call, and in the \
         storm a `retain` each 100 ms: what people write by hand |\n\
         | moka {} | `future::Cache`, unbounded, the TTL of each entry by `Expiry`; in the storm \
         `run_pending_tasks` each 100 ms, as nothing leaves without traffic |\n\
         | quick_cache {} | `sync::Cache`, room for twice the entries; no TTL, so in no storm |\n\
         | retainer {} | as it comes; in the storm `monitor(20, 0.25, 100 ms)` |\n\
         | fleeting | as it comes |\n",
        version("dashmap"),
        version("moka"),
        version("quick_cache"),
        version("retainer"),
    );
    page += &runtime.block_on(ops::table(quick, &[]));
    page += &runtime.block_on(bound::table(quick, &[]));
    let (growth, lines) = runtime.block_on(growth::table(quick));
    page += &growth;
    let (storm, bars) = runtime.block_on(storm::table(quick));
    page += &storm;
    // A sweeper that was given up may never end.
    runtime.shutdown_background();
    println!("{page}");
    if quick {
        return;
    }
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    std::fs::create_dir_all(docs).expect("docs/ can be made");
    pictures::growth(&format!("{docs}/growth.svg"), &lines);
    pictures::storm(&format!("{docs}/storm.svg"), &bars);
    std::fs::write(format!("{docs}/peers.md"), page).expect("docs/peers.md can be written");
}

/// The version of a dependency, as the lock file has it.
fn version(of: &str) -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let package = format!("name = \"{of}\"\nversion = \"");
    let found = lock.split_once(&package).and_then(|(_, rest)| rest.split_once('"'));
    found.unwrap_or_else(|| panic!("{of} is not in Cargo.lock")).0
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A row of a table: a name, then figures with their ratio to the first.
fn row(page: &mut String, name: &str, figures: &[f64]) {
    let floor = figures[0];
    let cells: Vec<String> =
        figures.iter().map(|figure| format!("{figure:.0} ({:.2})", figure / floor)).collect();
    writeln!(page, "| {name} | {} |", cells.join(" | ")).expect("a string takes all");
}

fn head(page: &mut String, first: &str, names: &[&str]) {
    writeln!(page, "| {first} | {} |", names.join(" | ")).expect("a string takes all");
    writeln!(page, "|{}", " --- |".repeat(names.len() + 1)).expect("a string takes all");
}
