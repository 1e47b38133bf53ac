//! Grid of scans, and of changes of the hot set: `cargo bench --bench hit_ratio -- scans` prints each cell in which
//! fleeting keeps less than moka or quick_cache, and the sums.
//!
//! A cell of a scan writes as many keys as the cache may hold, reads some of them, writes keys that come once, and
//! counts the keys of the hot set that are still resident. A cell of a change reads one hot set and then another, and
//! counts the hits of the other once four times as many requests as the bound have passed.

use std::collections::BTreeMap;

use crate::{
    replay::Candidate,
    traces::{FOREVER, Random, Request, Zipf},
};

/// Settings of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) bound: u32,
    /// True if the bound is a weight, and keys weigh as much as [`weight`] returns.
    pub(crate) is_weighed: bool,
    /// Number of shards; only fleeting is given it.
    pub(crate) shards: Option<usize>,
}

impl Setup {
    /// Returns the bound as a number of entries or as a weight.
    pub(crate) fn limit(&self) -> u64 {
        u64::from(if self.is_weighed { self.bound * MEAN_WEIGHT } else { self.bound })
    }
}

const MEAN_WEIGHT: u32 = 4;

/// Returns the weight of a key: 1 to 7.
pub(crate) fn weight(key: u32) -> u32 {
    1 + (key.wrapping_mul(0x9e37_79b9) >> 16) % 7
}

/// A cache that can be scanned in several ways.
pub(crate) trait Scannable: Candidate {
    fn set_up(setup: Setup) -> Self;
    /// Returns whether a key is resident, without recording a read.
    async fn has(&mut self, key: u32) -> bool;

    async fn set_all(&mut self, requests: &[Request]) {
        for request in requests {
            self.set(request, FOREVER).await;
        }
    }

    async fn load(&mut self, request: &Request) {
        if self.get(request.key).await.is_none() {
            self.set(request, FOREVER).await;
        }
    }
}

/// Method that writes the keys that come once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Method {
    Set,
    GetThenSet,
    SetMany,
    Load,
}

/// Special conditions of a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Variant {
    Plain,
    /// After ten scanned keys, one of the hot keys is read.
    Interleaved,
    Weights,
    /// Scanned keys have a TTL.
    Ttls,
    FewShards,
    ManyShards,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    bound: u32,
    /// Size of the hot set, in percent of the bound.
    hot: u32,
    /// Reads of each key of the hot set.
    reads: u32,
    /// Length of the scan, in multiples of the bound.
    times: u32,
    is_shuffled: bool,
    is_warm: bool,
    method: Method,
    variant: Variant,
}

/// Order of the requests for the new hot set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Loop,
    Rounds,
    Zipf,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    bound: u32,
    /// Sizes of both hot sets, in percent of the bound.
    old: u32,
    new: u32,
    /// Reads of each key of the old set.
    reads: u32,
    order: Order,
    /// Number of keys that come once per request for the new set.
    noise: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell {
    Scan(Scan),
    Change(Change),
}

impl Cell {
    pub(crate) fn bound(&self) -> u32 {
        match self {
            Self::Scan(scan) => scan.bound,
            Self::Change(change) => change.bound,
        }
    }

    /// Returns the row of the table in which the cell is counted.
    fn group(&self) -> String {
        match self {
            Self::Scan(Scan { variant: Variant::Plain, hot, .. }) => format!("{hot:2} % are hot"),
            Self::Scan(Scan { variant, .. }) => match variant {
                Variant::Interleaved => "hot keys are read during the scan",
                Variant::Weights => "weights of 1 to 7",
                Variant::Ttls => "scanned keys have a TTL",
                Variant::FewShards => "in 2 shards",
                _ => "in 64 shards",
            }
            .into(),
            Self::Change(_) => "the hot set changes".into(),
        }
    }
}

/// Keys of the hot sets begin at 0 and at this number; then come the keys of earlier traffic, and those that come once.
const NEW: u32 = 1_000_000;
const EARLIER: u32 = 2_000_000;
const ONCE: u32 = 10_000_000;

/// Returns all cells, with true for those that a policy may be tuned to: two thirds of them.
pub(crate) fn cells() -> Vec<(Cell, bool)> {
    let mut cells: Vec<Cell> = Vec::new();
    for bound in [100, 1_000, 20_000] {
        let mut random = Random(u64::from(bound));
        // A large cache takes long, so it has fewer cells.
        let mut share = |share| bound < 20_000 || random.unit() < share;
        cells.extend(plain_scans(bound).filter(|_| share(0.1)));
        cells.extend(special_scans(bound).filter(|_| share(0.1)));
        cells.extend(changes(bound).filter(|_| share(0.3)));
    }
    let mut random = Random(46);
    cells.into_iter().map(|cell| (cell, random.unit() < 2.0 / 3.0)).collect()
}

