//! Measuring tools of the benchmarks: processor times as counted by Linux, memory, percentiles, and number formats.

// Each benchmark compiles its own copy of this module and uses a part of it.
#![allow(dead_code)]

use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher},
    os::unix::fs::FileExt,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// Returns true with `FLEETING_QUICK=1`: a small and short run, to check that the benchmark works.
pub(crate) fn is_quick() -> bool {
    std::env::var_os("FLEETING_QUICK").is_some()
}

/// Returns true if an argument is a part of the name `row`. Without arguments, returns `default`.
pub(crate) fn is_selected(row: &str, default: bool) -> bool {
    // Cargo adds `--bench`.
    let mut selected = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    if selected.peek().is_none() { default } else { selected.any(|word| row.contains(&word)) }
}

/// Returns the processor time of this process, on all cores.
pub(crate) fn process_time() -> Duration {
    processor_time(ClockId::ProcessCPUTime)
}

/// Returns the processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    processor_time(ClockId::ThreadCPUTime)
}

/// Counter of the time for which a thread was runnable but had no processor, as measured by the kernel.
pub(crate) struct Waits(File);

impl Waits {
    pub(crate) fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").expect("a kernel with schedstat"))
    }

    pub(crate) fn so_far(&self) -> Duration {
        let mut line = [0; 64];
        let read = self.0.read_at(&mut line, 0).expect("schedstat can be read");
        let line = std::str::from_utf8(&line[..read]).expect("digits and spaces");
        let waited = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(waited.expect("the second number"))
    }
}

/// Returns the resident memory of this process in megabytes.
pub(crate) fn resident() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    // The page size of x86-64. rustix could return it, but only with another feature.
    pages.expect("the second number") * 4_096.0 / 1e6
}

/// Returns the quantile `share` of `sorted` by nearest rank: the smallest value that this share does not exceed.
pub(crate) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

pub(crate) fn ms(duration: Duration) -> f64 {
    1e3 * duration.as_secs_f64()
}

/// Formats a duration in nanoseconds, microseconds or milliseconds, depending on its size.
pub(crate) fn show(duration: Duration) -> String {
    match duration.as_micros() {
        0 => format!("{} ns", duration.as_nanos()),
        1..10 => format!("{:.1} µs", 1e6 * duration.as_secs_f64()),
        micros @ 10..10_000 => format!("{micros} µs"),
        _ => format!("{:.0} ms", ms(duration)),
    }
}

/// Number of shards of a cache with the hasher [`ChosenShard`].
pub(crate) const SHARDS: usize = 64;

/// Returns a key that [`ChosenShard`] puts into `shard`.
pub(crate) fn key_of(shard: u64, number: u64) -> u64 {
    shard << 32 | number
}

/// Hasher that puts a `u64` into the shard given by its upper half. DashMap chooses one of 64 shards by bits 51 to 56.
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
