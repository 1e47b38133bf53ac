//! Randomized runs of four processes on one server with faults. Each process is this test binary again, and records its
//! calls in a file. Its parent injects the faults, and checks the records of all processes at the end.
//!
//! `FLEETING_HISTORY_SECONDS` sets the duration, and `FLEETING_SEED` the seed of all random choices.

mod process;

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant, SystemTime},
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tempfile::TempDir;
use tokio::time::sleep;

use self::process::{ARGUMENTS, records_of};
pub(crate) use self::process::{Outcome, Process, now};
use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Proxy, Server, program},
};

pub(crate) const PROCESSES: usize = 4;

/// Time ahead of the real clock at which the clocks of the servers begin, so that they can also jump back.
///
/// Below the replication timeout of 60 s, which a server measures by this clock.
const AHEAD: Duration = Duration::from_secs(30);

/// Fault that a parent injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// All connections of a process are closed.
    Cut,
    /// All connections of a process go silent.
    Silence,
    /// The server is stopped for a time.
    StopServer,
    /// A process is stopped for a time.
    StopProcess,
    /// The replica becomes the master.
    FailOver,
    /// The memory of the server is full for a time.
    Full,
    /// The clock of the servers jumps forward.
    ClockForward,
    /// The clock of the servers jumps back.
    ClockBack,
    /// The clock of the servers stands still for a time, and then jumps forward. Not on Valkey, which does not support
    /// it.
    ClockStop,
}

impl Fault {
    const ALL: [Self; 9] = [
        Self::Cut,
        Self::Silence,
        Self::StopServer,
        Self::StopProcess,
        Self::FailOver,
        Self::Full,
        Self::ClockForward,
        Self::ClockBack,
        Self::ClockStop,
    ];
}

/// Returns `FLEETING_HISTORY_SECONDS`, or 2.
fn seconds() -> u64 {
    env::var("FLEETING_HISTORY_SECONDS").map_or(2, |it| it.parse().unwrap())
}

/// Runs a history: repeated if the machine was late, but not in the long form, in which a repetition could hide a
/// violation.
pub(crate) async fn check(case: impl AsyncFn()) {
    match env::var("FLEETING_HISTORY_SECONDS") {
        Ok(_) => case().await,
        Err(_) => in_time(case).await,
    }
}

/// Processes, their servers, and the faults so far; in the parent.
pub(crate) struct History {
    servers: [Server; 2],
    is_master: usize,
    proxies: Vec<Proxy>,
    processes: Vec<Child>,
    folder: TempDir,
    faults: Vec<Fault>,
    /// Faults that come before any is repeated.
    upcoming: Vec<Fault>,
    counts: BTreeMap<Fault, u64>,
    refused_failovers: u64,
    /// The faults and their times, for the search for the cause of a violation.
    log: File,
    first_fault: u64,
    ahead: Duration,
    furthest_ahead: Duration,
    seconds: u64,
    random: SmallRng,
}

impl History {
    /// Starts the servers. `left_out` are faults that this history cannot have.
    pub(crate) async fn new(left_out: &[Fault]) -> Self {
        let seconds = seconds();
        let seed = env::var("FLEETING_SEED").map_or(seconds, |it| it.parse().unwrap());
        println!("{seconds} s from seed {seed}");
        let master = Server::start_with_clock();
        let servers = [Server::replica_with_clock(&master), master];
        let is_valkey = program().contains("valkey");
        let is_possible =
            |it: &Fault| !(left_out.contains(it) || is_valkey && *it == Fault::ClockStop);
        let folder = tempfile::tempdir().unwrap();
        let history = Self {
            log: File::create(folder.path().join("faults")).unwrap(),
            is_master: 1,
            proxies: Vec::new(),
            processes: Vec::new(),
            folder,
            faults: Fault::ALL.into_iter().filter(is_possible).collect(),
            upcoming: Vec::new(),
            counts: BTreeMap::new(),
            refused_failovers: 0,
            first_fault: u64::MAX,
            ahead: AHEAD,
            furthest_ahead: AHEAD,
            seconds,
            random: SmallRng::seed_from_u64(seed),
            servers,
        };
        history.set_clocks();
        history
    }

