//! Randomized test of near caches in four processes. Each process checks that it never reads a version older than it
//! has seen or written. Their parent compares the reads of all processes with the writes, for the age of near values.
//! All faults of [`history`](crate::history) are injected.
//!
//! With `--release`, four minutes run ten million operations on two cores.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Error};
use rand::{RngExt, rngs::SmallRng};
use tokio::{sync::Mutex, task::yield_now};

use crate::{
    clock::ms,
    history::{History, PROCESSES, Process, check, max_delay, now, numbers_of},
};

const TASKS: usize = 6;

/// Number of keys of each process. The first half are never removed, and have no TTL.
const KEYS: usize = 24;

/// Maximum age of near values. A read that shares the request of another may return a value that is older by the time
/// of that request.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Knowledge of one process. For each key: twice the version that was last seen or written, plus one if that version
/// was seen to be removed.
struct NearHistory {
    cache: Cache<String, u64>,
    known: Vec<AtomicU64>,
    /// For each key of this process: the last version that was sent, and when the next may be sent.
    written: Vec<Mutex<(u64, Instant)>>,
    process: Process,
}

impl NearHistory {
    /// Checks and records the result of a call that began when `before` was known.
    fn see(&self, key: usize, value: Option<u64>, before: u64) {
        let now = match value {
            Some(version) => 2 * version,
            None if before == 0 => 0,
            None => before | 1,
        };
        assert!(now >= before, "{}: {value:?} after {before} was known", name(key));
        assert!(
            value.is_some() || before == 0 || !is_lasting(key),
            "{}: {before} is missing",
            name(key)
        );
        self.known[key].fetch_max(now, SeqCst);
    }

    fn known(&self, key: usize) -> u64 {
        self.known[key].load(SeqCst)
    }

    fn ok<T>(&self, answer: Result<T, Error>) -> Option<T> {
        self.process.outcome(answer, false).done()
    }

    async fn read(&self, random: &mut SmallRng) {
        let key = random.random_range(0..PROCESSES) * KEYS + own_key(random);
        let before = self.known(key);
        match random.random_range(0..40) {
            0 => {
                let others = random.random_range(1..20);
                let mut keys = vec![key];
                keys.extend((0..others).map(|_| random.random_range(0..PROCESSES * KEYS)));
                let known: Vec<u64> = keys.iter().map(|key| self.known(*key)).collect();
                let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
                if let Some(values) = self.ok(self.cache.get_many(&names).await) {
                    for ((key, value), before) in keys.into_iter().zip(values).zip(known) {
                        self.see(key, value, before);
                    }
                }
            }
            1 => {
                if let Some(false) = self.ok(self.cache.contains_key(&name(key)).await) {
                    self.see(key, None, before);
                }
            }
            2 => {
                // `ttl` is never answered near.
                let ttl = self.ok(self.cache.ttl(&name(key)).await);
                if ttl == Some(fleeting::Ttl::Missing) {
                    self.see(key, None, before);
                }
            }
            3 if is_lasting(key) && before > 0 => {
                let read = self.cache.get_ex(&name(key), Duration::MAX).await;
                if let Some(value) = self.ok(read) {
                    self.see(key, value, before);
                }
            }
            4 => {
                // Drops the call after a random number of polls.
                let polls = random.random_range(0..20);
                let name = name(key);
                tokio::select! {
                    biased;
                    value = self.cache.get(&name) => {
                        if let Some(value) = self.ok(value) {
                            self.see(key, value, before);
                        }
                    }
                    () = async { for _ in 0..polls { yield_now().await } } => {}
                }
            }
            _ => {
                let begun = now();
                if let Some(value) = self.ok(self.cache.get(&name(key)).await) {
                    self.see(key, value, before);
                    if is_lasting(key) && random.random_ratio(1, 2) {
                        let version = value.unwrap_or_default();
                        self.process.record(format_args!("read {key} {version} {begun}"));
                    }
                }
            }
        }
    }

