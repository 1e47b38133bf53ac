//! Random sequences: the limits, and calls that use them.

use std::{fmt, time::Duration};

use fleeting::{Limit, Window};
use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};

use super::micros;

/// Calls that a limiter has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    pub(crate) max_keys: bool,
    /// Largest number of calls of a sequence.
    pub(crate) calls: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) window: Window,
    /// Limits of each plan. The first one has those of the builder.
    pub(crate) plans: Vec<Vec<Limit>>,
    pub(crate) max_keys: Option<usize>,
    /// With the task that removes idle keys.
    pub(crate) sweeps: bool,
}

/// Plan of a call; `None`: the current limits of the limiter.
pub(crate) type Plan = Option<usize>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Check {
        key: u8,
        plan: Plan,
        cost: u32,
    },
    /// A caller without competitors that comes again at `retry_after`.
    Insist {
        key: u8,
        plan: Plan,
        cost: u32,
    },
    Peek {
        key: u8,
        plan: usize,
    },
    /// Peeks, takes one unit more than remains, takes what remains, and refunds it.
    Take {
        key: u8,
        plan: Plan,
    },
    CheckAndRefund {
        key: u8,
        plan: Plan,
        cost: u32,
    },
    CheckAndSettle {
        key: u8,
        plan: Plan,
        cost: u32,
        actual: u32,
    },
    /// Checks, and refunds of all of them, which begin some time later.
    ChecksAndRefunds {
        key: u8,
        plan: Plan,
        checks: usize,
        later: u64,
        is_reverse: bool,
    },
    /// Corrects one of the last calls.
    Refund {
        call: usize,
    },
    Settle {
        call: usize,
        actual: u32,
    },
    SetLimits {
        plan: usize,
    },
    ClearLimits,
    Reset {
        key: u8,
    },
    Wait {
        key: u8,
        most: u64,
    },
    /// Several waiters at once, some of which give up.
    Crowd {
        key: u8,
        most: [u64; 3],
    },
    GiveUp {
        key: u8,
        polls: u32,
    },
    Pass {
        time: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) setup: Setup,
    pub(crate) ops: Vec<Op>,
}

const SECOND: u64 = 1_000_000;

impl Sequence {
    pub(crate) fn random(rng: &mut SmallRng, features: Features) -> Self {
        let buckets = [Window::Buckets(1), Window::Buckets(3), Window::Buckets(10)];
        let window = match rng.random_range(0..5) {
            0 | 1 => *buckets.choose(rng).expect("there are windows"),
            2 | 3 => Window::Gcra,
            _ => Window::Log,
        };
        // Small quotas, quotas around the largest that a small counter holds, and millions per second.
        let scale = *[1, 1, 1, 20_000, 3_000_000].choose(rng).expect("there are scales");
        let pers: &[u64] = match scale {
            3_000_000 => &[1, 1, 3, 10],
            _ => &[1, 3, 7, 60, 3_600, 86_400],
        };
        // Sometimes all plans have several limits of two lengths: the same length then is at several positions.
        let are_alike = rng.random_ratio(1, 6);
        let pers = if are_alike { &pers[pers.len() / 2 - 1..][..2] } else { pers };
        let limit = |rng: &mut SmallRng| {
            let quota = rng.random_range(1..=6) * scale;
            Limit::new(quota, Duration::from_secs(*pers.choose(rng).expect("there are lengths")))
        };
        let plan = |rng: &mut SmallRng| {
            let limits = if are_alike || rng.random_ratio(1, 5) { 2 } else { 1 };
            (0..limits).map(|_| limit(rng)).collect::<Vec<Limit>>()
        };
        let plans: Vec<Vec<Limit>> = (0..rng.random_range(2..=4)).map(|_| plan(rng)).collect();
        // Sometimes only one plan, or plans that differ in their quotas: the limiter must then be exact.
        let (is_single, is_same) = (rng.random_ratio(1, 10), rng.random_ratio(1, 10));
        let plans = match plans.as_slice() {
            [first, ..] if is_single => vec![first.clone(); 2],
            [first, ..] if is_same => {
                let per = first[0].per();
                plans.iter().map(|plan| vec![Limit::new(plan[0].quota(), per)]).collect()
            }
            _ => plans,
        };
        let max_keys =
            (features.max_keys && rng.random_ratio(1, 5)).then(|| rng.random_range(1..=2));
        let setup = Setup { window, plans, max_keys, sweeps: rng.random_ratio(1, 2) };
        let mut generator = Generator {
            keys: if max_keys.is_some() { 5 } else { rng.random_range(1..=2) },
            scale,
            // Calls of some kinds only, so that each kind also meets few others.
            kinds: (0..13).filter(|_| rng.random_ratio(1, 2)).collect(),
            is_busy: rng.random_ratio(1, 2),
            setup: &setup,
            rng,
        };
        let calls = generator.rng.random_range(4..=features.calls);
        let mut ops: Vec<Op> = (0..calls).map(|_| generator.op()).collect();
        if generator.rng.random_ratio(1, 3) {
            ops.extend(generator.in_turn());
        }
        Self { setup, ops }
    }
}

