//! `TimeoutDict` compared with a heap and a `DelayQueue`: `cargo bench --bench timeout_dict` writes
//! docs/timeout-dict.md.
//!
//! Every number is the median of rounds in which all candidates take turns, on one machine in one run; only the ratios
//! are comparable between machines. `FLEETING_QUICK=1` makes the run short, and writes nothing.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    fmt::Write,
    future::poll_fn,
    hint::black_box,
    ops::Range,
    time::{Duration, Instant},
};

use fleeting::{DefaultHasher, TimeoutDict};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio_util::time::DelayQueue;

const ENTRIES: u64 = 100_000;

/// A comparison that is not measured here, because it needs two builds.
const KEY_INDEX: &str = "\
    ## The index of the keys\n\n\
    The index is part of this crate (`src/engine/slot_index.rs`). It is compared with `hashbrown::HashTable`, \
    which also needs 8 bytes per key. With hashbrown, alternating `take_expired(100)` takes 1.14 times as long (1.08 \
    to 1.27); with 1,000,000 entries, a `get` takes 1.23 times and a `remove` 1.21 times as long. Separate set and \
    take take 0.88 times as long, and the lookup of a missing key half the time. The numbers are processor times, \
    medians of six rounds in which two builds that differ in that file take turns.\n";

/// Range of the random TTLs of entries that become due.
const SPREAD: Duration = Duration::from_millis(100);

/// TTLs of entries that do not become due during the benchmark.
const LATER: Range<Duration> = Duration::from_secs(60)..Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
enum Candidate {
    Heap,
    Queue,
    /// `TimeoutDict`, with this maximum of entries per take.
    Dict(usize),
}

const ALL: [Candidate; 4] =
    [Candidate::Heap, Candidate::Queue, Candidate::Dict(1), Candidate::Dict(100)];

enum Subject {
    /// As written for a single thread: keys by deadline, values by key.
    Heap {
        by_deadline: BinaryHeap<Reverse<(Instant, u64)>>,
        by_key: HashMap<u64, u64, DefaultHasher>,
    },
    Queue(DelayQueue<(u64, u64)>),
    Dict(TimeoutDict<u64, u64>, usize),
}

/// Nanoseconds per entry.
#[derive(Default)]
struct Samples {
    set: Vec<f64>,
    take: Vec<f64>,
    /// Alternating set and take.
    both: Vec<f64>,
}

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let rounds = if quick { 5 } else { 41 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut samples: [Samples; ALL.len()] = Default::default();
    for round in 0..rounds {
        for (of, samples) in ALL.iter().zip(&mut samples) {
            runtime.block_on(of.measure(round, samples));
        }
    }
    let page = page(samples);
    println!("{page}");
    if !quick {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/timeout-dict.md");
        std::fs::write(path, page).expect("docs/timeout-dict.md can be written");
    }
}

impl Candidate {
    async fn measure(self, round: u64, samples: &mut Samples) {
        let mut random = SmallRng::seed_from_u64(round);
        let mut ttls = |range: Range<Duration>| -> Vec<Duration> {
            (0..ENTRIES).map(|_| random.random_range(range.clone())).collect()
        };
        let (soon, later) = (ttls(Duration::ZERO..SPREAD), ttls(LATER));

        let mut subject = self.make();
        samples.set.push(subject.fill(&soon).await);
        let start = Instant::now();
        let mut taken = 0;
        while taken < ENTRIES {
            taken += subject.take().await;
        }
        samples.take.push(each(start.elapsed()));

        let mut subject = self.make();
        subject.fill(&soon).await;
        let start = Instant::now();
        let mut taken = 0;
        for (set, ttl) in (0..).zip(&later) {
            if taken == set {
                taken += subject.take().await;
            }
            subject.set(ENTRIES + set, *ttl).await;
        }
        samples.both.push(each(start.elapsed()));
        assert_eq!(taken, ENTRIES, "{self:?} did not take exactly the due entries");
    }

