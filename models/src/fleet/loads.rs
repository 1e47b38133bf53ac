//! Scenario: loads of missing values, as in `src/redis/cache/{loaders,lease}.rs`.
//!
//! A caller that misses a key joins the flight of its process. The leader of the flight requests the lease of the key
//! from the server. It loads if it gets the lease, and polls if another process holds it.

use std::collections::HashMap;

use super::{
    client::{Attempts, Connection, next_tick, tick_of},
    costs::{Call, Costs},
    engine::{Execution, Load, MS, SECOND, Scenario, Sim, Span},
    random::{Random, Zipf},
    samples::Samples,
};

/// Shortest and longest pause between two polls.
const POLL_PAUSE: (u64, u64) = (2 * MS, 100 * MS);

/// Time after which a lease expires, since its holder crashed. The holder renews it.
const LEASE: u64 = 10 * SECOND;

/// Load and failures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of processes.
    pub processes: usize,
    /// Calls per second of each process.
    pub calls: f64,
    /// Number of keys.
    pub keys: usize,
    /// Exponent of their Zipf distribution.
    pub exponent: f64,
    /// TTL of a loaded value in nanoseconds.
    pub ttl: u64,
    /// Time that a loader takes in nanoseconds.
    pub load_time: u64,
    /// True if processes take leases; otherwise each loads what it misses.
    pub leases: bool,
    /// True if there are values at the start.
    pub is_warm: bool,
    /// Time in which the server is down. It loses its data.
    pub down: Option<Span>,
    /// Round trip of the network in nanoseconds.
    pub round_trip: u64,
    /// Period of the ticks at which processes make their calls; 0 to make them at any time.
    pub tick: u64,
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
            calls: 100.0,
            keys: 1_000,
            exponent: 1.0,
            ttl: 10 * SECOND,
            load_time: 50 * MS,
            leases: true,
            is_warm: true,
            down: None,
            round_trip: MS / 2,
            tick: 0,
            warm_up: SECOND,
            time: 2 * SECOND,
            seed: super::SEED,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Completed calls.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Loaders that ran.
    pub loads: u64,
    /// Values that expired or were lost, and then were loaded again.
    pub renewed: u64,
    /// Requests for leases, and polls.
    pub lookups: u64,
    /// Results of loads that were sent.
    pub publishes: u64,
    /// Largest number of loaders that ran at the same time.
    pub most_loads: u64,
    /// Times of the calls.
    pub times: Samples,
    /// Time after the end of an outage at which the last slow call was answered.
    pub slow_until: u64,
    /// Counters of the server.
    pub load: Load,
}

struct Loads {
    settings: Settings,
    /// Costs by [`Verb`].
    costs: [Call; 3],
    random: Random,
    zipf: Zipf,
    values: Vec<Value>,
    /// Flights by process and key: the begin, and those of its callers.
    flights: HashMap<(usize, u32), (u64, Vec<u64>)>,
    connections: Vec<Connection>,
    loading: u64,
    outcome: Outcome,
}

#[derive(Clone, Copy, Default)]
struct Value {
    until: u64,
    /// The process that holds the lease, and the end of the lease.
    lease: Option<(usize, u64)>,
}

#[derive(Clone, Copy)]
struct Command {
    process: usize,
    key: u32,
    verb: Verb,
    answer: Answer,
    attempts: Attempts,
}

#[derive(Clone, Copy)]
enum Verb {
    Get,
    Lookup,
    Publish,
}

#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Live,
    Missing,
    HeldElsewhere(u64),
    Done,
}

enum Timer {
    Next,
    Call(usize),
    Lookup(usize, u32),
    Loaded(usize, u32),
    Again(usize, Command),
}

/// Runs the scenario.
pub fn run(settings: Settings, costs: &Costs) -> Outcome {
    let mut sim = Sim::new(settings.processes, 1, settings.round_trip, costs.turns);
    if let Some(span) = settings.down {
        sim.crash(0, span);
    }
    let costs = ["get", "lookup_lease", "publish"].map(|call| costs.call(call));
    let mut random = Random::new(settings.seed);
    let mut values = vec![Value::default(); settings.keys];
    if settings.is_warm {
        // Values that were loaded at different times.
        values
            .iter_mut()
            .for_each(|value| value.until = random.below(settings.ttl as usize) as u64);
    }
    let mut loads = Loads {
        costs,
        random,
        zipf: Zipf::new(settings.keys, settings.exponent),
        values,
        flights: HashMap::new(),
        connections: vec![Connection::default(); settings.processes],
        loading: 0,
        outcome: Outcome::default(),
        settings,
    };
    sim.after(0, Timer::Next);
    let Settings { warm_up, time, .. } = loads.settings;
    sim.run(&mut loads, warm_up);
    sim.reset_loads();
    loads.outcome = Outcome::default();
    sim.run(&mut loads, warm_up + time);
    Outcome { load: sim.loads()[0], ..loads.outcome }
}

impl Loads {
    fn send(&mut self, sim: &mut Sim<Self>, process: usize, command: Command) {
        if !self.connections[process].admits(sim.now) {
            return self.give_up(process, &command);
        }
        self.outcome.lookups += u64::from(matches!(command.verb, Verb::Lookup));
        self.outcome.publishes += u64::from(matches!(command.verb, Verb::Publish));
        sim.send(process, 0, command);
    }

    fn send_new(&mut self, sim: &mut Sim<Self>, process: usize, key: u32, verb: Verb) {
        let (answer, attempts) = (Answer::Missing, Attempts::new(sim.now));
        self.send(sim, process, Command { process, key, verb, answer, attempts });
    }

