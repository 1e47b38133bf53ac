//! Oracle of reservations: random calls by several limiters, as by several processes. All admitted calls are recorded
//! with their times, and every trailing window of every limit is checked afterwards. Some calls are checked by other
//! limits; each denial must be explained by calls that its limits may count.
//!
//! `FLEETING_SEED` determines the calls.

use std::{collections::BTreeMap, env, time::Duration};

use fleeting::{
    Limit, Window,
    redis::{Error, Permit, RateLimiter},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use super::{LEAD, MINUTE, World};

/// An admitted call.
struct Call {
    at: u64,
    units: u64,
    /// The limits by which it was checked.
    plan: usize,
}

/// Units that the server charged in one call.
struct Charge {
    at: u64,
    units: u64,
    /// Time of the reservation; zero of an ordinary check.
    lead: u64,
    limits: usize,
}

/// Last check by a limit at a position, and the time since which its state has existed.
#[derive(Clone, Copy)]
struct Known {
    checked_at: u64,
    since: u64,
}

/// All that the limiters did. Times are microseconds.
struct History {
    window: Window,
    plans: Vec<Vec<Limit>>,
    calls: Vec<Call>,
    charges: Vec<Charge>,
    /// By position and length.
    known: BTreeMap<(usize, u64), Known>,
}

impl History {
    fn quota_and_per(limit: &Limit) -> (u64, u64) {
        (limit.quota().into(), limit.per().as_micros() as u64)
    }

    /// Asserts that no limit was exceeded by its own calls.
    fn assert_within(&self, context: &str) {
        for (position, limit) in self.plans.iter().flat_map(|plan| plan.iter().enumerate()) {
            let (quota, per) = Self::quota_and_per(limit);
            let is_own = |call: &&Call| self.plans[call.plan].get(position) == Some(limit);
            let calls: Vec<_> = self.calls.iter().filter(is_own).collect();
            for first in 0..calls.len() {
                let mut units = 0;
                for call in &calls[first..] {
                    let time = call.at - calls[first].at;
                    let most = match self.window {
                        // A full bucket, and the units that leak evenly.
                        Window::Gcra => quota + time / per.div_ceil(quota),
                        _ if time < per => quota,
                        _ => break,
                    };
                    units += call.units;
                    assert!(units <= most, "{context}: {units} units within {time} µs of {limit}");
                }
            }
        }
    }

    /// Returns the longest time for which a limit counts a call of this time, if its state exists since the other one.
    fn longest(&self, per: u64, at: u64, since: u64) -> u64 {
        let Window::Buckets(n) = self.window else { return per + per.div_ceil(10) };
        // The calls before that are those of the buckets of another limit.
        let all = self.plans.iter().flatten().map(|limit| Self::quota_and_per(limit).1);
        let of_others = if at < since { all.max().unwrap_or(0) } else { 0 };
        per + per.div_ceil(10) + (per + of_others).div_ceil(n as u64)
    }

    /// Notes a check that the server decided.
    fn checked(&mut self, plan: usize, now: u64) {
        for (position, limit) in self.plans[plan].iter().enumerate() {
            let per = Self::quota_and_per(limit).1;
            let known =
                self.known.entry((position, per)).or_insert(Known { checked_at: now, since: now });
            if known.checked_at + per <= now {
                // It may have been forgotten in the meantime.
                known.since = now;
            }
            known.checked_at = now;
        }
    }

    /// Asserts that enough units that a limit may still count explain a denial.
    fn assert_denied(&self, plan: usize, cost: u64, now: u64, context: &str) {
        if self.window == Window::Gcra {
            return;
        }
        let explains = |(position, limit): (usize, &Limit)| {
            let (quota, per) = Self::quota_and_per(limit);
            let since = self.known[&(position, per)].since;
            let counts = |charge: &&Charge| {
                // Units that are reserved when buckets are made count as made at that time.
                let is_reserved = charge.at + charge.lead > since && self.window != Window::Log;
                let at = if is_reserved { charge.at.max(since) } else { charge.at };
                charge.limits > position && at + self.longest(per, charge.at, since) > now
            };
            let units: u64 = self.charges.iter().filter(counts).map(|charge| charge.units).sum();
            units + cost > quota
        };
        let is_explained = self.plans[plan].iter().enumerate().any(explains);
        assert!(
            is_explained,
            "{context}: a call by {:?} is denied without a reason",
            self.plans[plan]
        );
    }
}

/// Limiters of one key, each of which has a plan, as in several processes.
struct Play<'a> {
    world: &'a World,
    limiters: Vec<(RateLimiter<String>, usize)>,
    history: History,
    context: String,
}

