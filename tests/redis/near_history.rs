//! Randomized test of near caches in four processes. Connections are closed or go silent, processes and their server
//! are stopped, and the server fails over to its replica. Each process checks that it never reads a version older than
//! it has seen or written.
//!
//! `FLEETING_NEAR_SECONDS` sets the duration. With `--release`, four minutes run ten million operations on two cores.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client, Error};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    sync::Mutex,
    task::{JoinSet, yield_now},
    time::sleep,
};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Proxy, Server},
};

const PROCESSES: usize = 4;
const TASKS: usize = 6;

/// Number of keys of each process. The first half are never removed, and have no TTL.
const KEYS: usize = 24;

/// Knowledge of one process. For each key: twice the version that was last seen or written, plus one if that version
/// was seen to be removed.
struct History {
    cache: Cache<String, u64>,
    known: Vec<AtomicU64>,
    /// For each key of this process: the last version that was sent, and when the next may be sent.
    written: Vec<Mutex<(u64, Instant)>>,
    process: usize,
    /// Maximum delay after which the server may still execute a write whose reply was lost. Longer than a server is
    /// stopped.
    max_delay: Duration,
    ops: AtomicU64,
    errors: AtomicU64,
}

impl History {
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

    /// Ignores temporary errors, which the injected faults cause. Any other error fails the test.
    fn ok<T>(&self, answer: Result<T, Error>) -> Option<T> {
        self.ops.fetch_add(1, Relaxed);
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(error.is_temporary(), "{error:?}");
                self.errors.fetch_add(1, Relaxed);
                None
            }
        }
    }

    async fn read(&self, random: &mut SmallRng) {
        let key = random.random_range(0..PROCESSES * KEYS);
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
                if let Some(value) = self.ok(self.cache.get(&name(key)).await) {
                    self.see(key, value, before);
                }
            }
        }
    }

    async fn write(&self, random: &mut SmallRng) {
        let own = random.random_range(0..KEYS);
        let key = self.process * KEYS + own;
        let Ok(mut written) = self.written[own].try_lock() else { return };
        if Instant::now() < written.1 {
            return;
        }
        // If this call fails or is dropped, the server may still execute it later.
        written.1 = Instant::now() + self.max_delay;
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
                    let loaded = self.cache.get_or_set_with(&name, ttl, async move || version);
                    loaded.await.map(|value| value == version)
                }
                _ => self.cache.set_ex(name, version, ttl).await.map(|_| true),
            }
        };
        let done = tokio::select! {
            biased;
            done = write => self.ok(done),
            () = async { for _ in 0..polls { yield_now().await } } => None,
        };
        let Some(is_done) = done else { return };
        written.1 = Instant::now();
        if is_removed {
            self.see(key, None, before);
        } else if is_done {
            self.known[key].fetch_max(2 * version, SeqCst);
        }
    }
}

fn name(key: usize) -> String {
    format!("k{key}")
}

fn is_lasting(key: usize) -> bool {
    key % KEYS < KEYS / 2
}

