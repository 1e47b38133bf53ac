//! Tables of the hit ratios, and their summary.

use std::fmt::Write;

use crate::{Cell, NAMES};

/// Positions in [`NAMES`]. The others are compared with moka.
const FLEETING: usize = 0;
const MOKA: usize = 1;
const QUICK_CACHE: usize = 3;

/// Cells with a smaller capacity are not compared: a single resident entry changes their ratio too much.
const SMALL: usize = 256;

const HEAD: &str = "# Hit ratios\n\n\
    Made by `cargo bench --bench hit_ratio`: the share of requests, in percent, that a bounded cache answers. Each \
    request is a get, and a set after a miss. The capacity is 1, 5, 10 and 25 % of the keys of a trace.\n\n\
    | | |\n| --- | --- |\n\
    | oltp, sprite, loop | public traces: of a database, of a file system, of a program with a loop |\n\
    | zipf | 100,000 keys, Zipf-distributed with this skew |\n\
    | zipf, scans | skew 0.9; a third of the requests in runs of 2,500 keys that never occur again |\n\
    | zipf, long scans | skew 1, interrupted by runs of 30,000 keys, half of them always the same |\n\
    | shifts | alternately, for 50,000 requests each: recently requested keys, and a loop |\n\
    | recency, runs | recently requested keys; and recently requested runs of neighbors, as in a file system |\n\
    | web, churn | popular keys change over time; one key in six occurs once |\n\
    | two pools | alternately a key from a pool of 1,000 and from a pool of 20,000 |\n\
    | loops | four loops of 300 to 25,000 keys |\n\
    | mixed | a loop, a Zipf distribution, recently requested keys and keys that occur once, interleaved |\n\
    | three TTLs | skew 0.9, drifting; the TTL of a key is 4,000, 40,000 or 400,000 requests |\n\n\
    moka runs its pending tasks after every 64 requests, and exceeds its capacity until then: \
    with 70 entries (sprite, 1 %) it holds up to 134, without which it has 24.0 instead of 28.5 %; foyer is \
    `foyer-memory` with its defaults. If keys have TTLs, only fleeting is given them. In the others an expired entry \
    counts as a miss, and stays until it is written again or evicted. The optimum is Belady's. \
    Hashes of fleeting have a random seed: in another run, most cells differ by a tenth of a point, \
    and zipf 0.7 at 1 % by up to three.\n\n";

const LOSSES: &str = "## Cells with fewer hits than a peer\n\n\
    More than half a point below moka or quick_cache. In simulations of the policy, their number hardly changes if a \
    victim is chosen among all entries instead of a sample, or if new keys may be refused; see \
    [eviction](decisions/eviction.md). Likely reasons, from reading the model: in \"long scans\", half of the keys of a \
    scan come again in the next one, and the model learns that keys without a hit may return: a scan takes the places \
    of some keys that are requested more often. In loops and pools, entries are compared by their expected hit rate, \
    which keeps a random part of a loop, a little less than a fixed part. With 70 entries (sprite, 1 %), too few hits \
    are observed to learn the intervals of this trace before they change.\n\n";

const SCANS: &str = "## Scans\n\n\
    The share of a hot set that is still resident after a scan: the mean, and in brackets the least, in percent. A cache \
    for 1,000 entries is filled, after other traffic in half of the cells; some of its keys are read, once to 20 times; \
    then keys that come once are written, 1 to 20 times as many as the cache can hold: by `set`, by `get` and `set`, by \
    `set_many`, or by a loader. If the hot set changes, it is the share of hits among requests for the new one, after \
    4,000 requests. Fleeting is behind in a cell if it keeps over 5 points less than the better one of moka and \
    quick_cache (a tenth less of the hits, if the hot set changes). A third of the cells was held out when the policy \
    was chosen. `cargo bench --bench hit_ratio -- scans` also has 100 and 20,000 entries.\n\n";

pub(crate) fn write(cells: &[Cell], scans: &str) -> String {
    let mut page = format!("{HEAD}## Summary\n\n");
    page += "| | mean | above moka | worst cell | cells more than 0.5 below moka |\n\
        | --- | --- | --- | --- | --- |\n";
    for (i, name) in NAMES.iter().enumerate() {
        let mean = |f: &dyn Fn(&Cell) -> f64| cells.iter().map(f).sum::<f64>() / cells.len() as f64;
        let above = |cell: &Cell| cell.hits[i] - cell.hits[MOKA];
        let large = || cells.iter().filter(|cell| cell.capacity >= SMALL);
        let worst = large().min_by(|a, b| above(a).total_cmp(&above(b)));
        let worst = worst.map_or(String::new(), |cell| {
            format!("{:+.1} ({}, {} %)", above(cell), cell.trace, cell.size)
        });
        let below = large().filter(|cell| above(cell) < -0.5).count();
        let (mean, above) = (mean(&|cell| cell.hits[i]), mean(&above));
        line(&mut page, &format!("{name} | {mean:.2} | {above:+.2} | {worst} | {below}"));
    }
    let large = cells.iter().filter(|cell| cell.capacity >= SMALL).count();
    write!(
        page,
        "\nThe last two columns cover the {large} of {} cells with capacity for {SMALL} entries or more.\n\n",
        cells.len()
    )
    .expect("writing to a String cannot fail");
    page += SCANS;
    page += scans;
    page += "\n";
    losses(&mut page, cells);
    page += "\n## Each trace\n\n";
    line(&mut page, &format!("trace | capacity | entries | {}", NAMES.join(" | ")));
    line(&mut page, &vec!["---"; NAMES.len() + 3].join(" | "));
    for cell in cells {
        let hits = cell.hits.map(|hits| format!("{hits:.2}")).join(" | ");
        line(&mut page, &format!("{} | {} % | {} | {hits}", cell.trace, cell.size, cell.capacity));
    }
    page
}

/// Lists the cells in which moka or quick_cache has more hits by half a percentage point, the largest difference first.
fn losses(page: &mut String, cells: &[Cell]) {
    let behind = |cell: &Cell| cell.hits[MOKA].max(cell.hits[QUICK_CACHE]) - cell.hits[FLEETING];
    let mut lost: Vec<_> = cells.iter().filter(|cell| behind(cell) > 0.5).collect();
    lost.sort_by(|a, b| behind(b).total_cmp(&behind(a)));
    *page += LOSSES;
    line(page, "trace | capacity | fleeting | moka | quick_cache | behind the better one");
    line(page, &["---"; 6].join(" | "));
    for cell in lost {
        let hits =
            [FLEETING, MOKA, QUICK_CACHE].map(|i| format!("{:.2}", cell.hits[i])).join(" | ");
        line(page, &format!("{} | {} % | {hits} | {:.1}", cell.trace, cell.size, behind(cell)));
    }
}

fn line(page: &mut String, cells: &str) {
    writeln!(page, "| {cells} |").expect("writing to a String cannot fail");
}