impl Play<'_> {
    /// Checks by the limits of the limiter, or by those of another plan. Returns the number of the call.
    async fn check(
        &mut self,
        which: usize,
        plan: Option<usize>,
        cost: u32,
    ) -> Result<(usize, Permit), Duration> {
        let (limiter, own) = &self.limiters[which];
        let (scripts, reserved, now) =
            (self.world.scripts(), limiter.stats().reserved, self.world.server.now());
        let checked = match plan {
            None => limiter.check_n("ada", cost).await,
            Some(plan) => limiter.check_n_with("ada", cost, &self.history.plans[plan]).await,
        };
        let plan = plan.unwrap_or(*own);
        let ahead = limiter.stats().reserved - reserved;
        let asked = self.world.scripts() > scripts;
        if asked {
            self.history.checked(plan, now);
        }
        match checked {
            Ok(permit) => {
                self.history.calls.push(Call { at: now, units: cost.into(), plan });
                if asked {
                    let lead = if ahead > 0 { LEAD.as_micros() as u64 } else { 0 };
                    let (units, limits) = (ahead + u64::from(cost), self.history.plans[plan].len());
                    self.history.charges.push(Charge { at: now, units, lead, limits });
                }
                Ok((self.history.calls.len() - 1, permit))
            }
            Err(Error::Limited(limited)) => {
                self.history.assert_denied(plan, cost.into(), now, &self.context);
                Err(limited.retry_after())
            }
            Err(error) => panic!("{}: {error:?}", self.context),
        }
    }

    /// Makes up to `most` calls, until one is denied.
    async fn exhaust(&mut self, which: usize, most: u32) {
        for _ in 0..most {
            if self.check(which, None, 1).await.is_err() {
                return;
            }
        }
    }
}

