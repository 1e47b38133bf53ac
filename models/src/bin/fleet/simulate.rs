//! The simulated side of the calibration.

use fleeting_models::fleet::{
    SEED,
    costs::Costs,
    engine::{Load, SECOND},
    limits, loads, near, requests,
    windows::{Limit, Window},
};

use crate::calibrate::{LIMITS, LOADS, NEAR, Numbers, REQUESTS, TICK, WARM_UP, numbers};

/// Number of processes, seconds of a run, and round trip in nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) processes: usize,
    pub(crate) seconds: u64,
    pub(crate) round_trip: u64,
}

const TICK_NS: u64 = TICK.as_nanos() as u64;
const WARM_UP_NS: u64 = WARM_UP.as_nanos() as u64;

/// Returns the numbers of a scenario, as measured for real processes.
pub(crate) fn simulate(scenario: &str, setup: Setup, costs: &Costs) -> Numbers {
    let ([first, second], calls, load) = match scenario {
        "near" => setup.near(costs),
        "limits" => setup.limits(costs),
        "requests" => setup.requests(costs),
        _ => setup.loads(costs),
    };
    let seconds = setup.seconds as f64;
    let busy = 100.0 * load.busy as f64 / (seconds * 1e9);
    numbers(scenario, first, second, seconds, calls.map(|calls| calls as f64 / seconds), busy)
}

/// The two sums that processes print, the scripts and `GET`s that the server executes, and its load.
type Run = ([f64; 2], [u64; 2], Load);

impl Setup {
    fn near(self, costs: &Costs) -> Run {
        let settings = near::Settings {
            keys: NEAR.keys,
            exponent: NEAR.exponent,
            reads: NEAR.reads,
            changes: NEAR.changes,
            warm_up: WARM_UP_NS,
            time: self.seconds * SECOND,
            tick: TICK_NS,
            round_trip: self.round_trip,
            ..near::Settings::new(self.processes)
        };
        let run = near::run(settings, costs);
        ([run.reads as f64, run.hits as f64], [0, run.asked], run.load)
    }

    fn limits(self, costs: &Costs) -> Run {
        let settings = limits::Settings {
            keys: LIMITS.keys,
            checks: LIMITS.checks,
            window: Window::Log,
            limit: Limit { quota: LIMITS.quota.into(), per: 1_000_000 },
            warm_up: WARM_UP_NS,
            time: self.seconds * SECOND,
            tick: TICK_NS,
            round_trip: self.round_trip,
            ..limits::Settings::new(self.processes)
        };
        let run = limits::run(settings, costs);
        ([run.admitted as f64, 0.0], [run.sent, 0], run.load)
    }

    fn requests(self, costs: &Costs) -> Run {
        let settings = requests::Settings {
            processes: self.processes,
            rate: REQUESTS.rate * self.processes as f64,
            keys: REQUESTS.keys,
            exponent: 0.0,
            placement: vec![0],
            reserve: None,
            mix: vec![(0.8, "get"), (0.2, "set_ex")],
            down: None,
            tick: TICK_NS,
            round_trip: self.round_trip,
            time: self.seconds * SECOND,
            seed: SEED,
        };
        let run = requests::run(settings, costs);
        ([0.0, 0.0], [0, run.made * 4 / 5], run.loads[0])
    }

    fn loads(self, costs: &Costs) -> Run {
        let settings = loads::Settings {
            keys: LOADS.keys,
            exponent: LOADS.exponent,
            calls: LOADS.calls,
            ttl: LOADS.ttl.as_nanos() as u64,
            load_time: LOADS.load_time.as_nanos() as u64,
            warm_up: WARM_UP_NS,
            time: self.seconds * SECOND,
            tick: TICK_NS,
            round_trip: self.round_trip,
            ..loads::Settings::new(self.processes)
        };
        let run = loads::run(settings, costs);
        ([run.calls as f64, run.loads as f64], [run.lookups + run.publishes, 0], run.load)
    }
}
