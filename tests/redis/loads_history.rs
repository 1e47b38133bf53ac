//! Randomized test of the loaders of `redis::Cache` in four processes. The cached values come from a database, a file
//! that each process reads and writes. No process gets a value older than the last write that had succeeded before its
//! call, at most one load of a key runs at a time while there are no faults, and no call waits forever. All faults of
//! [`history`](crate::history) are injected.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Error};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    sync::Mutex,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{
    history::{History, Outcome, PROCESSES, Process, check, max_delay, now, numbers_of},
    patience::patience,
};

const TASKS: usize = 10;

/// Number of keys of each process, which is the only one that writes them.
const KEYS: usize = 6;

/// The first keys of each process are never written, so that no write can end the lease of a load.
const UNWRITTEN: usize = 2;

const SECOND: Duration = Duration::from_secs(1);

/// A version for each key, in a file that all processes share.
struct Versions(File);

impl Versions {
    fn open(path: &Path) -> Self {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Self(file.expect("the file opens"))
    }

    /// Returns zero for a key that was never written.
    fn read(&self, key: usize) -> u64 {
        let mut bytes = [0; 8];
        match self.0.read_at(&mut bytes, 8 * key as u64) {
            Ok(0) => 0,
            Ok(8) => u64::from_ne_bytes(bytes),
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, key: usize, version: u64) {
        self.0.write_all_at(&version.to_ne_bytes(), 8 * key as u64).expect("the file is writable");
    }
}

struct Loads {
    /// A plain cache for the even keys, and one with events for the odd keys, which writes by other commands.
    caches: [Cache<String, u64>; 2],
    process: Process,
    /// The versions that loaders read.
    database: Versions,
    /// The versions whose write to the cache has succeeded, too.
    committed: Versions,
    /// For each key of this process: when the next write may be sent.
    writes: Vec<Mutex<Instant>>,
    lease: Duration,
}

/// Records the end of a load, even if it is dropped.
struct Loading {
    loads: Arc<Loads>,
    key: usize,
    begin: u64,
}

impl Drop for Loading {
    fn drop(&mut self) {
        let Self { loads, key, begin } = self;
        loads.process.record(format_args!("load {key} {begin} {}", now()));
    }
}

/// Loads a version. Some loads fail, and some take longer than the lease, so that they must renew it.
async fn load(loads: Arc<Loads>, key: usize, seed: u64) -> Result<u64, &'static str> {
    let mut random = SmallRng::seed_from_u64(seed);
    let lease = loads.lease;
    let loading = Loading { loads, key, begin: now() };
    sleep(Duration::from_millis(random.random_range(0..5))).await;
    let version = loading.loads.database.read(key);
    let is_long = random.random_ratio(1, 50);
    let pause = if is_long { lease * 2 } else { Duration::from_millis(random.random_range(0..10)) };
    sleep(pause).await;
    if random.random_ratio(1, 20) { Err("down") } else { Ok(version) }
}

impl Loads {
    async fn read(self: &Arc<Self>, random: &mut SmallRng) {
        let key = random.random_range(0..PROCESSES * KEYS);
        let (name, seed) = (name(key), random.random());
        let ttl = Duration::from_millis(random.random_range(0..100));
        let method = random.random_range(0..6);
        let polls = if random.random_ratio(1, 20) { random.random_range(0..50) } else { u32::MAX };
        let (cache, committed) = (&self.caches[key % 2], self.committed.read(key));
        let loads = self.clone();
        let call = async {
            match method {
                0 => cache.get(&name).await,
                1 => Ok(cache.get_many([&name]).await?.remove(0)),
                2 => {
                    let loader = async move || load(loads, key, seed).await.unwrap_or(u64::MAX);
                    // A loader that must not fail: its value expires at once.
                    let ttl =
                        move |version: &u64| if *version < u64::MAX { ttl } else { Duration::ZERO };
                    cache.get_or_set_with(&name, ttl, loader).await.map(Some)
                }
                _ => {
                    let loader = async move || load(loads, key, seed).await;
                    cache.get_or_try_set_with(&name, ttl, loader).await.map(Result::ok)
                }
            }
        };
        let got = self.run(call, polls, false).await;
        if let Outcome::Done(Some(version)) = got {
            assert!(
                version >= committed,
                "{name}, method {method}: {version} after {committed} was committed"
            );
        }
    }

