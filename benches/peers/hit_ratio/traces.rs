//! Traces: public ones from files, and others generated from fixed seeds. The generators use no other crate, so that
//! the traces never change.

use std::{collections::HashSet, path::Path, process::Command};

/// A request for a key, and the TTL of the value that is set after a miss, in requests.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) key: u32,
    pub(crate) ttl: u32,
}

pub(crate) const FOREVER: u32 = u32::MAX;

pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<Request>,
    /// Number of distinct keys.
    pub(crate) keys: usize,
    pub(crate) has_ttls: bool,
}

impl Trace {
    fn new(name: &'static str, requests: Vec<Request>) -> Self {
        let has_ttls = requests.iter().any(|request| request.ttl != FOREVER);
        let mut trace = Self { name, requests, keys: 0, has_ttls };
        trace.shorten(usize::MAX);
        trace
    }

    /// Truncates the trace to at most `len` requests.
    pub(crate) fn shorten(&mut self, len: usize) {
        self.requests.truncate(len);
        self.keys = self.requests.iter().map(|r| r.key).collect::<HashSet<_>>().len();
    }
}

const LEN: usize = 400_000;

pub(crate) fn made() -> Vec<Trace> {
    vec![
        keys("zipf 0.7", zipf(0.7)),
        keys("zipf 0.9", zipf(0.9)),
        keys("zipf 1.1", zipf(1.1)),
        keys("zipf, scans", short_scans()),
        keys("zipf, long scans", long_scans()),
        keys("shifts", shifts()),
        keys("recency", recency()),
        keys("runs", runs()),
        keys("web, churn", churn()),
        keys("two pools", two_pools()),
        keys("loops", loops()),
        keys("mixed", mixed()),
        ttls(),
    ]
}

