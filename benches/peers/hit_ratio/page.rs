//! The table, and what it says in sum.

use std::fmt::Write;

use crate::{Cell, NAMES};

/// Who the others are measured by.
const MOKA: &str = "moka";

/// Of fewer entries, one more hit is a point or more.
const SMALL: usize = 256;

const HEAD: &str = "# Hit ratios\n\n\
    Made by `cargo bench --bench hit_ratio`: the share of requests, in percent, that a bounded cache answers. Each request \
    is a get, and a set after a miss. The room is 1, 5, 10 and 25 % of the keys of a trace.\n\n\
    | | |\n| --- | --- |\n\
    | oltp, sprite, loop | public traces: of a database, of a file system, of a program that loops |\n\
    | zipf | 100,000 keys of this skew |\n\
    | zipf, scans | skew 0.9; a third of the requests in runs of 2,500 keys that never come again |\n\
    | zipf, long scans | skew 1; between, runs of 30,000 keys, half of them always the same |\n\
    | shifts | by turns, for 50,000 requests, what came lately, and a loop |\n\
    | recency, runs | what came lately: keys, and runs of neighbours as of a file system |\n\
    | web, churn | what is popular changes; one in six comes once |\n\
    | two pools | by turns one of 1,000 and one of 20,000 keys |\n\
    | loops | four loops of 300 to 25,000 keys |\n\
    | mixed | a loop, a Zipf, what came lately and what comes once, at a time |\n\
    | three TTLs | skew 0.9, drifting; keys live for 4,000, 40,000 or 400,000 requests |\n\n\
    moka runs its pending tasks after each 64 requests; foyer is `foyer-memory` as it comes. Where keys have TTLs, all \
    but fleeting know nothing of them: what is dead is a miss, and stays until it is written anew or evicted. The optimum \
    is Belady's.\n\n";

pub(crate) fn write(cells: &[Cell]) -> String {
    let mut page = format!("{HEAD}## In sum\n\n");
    let moka = NAMES.iter().position(|name| *name == MOKA).expect("it is in the field");
    page += "| | mean | above moka | the worst cell | cells more than 0.5 below |\n\
        | --- | --- | --- | --- | --- |\n";
    for (i, name) in NAMES.iter().enumerate() {
        let mean = |f: &dyn Fn(&Cell) -> f64| cells.iter().map(f).sum::<f64>() / cells.len() as f64;
        let above = |cell: &Cell| cell.hits[i] - cell.hits[moka];
        let large = || cells.iter().filter(|cell| cell.room >= SMALL);
        let worst = large().min_by(|a, b| above(a).total_cmp(&above(b)));
        let worst = worst.map_or(String::new(), |cell| {
            format!("{:+.1} ({}, {} %)", above(cell), cell.trace, cell.size)
        });
        let below = large().filter(|cell| above(cell) < -0.5).count();
        let (mean, above) = (mean(&|cell| cell.hits[i]), mean(&above));
        line(&mut page, &format!("{name} | {mean:.2} | {above:+.2} | {worst} | {below}"));
    }
    let large = cells.iter().filter(|cell| cell.room >= SMALL).count();
    write!(
        page,
        "\nThe last two columns are of the {large} of {} cells with room for {SMALL} entries or more.\n\n\
         ## Each\n\n",
        cells.len()
    )
    .expect("a string takes all");
    line(&mut page, &format!("trace | room | entries | {}", NAMES.join(" | ")));
    line(&mut page, &vec!["---"; NAMES.len() + 3].join(" | "));
    for cell in cells {
        let hits = cell.hits.map(|hits| format!("{hits:.2}")).join(" | ");
        line(&mut page, &format!("{} | {} % | {} | {hits}", cell.trace, cell.size, cell.room));
    }
    page
}

fn line(page: &mut String, cells: &str) {
    writeln!(page, "| {cells} |").expect("a string takes all");
}
