//! The rate limiter on Redis compared with a naive model that stores every call.

use std::time::Duration;

use fleeting::{Limit, Window, redis::Permit};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::rate_limiter::{client, limited, server_time, strict};
use crate::{clock::in_time, servers::StoppedServer};

const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct LimitParams {
    quota: u64,
    per: u64,
}

/// Naive model, which stores every call and counts all of them each time.
struct Model {
    window: Window,
    /// For each limit: time at which units leave the window, their number, and the index of their call.
    charges: Vec<Vec<(u64, u64, usize)>>,
    /// For each limit of GCRA: time at which everything has leaked.
    leaked_at: Vec<u64>,
    /// For each limit of GCRA: sum of all charges, without the last one if it was refunded. It is the position of a
    /// charge.
    levels: Vec<u64>,
    /// Time of the last call.
    last: u64,
    /// For each call: its time, its cost minus refunds, and for each limit its position.
    calls: Vec<(u64, u64, Vec<u64>)>,
}

impl Model {
    fn new(window: Window, limits: usize) -> Self {
        let charges = vec![Vec::new(); limits];
        let none = vec![0; limits];
        Self { window, charges, leaked_at: none.clone(), levels: none, last: 0, calls: Vec::new() }
    }

    fn step(&self, limit: LimitParams) -> u64 {
        match self.window {
            Window::Gcra => limit.per.div_ceil(limit.quota),
            Window::Buckets(n) => limit.per.div_ceil(n as u64),
            _ => 0,
        }
    }

    fn used(&self, i: usize, limit: LimitParams, now: u64) -> u64 {
        match self.window {
            Window::Gcra => self.leaked_at[i].saturating_sub(now).div_ceil(self.step(limit)),
            _ => {
                let live = self.charges[i].iter().filter(|(leaves_at, ..)| *leaves_at > now);
                live.map(|(_, units, _)| units).sum()
            }
        }
    }

    /// Returns the first time from `now` on at which the cost fits.
    fn ready(&self, i: usize, limit: LimitParams, now: u64, cost: u64) -> u64 {
        let fits = |at| self.used(i, limit, at) + cost <= limit.quota;
        if fits(now) {
            return now;
        }
        if self.window == Window::Gcra {
            return self.leaked_at[i] - self.step(limit) * (limit.quota - cost);
        }
        let mut times: Vec<u64> =
            self.charges[i].iter().map(|(leaves_at, ..)| *leaves_at).collect();
        times.sort();
        times.into_iter().find(|at| *at > now && fits(*at)).expect("every charge leaves the window")
    }

    fn charge(&mut self, params: &[LimitParams], now: u64, cost: u64) -> usize {
        let call = self.calls.len();
        let mut positions = Vec::new();
        for charges in &mut self.charges {
            charges.retain(|(leaves_at, ..)| *leaves_at > now);
        }
        for (i, limit) in params.iter().enumerate() {
            let step = self.step(*limit);
            match self.window {
                Window::Log => self.charges[i].push((now + limit.per, cost, call)),
                Window::Gcra => {
                    self.leaked_at[i] = self.leaked_at[i].max(now) + step * cost;
                    self.levels[i] += step * cost;
                    positions.push(self.levels[i]);
                }
                Window::Buckets(n) => {
                    let per = n as u64 * step;
                    let live = self.charges[i]
                        .iter()
                        .filter(|(leaves_at, units, _)| *leaves_at > now && *units > 0);
                    let end = match live.map(|(leaves_at, ..)| leaves_at - per).max() {
                        None => now,
                        Some(end) if end >= now => end,
                        Some(end) => end + (now - end).div_ceil(step) * step,
                    };
                    self.charges[i].push((end + per, cost, call));
                }
                _ => unreachable!(),
            }
        }
        self.last = now;
        self.calls.push((now, cost, positions));
        call
    }