    fn make(self) -> Subject {
        match self {
            Candidate::Heap => {
                Subject::Heap { by_deadline: BinaryHeap::new(), by_key: HashMap::default() }
            }
            Candidate::Queue => Subject::Queue(DelayQueue::new()),
            Candidate::Dict(batch) => Subject::Dict(TimeoutDict::new(), batch),
        }
    }
}

impl Subject {
    /// Sets all entries and waits until they are due. Returns nanoseconds per set.
    async fn fill(&mut self, ttls: &[Duration]) -> f64 {
        let start = Instant::now();
        for (key, ttl) in (0..).zip(ttls) {
            self.set(key, *ttl).await;
        }
        let time = each(start.elapsed());
        tokio::time::sleep(2 * SPREAD).await;
        time
    }

    async fn set(&mut self, key: u64, ttl: Duration) {
        match self {
            Subject::Heap { by_deadline, by_key } => {
                by_deadline.push(Reverse((Instant::now() + ttl, key)));
                black_box(by_key.insert(key, key));
            }
            Subject::Queue(queue) => {
                black_box(queue.insert((key, key), ttl));
            }
            Subject::Dict(dict, _) => {
                black_box(dict.set(key, key, ttl).await);
            }
        }
    }

    /// Takes due entries, of which there must be some. Returns their number.
    async fn take(&mut self) -> u64 {
        match self {
            Subject::Heap { by_deadline, by_key } => {
                let first = by_deadline.peek();
                assert!(first.is_some_and(|first| first.0.0 <= Instant::now()), "no entry is due");
                let Some(Reverse((_, key))) = by_deadline.pop() else { return 0 };
                black_box(by_key.remove(&key));
                1
            }
            Subject::Queue(queue) => {
                let expired = poll_fn(|cx| queue.poll_expired(cx)).await;
                u64::from(black_box(expired).is_some())
            }
            Subject::Dict(dict, batch) => black_box(dict.take_expired(*batch).await).len() as u64,
        }
    }
}

fn each(time: Duration) -> f64 {
    time.as_nanos() as f64 / ENTRIES as f64
}

fn page(samples: [Samples; ALL.len()]) -> String {
    let mut page = format!(
        "# Pulled deadlines compared with a heap and a queue\n\n\
         Made by `cargo bench --bench timeout_dict`: medians of rounds in which all candidates take turns, on one \
         machine in one run. Nanoseconds per entry of `u64`; in brackets the ratios to the heap and to the queue. All \
         {ENTRIES} entries are set with random TTLs, then all are taken. In the last column, one entry is taken and \
         one is set alternately, so that there are always {ENTRIES} entries.\n\n\
         | | set | take | set + take | alternating |\n| --- | --- | --- | --- | --- |\n",
    );
    let medians = samples.map(|of| [of.set, of.take, of.both].map(median));
    let sums = medians.map(|[set, take, _]| set + take);
    let turns = medians.map(|[_, _, both]| both);
    let ratios = |of: usize, all: [f64; ALL.len()]| match of {
        0 => format!("{:.0}", all[0]),
        _ => format!("{:.0} ({:.2}, {:.2})", all[of], all[of] / all[0], all[of] / all[1]),
    };
    for (i, of) in ALL.iter().enumerate() {
        let name = match of {
            Candidate::Heap => "`BinaryHeap` with a `HashMap`".to_owned(),
            Candidate::Queue => "tokio-util's `DelayQueue`".to_owned(),
            Candidate::Dict(batch) => format!("`TimeoutDict`, `take_expired({batch})`"),
        };
        let [set, take, _] = medians[i];
        let (sum, turns) = (ratios(i, sums), ratios(i, turns));
        writeln!(page, "| {name} | {set:.0} | {take:.0} | {sum} | {turns} |")
            .expect("writing to a String cannot fail");
    }
    page += "\nThe heap and the queue are used by one thread, without a lock. The map of the heap uses the same \
             hasher as `TimeoutDict`. The queue cannot find an entry by its key, and rounds deadlines to \
             milliseconds. All candidates read the clock for each set and each take.\n\n";
    page + KEY_INDEX
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