    pub(crate) fn master(&self) -> &Server {
        &self.servers[self.is_master]
    }

    /// Returns the directory that all processes share.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `test` in the processes and injects faults until they end. The first part of the time has no faults.
    ///
    /// Returns the records of each process.
    pub(crate) async fn run(&mut self, test: &str, max_delay: Duration) -> Vec<Vec<String>> {
        let (seed, quiet): (u64, _) = (self.random.random::<u32>().into(), ms(1_000));
        for number in 0..PROCESSES {
            let proxy = Proxy::to(self.master().port()).await;
            let (url, folder) = (proxy.url(), self.folder().display());
            let duration = (quiet + Duration::from_secs(self.seconds)).as_millis();
            let max_delay = max_delay.as_millis();
            let arguments = format!("{url} {number} {duration} {seed} {max_delay} {folder}");
            let process = Command::new(env::current_exe().unwrap())
                .args(["--exact", test])
                .env(ARGUMENTS, arguments)
                .spawn();
            self.processes.push(process.unwrap());
            self.proxies.push(proxy);
        }
        let has_begun = |number| records_of(self.folder.path(), number).exists();
        let begin = Instant::now();
        while !(0..PROCESSES).all(has_begun) {
            assert!(begin.elapsed() < patience(), "the processes do not start");
            sleep(Duration::from_millis(1)).await;
        }
        sleep(quiet).await;
        // An error that arrives before is not caused by a fault.
        self.first_fault = now();
        // Frequent faults in a short run; in a long run, processes also get time between faults.
        let longest = 100 * self.seconds.clamp(2, 10);
        while self.processes.iter_mut().all(|it| it.try_wait().unwrap().is_none()) {
            self.inject().await;
            sleep(Duration::from_millis(self.random.random_range(30..longest))).await;
        }
        let (mut records, mut sum) = (Vec::new(), [0; 2]);
        for (number, process) in self.processes.iter_mut().enumerate() {
            assert!(process.wait().unwrap().success());
            let file = fs::read_to_string(records_of(self.folder.path(), number)).unwrap();
            let (lines, end) = file.split_once("end ").expect("the process has completed it");
            let end = end.lines().next().unwrap_or_default();
            let counts = end.split(' ').map(|it| it.parse::<u64>().unwrap());
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            records.push(lines.lines().map(str::to_owned).collect());
        }
        println!(
            "{} operations, {} errors; faults {:?}; {} failovers refused",
            sum[0], sum[1], self.counts, self.refused_failovers
        );
        // A server that never fails over would leave most of the history untested.
        let failovers = self.counts.get(&Fault::FailOver);
        assert!(failovers.is_some() || self.refused_failovers < 10, "each failover was refused");
        self.check_errors(&records);
        records
    }

    /// Returns the time before the first fault.
    pub(crate) fn first_fault(&self) -> u64 {
        self.first_fault
    }

    /// Lets the leases and TTLs of less than half a minute end, when the processes have ended.
    pub(crate) fn end_leases(&mut self) {
        self.ahead = self.furthest_ahead + AHEAD;
        self.set_clocks();
    }

    fn check_errors(&self, records: &[Vec<String>]) {
        for [at] in numbers_of(records, "error") {
            assert!(at >= self.first_fault, "an error without a fault");
        }
    }