    /// Refunds units of a call, as far as they have not left the window.
    fn refund(&mut self, params: &[LimitParams], call: usize, units: u64, now: u64) {
        for (i, limit) in params.iter().enumerate() {
            if self.window == Window::Gcra {
                let (.., positions) = &self.calls[call];
                let (amount, leaked_at) = (self.step(*limit) * units, self.leaked_at[i]);
                if self.levels[i] <= positions[i] {
                    // It was the last call.
                    self.leaked_at[i] -= amount;
                    self.levels[i] -= amount;
                    continue;
                }
                // As if charges leaked in their order, or as if all later calls were made when the last one was.
                let since = self.levels[i] - positions[i];
                let in_order = leaked_at - amount.min(leaked_at.saturating_sub(now + since));
                let at_once = (leaked_at - amount).max(self.last + since);
                self.leaked_at[i] = leaked_at.min(in_order).min(at_once);
            }
            for (_, left, _) in self.charges[i].iter_mut().filter(|(.., of)| *of == call) {
                *left -= units;
            }
            self.charges[i].retain(|(_, left, _)| *left > 0);
        }
        self.calls[call].1 -= units;
    }

    /// Asserts that no window `(t - per, t]` has more than the quota.
    fn check_windows(&self, limit: LimitParams) {
        for (end, ..) in &self.calls {
            let within = self.calls.iter().filter(|(at, ..)| at <= end && at + limit.per > *end);
            assert!(within.map(|(_, cost, _)| cost).sum::<u64>() <= limit.quota);
        }
    }
}

/// Runs random operations against the server, whose clock is stopped, and the model.
async fn run(window: Window, params: &[(u32, u64)], costs: u32, gap: u64, seed: u64) {
    run_with(window, params, (costs, false), gap, seed).await;
}

/// Like [`run`]; if `settles`, calls are also settled with higher or lower costs.
async fn run_with(
    window: Window,
    params: &[(u32, u64)],
    (costs, settles): (u32, bool),
    gap: u64,
    seed: u64,
) {
    println!("{window:?} {params:?} seed {seed}");
    let Some(server) = StoppedServer::start() else { return };
    let mut plain = server.plain().await;
    let client = client(&server).await;
    let mut builder = strict(&client, "model").window(window).deny_cache(0);
    for (quota, seconds) in params {
        builder = builder.limit(Limit::new(*quota, Duration::from_secs(*seconds)));
    }
    let limiter = builder.build().unwrap();
    let limits = limiter.limits().to_vec();
    // Limits for single calls, with half of each quota.
    let half = |limit: &Limit| Limit::new(limit.quota().div_ceil(2), limit.per());
    let half_limits: Vec<Limit> = limits.iter().map(half).collect();
    let params_of = |limits: &[Limit]| -> Vec<LimitParams> {
        let per = |limit: &Limit| limit.per().as_secs() * SECOND;
        limits
            .iter()
            .map(|limit| LimitParams { quota: limit.quota().into(), per: per(limit) })
            .collect()
    };
    let least = |params: &[LimitParams]| params.iter().map(|limit| limit.quota).min().unwrap();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model = Model::new(window, limits.len());
    let mut permits = Vec::new();

    let mut now = server.now();
    let (mut admitted, mut denied) = (0, 0);
    for op in 0..1_500 {
        server.set_now(now);
        // Not with GCRA, whose units have another length under the half limits.
        let is_half = window != Window::Gcra && rng.random_ratio(1, 6);
        let own = if is_half { &half_limits } else { &limits };
        let params = params_of(own);
        match rng.random_range(0..12) {
            0 => {
                let state = limiter.peek_with("ada", own).await.unwrap();
                let clock = server_time(&mut plain).await;
                for (i, (standing, limit)) in state.standings().iter().zip(&params).enumerate() {
                    let used = model.used(i, *limit, now);
                    let left = limit.quota.saturating_sub(used);
                    assert_eq!(u64::from(standing.remaining()), left);
                    let more = standing.more_after().map(|wait| clock + wait.as_micros() as u64);
                    let expected = (used > 0).then(|| model.ready(i, *limit, now, left + 1));
                    assert_same(more, expected);
                }
            }
            1 if !permits.is_empty() => {
                let (permit, call): (Permit, usize) =
                    permits.swap_remove(rng.random_range(0..permits.len()));
                permit.refund().await.unwrap();
                let cost = model.calls[call].1;
                model.refund(&params, call, cost, now);
            }
            2 if settles && !permits.is_empty() => {
                let (permit, call): (Permit, usize) =
                    permits.swap_remove(rng.random_range(0..permits.len()));
                let (cost, actual) = (model.calls[call].1, rng.random_range(0..=3 * costs));
                permit.settle(actual).await.unwrap();
                match u64::from(actual).checked_sub(cost) {
                    None => model.refund(&params, call, cost - u64::from(actual), now),
                    Some(0) => {}
                    Some(more) => {
                        model.charge(&params, now, more);
                    }
                }
            }
            _ => {
                let cost = rng.random_range(1..=costs).min(least(&params) as u32);
                let checked = limiter.check_n_with("ada", cost, own).await;
                let clock = server_time(&mut plain).await;
                let each = params.iter().enumerate();
                let readys = each.map(|(i, limit)| model.ready(i, *limit, now, cost.into()));
                let ready = readys.max().unwrap();
                match checked {
                    Ok(permit) => {
                        assert_eq!(ready, now, "the call passed too early");
                        let call = model.charge(&params, now, cost.into());
                        let each = params.iter().enumerate();
                        let left = each.map(|(i, limit)| limit.quota - model.used(i, *limit, now));
                        assert_eq!(u64::from(permit.remaining()), left.min().unwrap());
                        if permits.len() < 20 {
                            permits.push((permit, call));
                        }
                        admitted += 1;
                    }
                    Err(error) => {
                        assert!(ready > now, "the call was denied although it fits");
                        let limited = limited(Err(error));
                        let wait = limited.retry_after().as_micros() as u64;
                        assert_same(Some(clock + wait), Some(ready));
                        denied += 1;
                    }
                }
            }
        }
        if window != Window::Gcra && !settles && op % 100 == 99 {
            params_of(&limits).iter().for_each(|limit| model.check_windows(*limit));
        }
        if rng.random_ratio(1, 2) {
            now += rng.random_range(0..=gap) * SECOND;
        }
    }
    assert!(admitted > 100 && denied > 100, "{admitted} passed, {denied} did not");
}

