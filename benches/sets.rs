//! Time-expired sets compared with a BTreeMap: `cargo bench --bench sets` writes docs/sets.md.
//!
//! Every number is the median of rounds in which all candidates take turns, on one machine in one run; only the ratios
//! are comparable between machines. `FLEETING_QUICK=1` makes the run short, and writes nothing.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    hint::black_box,
    sync::Mutex,
    time::{Duration, Instant},
};

use fleeting::{DefaultHasher, ExpiringSet, SortedSet};
use tokio::runtime::Runtime;

/// Number of members in the measured sets.
const MEMBERS: u64 = 100_000;

/// Number of members whose tables do not fit into the processor caches.
const MANY: u64 = 1_000_000;

/// A comparison that is not measured here, because it needs two builds.
const SLOT_INDEX: &str = "\
    The index that finds a member is part of this crate (`src/engine/slot_index.rs`). It is compared with \
    `hashbrown::HashTable`, which also needs 8 bytes per member. With hashbrown, the last row takes 1.40 times as long, \
    a lookup in a set of this size 1.17 times, and a push as long. Only the lookup of a missing member takes 0.77 \
    times as long. The numbers are processor times, medians of five rounds in which two builds that differ in that \
    file take turns.\n";

/// A TTL that no member reaches before the benchmark ends.
const HOUR: Duration = Duration::from_secs(3_600);

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let rounds = if quick { 5 } else { 51 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let mut page = String::from(
        "# Sets whose members expire, compared with a BTreeMap\n\n\
         Made by `cargo bench --bench sets`: medians of rounds in which all candidates take turns, on one machine in \
         one run and compared with the first row or column. Only the ratios are comparable between machines. `u64` \
         members.\n\n",
    );
    page += &pushes(&runtime, rounds);
    page += &many(&runtime, rounds);
    page += &prunes(rounds);
    println!("{page}");
    if !quick {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/sets.md");
        std::fs::write(path, page).expect("docs/sets.md can be written");
    }
}

/// Measures pushes of new members, with each of which the oldest member expires.
fn pushes(runtime: &Runtime, rounds: usize) -> String {
    let mut tree = BTreeMap::new();
    let (set, map) = (ByHand::default(), ByHand::default());
    let mut next = 0;
    for _ in 0..MEMBERS {
        tree.insert((next, next), next);
        set.push_only(next, false);
        map.push(next, false);
        next += 1;
    }
    let ttl = ttl_of_steady_pushes(runtime);
    let mut samples = [const { Vec::new() }; 5];
    for _ in 0..rounds {
        samples[0].push(time(MEMBERS, || {
            tree.insert((next, next), next);
            black_box(tree.pop_first());
            next += 1;
        }));
        samples[1].push(time(MEMBERS, || {
            set.push_only(next, true);
            next += 1;
        }));
        samples[2].push(time(MEMBERS, || {
            map.push(next, true);
            next += 1;
        }));
        let (each, members) = runtime.block_on(steady_pushes(ttl));
        samples[3].push(each);
        samples[4].push(members as f64);
    }
    let [bare, timed, by_hand, ours, members] = samples.map(median);
    eprintln!("push: {bare:.1} {timed:.1} {by_hand:.1} {ours:.1}, at {members} members");
    let mut page = String::from(
        "## A push, at 100,000 members\n\nWith each push of a new member, the oldest one expires.\n\n\
         | | ns | relative to the first row |\n| --- | --- | --- |\n",
    );
    for (name, value) in [
        ("`BTreeMap`: `insert`, `pop_first`", bare),
        ("the same with `Instant::now()`, in a `Mutex`", timed),
        ("the same, and a `HashMap` to find the score of a member", by_hand),
        ("`ExpiringSet::push`", ours),
    ] {
        writeln!(page, "| {name} | {value:.0} | {:.2} |", value / bare)
            .expect("writing to a String cannot fail");
    }
    page + "\n"
}

/// Returns a TTL at which about `MEMBERS` members are pushed before the first of them expires.
fn ttl_of_steady_pushes(runtime: &Runtime) -> Duration {
    let mut ttl = Duration::from_millis(20);
    for _ in 0..5 {
        let (_, members) = runtime.block_on(steady_pushes(ttl));
        ttl = ttl.mul_f64(MEMBERS as f64 / members as f64);
    }
    ttl
}

/// Returns nanoseconds per push after members expire at the rate of pushes, and the number of members then.
async fn steady_pushes(ttl: Duration) -> (f64, usize) {
    let set = ExpiringSet::new(ttl);
    let mut next = 0;
    for _ in 0..3 * MEMBERS {
        set.push(next).await;
        next += 1;
    }
    let start = Instant::now();
    for _ in 0..MEMBERS {
        set.push(next).await;
        next += 1;
    }
    (start.elapsed().as_nanos() as f64 / MEMBERS as f64, set.len().await)
}

