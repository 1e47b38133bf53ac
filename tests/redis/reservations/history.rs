//! Recorded histories of four processes that check the same key with reservations, and are killed at random times.
//!
//! Each process is this test binary again, and writes each admitted call to a file before the next one, so that a kill
//! loses none but the last. Its parent kills and stops processes, cuts their connections, so that replies are lost, and
//! changes the limits. The processes reset some of the keys. The [`checker`] then examines every trailing window.
//!
//! `FLEETING_HISTORY_SECONDS` sets the minimum duration, and `FLEETING_SEED` the seed of all random choices.

mod checker;

use std::{
    collections::BTreeMap,
    env,
    fmt::Display,
    fs::{self, File},
    io::{Read, Write, stdin},
    process::{self, Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fleeting::{
    Limit, Window,
    redis::{Client, RateLimiter},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::sleep};

use self::checker::{Call, KeyHistory, Rate};
use super::super::{
    history::{now, signal},
    rate_limiter::strict,
};
use crate::{
    patience::patience,
    servers::{Proxy, Server, connect},
};

/// Variable with the arguments of a process.
const ARGUMENTS: &str = "FLEETING_RESERVATIONS";

const PROCESSES: usize = 4;
const TASKS: usize = 3;

const PER: Duration = Duration::from_millis(500);
const QUOTA: u32 = 400;

/// Time of one plan of the processes. Long enough for calls just after the first ones have left the window.
const ROUND: Duration = Duration::from_millis(750);

/// Longest time for which units are reserved: a tenth of the longest limit.
const MAX_LEAD: Duration = Duration::from_millis(100);

/// Returns the limits that apply in turn. Units of one are reserved when another one is set.
fn limits() -> [Limit; 3] {
    [Limit::new(QUOTA, PER), Limit::new(QUOTA / 2, PER), Limit::new(QUOTA, 2 * PER)]
}

/// Behavior of a process in a round. First it checks at a steady pace, then it holds the units that it has reserved,
/// and then it makes as many calls as it can.
///
/// One process leads: it begins alone, and mostly holds units until about the time at which they lapse. The others then
/// use the rest of the quota. A unit that does not count until the end of its window would be admitted to them again.
struct Plan {
    /// Time from the begin of the round.
    start: Duration,
    /// Number of checks per task, and the time between them.
    checks: u32,
    gap: Duration,
    /// Part of the time of a reservation for which units are held.
    hold: f64,
    /// Maximum number of units to reserve.
    reserve: u32,
    is_denial_cached: bool,
}

impl Plan {
    fn new(seed: u64, round: u64, number: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(seed + (round << 24));
        let leader = random.random_range(0..PROCESSES);
        let plan = Self {
            start: Duration::ZERO,
            checks: random.random_range(5..25),
            gap: Duration::from_micros(random.random_range(0..6_000)),
            hold: match random.random_range(0..4) {
                0 | 1 => random.random_range(0.8..0.999),
                2 => random.random_range(1.0..1.3),
                _ => random.random_range(1.3..2.5),
            },
            reserve: 64,
            is_denial_cached: random.random_bool(0.5),
        };
        if number == leader {
            return plan;
        }
        let (begin, end) = plan.hold_times();
        let mut random = SmallRng::seed_from_u64(seed + (round << 24) + 1 + number as u64);
        Self {
            start: begin / 2 + (end - begin / 2).mul_f64(random.random_range(0.0..1.1)),
            checks: random.random_range(0..5),
            hold: if random.random_bool(0.2) { plan.hold } else { 0.0 },
            // None, as in a release without reservations.
            reserve: [64, 64, 64, 64, 8, 0][random.random_range(0..6)],
            is_denial_cached: random.random_bool(0.5),
            ..plan
        }
    }

    /// Returns the approximate times, from the begin of the round, between which the process holds its units.
    fn hold_times(&self) -> (Duration, Duration) {
        let begin = self.checks * (self.gap + Duration::from_millis(1));
        (begin, begin + (PER / 10).mul_f64(self.hold))
    }
}

/// One of the processes in a round, in that process.
struct Member {
    limiter: RateLimiter<String>,
    key: String,
    /// True if this process resets the key at random times.
    resets: bool,
    records: Arc<File>,
    reserved: AtomicU64,
    /// Time at which the last call began that reserved units.
    reserved_at: AtomicU64,
}

impl Member {
    /// Makes a call and records it if it was admitted. Returns whether it was.
    async fn check(&self, random: &mut SmallRng) -> bool {
        if self.resets && random.random_ratio(1, 1_000) {
            self.reset().await;
        }
        let cost = if random.random_bool(0.1) { random.random_range(2..6) } else { 1 };
        let (limits, begin) = (self.limiter.limits(), now());
        let checked = self.limiter.check_n(&self.key, cost).await;
        let end = now();
        let reserved = self.limiter.stats().reserved;
        let before = self.reserved.fetch_max(reserved, Relaxed);
        if reserved > before {
            self.reserved_at.store(begin, Relaxed);
            self.record(format_args!("reserved {}", reserved - before));
        }
        let Ok(permit) = checked else { return false };
        if random.random_ratio(1, 40) {
            // Not recorded: the server may have executed it when this process is killed.
            let _ = permit.refund().await;
            return true;
        }
        // Otherwise it is unknown which limits admitted the call.
        if self.limiter.limits() == limits {
            let (key, quota, per) = (&self.key, limits[0].quota(), limits[0].per().as_nanos());
            self.record(format_args!("call {key} {begin} {end} {cost} {quota} {per}"));
        }
        true
    }

    async fn reset(&self) {
        let begin = now();
        self.record(format_args!("reset {} {begin}", self.key));
        if self.limiter.reset(&self.key).await.is_ok() {
            self.record(format_args!("done {} {begin} {}", self.key, now()));
        }
    }

    /// Adds a line to the records. In one write, so that another task does not divide it.
    fn record(&self, line: impl Display) {
        (&*self.records)
            .write_all(format!("{line}\n").as_bytes())
            .expect("the records are written");
    }

    async fn play(self: Arc<Self>, plan: &Plan, end: u64, random: &mut SmallRng) {
        let (checks, gap) = (plan.checks, plan.gap);
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (member, mut random) = (self.clone(), SmallRng::seed_from_u64(random.random()));
            tasks.spawn(async move {
                for _ in 0..checks {
                    member.check(&mut random).await;
                    sleep(gap).await;
                }
            });
        }
        tasks.join_all().await;
        let lead = self.limiter.limits()[0].per() / 10;
        let hold = lead.mul_f64(plan.hold).as_nanos() as u64;
        sleep_until(self.reserved_at.load(Relaxed) + hold).await;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (member, mut random) = (self.clone(), SmallRng::seed_from_u64(random.random()));
            tasks.spawn(async move {
                while now() < end {
                    if !member.check(&mut random).await {
                        sleep(Duration::from_millis(random.random_range(1..4))).await;
                    }
                }
            });
        }
        tasks.join_all().await;
    }
}

