//! Comparison with other crates: `cargo bench --bench peers` writes docs/peers.md and its pictures.
//!
//! Every number is the median of rounds in which all candidates take turns, on one machine in one run; only the ratios
//! are comparable between machines. `FLEETING_QUICK=1` makes the run short, and writes nothing.
//!
//! `cargo bench --bench peers -- "get, 1000000 entries, uniform"` prints the rows of the first two tables whose names
//! contain one of the arguments, and writes nothing. `FLEETING_ROUNDS=31` measures more rounds. `-- cores` writes
//! docs/cores.md.

mod bound;
mod candidates;
mod cores;
mod growth;
mod mass_expiration;
mod ops;
mod pictures;

use std::fmt::Write;

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    // Cargo adds `--bench`.
    let selected: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if selected == ["cores"] {
        let page = cores::page(quick);
        println!("{page}");
        if !quick {
            write_page("cores.md", &page);
        }
        return;
    }
    if !selected.is_empty() {
        println!("{}", runtime.block_on(ops::table(quick, &selected)));
        return println!("{}", runtime.block_on(bound::table(quick, &selected)));
    }
    let mut page = format!(
        "# Comparison with other crates\n\n\
         Made by `cargo bench --bench peers`: medians of rounds in which all candidates take turns, on one machine in \
         one run. Only the ratios are comparable between machines. 20-byte `String` keys, `Arc` values. DashMap alone \
         (no clock, no deadline) is the baseline.\n\n\
         | | configuration |\n| --- | --- |\n\
         | DashMap {} | 64 shards, foldhash; no TTL |\n\
         | DashMap + now | the same with an `Instant` in each value, `Instant::now()` in each call, and for mass \
         expiration a `retain` every 100 ms: a typical handwritten cache |\n\
         | moka {} | `future::Cache`, unbounded, the TTL of each entry through `Expiry`; for mass expiration \
         `run_pending_tasks` every 100 ms, because nothing is removed without traffic |\n\
         | quick_cache {} | `sync::Cache`, capacity for twice the entries; no TTL, so no mass expiration |\n\
         | retainer {} | defaults; for mass expiration `monitor(20, 0.25, 100 ms)` |\n\
         | fleeting | defaults |\n\n\
         Tasks on a runtime make these calls, to the async methods of moka and fleeting. Code that is not async finds \
         its rows in `docs/cores.md` (`guide::measured::cores`): `Cache::sync()`, `moka::sync` and quick_cache, called \
         by threads.\n",
        version("dashmap"),
        version("moka"),
        version("quick_cache"),
        version("retainer"),
    );
    page += &runtime.block_on(ops::table(quick, &[]));
    page += &runtime.block_on(bound::table(quick, &[]));
    let (growth, lines) = runtime.block_on(growth::table(quick));
    page += &growth;
    let (mass_expiration, bars) = runtime.block_on(mass_expiration::table(quick));
    page += &mass_expiration;
    // The sweeper of a stopped candidate may never end.
    runtime.shutdown_background();
    println!("{page}");
    if quick {
        return;
    }
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    std::fs::create_dir_all(docs).expect("docs/ can be created");
    pictures::growth(&format!("{docs}/growth.svg"), &lines);
    pictures::mass_expiration(&format!("{docs}/storm.svg"), &bars);
    write_page("peers.md", &page);
}

fn write_page(name: &str, page: &str) {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(&path, page).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Returns the version of a dependency in the lock file.
fn version(of: &str) -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let package = format!("name = \"{of}\"\nversion = \"");
    let found = lock.split_once(&package).and_then(|(_, rest)| rest.split_once('"'));
    found.unwrap_or_else(|| panic!("{of} is not in Cargo.lock")).0
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Writes a row of a table: a name, then numbers with their ratio to the first.
fn row(page: &mut String, name: &str, samples: &[f64]) {
    let baseline = samples[0];
    let cell = |value: &f64| match value.is_nan() {
        true => String::new(),
        false => format!("{value:.0} ({:.2})", value / baseline),
    };
    let cells: Vec<String> = samples.iter().map(cell).collect();
    writeln!(page, "| {name} | {} |", cells.join(" | ")).expect("writing to a String cannot fail");
}

fn head(page: &mut String, first: &str, names: &[&str]) {
    writeln!(page, "| {first} | {} |", names.join(" | ")).expect("writing to a String cannot fail");
    writeln!(page, "|{}", " --- |".repeat(names.len() + 1))
        .expect("writing to a String cannot fail");
}
