//! The counts of the rate limiter on Redis, against naive ones that remember all.

use std::time::Duration;

use fleeting::{Limit, Window, redis::Permit};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::rate_limiter::{client, limited, server_time, strict};
use crate::{
    clock::in_time,
    servers::{Server, program},
};

const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct Rule {
    quota: u64,
    per: u64,
}

/// What remembers everything, and counts it anew each time.
struct Naive {
    window: Window,
    /// For each limit: when units leave, how many, and of which call.
    parts: Vec<Vec<(u64, u64, usize)>>,
    arrivals: Vec<u64>,
    /// How much was taken back: marks are of the sum of both.
    refunded: Vec<u64>,
    /// Of each call: when, and what is left of its cost, of each limit the mark.
    calls: Vec<(u64, u64, Vec<u64>)>,
}

impl Naive {
    fn new(window: Window, limits: usize) -> Self {
        let parts = vec![Vec::new(); limits];
        let none = vec![0; limits];
        Self { window, parts, arrivals: none.clone(), refunded: none, calls: Vec::new() }
    }

    fn step(&self, rule: Rule) -> u64 {
        match self.window {
            Window::Gcra => rule.per.div_ceil(rule.quota),
            Window::Buckets(n) => rule.per.div_ceil(n as u64),
            _ => 0,
        }
    }

    fn used(&self, i: usize, rule: Rule, now: u64) -> u64 {
        match self.window {
            Window::Gcra => self.arrivals[i].saturating_sub(now).div_ceil(self.step(rule)),
            _ => {
                let live = self.parts[i].iter().filter(|(leaves, ..)| *leaves > now);
                live.map(|(_, units, _)| units).sum()
            }
        }
    }

    /// The first time at which there is room, from `now` on.
    fn ready(&self, i: usize, rule: Rule, now: u64, cost: u64) -> u64 {
        let fits = |at| self.used(i, rule, at) + cost <= rule.quota;
        if fits(now) {
            return now;
        }
        if self.window == Window::Gcra {
            return self.arrivals[i] - self.step(rule) * (rule.quota - cost);
        }
        let mut times: Vec<u64> = self.parts[i].iter().map(|(leaves, ..)| *leaves).collect();
        times.sort();
        times.into_iter().find(|at| *at > now && fits(*at)).expect("all leaves some time")
    }

    fn charge(&mut self, rules: &[Rule], now: u64, cost: u64) -> usize {
        let call = self.calls.len();
        let mut marks = Vec::new();
        for parts in &mut self.parts {
            parts.retain(|(leaves, ..)| *leaves > now);
        }
        for (i, rule) in rules.iter().enumerate() {
            let step = self.step(*rule);
            match self.window {
                Window::Log => self.parts[i].push((now + rule.per, cost, call)),
                Window::Gcra => {
                    self.arrivals[i] = self.arrivals[i].max(now) + step * cost;
                    marks.push(self.arrivals[i] + self.refunded[i]);
                }
                Window::Buckets(n) => {
                    let per = n as u64 * step;
                    let live = self.parts[i]
                        .iter()
                        .filter(|(leaves, units, _)| *leaves > now && *units > 0);
                    let end = match live.map(|(leaves, ..)| leaves - per).max() {
                        None => now,
                        Some(end) if end >= now => end,
                        Some(end) => end + (now - end).div_ceil(step) * step,
                    };
                    self.parts[i].push((end + per, cost, call));
                }
                _ => unreachable!(),
            }
        }
        self.calls.push((now, cost, marks));
        call
    }

