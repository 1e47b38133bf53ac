//! Scenario: independent requests, each of one call that takes one round trip.

use super::{
    client::{Attempts, Connection, tick_of},
    costs::{Call, Costs},
    engine::{Execution, Load, SECOND, Scenario, Sim, Span},
    random::{Random, Zipf},
    reservations::{Decision, Reservations, Reserve},
    samples::Samples,
};

/// Load and servers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of processes, each with one connection to each server.
    pub processes: usize,
    /// Requests per second of all processes.
    pub rate: f64,
    /// Number of keys.
    pub keys: usize,
    /// Exponent of their Zipf distribution.
    pub exponent: f64,
    /// Server of each group of keys: key `k` belongs to group `hash(k) % len`.
    pub placement: Vec<usize>,
    /// Calls by their share of the requests.
    pub mix: Vec<(f64, &'static str)>,
    /// Reservations of each process, if the requests are checks of limits.
    pub reserve: Option<Reserve>,
    /// Time in which the first server is down.
    pub down: Option<Span>,
    /// Period of the ticks at which processes make their requests; 0 to make them at any time.
    pub tick: u64,
    /// Round trip of the network in nanoseconds.
    pub round_trip: u64,
    /// Measured time in nanoseconds, after a tenth as long of warm-up, or four reservations.
    pub time: u64,
    /// Seed of all randomness.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests made.
    pub made: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Times of the answered requests.
    pub times: Samples,
    /// Largest number of commands that arrived in a hundredth of a second.
    pub peak: u64,
    /// Time after the end of an outage at which the last slow request was answered.
    pub slow_until: u64,
    /// Counters of the servers.
    pub loads: Vec<Load>,
}

impl Outcome {
    /// Returns the share of its time in which the busiest server is busy.
    pub fn busiest(&self, time: u64) -> f64 {
        self.loads.iter().map(|load| load.busy).max().unwrap_or(0) as f64 / time as f64
    }
}

/// A request that takes longer is slow.
pub const SLOW: u64 = 10_000_000;

struct Requests {
    settings: Settings,
    /// Costs by the share of the requests up to each.
    mix: Vec<(f64, Call)>,
    random: Random,
    zipf: Zipf,
    connections: Vec<Connection>,
    reservations: Vec<Reservations>,
    outcome: Outcome,
    /// Hundredth of a second, and the commands that arrived in it.
    bucket: (u64, u64),
}

/// A request of a process.
struct Request {
    server: usize,
    call: Call,
    attempts: Attempts,
    purpose: Purpose,
}

/// Purpose of a request.
#[derive(Clone, Copy)]
enum Purpose {
    Answer,
    /// It also draws units of a key ahead.
    Draw {
        key: u32,
        ahead: u32,
    },
    GiveBack,
}

enum Timer {
    Next,
    Request(usize),
    Again(usize, Request),
}

/// Runs the scenario.
///
/// # Panics
///
/// Panics if a call of the mix was not measured.
pub fn run(settings: Settings, costs: &Costs) -> Outcome {
    let servers = settings.placement.iter().max().expect("there is a server") + 1;
    let mut sim = Sim::new(settings.processes, servers, settings.round_trip, costs.turns);
    if let Some(span) = settings.down {
        sim.crash(0, span);
    }
    let mut upto = 0.0;
    let mix = settings.mix.iter().map(|(share, name)| {
        upto += share;
        (upto, costs.call(name))
    });
    let mut requests = Requests {
        mix: mix.collect(),
        random: Random::new(settings.seed),
        zipf: Zipf::new(settings.keys, settings.exponent),
        connections: vec![Connection::default(); settings.processes * servers],
        reservations: (0..settings.processes).map(|_| Reservations::default()).collect(),
        outcome: Outcome::default(),
        bucket: (0, 0),
        settings,
    };
    let time = requests.settings.time;
    let warm_up = requests.settings.reserve.map_or(0, |reserve| 4 * reserve.time).max(time / 10);
    sim.after(0, Timer::Next);
    sim.run(&mut requests, warm_up);
    sim.reset_loads();
    requests.outcome = Outcome::default();
    sim.run(&mut requests, warm_up + time);
    let loads = sim.loads();
    Outcome { loads, ..requests.outcome }
}