/// Asserts that two times are equal, up to the time that the call took.
fn assert_same(actual: Option<u64>, expected: Option<u64>) {
    match (actual, expected) {
        (Some(actual), Some(expected)) => {
            assert!(actual.abs_diff(expected) < SECOND / 2, "{actual} is not {expected}");
        }
        (actual, expected) => assert_eq!(actual, expected),
    }
}

#[tokio::test]
async fn log_matches_the_model() {
    in_time(async || {
        run(Window::Log, &[(5, 10)], 2, 4, 1).await;
        run(Window::Log, &[(3, 7), (10, 60)], 3, 5, 2).await;
        // More calls than one read returns, and than fit into a state that is rewritten as a whole.
        run(Window::Log, &[(90, 60), (300, 600)], 2, 2, 3).await;
    })
    .await;
}

#[tokio::test]
async fn buckets_match_the_model() {
    in_time(async || {
        run(Window::Buckets(4), &[(5, 12)], 2, 4, 4).await;
        run(Window::Buckets(5), &[(3, 10), (10, 60)], 3, 5, 5).await;
        run(Window::Buckets(30), &[(90, 60), (300, 600)], 4, 3, 6).await;
    })
    .await;
}

#[tokio::test]
async fn gcra_matches_the_model() {
    in_time(async || {
        run(Window::Gcra, &[(5, 10)], 2, 4, 7).await;
        run(Window::Gcra, &[(4, 8), (10, 60)], 3, 5, 8).await;
    })
    .await;
}

#[tokio::test]
async fn settle_matches_the_model() {
    in_time(async || {
        run_with(Window::Log, &[(5, 10)], (2, true), 4, 9).await;
        run_with(Window::Log, &[(90, 60), (300, 600)], (4, true), 2, 10).await;
        run_with(Window::Buckets(5), &[(6, 10), (20, 60)], (3, true), 5, 11).await;
        run_with(Window::Gcra, &[(5, 10), (20, 60)], (3, true), 4, 12).await;
    })
    .await;
}