    async fn write(&self, random: &mut SmallRng) {
        let own = own_key(random);
        let key = self.process.number * KEYS + own;
        let Ok(mut written) = self.written[own].try_lock() else { return };
        if Instant::now() < written.1 {
            return;
        }
        // If this call fails or is dropped, the server may still execute it later.
        written.1 = Instant::now() + self.process.max_delay;
        written.0 += 1;
        let (version, name) = (written.0, name(key));
        let before = self.known(key);
        let method = random.random_range(0..8);
        let is_removed = method >= 6 && !is_lasting(key);
        let ttl = match is_lasting(key) {
            true => Duration::MAX,
            false => Duration::from_millis(random.random_range(1..200)),
        };
        let polls = if random.random_ratio(1, 30) { random.random_range(0..20) } else { u32::MAX };
        let write = async {
            match method {
                _ if is_removed => self.cache.remove(&name).await.map(|old| old.is_some()),
                0 => self.cache.set(name, version).await.map(|_| true),
                1 => self.cache.set_many([(name, version)], Some(ttl)).await.map(|()| true),
                2 => self.cache.update(&name, |it| *it = version).await.map(|did| did.is_some()),
                3 => self.cache.set_nx(name, version, Some(ttl)).await,
                4 => {
                    let failed = self.cache.stats().failed_loads;
                    let loaded = self.cache.get_or_set_with(&name, ttl, async move || version);
                    let loaded = loaded.await?;
                    // A value that a full server refuses is returned, but not cached.
                    Ok(loaded == version && self.cache.stats().failed_loads == failed)
                }
                _ => self.cache.set_ex(name, version, ttl).await.map(|_| true),
            }
        };
        let done = tokio::select! {
            biased;
            done = write => self.process.outcome(done, true).done(),
            () = async { for _ in 0..polls { yield_now().await } } => None,
        };
        let Some(is_done) = done else { return };
        written.1 = Instant::now();
        if is_removed {
            self.see(key, None, before);
        } else if is_done {
            self.known[key].fetch_max(2 * version, SeqCst);
            if is_lasting(key) {
                self.process.record(format_args!("written {key} {version} {}", now()));
            }
        }
    }
}

/// Chooses one of the keys of a process. Each third choice is the first key, whose changes then meet near values.
fn own_key(random: &mut SmallRng) -> usize {
    if random.random_ratio(1, 3) { 0 } else { random.random_range(0..KEYS) }
}

fn name(key: usize) -> String {
    format!("k{key}")
}

fn is_lasting(key: usize) -> bool {
    key % KEYS < KEYS / 2
}

/// Runs one process of the test.
async fn run_process(process: Process) {
    let history = Arc::new(NearHistory {
        cache: Cache::builder(&process.client(), "h")
            .near(PROCESSES * KEYS / 2)
            .near_max_age(MAX_AGE)
            .build()
            .unwrap(),
        known: (0..PROCESSES * KEYS).map(|_| AtomicU64::new(0)).collect(),
        written: (0..KEYS).map(|_| Mutex::new((0, Instant::now()))).collect(),
        process,
    });
    let task = |_, mut random| {
        let history = history.clone();
        async move {
            while history.process.is_running() {
                for _ in 0..50 {
                    history.read(&mut random).await;
                }
                if random.random_ratio(1, 4) {
                    history.write(&mut random).await;
                }
            }
        }
    };
    history.process.run(TASKS, task).await;
    let stats = history.cache.stats();
    history.process.record(format_args!("near {} {}", stats.near_hits, stats.invalidations));
    history.process.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_reads_a_version_older_than_it_has_seen() {
    if let Some(process) = Process::of_environment() {
        return run_process(process).await;
    }
    let name = "near_history::no_process_reads_a_version_older_than_it_has_seen";
    // A machine that is late may execute a write after any delay.
    check(async || {
        let mut history = History::new(&[]).await;
        let records = history.run(name, max_delay()).await;
        let mut sum = [0; 2];
        for counts in numbers_of::<2>(&records, "near") {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [hits, invalidations] = sum;
        println!("{hits} near hits, {invalidations} invalidations");
        assert!(hits > 0 && invalidations > 0);
        check_ages(&records, history.first_fault());
    })
    .await;
}

/// Checks that no read returned an older version than one that was written long before: longer than a change needs to
/// become visible before the first fault, and longer than values are kept near afterwards.
fn check_ages(records: &[Vec<String>], first_fault: u64) {
    let mut writes: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
    for [key, version, at] in numbers_of(records, "written") {
        writes.entry(key).or_default().push((at, version));
    }
    writes.values_mut().for_each(|writes| writes.sort_unstable());
    // Visible changes that a read must have returned, before and after the first fault.
    let mut checked = [0; 2];
    for [key, version, begun] in numbers_of(records, "read") {
        let is_quiet = begun < first_fault;
        let max_age = if is_quiet { ms(250) } else { MAX_AGE + max_delay() };
        let Some(visible_since) = begun.checked_sub(max_age.as_nanos() as u64) else { continue };
        let of_key = writes.get(&key).map_or(&[][..], Vec::as_slice);
        let visible = of_key.partition_point(|(at, _)| *at < visible_since);
        let Some(&(at, visible)) = of_key[..visible].last() else { continue };
        assert!(
            version >= visible,
            "{}: version {version} was read {:?} after version {visible} was written",
            name(key as usize),
            Duration::from_nanos(begun - at)
        );
        checked[usize::from(!is_quiet)] += 1;
    }
    println!("{} reads before the first fault were checked, {} after it", checked[0], checked[1]);
    assert!(checked[0] > 0, "no change was old enough before the first fault");
}