/// Reads the public traces `oltp.lis.zst`, `sprite.trace.gz` and `loop.trace.gz` from `folder`. The tools of the system
/// decompress them, so that no crate is needed for it.
pub(crate) fn public(folder: &Path) -> Vec<Trace> {
    let read = |tool: &str, file: &str| {
        let output = Command::new(tool).arg(folder.join(file)).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run {tool}: {error}"));
        assert!(
            output.status.success(),
            "{tool} {file}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).expect("a trace is text");
        // The first word of a line is the key; the others are not needed.
        let first = text.lines().filter_map(|line| line.split(' ').find(|word| !word.is_empty()));
        first.map(|word| word.parse().expect("a trace has numbers")).collect()
    };
    vec![
        keys("oltp", read("zstdcat", "oltp.lis.zst")),
        keys("sprite", read("zcat", "sprite.trace.gz")),
        keys("loop", read("zcat", "loop.trace.gz")),
    ]
}

fn keys(name: &'static str, keys: Vec<u32>) -> Trace {
    let requests = keys.into_iter().map(|key| Request { key, ttl: FOREVER }).collect();
    Trace::new(name, requests)
}

fn zipf(skew: f64) -> Vec<u32> {
    let mut random = Random(1);
    let zipf = Zipf::new(100_000, skew);
    (0..LEN).map(|_| zipf.draw(&mut random)).collect()
}

/// After every 5,000 requests, a scan of 2,500 keys that never occur again.
fn short_scans() -> Vec<u32> {
    let mut random = Random(2);
    let zipf = Zipf::new(50_000, 0.9);
    let mut once = 1_000_000..;
    let mut keys = Vec::new();
    while keys.len() < LEN {
        keys.extend((0..5_000).map(|_| zipf.draw(&mut random)));
        keys.extend(once.by_ref().take(2_500));
    }
    keys
}

/// After every 40,000 requests, a scan of 30,000 keys; every second scan has the same keys.
fn long_scans() -> Vec<u32> {
    let mut random = Random(3);
    let zipf = Zipf::new(50_000, 1.0);
    let mut once = 2_000_000..;
    let mut keys = Vec::new();
    for round in 0.. {
        if keys.len() >= LEN {
            break;
        }
        keys.extend((0..40_000).map(|_| zipf.draw(&mut random)));
        match round % 2 {
            0 => keys.extend(1_000_000..1_030_000),
            _ => keys.extend(once.by_ref().take(30_000)),
        }
    }
    keys
}

/// Alternately, 50,000 requests for recently requested keys, and 50,000 requests of a loop.
fn shifts() -> Vec<u32> {
    let mut random = Random(4);
    let mut keys = Vec::new();
    let mut fresh = 1_000_000..;
    for round in 0..8 {
        let start = keys.len();
        if round % 2 == 0 {
            while keys.len() < start + 50_000 {
                let key = again(&keys[start..], 0.7, 20_000.0, &mut random).or(fresh.next());
                keys.push(key.expect("endless"));
            }
        } else {
            keys.extend((0..50_000).map(|i| i % 12_000));
        }
    }
    keys
}

fn recency() -> Vec<u32> {
    let mut random = Random(5);
    let mut keys: Vec<u32> = Vec::new();
    let mut fresh = 0..;
    while keys.len() < LEN {
        let key = again(&keys, 0.75, 100_000.0, &mut random).or(fresh.next());
        keys.push(key.expect("endless"));
    }
    keys
}

/// Runs of neighboring blocks, as in a file system; each run is new or a recent one.
fn runs() -> Vec<u32> {
    let mut random = Random(6);
    let mut keys: Vec<u32> = Vec::new();
    let mut fresh = 0..;
    while keys.len() < LEN {
        let len = (64.0_f64).powf(random.unit()) as usize;
        let back = (150_000.0_f64).powf(random.unit()) as usize;
        if random.unit() < 0.7 && back <= keys.len() {
            let start = keys.len() - back;
            for i in start..keys.len().min(start + len) {
                keys.push(keys[i]);
            }
        } else {
            keys.extend(fresh.by_ref().take(len));
        }
    }
    keys
}

/// Popular keys change over time; one request in six is for a key that occurs once.
fn churn() -> Vec<u32> {
    let mut random = Random(7);
    let zipf = Zipf::new(60_000, 0.9);
    let mut names: Vec<u32> = (0..60_000).collect();
    let mut fresh = 1_000_000..;
    let mut keys = Vec::new();
    while keys.len() < LEN {
        let rank = zipf.draw(&mut random) as usize;
        keys.push(names[rank]);
        if random.unit() < 0.2 {
            keys.push(fresh.next().expect("endless"));
        }
        if random.unit() < 0.1 {
            let rank = (random.unit() * 60_000.0) as usize;
            names[rank] = fresh.next().expect("endless");
        }
    }
    keys
}

/// Alternately a key from a small pool and from a large pool.
fn two_pools() -> Vec<u32> {
    let mut random = Random(8);
    let mut draw = |n: f64| (random.unit() * n) as u32;
    (0..LEN).map(|i| if i % 2 == 0 { draw(1_000.0) } else { 1_000 + draw(20_000.0) }).collect()
}

/// Loops of several lengths, one after the other.
fn loops() -> Vec<u32> {
    let mut random = Random(9);
    let lengths = [300, 2_000, 8_000, 25_000];
    let mut at = [0; 4];
    let mut keys = Vec::new();
    while keys.len() < LEN {
        let which = (random.unit() * 4.0) as usize;
        for _ in 0..lengths[which] / 4 {
            keys.push(which as u32 * 1_000_000 + at[which]);
            at[which] = (at[which] + 1) % lengths[which];
        }
    }
    keys
}

/// A loop, popular keys, recent keys, and keys that occur once, interleaved.
fn mixed() -> Vec<u32> {
    let mut random = Random(10);
    let zipf = Zipf::new(30_000, 1.0);
    let mut fresh = 2_000_000..;
    let mut recent: Vec<u32> = Vec::new();
    let mut loop_at = 0;
    let mut keys = Vec::new();
    while keys.len() < LEN {
        let which = random.unit();
        for _ in 0..20 {
            if which < 0.3 {
                keys.push(1_000_000 + loop_at);
                loop_at = (loop_at + 1) % 10_000;
            } else if which < 0.7 {
                keys.push(zipf.draw(&mut random));
            } else {
                let key = again(&recent, 0.6, 30_000.0, &mut random).or(fresh.next());
                recent.push(key.expect("endless"));
                keys.push(*recent.last().expect("pushed"));
            }
        }
    }
    keys
}

/// Three classes of keys with TTLs of thousands, tens of thousands and hundreds of thousands of requests; popular keys
/// drift.
fn ttls() -> Trace {
    let mut random = Random(11);
    let zipf = Zipf::new(40_000, 0.9);
    let ttls = [4_000.0, 40_000.0, 400_000.0];
    let requests = (0..LEN).map(|i| {
        let class = (random.unit() * 3.0) as u32;
        let key = class * 10_000_000 + zipf.draw(&mut random) + i as u32 / 40;
        let ttl = ttls[class as usize] * (0.5 + random.unit());
        Request { key, ttl: ttl as u32 }
    });
    Trace::new("three TTLs", requests.collect())
}

/// Returns an earlier key with this probability. Its age is uniformly distributed on a logarithmic scale.
fn again(keys: &[u32], chance: f64, farthest: f64, random: &mut Random) -> Option<u32> {
    let back = farthest.powf(random.unit()) as usize;
    let hit = random.unit() < chance;
    if hit && back <= keys.len() { Some(keys[keys.len() - back]) } else { None }
}

pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(keys: usize, skew: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        let sums: Vec<f64> = weights.collect();
        Self(sums.iter().map(|part| part / sum).collect())
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        let at = random.unit();
        self.0.partition_point(|sum| *sum < at) as u32
    }
}

/// Random number generator SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn shuffle(&mut self, keys: &mut [u32]) {
        for i in (1..keys.len()).rev() {
            let other = (self.unit() * (i + 1) as f64) as usize;
            keys.swap(i, other);
        }
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