    /// Fails all callers that wait for a command.
    fn give_up(&mut self, process: usize, command: &Command) {
        self.outcome.failed += match command.verb {
            Verb::Get => 1,
            _ => self.flights.remove(&(process, command.key)).map_or(0, |it| it.1.len() as u64),
        };
    }

    fn finish(&mut self, now: u64, began: u64) {
        let time = now - began;
        self.outcome.calls += 1;
        self.outcome.times.add(time);
        if let Some((_, end)) = self.settings.down
            && time > super::requests::SLOW
        {
            self.outcome.slow_until = now.saturating_sub(end);
        }
    }

    fn finish_flight(&mut self, now: u64, process: usize, key: u32) {
        let callers = self.flights.remove(&(process, key)).map_or(Vec::new(), |flight| flight.1);
        callers.into_iter().for_each(|began| self.finish(now, began));
    }

    fn begin_load(&mut self, sim: &mut Sim<Self>, process: usize, key: u32) {
        self.outcome.loads += 1;
        self.loading += 1;
        self.outcome.most_loads = self.outcome.most_loads.max(self.loading);
        let end = next_tick(sim.now + self.settings.load_time, self.settings.tick);
        sim.after(end - sim.now, Timer::Loaded(process, key));
    }

    fn miss(&mut self, sim: &mut Sim<Self>, process: usize, key: u32, began: u64) {
        if let Some((_, callers)) = self.flights.get_mut(&(process, key)) {
            return callers.push(began);
        }
        self.flights.insert((process, key), (sim.now, vec![began]));
        if self.settings.leases {
            self.send_new(sim, process, key, Verb::Lookup);
        } else {
            self.begin_load(sim, process, key);
        }
    }
}

impl Scenario for Loads {
    type Command = Command;
    type Timer = Timer;

    fn execute(&mut self, _: usize, command: &mut Command, now: u64) -> Execution {
        let value = &mut self.values[command.key as usize];
        let is_live = now < value.until;
        command.answer = match command.verb {
            _ if is_live && !matches!(command.verb, Verb::Publish) => Answer::Live,
            Verb::Get => Answer::Missing,
            Verb::Lookup => match value.lease {
                Some((_, till)) if now < till => Answer::HeldElsewhere(till - now),
                _ => {
                    value.lease = Some((command.process, now + LEASE));
                    Answer::Done
                }
            },
            // A write or a lost lease has the effect that the loaded value is not written.
            Verb::Publish
                if self.settings.leases
                    && value.lease.is_none_or(|(holder, _)| holder != command.process) =>
            {
                Answer::Missing
            }
            Verb::Publish => {
                self.outcome.renewed += u64::from(!is_live);
                *value = Value { until: now + self.settings.ttl, lease: None };
                Answer::Done
            }
        };
        Execution { call: self.costs[command.verb as usize], changed: None }
    }

    fn reply(&mut self, sim: &mut Sim<Self>, at: usize, command: Command) {
        self.connections[at].answered();
        let (now, key) = (sim.now, command.key);
        match (command.verb, command.answer) {
            (Verb::Get, Answer::Live) => self.finish(now, command.attempts.began),
            (Verb::Get, _) => self.miss(sim, at, key, command.attempts.began),
            (Verb::Lookup, Answer::Done) => self.begin_load(sim, at, key),
            (Verb::Lookup, Answer::HeldElsewhere(left)) => {
                let waited = self.flights.get(&(at, key)).map_or(0, |flight| now - flight.0);
                let pause = (waited / 4).clamp(POLL_PAUSE.0, POLL_PAUSE.1).min(left);
                // Tokio's timers have a resolution of a millisecond.
                sim.after(next_tick(now + pause, MS) - now, Timer::Lookup(at, key));
            }
            (Verb::Publish, Answer::Missing) => {
                // The caller whose loader ran gets the value; the others ask the server again.
                let flight = self.flights.remove(&(at, key));
                let mut callers = flight.into_iter().flat_map(|flight| flight.1);
                if let Some(leader) = callers.next() {
                    self.finish(now, leader);
                }
                callers.for_each(|began| self.miss(sim, at, key, began));
            }
            (Verb::Lookup | Verb::Publish, _) => self.finish_flight(now, at, key),
        }
    }

    fn fail(&mut self, sim: &mut Sim<Self>, at: usize, mut command: Command) {
        self.connections[at].refused(sim.now);
        match command.attempts.next_pause(sim.now) {
            Some(pause) => sim.after(pause, Timer::Again(at, command)),
            None => self.give_up(at, &command),
        }
    }

    fn timer(&mut self, sim: &mut Sim<Self>, timer: Timer) {
        let now = sim.now;
        match timer {
            Timer::Next => {
                let process = self.random.below(self.settings.processes);
                sim.after(
                    tick_of((process, self.settings.processes), sim.now, self.settings.tick) - now,
                    Timer::Call(process),
                );
                let rate = self.settings.calls * self.settings.processes as f64;
                sim.after(self.random.until_next(rate), Timer::Next);
            }
            Timer::Call(process) => {
                let key = self.zipf.key(&mut self.random);
                self.send_new(sim, process, key, Verb::Get);
            }
            Timer::Lookup(process, key) => {
                self.send_new(sim, process, key, Verb::Lookup);
            }
            Timer::Loaded(process, key) => {
                self.loading -= 1;
                self.send_new(sim, process, key, Verb::Publish);
            }
            Timer::Again(process, command) => self.send(sim, process, command),
        }
    }

    fn promote(&mut self, _: &mut Sim<Self>, _: usize) {
        self.values.fill(Value::default());
    }
}
