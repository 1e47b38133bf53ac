//! What benches measure with: times of this process and its threads as Linux counts them, and figures as they are shown.

// Each bench compiles this module anew, and uses its share of it.
#![allow(dead_code)]

use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher},
    os::unix::fs::FileExt,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// `FLEETING_QUICK=1`: all is small and short, to see that it runs.
pub(crate) fn is_quick() -> bool {
    std::env::var_os("FLEETING_QUICK").is_some()
}

/// Whether the command line asks for `row`: by a part of its name. It asks for `default` where it names none.
pub(crate) fn is_asked_for(row: &str, default: bool) -> bool {
    // Cargo adds `--bench`.
    let mut asked = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    if asked.peek().is_none() { default } else { asked.any(|word| row.contains(&word)) }
}

/// The processor time that this process has had, on all cores.
pub(crate) fn process_time() -> Duration {
    processor_time(ClockId::ProcessCPUTime)
}

/// The processor time that this thread has had.
pub(crate) fn thread_time() -> Duration {
    processor_time(ClockId::ThreadCPUTime)
}

/// How long this thread was ready to run and did not, as the kernel counts it.
pub(crate) struct Waits(File);

impl Waits {
    pub(crate) fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").expect("a kernel that tells of waits"))
    }

    pub(crate) fn so_far(&self) -> Duration {
        let mut line = [0; 64];
        let read = self.0.read_at(&mut line, 0).expect("schedstat can be read");
        let line = std::str::from_utf8(&line[..read]).expect("digits and spaces");
        let waited = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(waited.expect("the second number"))
    }
}

/// Megabytes of this process that are in memory.
pub(crate) fn resident() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    // rustix could tell the size of a page, at the price of a feature: on x86-64 there is one.
    pages.expect("the second number") * 4_096.0 / 1e6
}

/// The smallest of `sorted` that a share of `share` is not above.
pub(crate) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

pub(crate) fn ms(duration: Duration) -> f64 {
    1e3 * duration.as_secs_f64()
}

/// In nanoseconds, microseconds or milliseconds, whichever is shortest.
pub(crate) fn show(duration: Duration) -> String {
    match duration.as_micros() {
        0 => format!("{} ns", duration.as_nanos()),
        1..10 => format!("{:.1} µs", 1e6 * duration.as_secs_f64()),
        micros @ 10..10_000 => format!("{micros} µs"),
        _ => format!("{:.0} ms", ms(duration)),
    }
}

/// How many shards a cache has whose hasher is [`ChosenShard`].
pub(crate) const SHARDS: usize = 64;

/// A key of `shard`.
pub(crate) fn key_of(shard: u64, number: u64) -> u64 {
    shard << 32 | number
}

/// Puts each `u64` into the shard that its upper half says: bits 51 to 56 choose one of 64 for DashMap.
#[derive(Clone, Default)]
pub(crate) struct ChosenShard(u64);

impl BuildHasher for ChosenShard {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for ChosenShard {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        let shard = (self.0 >> 32) % SHARDS as u64;
        // The finalizer of SplitMix64.
        let mut mixed = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        mixed & !(0x3f << 51) | shard << 51
    }
}

fn processor_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