    /// Gives back so many of the units of a call, as far as they have not left.
    fn give_back(&mut self, rules: &[Rule], call: usize, units: u64, now: u64) {
        for (i, rule) in rules.iter().enumerate() {
            if self.window == Window::Gcra {
                let (.., marks) = &self.calls[call];
                let amount = self.step(*rule) * units;
                let left = marks[i].saturating_sub(self.refunded[i] + now).min(amount);
                self.arrivals[i] -= left;
                self.refunded[i] += left;
            }
            for (_, left, _) in self.parts[i].iter_mut().filter(|(.., of)| *of == call) {
                *left -= units;
            }
            self.parts[i].retain(|(_, left, _)| *left > 0);
        }
        self.calls[call].1 -= units;
    }

    /// Whether any `(t - per, t]` has more than the quota.
    fn check_windows(&self, rule: Rule) {
        for (end, ..) in &self.calls {
            let within = self.calls.iter().filter(|(at, ..)| at <= end && at + rule.per > *end);
            assert!(within.map(|(_, cost, _)| cost).sum::<u64>() <= rule.quota);
        }
    }
}

/// The server's clock stands where the test puts it.
async fn run(window: Window, rules: &[(u32, u64)], costs: u32, gap: u64, seed: u64) {
    run_with(window, rules, (costs, false), gap, seed).await;
}

/// Where it `settles`, calls turn out to have cost more or less.
async fn run_with(
    window: Window,
    rules: &[(u32, u64)],
    (costs, settles): (u32, bool),
    gap: u64,
    seed: u64,
) {
    // Valkey's clock goes on by a counter of the processor, and can't be stopped. The scripts are the same.
    if program().contains("valkey") {
        return;
    }
    println!("{window:?} {rules:?} seed {seed}");
    let server = Server::start_with_clock();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    let mut builder = strict(&client, "model").window(window).deny_cache(0);
    for (quota, seconds) in rules {
        builder = builder.limit(Limit::new(*quota, Duration::from_secs(*seconds)));
    }
    let limiter = builder.build().unwrap();
    let limits = limiter.limits().to_vec();
    // A plan of half of each quota.
    let half = |limit: &Limit| Limit::new(limit.quota().div_ceil(2), limit.per());
    let plan: Vec<Limit> = limits.iter().map(half).collect();
    let rules_of = |limits: &[Limit]| -> Vec<Rule> {
        let per = |limit: &Limit| limit.per().as_secs() * SECOND;
        limits.iter().map(|limit| Rule { quota: limit.quota().into(), per: per(limit) }).collect()
    };
    let least = |rules: &[Rule]| rules.iter().map(|rule| rule.quota).min().unwrap();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut naive = Naive::new(window, limits.len());
    let mut permits = Vec::new();

    let mut now = server_time(&mut plain).await + 1_000_000 * SECOND;
    let (mut admitted, mut denied) = (0, 0);
    for op in 0..1_500 {
        server.stop_clock(now);
        // By half a plan, GCRA counts in other units.
        let by_plan = window != Window::Gcra && random.random_ratio(1, 6);
        let own = if by_plan { &plan } else { &limits };
        let rules = rules_of(own);
        match random.random_range(0..12) {
            0 => {
                let state = limiter.peek_with("ada", own).await.unwrap();
                let clock = server_time(&mut plain).await;
                for (i, (standing, rule)) in state.standings().iter().zip(&rules).enumerate() {
                    let used = naive.used(i, *rule, now);
                    let left = rule.quota.saturating_sub(used);
                    assert_eq!(u64::from(standing.remaining()), left);
                    let more = standing.more_after().map(|wait| clock + wait.as_micros() as u64);
                    let expected = (used > 0).then(|| naive.ready(i, *rule, now, left + 1));
                    same(more, expected);
                }
            }
            1 if !permits.is_empty() => {
                let (permit, call): (Permit, usize) =
                    permits.swap_remove(random.random_range(0..permits.len()));
                permit.refund().await.unwrap();
                let cost = naive.calls[call].1;
                naive.give_back(&rules, call, cost, now);
            }
            2 if settles && !permits.is_empty() => {
                let (permit, call): (Permit, usize) =
                    permits.swap_remove(random.random_range(0..permits.len()));
                let (cost, actual) = (naive.calls[call].1, random.random_range(0..=3 * costs));
                permit.settle(actual).await.unwrap();
                match u64::from(actual).checked_sub(cost) {
                    None => naive.give_back(&rules, call, cost - u64::from(actual), now),
                    Some(0) => {}
                    Some(more) => {
                        naive.charge(&rules, now, more);
                    }
                }
            }
            _ => {
                let cost = random.random_range(1..=costs).min(least(&rules) as u32);
                let checked = limiter.check_n_with("ada", cost, own).await;
                let clock = server_time(&mut plain).await;
                let each = rules.iter().enumerate();
                let readys = each.map(|(i, rule)| naive.ready(i, *rule, now, cost.into()));
                let ready = readys.max().unwrap();
                match checked {
                    Ok(permit) => {
                        assert_eq!(ready, now, "it passes too early");
                        let call = naive.charge(&rules, now, cost.into());
                        let each = rules.iter().enumerate();
                        let left = each.map(|(i, rule)| rule.quota - naive.used(i, *rule, now));
                        assert_eq!(u64::from(permit.remaining()), left.min().unwrap());
                        if permits.len() < 20 {
                            permits.push((permit, call));
                        }
                        admitted += 1;
                    }
                    Err(error) => {
                        assert!(ready > now, "it is denied, and there is room");
                        let limited = limited(Err(error));
                        let wait = limited.retry_after().as_micros() as u64;
                        same(Some(clock + wait), Some(ready));
                        denied += 1;
                    }
                }
            }
        }
        if window != Window::Gcra && !settles && op % 100 == 99 {
            rules_of(&limits).iter().for_each(|rule| naive.check_windows(*rule));
        }
        if random.random_ratio(1, 2) {
            now += random.random_range(0..=gap) * SECOND;
        }
    }
    assert!(admitted > 100 && denied > 100, "{admitted} passed, {denied} did not");
}