impl Requests {
    fn begin(&mut self, sim: &mut Sim<Self>, process: usize) {
        self.outcome.made += 1;
        let key = self.zipf.key(&mut self.random);
        let group = super::random::mix(key.into()) as usize % self.settings.placement.len();
        let share = self.random.share();
        let (_, call) =
            self.mix.iter().find(|(upto, _)| share < *upto).copied().unwrap_or(self.mix[0]);
        let server = self.settings.placement[group];
        let attempts = Attempts::new(sim.now);
        let request = |purpose| Request { server, call, attempts, purpose };
        let purpose = match self.settings.reserve {
            None => Purpose::Answer,
            Some(reserve) => match self.reservations[process].check(key, sim.now, reserve) {
                Decision::Admit => return self.outcome.times.add(0),
                Decision::Wait => return,
                Decision::Ask { ahead, gives_back } => {
                    if gives_back {
                        self.send(sim, process, request(Purpose::GiveBack));
                    }
                    if ahead > 0 { Purpose::Draw { key, ahead } } else { Purpose::Answer }
                }
            },
        };
        self.send(sim, process, request(purpose));
    }

    /// Ends a draw that got `ahead` units: the checks that waited for it take them, or ask the server.
    fn drawn(&mut self, sim: &mut Sim<Self>, process: usize, draw: &Request, ahead: u32) {
        if let Purpose::Draw { key, .. } = draw.purpose
            && let Some(reserve) = self.settings.reserve
        {
            let began = draw.attempts.began;
            let (admitted, others) = self.reservations[process].drawn(key, began, ahead, reserve);
            admitted.iter().for_each(|began| self.outcome.times.add(sim.now - began));
            for began in others {
                let attempts = Attempts::new(began);
                self.send(sim, process, Request { attempts, purpose: Purpose::Answer, ..*draw });
            }
        }
    }

    /// Counts a request that is not sent again. A draw gets nothing then.
    fn give_up(&mut self, sim: &mut Sim<Self>, process: usize, request: &Request) {
        if !matches!(request.purpose, Purpose::GiveBack) {
            self.outcome.failed += 1;
        }
        self.drawn(sim, process, request, 0);
    }

    fn send(&mut self, sim: &mut Sim<Self>, process: usize, request: Request) {
        if !self.connection(process, request.server).admits(sim.now) {
            return self.give_up(sim, process, &request);
        }
        let bucket = sim.now / (SECOND / 100);
        let count = if self.bucket.0 == bucket { self.bucket.1 + 1 } else { 1 };
        self.bucket = (bucket, count);
        self.outcome.peak = self.outcome.peak.max(count);
        sim.send(process, request.server, request);
    }

    fn connection(&mut self, process: usize, server: usize) -> &mut Connection {
        let servers = self.connections.len() / self.settings.processes;
        &mut self.connections[process * servers + server]
    }
}

impl Scenario for Requests {
    type Command = Request;
    type Timer = Timer;

    fn execute(&mut self, _: usize, request: &mut Request, _: u64) -> Execution {
        Execution { call: request.call, changed: None }
    }

    fn reply(&mut self, sim: &mut Sim<Self>, process: usize, request: Request) {
        self.connection(process, request.server).answered();
        match request.purpose {
            Purpose::GiveBack => return,
            Purpose::Draw { ahead, .. } => self.drawn(sim, process, &request, ahead),
            Purpose::Answer => {}
        }
        let time = sim.now - request.attempts.began;
        self.outcome.times.add(time);
        if let Some((_, end)) = self.settings.down
            && time > SLOW
        {
            self.outcome.slow_until = sim.now.saturating_sub(end);
        }
    }

    fn fail(&mut self, sim: &mut Sim<Self>, process: usize, mut request: Request) {
        let now = sim.now;
        self.connection(process, request.server).refused(now);
        match request.attempts.next_pause(now) {
            Some(pause) => sim.after(pause, Timer::Again(process, request)),
            None => self.give_up(sim, process, &request),
        }
    }

    fn timer(&mut self, sim: &mut Sim<Self>, timer: Timer) {
        match timer {
            Timer::Next => {
                let process = self.random.below(self.settings.processes);
                sim.after(
                    tick_of((process, self.settings.processes), sim.now, self.settings.tick)
                        - sim.now,
                    Timer::Request(process),
                );
                sim.after(self.random.until_next(self.settings.rate), Timer::Next);
            }
            Timer::Request(process) => self.begin(sim, process),
            Timer::Again(process, request) => self.send(sim, process, request),
        }
    }
}