fn plain_scans(bound: u32) -> impl Iterator<Item = Cell> {
    indices([6, 4, 4, 4, 2, 2]).map(move |[hot, reads, times, method, is_warm, is_shuffled]| {
        Cell::Scan(Scan {
            bound,
            hot: [5, 10, 20, 30, 50, 70][hot],
            reads: [1, 2, 5, 20][reads],
            times: [1, 2, 5, 20][times],
            is_shuffled: is_shuffled == 1,
            is_warm: is_warm == 1,
            method: [Method::Set, Method::GetThenSet, Method::SetMany, Method::Load][method],
            variant: Variant::Plain,
        })
    })
}

fn special_scans(bound: u32) -> impl Iterator<Item = Cell> {
    use Variant::{FewShards, Interleaved, ManyShards, Ttls, Weights};
    indices([5, 3, 3, 2, 2, 2]).map(move |[variant, hot, reads, times, method, is_warm]| {
        Cell::Scan(Scan {
            bound,
            hot: [10, 40, 60][hot],
            reads: [1, 3, 10][reads],
            times: [3, 10][times],
            is_shuffled: true,
            is_warm: is_warm == 1,
            method: [Method::GetThenSet, Method::Set][method],
            variant: [Interleaved, Weights, Ttls, FewShards, ManyShards][variant],
        })
    })
}

fn changes(bound: u32) -> impl Iterator<Item = Cell> {
    indices([3, 3, 2, 3, 2]).map(move |[old, new, reads, order, noise]| {
        Cell::Change(Change {
            bound,
            old: [20, 50, 90][old],
            new: [10, 40, 80][new],
            reads: [2, 10][reads],
            order: [Order::Loop, Order::Rounds, Order::Zipf][order],
            noise: noise as u32,
        })
    })
}

/// Returns all combinations of indices into arrays of these lengths.
fn indices<const N: usize>(lengths: [usize; N]) -> impl Iterator<Item = [usize; N]> {
    (0..lengths.iter().product()).map(move |mut number| {
        let mut indices = [0; N];
        for (index, len) in indices.iter_mut().zip(lengths).rev() {
            *index = number % len;
            number /= len;
        }
        indices
    })
}

/// Returns the share of the hot set that is kept, or of the requests for the new one that are hits, in percent.
pub(crate) async fn run<C: Scannable>(cell: Cell) -> f64 {
    match cell {
        Cell::Scan(scan) => run_scan::<C>(scan).await,
        Cell::Change(change) => run_change::<C>(change).await,
    }
}

/// A cache and the number of calls since its pending tasks ran.
struct Caller<C> {
    cache: C,
    calls: u32,
}

impl<C: Scannable> Caller<C> {
    async fn settle(&mut self) {
        self.calls += 1;
        if self.calls.is_multiple_of(64) {
            self.cache.settle().await;
        }
    }

    async fn set(&mut self, key: u32, ttl: u32) {
        self.cache.set(&Request { key, ttl }, FOREVER).await;
        self.settle().await;
    }

    /// Gets a key and, after a miss, sets it. Returns whether it was a hit.
    async fn request(&mut self, key: u32, ttl: u32) -> bool {
        let is_hit = self.cache.get(key).await.is_some();
        if !is_hit {
            self.cache.set(&Request { key, ttl }, FOREVER).await;
        }
        self.settle().await;
        is_hit
    }
}