/// The clock goes on between its reading and the answer.
fn same(told: Option<u64>, expected: Option<u64>) {
    match (told, expected) {
        (Some(told), Some(expected)) => {
            assert!(told.abs_diff(expected) < SECOND / 2, "{told} is not {expected}");
        }
        (told, expected) => assert_eq!(told, expected),
    }
}

#[tokio::test]
async fn the_log_counts_as_one_that_remembers_all() {
    in_time(async || {
        run(Window::Log, &[(5, 10)], 2, 4, 1).await;
        run(Window::Log, &[(3, 7), (10, 60)], 3, 5, 2).await;
        // More than are read at a time, and than fit into a small state.
        run(Window::Log, &[(90, 60), (300, 600)], 2, 2, 3).await;
    })
    .await;
}

#[tokio::test]
async fn buckets_count_as_ones_that_remember_all() {
    in_time(async || {
        run(Window::Buckets(4), &[(5, 12)], 2, 4, 4).await;
        run(Window::Buckets(5), &[(3, 10), (10, 60)], 3, 5, 5).await;
        run(Window::Buckets(30), &[(90, 60), (300, 600)], 4, 3, 6).await;
    })
    .await;
}

#[tokio::test]
async fn gcra_counts_as_one_that_remembers_all() {
    in_time(async || {
        run(Window::Gcra, &[(5, 10)], 2, 4, 7).await;
        run(Window::Gcra, &[(4, 8), (10, 60)], 3, 5, 8).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_settled_counts_as_in_ones_that_remember_all() {
    in_time(async || {
        run_with(Window::Log, &[(5, 10)], (2, true), 4, 9).await;
        run_with(Window::Log, &[(90, 60), (300, 600)], (4, true), 2, 10).await;
        run_with(Window::Buckets(5), &[(6, 10), (20, 60)], (3, true), 5, 11).await;
        run_with(Window::Gcra, &[(5, 10), (20, 60)], (3, true), 4, 12).await;
    })
    .await;
}
