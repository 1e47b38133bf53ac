//! Scenario: near caches, as in `src/redis/cache/{near,in_flight_reads}.rs`.
//!
//! An answer is cached with the version that its key had before the request. A notification increments the version,
//! so that the cached answer is not used any more. Callers that miss the same key share one request. Keys do not share
//! versions here, and near caches are not full.

use std::collections::HashMap;

use super::{
    client::{Attempts, Connection, TIMEOUT, tick_of},
    costs::{Call, Costs},
    engine::{Execution, Load, MS, SECOND, Scenario, Sim, Span},
    random::{Random, Zipf},
    samples::Samples,
};

/// Time without an answer after which a connection counts as silent.
const SILENT_AFTER: u64 = 1_500 * MS;

/// Load and failures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of processes that read. One more process writes.
    pub processes: usize,
    /// Reads per second of each process.
    pub reads: f64,
    /// Changes per second of all keys.
    pub changes: f64,
    /// Number of keys.
    pub keys: usize,
    /// Exponent of the Zipf distribution of reads and changes.
    pub exponent: f64,
    /// `near_max_age` in nanoseconds; 0 for a cache without a near cache.
    pub max_age: u64,
    /// Round trip of the network in nanoseconds.
    pub round_trip: u64,
    /// Period of the ticks at which processes make their requests; 0 to make them at any time.
    pub tick: u64,
    /// Number of the first processes that are affected by `slow` and `cut`.
    pub affected: usize,
    /// Round trip of the affected processes.
    pub slow: Option<u64>,
    /// Time in which the affected processes cannot reach the server.
    pub cut: Option<Span>,
    /// Time in which the server is down.
    pub down: Option<Span>,
    /// Time before the measurement.
    pub warm_up: u64,
    /// Measured time in nanoseconds.
    pub time: u64,
    /// Seed of all randomness.
    pub seed: u64,
}