/// Makes random calls. Returns the units admitted, and those reserved.
async fn play(world: &World, window: Window, seed: u64, calls: usize) -> (u64, u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut limits = vec![Limit::new(rng.random_range(20..200), MINUTE)];
    if rng.random_bool(0.3) {
        limits.push(Limit::new(rng.random_range(20..400), 2 * MINUTE));
    }
    let mut plans = vec![limits];
    // Other limits of the same key, most of them shorter than a reservation.
    for _ in 0..if rng.random_bool(0.8) { 2 } else { 0 } {
        let per = LEAD.mul_f64(*[0.1, 0.5, 2.0, 8.0, 30.0].choose(&mut rng).expect("not empty"));
        let mut plan = vec![Limit::new(rng.random_range(6..80), per)];
        if rng.random_bool(0.3) {
            plan.push(Limit::new(rng.random_range(20..400), 2 * per));
        }
        plans.push(plan);
    }
    let new = |plans: &[Vec<Limit>], reserve: u32, plan: usize| {
        let builder = world.builder(&format!("oracle {seed}"), window).deny_cache(0);
        let limits = plans[plan].iter().cloned();
        let builder = limits.fold(builder, |builder, limit| builder.limit(limit));
        (builder.reserve(reserve).build().unwrap(), plan)
    };
    // The last ones are of a release or a configuration without reservations.
    let settings = [(40, 0), (8, 0), (1, 0), (0, 0), (0, 1), (0, 2)];
    let settings = &settings[..3 + plans.len()];
    let limiters = settings.iter().map(|&(reserve, plan)| new(&plans, reserve, plan)).collect();
    let history =
        History { window, plans, calls: Vec::new(), charges: Vec::new(), known: BTreeMap::new() };
    let context = format!("{window:?}, seed {seed}");
    let mut play = Play { world, limiters, history, context };
    let mut permits: Vec<(usize, Permit)> = Vec::new();
    let mut reserved = 0;
    for _ in 0..calls {
        let which = rng.random_range(0..settings.len());
        match rng.random_range(0..20) {
            0..10 => {
                let plans = play.history.plans.len();
                let plan = (plans > 1 && rng.random_bool(0.2)).then(|| rng.random_range(0..plans));
                for _ in 0..rng.random_range(1..12) {
                    let cost = if rng.random_bool(0.2) { rng.random_range(1..6) } else { 1 };
                    match play.check(which, plan, cost).await {
                        Ok(permit) => permits.push(permit),
                        Err(wait) if rng.random_bool(0.2) => {
                            // No other call is made in the meantime.
                            world.pass(wait + Duration::from_micros(1)).await;
                            let again = play.check(which, plan, cost).await;
                            permits
                                .push(again.expect("the call passes after the time of its denial"));
                        }
                        Err(_) => {}
                    }
                }
            }
            10..15 => world.pass(LEAD.mul_f64(rng.random_range(0.0..0.6))).await,
            15 => world.pass(MINUTE.mul_f64(rng.random_range(0.5..1.0))).await,
            // A few calls of a key that is idle, and as many as possible just before the units that they have drawn
            // lapse.
            16 => {
                world.pass(MINUTE).await;
                play.exhaust(0, 4).await;
                world.pass(LEAD - LEAD / 500 - Duration::from_millis(1)).await;
                for which in 0..settings.len() {
                    play.exhaust(which, 1_000).await;
                }
            }
            17 if !permits.is_empty() => {
                let (index, permit) = permits.swap_remove(rng.random_range(0..permits.len()));
                permit.refund().await.unwrap();
                play.history.calls[index].units = 0;
            }
            18 if !permits.is_empty() => {
                let (index, permit) = permits.swap_remove(rng.random_range(0..permits.len()));
                let actual = rng.random_range(0..=play.history.calls[index].units);
                permit.settle(actual as u32).await.unwrap();
                play.history.calls[index].units = actual;
            }
            19 => {
                reserved += play.limiters[which].0.stats().reserved;
                let (reserve, plan) = settings[which];
                play.limiters[which] = new(&play.history.plans, reserve, plan);
            }
            _ => {}
        }
    }
    play.history.assert_within(&play.context);
    reserved += play.limiters.iter().map(|(limiter, _)| limiter.stats().reserved).sum::<u64>();
    (play.history.calls.iter().map(|call| call.units).sum(), reserved)
}

/// Plays random sequences, each of them by several limiters.
async fn play_all(window: Window) {
    let Some(world) = World::new().await else { return };
    let seed = env::var("FLEETING_SEED").ok();
    let seed = seed.map_or(2, |seed| seed.parse::<u64>().expect("FLEETING_SEED is a number"));
    println!("FLEETING_SEED={seed}");
    let (mut admitted, mut reserved) = (0, 0);
    for number in 0..4 {
        let (units, ahead) = play(&world, window, (seed << 16) + number, 120).await;
        (admitted, reserved) = (admitted + units, reserved + ahead);
    }
    println!("{window:?}: {admitted} units admitted, {reserved} reserved");
    assert!(reserved > 100, "{window:?}: only {reserved} units were reserved");
}

#[tokio::test(start_paused = true)]
async fn no_window_of_several_processes_has_more_than_the_quota_of_a_log() {
    play_all(Window::Log).await;
}

#[tokio::test(start_paused = true)]
async fn no_window_of_several_processes_has_more_than_the_quota_of_buckets() {
    play_all(Window::Buckets(10)).await;
}

#[tokio::test(start_paused = true)]
async fn no_window_of_several_processes_has_more_than_a_bucket_of_gcra_admits() {
    play_all(Window::Gcra).await;
}
