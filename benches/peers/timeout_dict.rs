//! `TimeoutDict` beside a heap and a `DelayQueue`: `cargo bench --bench timeout_dict` writes
//! docs/timeout-dict.md.
//!
//! Every figure is the median of rounds in which all take turns, on one machine in one run: the ratios are
//! what counts. `FLEETING_QUICK=1` makes it short, and writes nothing.

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

/// What is not measured here, as it takes two builds.
const KEY_INDEX: &str = "\
    ## The index of the keys\n\n\
    It is the crate's own (`src/timeout_dict/key_index.rs`). With `hashbrown::HashTable` in its place, of the \
    same 8 bytes a key, `take_expired(100)` in turns takes 1.14 times as long (1.08 to 1.27), and among \
    1,000,000 entries a `get` 1.23 times and a `remove` 1.21 times; set and take apart take 0.88 times as long, \
    and to look for who is not there half. Processor time, medians of six rounds in turns of two builds that \
    differ in that file.\n";

/// Within which time entries come due.
const SPREAD: Duration = Duration::from_millis(100);

/// How long those live that are not to be due.
const LATER: Range<Duration> = Duration::from_secs(60)..Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
enum Of {
    Heap,
    Queue,
    /// By calls that take so many at most.
    Dict(usize),
}

const ALL: [Of; 4] = [Of::Heap, Of::Queue, Of::Dict(1), Of::Dict(100)];

enum Subject {
    /// As a program of one thread would write it: keys by deadline, values by key.
    Heap {
        by_deadline: BinaryHeap<Reverse<(Instant, u64)>>,
        by_key: HashMap<u64, u64, DefaultHasher>,
    },
    Queue(DelayQueue<(u64, u64)>),
    Dict(TimeoutDict<u64, u64>, usize),
}

/// Nanoseconds an entry.
#[derive(Default)]
struct Figures {
    set: Vec<f64>,
    take: Vec<f64>,
    /// One set and one take, in turns.
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
    let mut figures: [Figures; ALL.len()] = Default::default();
    for round in 0..rounds {
        for (of, figures) in ALL.iter().zip(&mut figures) {
            runtime.block_on(of.measure(round, figures));
        }
    }
    let page = page(figures);
    println!("{page}");
    if !quick {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/timeout-dict.md");
        std::fs::write(path, page).expect("docs/timeout-dict.md can be written");
    }
}

impl Of {
    async fn measure(self, round: u64, figures: &mut Figures) {
        let mut random = SmallRng::seed_from_u64(round);
        let mut ttls = |range: Range<Duration>| -> Vec<Duration> {
            (0..ENTRIES).map(|_| random.random_range(range.clone())).collect()
        };
        let (soon, later) = (ttls(Duration::ZERO..SPREAD), ttls(LATER));

        let mut subject = self.make();
        figures.set.push(subject.fill(&soon).await);
        let start = Instant::now();
        let mut taken = 0;
        while taken < ENTRIES {
            taken += subject.take().await;
        }
        figures.take.push(each(start.elapsed()));

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
        figures.both.push(each(start.elapsed()));
        assert_eq!(taken, ENTRIES, "{self:?} did not take all that was due, and nothing else");
    }

    fn make(self) -> Subject {
        match self {
            Of::Heap => {
                Subject::Heap { by_deadline: BinaryHeap::new(), by_key: HashMap::default() }
            }
            Of::Queue => Subject::Queue(DelayQueue::new()),
            Of::Dict(batch) => Subject::Dict(TimeoutDict::new(), batch),
        }
    }
}

impl Subject {
    /// Sets all, and waits until all are due. Returns how long one took to set.
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

    /// Takes what is due, of which there is some; returns how many.
    async fn take(&mut self) -> u64 {
        match self {
            Subject::Heap { by_deadline, by_key } => {
                let first = by_deadline.peek();
                assert!(first.is_some_and(|first| first.0.0 <= Instant::now()), "it is not due");
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

fn page(figures: [Figures; ALL.len()]) -> String {
    let mut page = format!(
        "# Pulled deadlines beside a heap and a queue\n\n\
         Made by `cargo bench --bench timeout_dict`: medians of rounds in which all take turns, on one machine \
         in one run. Nanoseconds an entry of `u64`; in brackets the ratios to the heap and to the queue. All \
         {ENTRIES} entries are set with random TTLs, then all are taken; or one is taken and one is set, in \
         turns, so that {ENTRIES} are held.\n\n\
         | | set | take | set + take | in turns |\n| --- | --- | --- | --- | --- |\n",
    );
    let medians = figures.map(|of| [of.set, of.take, of.both].map(median));
    let sums = medians.map(|[set, take, _]| set + take);
    let turns = medians.map(|[_, _, both]| both);
    let ratios = |of: usize, all: [f64; ALL.len()]| match of {
        0 => format!("{:.0}", all[0]),
        _ => format!("{:.0} ({:.2}, {:.2})", all[of], all[of] / all[0], all[of] / all[1]),
    };
    for (i, of) in ALL.iter().enumerate() {
        let name = match of {
            Of::Heap => "`BinaryHeap` beside a `HashMap`".to_owned(),
            Of::Queue => "tokio-util's `DelayQueue`".to_owned(),
            Of::Dict(batch) => format!("`TimeoutDict`, `take_expired({batch})`"),
        };
        let [set, take, _] = medians[i];
        let (sum, turns) = (ratios(i, sums), ratios(i, turns));
        writeln!(page, "| {name} | {set:.0} | {take:.0} | {sum} | {turns} |")
            .expect("a string takes all");
    }
    page += "\nThe heap and the queue are those of one thread, without a lock; the heap's map hashes as ours \
             does. The queue finds no entry by its key, and rounds deadlines to milliseconds. All read the \
             clock where they set, and where they take.\n\n";
    page + KEY_INDEX
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