/// Runs one process of the test for `seconds`, and writes its counts to `file`.
async fn run_process(url: &str, process: usize, seconds: u64, file: &Path, max_delay: Duration) {
    let client = Client::builder(url).timeout(patience() / 24).lazy().unwrap();
    let history = Arc::new(History {
        cache: Cache::builder(&client, "h").near(PROCESSES * KEYS / 2).build().unwrap(),
        known: (0..PROCESSES * KEYS).map(|_| AtomicU64::new(0)).collect(),
        written: (0..KEYS).map(|_| Mutex::new((0, Instant::now()))).collect(),
        process,
        max_delay,
        ops: AtomicU64::new(0),
        errors: AtomicU64::new(0),
    });
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let history = history.clone();
        let mut random = SmallRng::seed_from_u64((process * TASKS + task) as u64);
        tasks.spawn(async move {
            while Instant::now() < until {
                for _ in 0..50 {
                    history.read(&mut random).await;
                }
                if random.random_ratio(1, 4) {
                    history.write(&mut random).await;
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let stats = history.cache.stats();
    let (ops, errors) = (history.ops.load(Relaxed), history.errors.load(Relaxed));
    let line = format!("{ops} {errors} {} {}", stats.near_hits, stats.invalidations);
    fs::write(file, line).unwrap();
}

fn start_process(
    url: &str,
    process: usize,
    seconds: u64,
    file: &Path,
    max_delay: Duration,
) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "near_history::no_process_reads_a_version_older_than_it_has_seen"])
        .env(
            "FLEETING_NEAR",
            format!("{url} {process} {seconds} {} {}", file.display(), max_delay.as_millis()),
        )
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: &str) {
    let _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_reads_a_version_older_than_it_has_seen() {
    if let Ok(history) = env::var("FLEETING_NEAR") {
        let [url, process, seconds, file, max_delay] = history.split(' ').collect::<Vec<_>>()[..]
        else {
            unreachable!()
        };
        let (process, seconds) = (process.parse().unwrap(), seconds.parse().unwrap());
        let max_delay = Duration::from_millis(max_delay.parse().unwrap());
        return run_process(url, process, seconds, Path::new(file), max_delay).await;
    }
    // A machine that is late may execute a write after any delay.
    in_time(async || check_history(ms(1_500)).await).await;
}

async fn check_history(max_delay: Duration) {
    let seconds: u64 = env::var("FLEETING_NEAR_SECONDS").map_or(2, |it| it.parse().unwrap());
    let master = Server::start();
    let servers = [&master, &Server::replica_of(&master)];
    let folder = tempfile::tempdir().unwrap();
    let mut proxies = Vec::new();
    for _ in 0..PROCESSES {
        proxies.push(Proxy::to(master.port()).await);
    }
    let files: Vec<_> = (0..PROCESSES).map(|n| folder.path().join(n.to_string())).collect();
    let mut processes: Vec<Child> = (0..PROCESSES)
        .map(|n| start_process(&proxies[n].url(), n, seconds, &files[n], max_delay))
        .collect();
    let mut random = SmallRng::seed_from_u64(seconds);
    let mut faults = [0; 5];
    let mut is_master = 0;
    while processes.iter_mut().all(|process| process.try_wait().unwrap().is_none()) {
        // Frequent faults in a short run; in a long run, processes also get time between faults.
        let longest = 200 * seconds.clamp(2, 10);
        sleep(Duration::from_millis(random.random_range(30..longest))).await;
        let process_at = random.random_range(0..PROCESSES);
        let pause = Duration::from_millis(random.random_range(1..300));
        let fault = random.random_range(0..5);
        faults[fault] += 1;
        match fault {
            0 => proxies[process_at].cut(),
            1 => proxies[process_at].silence(),
            2 => {
                let server = servers[is_master];
                server.pause();
                thread::sleep(pause);
                server.resume();
            }
            3 => {
                signal(&processes[process_at], "-STOP");
                thread::sleep(pause);
                signal(&processes[process_at], "-CONT");
            }
            _ => {
                // `FAILOVER` waits until the replica has all writes, so that no acknowledged write is lost.
                let to = servers[1 - is_master];
                let begun = servers[is_master].ask(&format!("FAILOVER TO 127.0.0.1 {}", to.port()));
                if begun.starts_with("+OK") {
                    while !to.ask("ROLE").contains("master") {
                        sleep(Duration::from_millis(2)).await;
                    }
                    is_master = 1 - is_master;
                    proxies.iter().for_each(|proxy| proxy.lead_to(to.port()));
                }
            }
        }
    }
    let mut sum = [0_u64; 4];
    for (mut process, file) in processes.into_iter().zip(files) {
        assert!(process.wait().unwrap().success());
        let line = fs::read_to_string(file).unwrap();
        for (sum, count) in sum.iter_mut().zip(line.split(' ')) {
            *sum += count.parse::<u64>().unwrap();
        }
    }
    let [ops, errors, hits, invalidations] = sum;
    println!(
        "{ops} operations, {errors} errors; {hits} near hits, {invalidations} invalidations; faults {faults:?}"
    );
    assert!(hits > 0 && invalidations > 0);
}