async fn run_scan<C: Scannable>(scan: Scan) -> f64 {
    let Scan { bound, variant, method, .. } = scan;
    let shards = match variant {
        Variant::FewShards => Some(2),
        Variant::ManyShards => Some(64),
        _ => None,
    };
    let cache = C::set_up(Setup { bound, is_weighed: variant == Variant::Weights, shards });
    let mut caller = Caller { cache, calls: 0 };
    let mut random = Random(u64::from(bound + scan.hot));
    if scan.is_warm {
        let zipf = Zipf::new(4 * bound as usize, 0.9);
        for _ in 0..8 * bound {
            caller.request(EARLIER + zipf.draw(&mut random), FOREVER).await;
        }
    }
    let mut keys: Vec<u32> = (0..bound).collect();
    let mut hot: Vec<u32> = (0..bound * scan.hot / 100).collect();
    if scan.is_shuffled {
        random.shuffle(&mut keys);
    }
    for key in &keys {
        caller.set(*key, FOREVER).await;
    }
    for _ in 0..scan.reads {
        if scan.is_shuffled {
            random.shuffle(&mut hot);
        }
        for key in &hot {
            caller.request(*key, FOREVER).await;
        }
    }
    let ttl = if variant == Variant::Ttls { 3_600_000 } else { FOREVER };
    let once: Vec<u32> = (ONCE..ONCE + scan.times * bound).collect();
    for (i, part) in once.chunks(10).enumerate() {
        let requests: Vec<Request> = part.iter().map(|key| Request { key: *key, ttl }).collect();
        match method {
            Method::SetMany => {
                caller.cache.set_all(&requests).await;
                caller.calls += 9;
                caller.settle().await;
            }
            Method::Load => {
                for request in &requests {
                    caller.cache.load(request).await;
                    caller.settle().await;
                }
            }
            Method::Set => {
                for key in part {
                    caller.set(*key, ttl).await;
                }
            }
            Method::GetThenSet => {
                for key in part {
                    caller.request(*key, ttl).await;
                }
            }
        }
        if variant == Variant::Interleaved {
            caller.request(hot[i % hot.len()], FOREVER).await;
        }
    }
    caller.cache.settle().await;
    let mut kept = 0;
    for key in &hot {
        kept += u32::from(caller.cache.has(*key).await);
    }
    100.0 * f64::from(kept) / hot.len() as f64
}

async fn run_change<C: Scannable>(change: Change) -> f64 {
    let bound = change.bound;
    let cache = C::set_up(Setup { bound, is_weighed: false, shards: None });
    let mut caller = Caller { cache, calls: 0 };
    let mut random = Random(u64::from(bound + change.old + change.new));
    let mut old: Vec<u32> = (0..bound * change.old / 100).collect();
    for key in 0..bound {
        caller.set(key, FOREVER).await;
    }
    for _ in 0..change.reads {
        random.shuffle(&mut old);
        for key in &old {
            caller.request(*key, FOREVER).await;
        }
    }
    let mut new: Vec<u32> = (NEW..NEW + bound * change.new / 100).collect();
    let zipf = Zipf::new(new.len(), 0.8);
    let (mut hits, mut all, mut once) = (0, 0, ONCE);
    for i in 0..6 * bound as usize / (1 + change.noise as usize) {
        let at = i % new.len();
        if at == 0 && change.order == Order::Rounds {
            random.shuffle(&mut new);
        }
        let key = match change.order {
            Order::Zipf => new[zipf.draw(&mut random) as usize % new.len()],
            _ => new[at],
        };
        let is_hit = caller.request(key, FOREVER).await;
        if i * (1 + change.noise as usize) >= 4 * bound as usize {
            all += 1;
            hits += u32::from(is_hit);
        }
        for _ in 0..change.noise {
            caller.request(once, FOREVER).await;
            once += 1;
        }
    }
    100.0 * f64::from(hits) / f64::from(all)
}

/// Returns whether fleeting is behind: more than 5 points of the kept keys, or a tenth of the hits.
fn is_behind(cell: Cell, fleeting: f64, peer: f64) -> bool {
    match cell {
        Cell::Scan(_) => fleeting < peer - 5.0,
        Cell::Change(_) => fleeting < 0.9 * peer,
    }
}

/// The result of a cell: the shares that fleeting, moka and quick_cache keep, in percent.
pub(crate) struct Outcome {
    pub(crate) cell: Cell,
    pub(crate) is_tuned: bool,
    pub(crate) kept: [f64; 3],
}

impl Outcome {
    fn is_behind(&self) -> bool {
        let [fleeting, moka, quick_cache] = self.kept;
        is_behind(self.cell, fleeting, moka.max(quick_cache))
    }
}

/// Returns a table with a row for each group of cells.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut groups: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        groups.entry(outcome.cell.group()).or_default().push(outcome);
    }
    let mut text = String::from(
        "| | cells | fleeting | moka | quick_cache | fleeting behind | of held-out cells |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (group, cells) in groups {
        let kept = [0, 1, 2].map(|i| {
            let mean = cells.iter().map(|cell| cell.kept[i]).sum::<f64>() / cells.len() as f64;
            let least = cells.iter().map(|cell| cell.kept[i]).fold(100.0, f64::min);
            format!("{mean:.1} ({least:.0})")
        });
        let behind = cells.iter().filter(|cell| cell.is_behind()).count();
        let held_out = cells.iter().filter(|cell| !cell.is_tuned);
        let held_out_behind = held_out.clone().filter(|cell| cell.is_behind()).count();
        text += &format!(
            "| {group} | {} | {} | {behind} | {held_out_behind} of {} |\n",
            cells.len(),
            kept.join(" | "),
            held_out.count(),
        );
    }
    text
}