/// Sleeps until a time of [`now`].
async fn sleep_until(at: u64) {
    sleep(Duration::from_nanos(at.saturating_sub(now()))).await;
}

/// Runs one of the processes, until it is killed.
async fn run_process(window: Window, arguments: &str) {
    // The parent holds the other end. If it is killed, this process ends.
    thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        process::exit(0);
    });
    let [url, number, life, seed, origin, folder] =
        arguments.splitn(6, ' ').collect::<Vec<_>>()[..]
    else {
        unreachable!("the parent passes six arguments");
    };
    let [number, life]: [usize; 2] = [number, life].map(|it| it.parse().unwrap());
    let [seed, origin]: [u64; 2] = [seed, origin].map(|it| it.parse().unwrap());
    let records = File::create(format!("{folder}/{number}.{life}")).unwrap();
    let records = Arc::new(records);
    let client = Client::builder(url).timeout(patience()).lazy().unwrap();
    let mut random = SmallRng::seed_from_u64(seed + (number << 32) as u64 + (life << 40) as u64);
    let round_time = ROUND.as_nanos() as u64;
    loop {
        let round = (now() - origin) / round_time;
        let (begin, plan) = (origin + round * round_time, Plan::new(seed, round, number));
        let [limit, ..] = limits();
        let builder = strict(&client, "history").window(window).limit(limit).reserve(plan.reserve);
        let builder = if plan.is_denial_cached { builder } else { builder.deny_cache(0) };
        // One round with an unused key, then two rounds of another one, which is busy before the second.
        let key = round / 3 * 2 + u64::from(!round.is_multiple_of(3));
        let member = Arc::new(Member {
            // The drop of the one before gives units back.
            limiter: builder.build().unwrap(),
            key: format!("key-{key}"),
            resets: key % 4 == 3,
            records: records.clone(),
            reserved: AtomicU64::new(0),
            reserved_at: AtomicU64::new(0),
        });
        sleep_until(begin + plan.start.as_nanos() as u64).await;
        member.play(&plan, begin + round_time, &mut random).await;
        sleep_until(begin + round_time).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A process is killed, and started again.
    Kill,
    /// A process is stopped for a time.
    Stop,
    /// The connections of a process are closed, so that requests and replies are lost.
    Cut,
    SetLimits,
}

