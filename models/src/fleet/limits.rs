//! Scenario: a rate limit that is shared by all processes, as in `src/redis/rate_limiter`.
//!
//! A check is answered by the denial cache of its process, by the server, or by the error policy if the server does not
//! answer in 50 ms or the circuit breaker is open.

use std::collections::{HashMap, VecDeque};

use super::{
    client::tick_of,
    costs::{Call, Costs},
    engine::{Execution, Load, MS, SECOND, Scenario, Sim, Span, US},
    random::{Random, Zipf},
    windows::{Charges, Limit, Window},
};

/// Time after which the error policy decides.
const TIMEOUT: u64 = 50 * MS;

/// Failures that open the breaker, and the time until a call tests the server.
const BREAKER: (u32, u64) = (3, 500 * MS);

/// Decision while the server fails, as `fleeting::redis::OnError`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Admit every call.
    Allow,
    /// Deny every call.
    Deny,
    /// Check a limiter in the process.
    Local,
}

/// Load, limiter and failures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of processes.
    pub processes: usize,
    /// Checks per second of each process.
    pub checks: f64,
    /// Number of keys, equally frequent.
    pub keys: usize,
    /// Window of the limiter.
    pub window: Window,
    /// The limit.
    pub limit: Limit,
    /// True if processes cache denials.
    pub caches_denials: bool,
    /// Decision while the server fails.
    pub on_error: OnError,
    /// Time in which the server is down.
    pub down: Option<Span>,
    /// Lag of its replica in nanoseconds: charges of this last time are lost.
    pub lag: u64,
    /// Round trip of the network in nanoseconds.
    pub round_trip: u64,
    /// Period of the ticks at which processes make their checks; 0 to make them at any time.
    pub tick: u64,
    /// Time before the measurement of all but `over_quota`.
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
            checks: 100.0,
            keys: 10,
            window: Window::Log,
            limit: Limit { quota: 100, per: 1_000_000 },
            caches_denials: true,
            on_error: OnError::Local,
            down: None,
            lag: 0,
            round_trip: MS / 2,
            tick: 0,
            warm_up: 0,
            time: 10 * SECOND,
            seed: super::SEED,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Completed checks.
    pub checks: u64,
    /// Admitted calls.
    pub admitted: u64,
    /// Checks that were sent.
    pub sent: u64,
    /// Checks decided by a cached denial.
    pub denied_locally: u64,
    /// Checks decided by the error policy.
    pub by_policy: u64,
    /// Largest number of calls of one key admitted in any time as long as the window, relative to the quota.
    pub over_quota: f64,
    /// Counters of the server.
    pub load: Load,
}

struct Limits {
    settings: Settings,
    /// Costs of an admission and of a denial.
    costs: (Call, Call),
    random: Random,
    keys: Zipf,
    server: Vec<Charges>,
    replica: Vec<Charges>,
    /// Changes that the replica has not received: the time, the key, and its state.
    in_flight: VecDeque<(u64, usize, Charges)>,
    processes: Vec<Process>,
    /// Times of the admitted calls of each key.
    admitted: Vec<Vec<u64>>,
    outcome: Outcome,
}

#[derive(Default)]
struct Process {
    /// Cached denials: until when they hold.
    denials: HashMap<usize, u64>,
    /// Charges of the error policy.
    local: HashMap<usize, Charges>,
    failures: u32,
    retry_at: u64,
}

#[derive(Clone, Copy)]
struct Check {
    key: usize,
    began: u64,
    /// True if the process had a denial of the key.
    is_known: bool,
    /// Wait in microseconds, if the check is denied.
    wait: Option<u64>,
    /// Time of the decision, in whole microseconds like the clock of a server. The time of the reply varies by the
    /// load.
    decided: u64,
}

enum Timer {
    Next,
    Check(usize),
    TimedOut(usize, Check),
}

/// Runs the scenario.
pub fn run(settings: Settings, costs: &Costs) -> Outcome {
    let mut sim = Sim::new(settings.processes, 1, settings.round_trip, costs.turns);
    if let Some(span) = settings.down {
        sim.crash(0, span);
    }
    let name = match settings.window {
        Window::Log => "Log",
        Window::Buckets(_) => "Buckets(10)",
        Window::Gcra => "Gcra",
    };
    let costs = ["admitted", "denied"].map(|end| costs.call(&format!("check {name}, {end}")));
    let charges = vec![Charges::new(settings.window); settings.keys];
    let mut limits = Limits {
        costs: costs.into(),
        random: Random::new(settings.seed),
        keys: Zipf::new(settings.keys, 0.0),
        server: charges.clone(),
        replica: charges,
        in_flight: VecDeque::new(),
        processes: (0..settings.processes).map(|_| Process::default()).collect(),
        admitted: vec![Vec::new(); settings.keys],
        outcome: Outcome::default(),
        settings,
    };
    sim.after(0, Timer::Next);
    let Settings { warm_up, time, .. } = limits.settings;
    sim.run(&mut limits, warm_up);
    sim.reset_loads();
    limits.outcome = Outcome::default();
    sim.run(&mut limits, warm_up + time);
    let Limit { quota, per } = limits.settings.limit;
    let most = limits.admitted.iter_mut().map(|times| most_within(times, per * US));
    let over_quota = most.max().unwrap_or(0) as f64 / quota as f64;
    Outcome { load: sim.loads()[0], over_quota, ..limits.outcome }
}