/// Measures an insert and a removal of the first member, in a set of many members.
fn many(runtime: &Runtime, rounds: usize) -> String {
    let map = ByHand::default();
    let set = SortedSet::new();
    runtime.block_on(set.extend((0..MANY).map(|n| (n, n))));
    (0..MANY).for_each(|n| map.push(n, false));
    let [mut by_hand, mut ours] = [const { Vec::new() }; 2];
    let mut next = MANY;
    for _ in 0..rounds / 3 {
        let from = next;
        by_hand.push(time(MANY, || {
            map.push(next, true);
            next += 1;
        }));
        ours.push(runtime.block_on(async {
            let start = Instant::now();
            for n in from..next {
                set.insert(n, n).await;
                black_box(set.pop_first().await);
            }
            start.elapsed().as_nanos() as f64 / MANY as f64
        }));
    }
    let [by_hand, ours] = [by_hand, ours].map(median);
    eprintln!("one of many: {by_hand:.1} {ours:.1}");
    format!(
        "## One insert and one removal, at 1,000,000 members\n\n| | ns | relative to the first row |\n| --- | --- | \
         --- |\n\
         | `BTreeMap` and `HashMap`, with `Instant::now()`, in a `Mutex` | {by_hand:.0} | 1.00 |\n\
         | `SortedSet::insert`, `pop_first` | {ours:.0} | {:.2} |\n\n{SLOT_INDEX}\n",
        ours / by_hand
    )
}

/// Measures the removal of 100,000 expired members in one call.
fn prunes(rounds: usize) -> String {
    let mut page = String::from(
        "## 100,000 expired members are removed in one call\n\nMicroseconds, including their drop.\n\n\
         | | `BTreeMap::split_off` | `ExpiringSet::len` |\n| --- | --- | --- |\n",
    );
    for live in [0, MEMBERS, 9 * MEMBERS] {
        let [mut bare, mut ours] = [const { Vec::new() }; 2];
        for _ in 0..rounds / 3 {
            bare.push(split_off(live));
            ours.push(prune(live));
        }
        let [bare, ours] = [bare, ours].map(median);
        let ratio = ours / bare;
        eprintln!("prune with {live} live: {bare:.0} {ours:.0}");
        writeln!(page, "| {live} remain | {bare:.0} | {ours:.0} ({ratio:.2}) |")
            .expect("writing to a String cannot fail");
    }
    page
}

fn split_off(live: u64) -> f64 {
    let mut tree: BTreeMap<_, _> = (0..MEMBERS + live).map(|n| ((n, n), n)).collect();
    let start = Instant::now();
    let live = tree.split_off(&(MEMBERS, 0));
    drop(std::mem::replace(&mut tree, live));
    let elapsed = start.elapsed().as_nanos() as f64 / 1e3;
    black_box(tree);
    elapsed
}

/// Uses a current-thread runtime, which cannot run the sweeper before the measured call has removed the members.
fn prune(live: u64) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let set = ExpiringSet::new(HOUR);
        let now = tokio::time::Instant::now();
        let deadline = now + Duration::from_millis(200 + live / 1_000);
        let first = deadline.checked_sub(HOUR).expect("the machine has run for an hour");
        for n in 0..MEMBERS {
            set.push_at(n, first + Duration::from_nanos(n)).await;
        }
        for n in MEMBERS..MEMBERS + live {
            set.push_at(n, now + Duration::from_nanos(n)).await;
        }
        tokio::task::yield_now().await;
        assert_eq!(set.len().await as u64, MEMBERS + live, "no member has expired so far");
        std::thread::sleep(deadline + Duration::from_millis(1) - tokio::time::Instant::now());
        let start = Instant::now();
        let len = set.len().await;
        let elapsed = start.elapsed().as_nanos() as f64 / 1e3;
        assert_eq!(len as u64, live);
        elapsed
    })
}

/// A handwritten set.
#[derive(Default)]
struct ByHand(Mutex<Members>);

#[derive(Default)]
struct Members {
    order: BTreeMap<(Instant, u64), u64>,
    places: HashMap<u64, (Instant, u64), DefaultHasher>,
}

impl ByHand {
    fn push_only(&self, member: u64, full: bool) {
        let mut places = self.0.lock().expect("not poisoned");
        places.order.insert((Instant::now(), member), member);
        if full {
            black_box(places.order.pop_first());
        }
    }

    fn push(&self, member: u64, full: bool) {
        let mut places = self.0.lock().expect("not poisoned");
        let place = (Instant::now(), member);
        if let Some(old) = places.places.insert(member, place) {
            places.order.remove(&old);
        }
        places.order.insert(place, member);
        if full && let Some((_, member)) = places.order.pop_first() {
            places.places.remove(&member);
        }
    }
}

/// Returns nanoseconds per call.
fn time(calls: u64, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
