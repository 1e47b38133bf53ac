//! Oracle of reservations: random calls by several limiters, as by several processes. All admitted calls are recorded
//! with their times, and every trailing window of every limit is checked afterwards.
//!
//! `FLEETING_SEED` determines the calls.

use std::{env, time::Duration};

use fleeting::{
    Limit, Window,
    redis::{Permit, RateLimiter},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::{LEAD, MINUTE, World};

/// Admitted units, by their times in microseconds.
#[derive(Default)]
struct History(Vec<(u64, u64)>);

impl History {
    /// Returns the units of each run of calls that begins with the one at `first`, with the time from its begin to its
    /// end.
    fn runs(&self, first: usize) -> impl Iterator<Item = (u64, u64)> {
        let calls = &self.0[first..];
        calls.iter().scan(0, move |units, (at, cost)| {
            *units += cost;
            Some((*at - calls[0].0, *units))
        })
    }

    fn assert_within(&self, limit: &Limit, window: Window, context: &str) {
        let (quota, per) = (u64::from(limit.quota()), limit.per().as_micros() as u64);
        for first in 0..self.0.len() {
            for (time, units) in self.runs(first) {
                let most = match window {
                    // A full bucket, and the units that leak evenly.
                    Window::Gcra => quota + time / per.div_ceil(quota),
                    _ if time < per => quota,
                    _ => break,
                };
                assert!(units <= most, "{context}: {units} units within {time} µs of {limit}");
            }
        }
    }
}

/// Makes up to `most` calls, until one is denied.
async fn exhaust(limiter: &RateLimiter<String>, most: u32, history: &mut History, world: &World) {
    for _ in 0..most {
        if limiter.check("ada").await.is_err() {
            return;
        }
        history.0.push((world.server.now(), 1));
    }
}

/// Makes random calls. Returns the units admitted, and those reserved.
async fn play(world: &World, window: Window, seed: u64, calls: usize) -> (u64, u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut limits = vec![Limit::new(rng.random_range(20..200), MINUTE)];
    if rng.random_bool(0.3) {
        limits.push(Limit::new(rng.random_range(20..400), 2 * MINUTE));
    }
    let new = |reserve: u32| {
        let builder = world.builder(&format!("oracle {seed}"), window).deny_cache(0);
        let limits = limits.iter().cloned();
        let builder = limits.fold(builder, |builder, limit| builder.limit(limit));
        builder.reserve(reserve).build().unwrap()
    };
    // The last one is of a release or a configuration without reservations.
    let mut limiters: Vec<RateLimiter<String>> = [40, 8, 1, 0].map(new).into();
    let mut history = History::default();
    let mut permits: Vec<(usize, Permit)> = Vec::new();
    let mut reserved = 0;
    for _ in 0..calls {
        let which = rng.random_range(0..limiters.len());
        match rng.random_range(0..20) {
            0..10 => {
                for _ in 0..rng.random_range(1..12) {
                    let cost = if rng.random_bool(0.2) { rng.random_range(1..6) } else { 1 };
                    if let Ok(permit) = limiters[which].check_n("ada", cost).await {
                        permits.push((history.0.len(), permit));
                        history.0.push((world.server.now(), cost.into()));
                    }
                }
            }
            10..15 => world.pass(LEAD.mul_f64(rng.random_range(0.0..0.6))).await,
            15 => world.pass(MINUTE.mul_f64(rng.random_range(0.5..1.0))).await,
            // A few calls of a key that is idle, and as many as possible just before the units that they have drawn
            // lapse.
            16 => {
                world.pass(MINUTE).await;
                for (limiter, most) in limiters.iter().zip([4, 0, 0, 0]) {
                    exhaust(limiter, most, &mut history, world).await;
                }
                world.pass(LEAD - LEAD / 500 - Duration::from_millis(1)).await;
                for limiter in &limiters {
                    exhaust(limiter, 1_000, &mut history, world).await;
                }
            }
            17 if !permits.is_empty() => {
                let (index, permit) = permits.swap_remove(rng.random_range(0..permits.len()));
                permit.refund().await.unwrap();
                history.0[index].1 = 0;
            }
            18 if !permits.is_empty() => {
                let (index, permit) = permits.swap_remove(rng.random_range(0..permits.len()));
                let actual = rng.random_range(0..=history.0[index].1);
                permit.settle(actual as u32).await.unwrap();
                history.0[index].1 = actual;
            }
            19 => {
                reserved += limiters[which].stats().reserved;
                limiters[which] = new([40, 8, 1, 0][which]);
            }
            _ => {}
        }
    }
    let context = format!("{window:?}, seed {seed}");
    for limit in &limits {
        history.assert_within(limit, window, &context);
    }
    reserved += limiters.iter().map(|limiter| limiter.stats().reserved).sum::<u64>();
    (history.0.iter().map(|(_, units)| units).sum(), reserved)
}

/// Plays random sequences, each of them by several limiters.
async fn play_all(window: Window) {
    let Some(world) = World::new().await else { return };
    let seed = env::var("FLEETING_SEED").ok();
    let seed = seed.map_or(51, |seed| seed.parse::<u64>().expect("FLEETING_SEED is a number"));
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