/// Returns the largest number of times within any span of this length.
fn most_within(times: &mut [u64], length: u64) -> usize {
    times.sort_unstable();
    let mut first = 0;
    let within = times.iter().enumerate().map(|(at, time)| {
        while times[first] + length <= *time {
            first += 1;
        }
        at + 1 - first
    });
    within.max().unwrap_or(0)
}

impl Limits {
    fn check(&mut self, sim: &mut Sim<Self>, at: usize) {
        let key = self.keys.key(&mut self.random) as usize;
        let (now, process) = (sim.now, &mut self.processes[at]);
        let denial = process.denials.get(&key).copied();
        if denial.is_some_and(|until| now < until) {
            self.outcome.checks += 1;
            self.outcome.denied_locally += 1;
            return;
        }
        let check = Check { key, began: now, is_known: denial.is_some(), wait: None, decided: now };
        if process.failures >= BREAKER.0 {
            if now < process.retry_at {
                return self.decide(now, at, check);
            }
            process.retry_at = now + BREAKER.1;
        }
        self.outcome.sent += 1;
        sim.send(at, 0, check);
    }

    /// Decides by the error policy.
    fn decide(&mut self, now: u64, at: usize, check: Check) {
        self.outcome.by_policy += 1;
        let Settings { window, limit, on_error, .. } = self.settings;
        let local = self.processes[at].local.entry(check.key);
        let admits = match on_error {
            OnError::Allow => true,
            OnError::Deny => false,
            OnError::Local => {
                let charges = local.or_insert_with(|| Charges::new(window));
                charges.check(window, limit, now / US).is_ok()
            }
        };
        self.finish(now / US * US, check.key, admits);
    }

    fn finish(&mut self, decided: u64, key: usize, admits: bool) {
        self.outcome.checks += 1;
        if admits {
            self.outcome.admitted += 1;
            self.admitted[key].push(decided);
        }
    }

    /// Passes the changes to the replica that were made before `upto`.
    fn replicate(&mut self, upto: u64) {
        while self.in_flight.front().is_some_and(|(at, ..)| *at <= upto) {
            let (_, key, charges) = self.in_flight.pop_front().expect("it was found");
            self.replica[key] = charges;
        }
    }
}

impl Scenario for Limits {
    type Command = Check;
    type Timer = Timer;

    fn execute(&mut self, _: usize, check: &mut Check, now: u64) -> Execution {
        let Settings { window, limit, down, lag, .. } = self.settings;
        let charges = &mut self.server[check.key];
        check.decided = now / US * US;
        check.wait = charges.check(window, limit, now / US).err();
        let call = if check.wait.is_none() { self.costs.0 } else { self.costs.1 };
        if let Some((crash, _)) = down
            && now < crash
            && check.wait.is_none()
        {
            self.in_flight.push_back((now, check.key, charges.clone()));
            self.replicate(now.saturating_sub(lag));
        }
        Execution { call, changed: None }
    }

    fn reply(&mut self, _: &mut Sim<Self>, at: usize, check: Check) {
        let process = &mut self.processes[at];
        process.failures = 0;
        match check.wait {
            None if check.is_known => drop(process.denials.remove(&check.key)),
            Some(wait) if self.settings.caches_denials => {
                process.denials.insert(check.key, check.began + wait * US);
            }
            _ => {}
        }
        self.finish(check.decided, check.key, check.wait.is_none());
    }

    fn fail(&mut self, sim: &mut Sim<Self>, process: usize, check: Check) {
        // The client tries again until the timeout.
        let left = (check.began + TIMEOUT).saturating_sub(sim.now);
        sim.after(left, Timer::TimedOut(process, check));
    }

    fn timer(&mut self, sim: &mut Sim<Self>, timer: Timer) {
        match timer {
            Timer::Next => {
                let process = self.random.below(self.settings.processes);
                let tick = tick_of((process, self.settings.processes), sim.now, self.settings.tick);
                sim.after(tick - sim.now, Timer::Check(process));
                let rate = self.settings.checks * self.settings.processes as f64;
                sim.after(self.random.until_next(rate), Timer::Next);
            }
            Timer::Check(process) => self.check(sim, process),
            Timer::TimedOut(at, check) => {
                let process = &mut self.processes[at];
                process.failures += 1;
                process.retry_at = sim.now + BREAKER.1;
                self.decide(sim.now, at, check);
            }
        }
    }

    fn promote(&mut self, _: &mut Sim<Self>, _: usize) {
        let (crash, _) = self.settings.down.expect("a replica is promoted after a crash");
        self.replicate(crash.saturating_sub(self.settings.lag));
        self.server.clone_from(&self.replica);
    }
}