impl Settings {
    /// Creates settings of a fleet without failures, in a data center with round trips of half a millisecond.
    pub fn new(processes: usize) -> Self {
        Self {
            processes,
            reads: 1_000.0,
            changes: 10.0,
            keys: 10_000,
            exponent: 1.0,
            max_age: SECOND,
            round_trip: MS / 2,
            tick: 0,
            affected: 0,
            slow: None,
            cut: None,
            down: None,
            warm_up: SECOND,
            time: 2 * SECOND,
            seed: super::SEED,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Completed reads.
    pub reads: u64,
    /// Reads that were answered in the process.
    pub hits: u64,
    /// Requests to the server for reads.
    pub asked: u64,
    /// Reads that failed.
    pub failed: u64,
    /// For each local answer that was outdated, the time since the change.
    pub stale: Samples,
    /// Times of the reads.
    pub times: Samples,
    /// Largest number of requests sent in a hundredth of a second.
    pub peak: u64,
    /// Time after the end of an outage at which the last slow read was answered.
    pub slow_until: u64,
    /// Counters of the server.
    pub load: Load,
}

struct Near {
    settings: Settings,
    /// Costs of a read and of a write.
    costs: (Call, Call),
    random: Random,
    zipf: Zipf,
    /// Times of the changes of each key. The value after the `n`th has the number `n`.
    changed: Vec<Vec<u64>>,
    processes: Vec<Process>,
    bucket: (u64, u64),
    outcome: Outcome,
}

#[derive(Default)]
struct Process {
    connection: Connection,
    all_keys: u64,
    versions: HashMap<u32, u64>,
    cached: HashMap<u32, Answer>,
    /// Reads in flight, with their versions and the begin of each waiting call.
    in_flight: HashMap<u32, (u64, Vec<u64>)>,
}

struct Answer {
    value: usize,
    version: u64,
    until: u64,
}

#[derive(Clone, Copy)]
struct Command {
    key: u32,
    is_write: bool,
    version: u64,
    value: usize,
    started: u64,
    attempts: Attempts,
}

enum Timer {
    NextRead,
    NextChange,
    Read(usize),
    Again(usize, Command),
    Silent(usize),
}

/// Runs the scenario.
pub fn run(settings: Settings, costs: &Costs) -> Outcome {
    let mut sim = Sim::new(settings.processes + 1, 1, settings.round_trip, costs.turns);
    if settings.max_age > 0 {
        sim.trackers = (0..settings.processes).collect();
    }
    for process in 0..settings.affected {
        let link = &mut sim.links[process];
        link.cut = settings.cut;
        link.latency = settings.slow.map_or(link.latency, |round_trip| round_trip / 2);
        if let Some((from, to)) = settings.cut.filter(|(from, to)| to - from > SILENT_AFTER) {
            sim.after(from + SILENT_AFTER, Timer::Silent(process));
            sim.after(to, Timer::Silent(process));
        }
    }
    if let Some(span) = settings.down {
        sim.crash(0, span);
    }
    let read = if settings.max_age > 0 { costs.call("near miss") } else { costs.call("get") };
    let mut near = Near {
        costs: (read, costs.call("set_ex")),
        random: Random::new(settings.seed),
        zipf: Zipf::new(settings.keys, settings.exponent),
        changed: vec![Vec::new(); settings.keys],
        processes: (0..=settings.processes).map(|_| Process::default()).collect(),
        bucket: (0, 0),
        outcome: Outcome::default(),
        settings,
    };
    sim.after(0, Timer::NextRead);
    if near.settings.changes > 0.0 {
        sim.after(0, Timer::NextChange);
    }
    let Settings { warm_up, time, .. } = near.settings;
    sim.run(&mut near, warm_up);
    sim.reset_loads();
    near.outcome = Outcome::default();
    sim.run(&mut near, warm_up + time);
    Outcome { load: sim.loads()[0], ..near.outcome }
}

impl Near {
    fn read(&mut self, sim: &mut Sim<Self>, at: usize) {
        let key = self.zipf.key(&mut self.random);
        let (now, process) = (sim.now, &mut self.processes[at]);
        let version = process.version(key);
        if let Some(answer) = process.cached.get(&key).filter(|it| it.holds(version, now)) {
            self.outcome.reads += 1;
            self.outcome.hits += 1;
            self.outcome.times.add(0);
            if let Some(replaced) = self.changed[key as usize].get(answer.value) {
                self.outcome.stale.add(now.saturating_sub(*replaced));
            }
            return;
        }
        if !process.connection.admits(now) {
            self.outcome.failed += 1;
            return;
        }
        if self.settings.max_age > 0 {
            if let Some((_, waiting)) =
                process.in_flight.get_mut(&key).filter(|(begun, _)| *begun == version)
            {
                return waiting.push(now);
            }
            process.in_flight.insert(key, (version, Vec::new()));
        }
        let attempts = Attempts::new(now);
        let command = Command { key, is_write: false, version, value: 0, started: now, attempts };
        self.send(sim, at, command);
    }

    fn send(&mut self, sim: &mut Sim<Self>, process: usize, command: Command) {
        if !command.is_write {
            self.outcome.asked += 1;
            let bucket = sim.now / (SECOND / 100);
            let count = if self.bucket.0 == bucket { self.bucket.1 + 1 } else { 1 };
            self.bucket = (bucket, count);
            self.outcome.peak = self.outcome.peak.max(count);
        }
        sim.send(process, 0, command);
    }

    fn finish(&mut self, now: u64, began: u64) {
        let time = now - began;
        if time > TIMEOUT {
            self.outcome.failed += 1;
            return;
        }
        self.outcome.reads += 1;
        self.outcome.times.add(time);
        if let Some((_, end)) = self.settings.down
            && time > super::requests::SLOW
        {
            self.outcome.slow_until = now.saturating_sub(end);
        }
    }

    /// Returns the callers of a read that has ended.
    fn take_callers(&mut self, process: usize, command: &Command) -> Vec<u64> {
        let process = &mut self.processes[process];
        let is_same = |(version, _): &(u64, _)| *version == command.version;
        let waiting = match process.in_flight.get(&command.key).is_some_and(is_same) {
            true => process.in_flight.remove(&command.key).expect("it was found").1,
            false => Vec::new(),
        };
        [vec![command.attempts.began], waiting].concat()
    }
}

impl Process {
    fn version(&self, key: u32) -> u64 {
        self.all_keys + self.versions.get(&key).copied().unwrap_or(0)
    }

    fn invalidate(&mut self, key: u32) {
        *self.versions.entry(key).or_default() += 1;
    }
}

impl Answer {
    fn holds(&self, version: u64, now: u64) -> bool {
        self.version == version && now < self.until
    }
}

impl Scenario for Near {
    type Command = Command;
    type Timer = Timer;

    fn execute(&mut self, _: usize, command: &mut Command, now: u64) -> Execution {
        let changes = &mut self.changed[command.key as usize];
        if command.is_write {
            changes.push(now);
            return Execution { call: self.costs.1, changed: Some(command.key) };
        }
        command.value = changes.len();
        Execution { call: self.costs.0, changed: None }
    }

    fn reply(&mut self, sim: &mut Sim<Self>, at: usize, command: Command) {
        if command.is_write {
            return;
        }
        let Command { key, version, value, .. } = command;
        let process = &mut self.processes[at];
        process.connection.answered();
        if self.settings.max_age > 0 {
            if process.version(key) == version {
                let until = command.started + self.settings.max_age;
                process.cached.insert(key, Answer { value, version, until });
            } else {
                process.invalidate(key);
            }
        }
        for began in self.take_callers(at, &command) {
            self.finish(sim.now, began);
        }
    }

    fn fail(&mut self, sim: &mut Sim<Self>, at: usize, mut command: Command) {
        let process = &mut self.processes[at];
        process.connection.refused(sim.now);
        // The connection is retired.
        process.all_keys += 1;
        match command.attempts.next_pause(sim.now) {
            Some(pause) => sim.after(pause, Timer::Again(at, command)),
            None if command.is_write => {}
            None => self.outcome.failed += self.take_callers(at, &command).len() as u64,
        }
    }

    fn push(&mut self, process: usize, keys: &[u32]) {
        keys.iter().for_each(|key| self.processes[process].invalidate(*key));
    }

    fn timer(&mut self, sim: &mut Sim<Self>, timer: Timer) {
        match timer {
            Timer::NextRead => {
                let process = self.random.below(self.settings.processes);
                let tick = tick_of((process, self.settings.processes), sim.now, self.settings.tick);
                sim.after(tick - sim.now, Timer::Read(process));
                let rate = self.settings.reads * self.settings.processes as f64;
                sim.after(self.random.until_next(rate), Timer::NextRead);
            }
            Timer::NextChange => {
                let key = self.zipf.key(&mut self.random);
                let (started, attempts) = (sim.now, Attempts::new(sim.now));
                let write =
                    Command { key, is_write: true, version: 0, value: 0, started, attempts };
                self.send(sim, self.settings.processes, write);
                sim.after(self.random.until_next(self.settings.changes), Timer::NextChange);
            }
            Timer::Read(process) => self.read(sim, process),
            Timer::Again(process, mut command) => {
                command.started = sim.now;
                self.send(sim, process, command);
            }
            Timer::Silent(process) => self.processes[process].all_keys += 1,
        }
    }
}