/// The processes and their server, in the parent.
struct Fleet {
    test: &'static str,
    server: Server,
    proxies: Vec<Proxy>,
    processes: Vec<Child>,
    lives: usize,
    folder: TempDir,
    seed: u64,
    origin: u64,
    random: SmallRng,
    /// Minimum and maximum difference of the clock of the server and [`now`].
    ahead: (i128, i128),
}

impl Fleet {
    async fn new(test: &'static str, seed: u64) -> Self {
        let mut fleet = Self {
            test,
            server: Server::start(),
            proxies: Vec::new(),
            processes: Vec::new(),
            lives: 0,
            folder: tempfile::tempdir().unwrap(),
            seed,
            origin: now(),
            random: SmallRng::seed_from_u64(seed),
            ahead: (i128::MAX, i128::MIN),
        };
        for number in 0..PROCESSES {
            fleet.proxies.push(Proxy::to(fleet.server.port()).await);
            let process = fleet.start(number);
            fleet.processes.push(process);
        }
        fleet
    }

    fn start(&mut self, number: usize) -> Child {
        let (url, life) = (self.proxies[number].url(), self.lives);
        let (seed, origin, folder) = (self.seed, self.origin, self.folder.path().display());
        self.lives += 1;
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", self.test])
            .env(ARGUMENTS, format!("{url} {number} {life} {seed} {origin} {folder}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    async fn inject(&mut self, fault: Fault, limiter: &RateLimiter<String>) {
        let number = self.random.random_range(0..PROCESSES);
        match fault {
            Fault::Kill => {
                self.processes[number].kill().unwrap();
                self.processes[number].wait().unwrap();
                self.processes[number] = self.start(number);
            }
            Fault::Stop => {
                signal(&self.processes[number], "-STOP");
                sleep(Duration::from_millis(self.random.random_range(1..100))).await;
                signal(&self.processes[number], "-CONT");
            }
            Fault::Cut => self.proxies[number].cut(),
            Fault::SetLimits => {
                // The first one half of the times.
                let which = [0, 0, 1, 2][self.random.random_range(0..4)];
                limiter.set_limits([limits()[which].clone()]).await.unwrap();
            }
        }
    }

    /// Compares the clock of the server with [`now`].
    fn compare_clocks(&mut self) {
        let (begin, real, end) = (now(), clock_gettime(ClockId::Realtime), now());
        // Otherwise this thread was suspended in between.
        if end - begin < 20_000 {
            let real = i128::from(real.tv_sec) * 1_000_000_000 + i128::from(real.tv_nsec);
            let ahead = real - i128::from(begin);
            self.ahead = (self.ahead.0.min(ahead), self.ahead.1.max(ahead));
        }
    }

    /// Returns the history of each key, and the units reserved by each process.
    fn records(&self) -> (BTreeMap<String, KeyHistory>, [u64; PROCESSES]) {
        // The files are read one after the other. A later call may follow a reset in a file that was read before.
        let until = now();
        let (mut keys, mut reserved) = (BTreeMap::<String, KeyHistory>::new(), [0; PROCESSES]);
        for file in fs::read_dir(self.folder.path()).unwrap().flatten() {
            let process = file.file_name().into_string().unwrap();
            let process: usize = process.split('.').next().unwrap().parse().unwrap();
            let text = fs::read_to_string(file.path()).unwrap();
            // A kill may have divided the last line.
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            for line in complete.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let number = |at: usize| words[at].parse::<u64>().unwrap();
                if words[0] == "reserved" {
                    reserved[process] += number(1);
                    continue;
                }
                let key = keys.entry(words[1].to_owned()).or_default();
                match words[0] {
                    "call" if number(3) > until => {}
                    "call" => key.calls.push(Call {
                        begin: number(2),
                        end: number(3),
                        units: number(4),
                        limit: Rate { quota: number(5), per: number(6) },
                    }),
                    // The server may execute it at any time if it is not done.
                    "reset" => key.resets.push((number(2), u64::MAX)),
                    "done" => {
                        let reset = key.resets.iter_mut().find(|(begin, _)| *begin == number(2));
                        // Other processes may have reserved units before it.
                        reset.expect("it was recorded before").1 =
                            number(3) + MAX_LEAD.as_nanos() as u64;
                    }
                    _ => unreachable!("{line}"),
                }
            }
        }
        (keys, reserved)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() {
            println!("the records are in {}", self.folder.path().display());
            self.folder.disable_cleanup(true);
        }
    }
}

/// Runs a history of the test `test` for `FLEETING_HISTORY_SECONDS`, or 6, and then until each process has reserved
/// units, enough was admitted, and a window was nearly full.
async fn check_history(window: Window, test: &'static str) {
    if let Ok(arguments) = env::var(ARGUMENTS) {
        return run_process(window, &arguments).await;
    }
    let variable = |name, default| env::var(name).map_or(default, |it| it.parse::<u64>().unwrap());
    let seconds = variable("FLEETING_HISTORY_SECONDS", 6);
    let seed = variable("FLEETING_SEED", seconds);
    println!("{window:?}: at least {seconds} s from FLEETING_SEED={seed}");
    let mut fleet = Fleet::new(test, seed).await;
    let client = connect(fleet.server.url()).await;
    let [limit, ..] = limits();
    let limiter = strict(&client, "history").window(window).limit(limit).build().unwrap();
    let (mut faults, mut kills, mut checked_at) = (Vec::new(), 0, 0);
    loop {
        if faults.is_empty() {
            faults = [[Fault::Kill; 4], [Fault::Cut, Fault::Stop, Fault::Stop, Fault::SetLimits]]
                .concat();
        }
        let fault = faults.swap_remove(fleet.random.random_range(0..faults.len()));
        fleet.inject(fault, &limiter).await;
        kills += u64::from(matches!(fault, Fault::Kill));
        fleet.compare_clocks();
        for process in &mut fleet.processes {
            assert!(process.try_wait().unwrap().is_none(), "a process has ended by itself");
        }
        sleep(Duration::from_millis(fleet.random.random_range(20..200))).await;
        let second = (now() - fleet.origin) / 1_000_000_000;
        if second < seconds.max(checked_at + 1) {
            continue;
        }
        checked_at = second;
        if is_enough(&fleet, window, second, kills) {
            return;
        }
        assert!(second < seconds + patience().as_secs(), "too little was reserved or admitted");
    }
}

/// Checks the records so far. Returns whether enough has happened.
fn is_enough(fleet: &Fleet, window: Window, second: u64, kills: u64) -> bool {
    let (keys, reserved) = fleet.records();
    let drift = fleet.ahead.1.saturating_sub(fleet.ahead.0).max(0) as u64;
    let (mut units, mut resets, mut fullest) = (0, 0, 0.0_f64);
    for (key, history) in &keys {
        units += history.calls.iter().map(|call| call.units).sum::<u64>();
        resets += history.resets.len();
        match history.check(window, drift) {
            Ok(part) if history.resets.is_empty() => fullest = fullest.max(part),
            Ok(_) => {}
            Err(violation) => panic!("{window:?}, second {second}, {key}: {violation}"),
        }
    }
    let possible = second * 1_000 / PER.as_millis() as u64 * u64::from(QUOTA);
    println!(
        "{second} s: {kills} kills, {resets} resets, {units} of {possible} units, {reserved:?} reserved, {fullest:.2} \
         of a window admitted, clocks {drift} ns apart"
    );
    let has_each_reserved = reserved.iter().all(|units| *units > 0);
    has_each_reserved && kills >= second && units >= possible / 4 && fullest >= 0.9
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_killed_processes_has_more_than_the_quota_of_a_log() {
    let test =
        "reservations::history::no_window_of_killed_processes_has_more_than_the_quota_of_a_log";
    check_history(Window::Log, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_killed_processes_has_more_than_the_quota_of_buckets() {
    let test =
        "reservations::history::no_window_of_killed_processes_has_more_than_the_quota_of_buckets";
    check_history(Window::Buckets(10), test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_killed_processes_has_more_than_a_bucket_of_gcra_admits() {
    let test = "reservations::history::no_window_of_killed_processes_has_more_than_a_bucket_of_gcra_admits";
    check_history(Window::Gcra, test).await;
}