struct Generator<'a> {
    setup: &'a Setup,
    keys: u8,
    scale: u32,
    kinds: Vec<u8>,
    /// True if time mostly passes in small steps.
    is_busy: bool,
    rng: &'a mut SmallRng,
}

impl Generator<'_> {
    fn op(&mut self) -> Op {
        if self.rng.random_ratio(1, 3) {
            return Op::Pass { time: self.time() };
        }
        let key = self.key();
        let plan = self.plan();
        let kind = self.kinds.choose(self.rng).copied().unwrap_or(0);
        let call = self.rng.random_range(0..6);
        match kind {
            _ if self.rng.random_ratio(1, 2) => Op::Check { key, plan, cost: self.cost() },
            0 => Op::Peek { key, plan: self.rng.random_range(0..self.setup.plans.len()) },
            1 => Op::Take { key, plan },
            2 => Op::CheckAndRefund { key, plan, cost: self.cost() },
            3 => Op::CheckAndSettle { key, plan, cost: self.cost(), actual: self.actual() },
            4 => Op::ChecksAndRefunds {
                key,
                plan,
                checks: self.rng.random_range(1..=4),
                later: *[0, 1_000, SECOND].choose(self.rng).expect("there are times"),
                is_reverse: self.rng.random_ratio(1, 2),
            },
            5 => Op::Refund { call },
            6 => Op::Settle { call, actual: self.actual() },
            7 if self.rng.random_ratio(1, 3) => Op::ClearLimits,
            7 => Op::SetLimits { plan: self.rng.random_range(0..self.setup.plans.len()) },
            8 if self.rng.random_ratio(1, 2) => Op::Reset { key },
            9 => Op::Wait { key, most: self.time() },
            10 => Op::Crowd { key, most: [self.time(), self.time(), self.time()] },
            11 => Op::GiveUp { key, polls: self.rng.random_range(0..3) },
            _ => Op::Insist { key, plan, cost: self.cost() },
        }
    }

    /// Calls by two plans in turn, at regular times.
    fn in_turn(&mut self) -> Vec<Op> {
        let key = self.key();
        let plan = self.rng.random_range(0..self.setup.plans.len());
        let plans = [Some(plan), Some((plan + 1) % self.setup.plans.len())];
        let costs = [self.cost().max(1), self.scale];
        let pause = self.time() / *[1, 2, 8].choose(self.rng).expect("there are pauses");
        let pass = Op::Pass { time: pause };
        let turn =
            (0..2).flat_map(|turn| [Op::Check { key, plan: plans[turn], cost: costs[turn] }, pass]);
        turn.collect::<Vec<Op>>().repeat(self.rng.random_range(2..=14))
    }

    fn key(&mut self) -> u8 {
        if self.rng.random_ratio(1, 2) { 0 } else { self.rng.random_range(0..self.keys) }
    }

    fn plan(&mut self) -> Plan {
        let plan = self.rng.random_range(0..=self.setup.plans.len());
        plan.checked_sub(1)
    }

    fn cost(&mut self) -> u32 {
        let units = match self.rng.random_range(0..10) {
            0..6 => 1,
            6..8 => 2,
            _ => self.rng.random_range(0..=6),
        };
        units * self.scale
    }

    fn actual(&mut self) -> u32 {
        self.rng.random_range(0..=9) * self.scale
    }

    /// A length of time, mostly a number of eighths of the length of a limit.
    fn time(&mut self) -> u64 {
        let limits: Vec<&Limit> = self.setup.plans.iter().flatten().collect();
        let limit = *limits.choose(self.rng).expect("there are limits");
        let shortest = limits.iter().map(|limit| limit.per()).min().expect("there are limits");
        let eighth = micros(limit.per()) / 8;
        let small = if self.is_busy { 6 } else { 2 };
        match self.rng.random_range(0..10) {
            at if at < small => micros(shortest) / 8 * self.rng.random_range(0..=12),
            6 | 7 => (eighth * self.rng.random_range(0..=20)).saturating_sub(1),
            8 => eighth * self.rng.random_range(0..=20) + 1,
            _ => eighth * self.rng.random_range(0..=20),
        }
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { window, plans, max_keys, sweeps } = &self.setup;
        writeln!(f, "{window:?}, max_keys {max_keys:?}, sweeps {sweeps}")?;
        for (number, plan) in plans.iter().enumerate() {
            let limits: Vec<String> = plan
                .iter()
                .map(|limit| format!("{} per {:?}", limit.quota(), limit.per()))
                .collect();
            writeln!(f, "plan {number}: {}", limits.join(", "))?;
        }
        for op in &self.ops {
            match op {
                Op::Pass { time } => writeln!(f, "    {:?} pass", Duration::from_micros(*time))?,
                op => writeln!(f, "    {op:?}")?,
            }
        }
        Ok(())
    }
}