    async fn inject(&mut self) {
        if self.upcoming.is_empty() {
            self.upcoming = self.faults.clone();
        }
        // Each fault once, in random order, and so on: a short run has all of them.
        let at = self.random.random_range(0..self.upcoming.len());
        let fault = self.upcoming.swap_remove(at);
        let process = self.random.random_range(0..PROCESSES);
        let pause = Duration::from_millis(self.random.random_range(1..300));
        // Seconds, but a short run must not spend all of its time waiting for a clock that has jumped back.
        let jump = pause * self.seconds.clamp(2, 10) as u32;
        match fault {
            Fault::Cut => self.proxies[process].cut(),
            Fault::Silence => self.proxies[process].silence(),
            Fault::StopServer => {
                self.master().pause();
                thread::sleep(pause);
                self.master().resume();
            }
            Fault::StopProcess => {
                signal(&self.processes[process], "-STOP");
                thread::sleep(pause);
                signal(&self.processes[process], "-CONT");
            }
            Fault::FailOver if !self.fail_over().await => return,
            Fault::FailOver => {}
            Fault::Full => {
                self.master().refuse_memory();
                sleep(pause).await;
                self.master().allow_memory();
            }
            Fault::ClockForward => {
                self.ahead += jump;
                self.furthest_ahead = self.furthest_ahead.max(self.ahead);
                self.set_clocks();
            }
            Fault::ClockBack => {
                // Not before the time at which the server was started.
                self.ahead = self.ahead.saturating_sub(jump);
                self.set_clocks();
            }
            Fault::ClockStop => {
                let real = SystemTime::UNIX_EPOCH.elapsed().expect("the year is above 1970");
                let at = (real + self.ahead).as_micros() as u64;
                self.servers.iter().for_each(|server| server.stop_clock(at));
                sleep(pause).await;
                self.set_clocks();
            }
        }
        *self.counts.entry(fault).or_default() += 1;
        writeln!(self.log, "{} {fault:?} of process {process}, {pause:?}", now()).unwrap();
    }

    fn set_clocks(&self) {
        self.servers.iter().for_each(|server| server.set_clock(self.ahead));
    }

    /// Makes the replica the master; returns false if it is not ready for that.
    async fn fail_over(&mut self) -> bool {
        let to = &self.servers[1 - self.is_master];
        // `FAILOVER` waits until the replica has all writes, so that no acknowledged write is lost.
        let begun = self.master().ask(&format!("FAILOVER TO 127.0.0.1 {}", to.port()));
        if !begun.starts_with("+OK") {
            self.refused_failovers += 1;
            writeln!(self.log, "{} no failover: {begun}", now()).unwrap();
            return false;
        }
        while !to.ask("ROLE").contains("master") {
            sleep(Duration::from_millis(2)).await;
        }
        // During a failover, neither server removes a key that a client has read as expired. If the clock jumped back
        // now, its value would be live again, which no client can prevent. Listing the keys removes the expired ones.
        to.ask("KEYS *");
        self.proxies.iter().for_each(|proxy| proxy.lead_to(to.port()));
        self.is_master = 1 - self.is_master;
        true
    }
}

impl Drop for History {
    fn drop(&mut self) {
        // After a violation, the other processes still run.
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() {
            println!("the records are in {}", self.folder().display());
            self.folder.disable_cleanup(true);
        }
    }
}

pub(crate) fn signal(process: &Child, signal: &str) {
    let _ = Command::new("kill").args([signal, &process.id().to_string()]).status();
}

/// Returns the numbers of all records of a kind, in their order.
pub(crate) fn numbers_of<'a, const N: usize>(
    records: &'a [Vec<String>],
    kind: &'a str,
) -> impl Iterator<Item = [u64; N]> {
    let of_kind = move |line: &'a String| line.strip_prefix(kind)?.strip_prefix(' ');
    records.iter().flatten().filter_map(of_kind).map(|numbers| {
        let numbers: Vec<u64> = numbers.split(' ').map(|it| it.parse().unwrap()).collect();
        numbers.try_into().expect("each record of a kind has the same number of items")
    })
}

/// Returns the maximum delay of a lost call; for [`History::run`].
pub(crate) fn max_delay() -> Duration {
    ms(1_500)
}