    async fn write(&self, random: &mut SmallRng) {
        let own = random.random_range(UNWRITTEN..KEYS);
        let key = self.process.number * KEYS + own;
        let Ok(mut next) = self.writes[own].try_lock() else { return };
        if Instant::now() < *next {
            return;
        }
        // If this call fails or is dropped, the server may still execute it later.
        *next = Instant::now() + self.process.max_delay;
        let (version, name) = (self.database.read(key) + 1, name(key));
        let ttl = Duration::from_millis((1 << random.random_range(0..9)) - 1);
        let method = random.random_range(0..10);
        let polls = if random.random_ratio(1, 30) { random.random_range(0..20) } else { u32::MAX };
        let cache = &self.caches[key % 2];
        self.database.write(key, version);
        // A write with a TTL of more than a minute leaves the load that it supersedes.
        let long = 80 * self.lease.max(SECOND);
        // Returns the version before which none is read after this call, or zero if the call changed nothing.
        let call = async {
            match method {
                0 => cache.set(name, version).await.map(|_| version),
                1 => cache.set_ex(name, version, long).await.map(|_| version),
                2 => cache.set_many([(name, version)], Some(ttl)).await.map(|()| version),
                3 => {
                    let updated = cache.update(&name, |it| *it = version).await;
                    updated.map(|updated| updated.map_or(0, |()| version))
                }
                4 => cache.set_tagged(name, version, ttl, ["tag"]).await.map(|_| version),
                5 => cache.remove(&name).await.map(|_| version),
                6 => cache.remove_many([&name]).await.map(|_| version),
                7 => cache.set_keep_ttl(name, version).await.map(|_| version),
                8 => {
                    // A tag of its own: no load may begin before it is removed.
                    let tag = format!("{name} only");
                    cache.set_tagged(name, version, long, [tag.as_str()]).await?;
                    self.database.write(key, version + 1);
                    cache.remove_tag(&tag).await.map(|()| version + 1)
                }
                _ => cache.set_ex(name, version, ttl).await.map(|_| version),
            }
        };
        match self.run(call, polls, true).await {
            Outcome::Done(committed) => {
                *next = Instant::now();
                if committed > 0 {
                    self.committed.write(key, committed);
                }
            }
            Outcome::Refused => *next = Instant::now(),
            Outcome::Unknown => {}
        }
    }

    /// Runs a call, or drops it after some polls.
    async fn run<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
        polls: u32,
        needs_memory: bool,
    ) -> Outcome<T> {
        tokio::select! {
            biased;
            answer = timeout(patience() / 2, call) => {
                self.process.outcome(answer.expect("the call waits forever"), needs_memory)
            }
            () = async { for _ in 0..polls { yield_now().await } } => Outcome::Unknown,
        }
    }
}

fn name(key: usize) -> String {
    format!("k{key}")
}

async fn run_process(process: Process) {
    let lease = process.max_delay / 4;
    let client = process.client();
    let cache = |name, has_events| {
        let builder = Cache::builder(&client, name).lease(lease).refresh_ahead(1.0);
        let builder = if has_events { builder.events(60 * lease) } else { builder };
        builder.build().unwrap()
    };
    let loads = Arc::new(Loads {
        caches: [cache("plain", false), cache("events", true)],
        database: Versions::open(&process.folder.join("database")),
        committed: Versions::open(&process.folder.join("committed")),
        writes: (0..KEYS).map(|_| Mutex::new(Instant::now())).collect(),
        process,
        lease,
    });
    let task = |_, mut random: SmallRng| {
        let loads = loads.clone();
        async move {
            while loads.process.is_running() {
                loads.read(&mut random).await;
                if random.random_ratio(1, 8) {
                    loads.write(&mut random).await;
                }
            }
        }
    };
    loads.process.run(TASKS, task).await;
    loads.process.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_gets_a_value_older_than_a_committed_write() {
    if let Some(process) = Process::of_environment() {
        return run_process(process).await;
    }
    // A machine that is late may execute a write after any delay.
    check(async || {
        let mut history = History::new(&[]).await;
        let name = "loads_history::no_process_gets_a_value_older_than_a_committed_write";
        let records = history.run(name, max_delay()).await;
        check_loads(&records, history.first_fault());
    })
    .await;
}

fn check_loads(records: &[Vec<String>], first_fault: u64) {
    let mut loads: Vec<[u64; 3]> = numbers_of(records, "load").collect();
    loads.sort_unstable();
    let mut checked = 0;
    for pair in loads.windows(2) {
        let [[key, begin, end], [next_key, next_begin, _]] = [pair[0], pair[1]];
        let is_checked = key == next_key && key as usize % KEYS < UNWRITTEN && end < first_fault;
        checked += u64::from(is_checked);
        assert!(
            !is_checked || next_begin > end,
            "key {key}: a load began {} ns before the end of another that took {} ns",
            end - next_begin,
            end - begin
        );
    }
    println!("{} loads; {checked} without faults", loads.len());
    assert!(checked > 0);
}
