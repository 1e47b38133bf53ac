//! Several limits for one key: by `check_with`, by the limits of a layer, after `set_limits`.

use std::time::Duration;

use fleeting::{
    Limit, Window,
    redis::{Permit, RateLimiter},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::AsyncCommands;
use tokio::time::{Instant, sleep};

use super::rate_limiter::{client, limited, strict};
use crate::{
    clock::{in_time, ms},
    servers::{Server, StoppedServer},
};

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn limiter(server: &Server, window: Window, limits: &[Limit]) -> RateLimiter<String> {
    let name = format!("{window:?} {limits:?}").replace(['{', '}'], "");
    let builder = strict(&client(server).await, &name).window(window).deny_cache(0);
    let builder = limits.iter().fold(builder, |builder, limit| builder.limit(limit.clone()));
    builder.build().unwrap()
}

async fn remaining(limiter: &RateLimiter<String>, limits: &[Limit]) -> Vec<u32> {
    let state = limiter.peek_with("ada", limits).await.unwrap();
    state.standings().iter().map(|standing| standing.remaining()).collect()
}

/// A request for `/` between two guesses of a password.
#[tokio::test]
async fn calls_by_a_short_limit_do_not_reset_a_long_one() {
    let server = Server::start();
    for window in WINDOWS {
        let login = Limit::new(5, HOUR);
        let limiter = limiter(&server, window, std::slice::from_ref(&login)).await;
        // Also if they are denied, and together with a second limit.
        for short in
            [vec![Limit::new(100, ms(10))], vec![Limit::new(1, ms(5)), Limit::new(900, HOUR)]]
        {
            let mut admitted = 0;
            for _ in 0..30 {
                let _ = limiter.check_with("ada", &short).await;
                admitted += u32::from(limiter.check("ada").await.is_ok());
                sleep(ms(12)).await;
            }
            assert!(admitted <= 5, "{window:?}: {admitted} of 5 were admitted");
            // In a state with one limit again.
            limiter.reset("ada").await.unwrap();
        }
    }
}

/// A plan is only denied for several of its windows, while another one is charged.
#[tokio::test]
async fn denied_plan_keeps_its_usage() {
    for window in WINDOWS {
        let Some(server) = StoppedServer::start() else { return };
        let (small, large) = (Limit::new(14, 3 * SECOND), Limit::new(100, SECOND));
        let limiter = limiter(&server, window, std::slice::from_ref(&small)).await;
        let start = server.now();
        let (mut own, mut all) = (Vec::new(), Vec::new());
        for tick in 0..600 {
            let now = start + tick * 50_000;
            server.set_now(now);
            // Charged for ten seconds, with a pause of almost the second that its window has.
            let is_charged = tick % 200 < 170;
            if is_charged && limiter.check_with("ada", std::slice::from_ref(&large)).await.is_ok() {
                all.push(now);
            }
            if limiter.check("ada").await.is_ok() {
                own.push(now);
                all.push(now);
                let within =
                    |times: &[u64]| times.iter().filter(|at| **at + 3_000_000 > now).count();
                // A bucket that refills evenly admits a second quota within a window.
                let (calls, most) = match window {
                    Window::Gcra => (within(&own), 28),
                    _ => (within(&all), 14),
                };
                assert!(calls <= most, "{window:?}: {calls} calls in a window of 14");
            }
        }
        assert!(own.len() >= 3, "{window:?}: {} were admitted", own.len());
    }
}

/// Calls of one limit in a window of the model.
#[derive(Default)]
struct Calls {
    /// Time, cost after refunds, and the limit.
    all: Vec<(u64, u64, usize)>,
    /// For each refund its time, the time of the call, and the units.
    refunds: Vec<(u64, u64, u64)>,
}

impl Calls {
    fn within(&self, from: u64, is_counted: impl Fn(usize) -> bool) -> u64 {
        let live = self.all.iter().filter(|(at, _, limit)| *at > from && is_counted(*limit));
        live.map(|(_, cost, _)| cost).sum()
    }

    fn refund(&mut self, call: usize, actual: u64, now: u64) {
        let (at, cost, _) = &mut self.all[call];
        self.refunds.push((now, *at, *cost - actual));
        *cost = actual;
    }

    /// Returns the units that calls of other limits may still take: those in a longer bucket, and those that were
    /// refunded only after the window.
    fn may_count(&self, now: u64, per: u64, longest_step: u64) -> u64 {
        let from = now - per - longest_step;
        let late = self.refunds.iter();
        let late = late.filter(|(refunded_at, at, _)| *at > from && *refunded_at >= at + per);
        let late: u64 = late.map(|(.., units)| units).sum();
        self.within(from, |_| true) + late
    }

    /// Returns the units in a bucket that refills evenly, after all calls of a limit.
    fn level(&self, limit: &Limit, is_counted: impl Fn(usize) -> bool) -> f64 {
        let (mut level, mut last) = (0.0, 0);
        for (at, cost, by) in &self.all {
            if is_counted(*by) {
                let leaked =
                    (at - last) as f64 * f64::from(limit.quota()) / limit.per().as_micros() as f64;
                level = f64::max(0.0, level - leaked) + *cost as f64;
                last = *at;
            }
        }
        level
    }
}

/// Random calls by several limits, compared with all calls that were admitted.
async fn run(window: Window, limits: &[Limit], seed: u64) {
    println!("{window:?} seed {seed}");
    let Some(server) = StoppedServer::start() else { return };
    let limiter = limiter(&server, window, &limits[..1]).await;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut now = server.now();
    let (mut calls, mut permits) = (Calls::default(), Vec::<(Permit, usize)>::new());
    let micros = |limit: &Limit| limit.per().as_micros() as u64;
    let step = |limit: &Limit| match window {
        Window::Buckets(n) => micros(limit) / n as u64,
        _ => 0,
    };
    // Buckets of a derived state are those of another limit.
    let longest_step = limits.iter().map(step).max().unwrap();
    let (mut admitted, mut denied) = (0, 0);
    for _ in 0..1_500 {
        server.set_now(now);
        let at = rng.random_range(0..limits.len());
        let limit = &limits[at];
        match rng.random_range(0..8) {
            0 if !permits.is_empty() => {
                let (permit, call) = permits.swap_remove(rng.random_range(0..permits.len()));
                permit.refund().await.unwrap();
                calls.refund(call, 0, now);
            }
            1 if !permits.is_empty() => {
                let (permit, call) = permits.swap_remove(rng.random_range(0..permits.len()));
                let actual = calls.all[call].1 / 2;
                permit.settle(actual as u32).await.unwrap();
                calls.refund(call, actual, now);
            }
            2 => {
                limiter.peek_with("ada", std::slice::from_ref(limit)).await.unwrap();
            }
            _ => {
                let cost = rng.random_range(1..=limit.quota().min(4));
                let checked = limiter.check_n_with("ada", cost, std::slice::from_ref(limit)).await;
                match checked {
                    Ok(permit) => {
                        calls.all.push((now, cost.into(), at));
                        permits.push((permit, calls.all.len() - 1));
                        if permits.len() > 20 {
                            permits.remove(0);
                        }
                        admitted += 1;
                        let quota = u64::from(limit.quota());
                        if window == Window::Gcra {
                            let level = calls.level(limit, |by| by == at);
                            assert!(level <= quota as f64 + 1e-3, "{limit}: {level} by own calls");
                        } else {
                            let used = calls.within(now - micros(limit), |by| by == at);
                            assert!(used <= quota, "{limit}: {used} by own calls");
                        }
                    }
                    Err(error) => {
                        denied += 1;
                        let limited = limited(Err(error));
                        if window != Window::Gcra {
                            let used = calls.may_count(now, micros(limit), longest_step);
                            let total = used + u64::from(cost);
                            assert!(total > limit.quota().into(), "{limit}: {used} in use");
                        } else {
                            // As many units may be in use as the largest quota has.
                            let most = limits.iter().map(Limit::quota).max().unwrap();
                            let wait = limited.retry_after();
                            assert!(wait <= limit.per() / limit.quota() * most, "{limited:?}");
                        }
                    }
                }
            }
        }
        // No two scripts run in the same microsecond.
        now += 1;
        if rng.random_ratio(1, 2) {
            let most = if rng.random_ratio(1, 30) { 30_000_000 } else { 1_500_000 };
            now += rng.random_range(0..most);
        }
    }
    assert!(admitted > 100 && denied > 100, "{admitted} passed, {denied} did not");
}

#[tokio::test]
async fn no_limit_is_exceeded_by_its_own_calls() {
    let pool = [
        Limit::new(5, 60 * SECOND),
        Limit::new(8, 10 * SECOND),
        Limit::new(3, SECOND),
        Limit::new(4, 10 * SECOND),
    ];
    for window in WINDOWS {
        for seed in 0..8 {
            run(window, &pool, seed).await;
        }
    }
}

#[tokio::test]
async fn refund_gives_back_the_charge_after_calls_by_other_limits() {
    let server = Server::start();
    let (hour, day) = ([Limit::new(100, HOUR)], [Limit::new(100, 24 * HOUR)]);
    for window in WINDOWS {
        let limiter = limiter(&server, window, &hour).await;
        // Of the first limit, and of one that was used after the charge.
        for settled in [None, Some(5)] {
            let permit = limiter.check_n("ada", 20).await.unwrap();
            limiter.check_with("ada", &day).await.unwrap();
            match settled {
                None => permit.refund().await.unwrap(),
                Some(actual) => permit.settle(actual).await.unwrap(),
            }
            let expected = 99 - settled.unwrap_or(0);
            assert_eq!(remaining(&limiter, &hour).await, [expected], "{window:?} {settled:?}");
            if window != Window::Gcra {
                assert_eq!(remaining(&limiter, &day).await, [expected], "{window:?} {settled:?}");
            }
            limiter.reset("ada").await.unwrap();
            // Of a charge that was noted for both, and of the last one.
            limiter.check("ada").await.unwrap();
            limiter.check_with("ada", &day).await.unwrap();
            let permit = limiter.check_n("ada", 20).await.unwrap();
            let before = remaining(&limiter, &day).await;
            assert_eq!(before, [78], "{window:?}");
            match settled {
                None => permit.refund().await.unwrap(),
                Some(actual) => permit.settle(actual).await.unwrap(),
            }
            let expected = 98 - settled.unwrap_or(0);
            for limits in [&hour, &day] {
                assert_eq!(remaining(&limiter, limits).await, [expected], "{window:?}");
            }
            limiter.reset("ada").await.unwrap();
        }
    }
}

/// A state that was derived after the charge, and by which nothing was charged since, is derived again.
#[tokio::test]
async fn refund_applies_to_limits_that_were_only_denied_since() {
    let server = Server::start();
    let (hour, day) = ([Limit::new(10, HOUR)], [Limit::new(5, 24 * HOUR)]);
    for window in WINDOWS {
        let limiter = limiter(&server, window, &hour).await;
        let permit = limiter.check_n("ada", 6).await.unwrap();
        limited(limiter.check_with("ada", &day).await);
        permit.refund().await.unwrap();
        assert_eq!(remaining(&limiter, &day).await, [5], "{window:?}");
        assert_eq!(remaining(&limiter, &hour).await, [10], "{window:?}");
    }
}

#[tokio::test]
async fn refunds_in_any_order_and_at_any_time_leave_nothing_in_use() {
    let server = Server::start();
    for window in WINDOWS {
        let limiter = limiter(&server, window, &[Limit::new(3, HOUR)]).await;
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1]] {
            let mut permits = Vec::new();
            for _ in 0..3 {
                permits.push(Some(limiter.check("ada").await.unwrap()));
            }
            sleep(ms(2)).await;
            for at in order {
                permits[at].take().unwrap().refund().await.unwrap();
            }
            let left = limiter.peek("ada").await.unwrap().remaining();
            // In the order of the charges or in the reverse order, `Gcra` is exact too.
            let is_exact = window != Window::Gcra || order[1] == 1;
            assert!(left == 3 || !is_exact && left > 0, "{window:?} {order:?}: {left}");
            limiter.reset("ada").await.unwrap();
        }
    }
}

#[tokio::test]
async fn check_and_refund_leave_the_remaining_quota_unchanged() {
    let server = Server::start();
    for window in WINDOWS {
        let limiter = limiter(&server, window, &[Limit::new(1, HOUR)]).await;
        for _ in 0..20 {
            let permit = limiter.check("ada").await.unwrap();
            sleep(ms(1)).await;
            permit.refund().await.unwrap();
            assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 1, "{window:?}");
        }
    }
}

/// Quotas of bytes, whose units leak in less than a microsecond.
#[tokio::test]
async fn quotas_above_a_million_per_second_are_exact() {
    in_time(async || {
        let server = Server::start();
        for quota in [10_000_000, 100_000_000, 3_000_000_000] {
            let limits = [Limit::new(quota, ms(1_000))];
            let limiter = limiter(&server, Window::Gcra, &limits).await;
            assert_eq!(limiter.check_n("ada", quota).await.unwrap().remaining(), 0);
            let start = Instant::now();
            sleep(ms(400)).await;
            let before = start.elapsed();
            let left = limiter.peek("ada").await.unwrap().remaining();
            let after = start.elapsed() + ms(30);
            let of = |time: Duration| time.div_duration_f64(ms(1_000)).min(1.0) * f64::from(quota);
            let (least, most) = (of(before), of(after));
            assert!((least..=most).contains(&f64::from(left)), "{quota}: {left} in {before:?}");
            let state = limiter.peek("ada").await.unwrap();
            assert!(state.standings()[0].more_after().unwrap() < ms(2));
            // A unit is exact too.
            limiter.reset("ada").await.unwrap();
            for _ in 0..3 {
                let permit = limiter.check_n("ada", quota - 7).await.unwrap();
                assert!((7..quota / 8).contains(&permit.remaining()), "{quota}: {permit:?}");
                permit.settle(0).await.unwrap();
                assert_eq!(limiter.peek("ada").await.unwrap().remaining(), quota);
            }
        }
    })
    .await;
}

/// As in memory: until a check makes the smaller quota known, the usage leaks by the larger one if that is faster.
#[tokio::test]
async fn gcra_converts_usage_to_the_same_number_of_units() {
    let server = Server::start();
    let large = [Limit::new(10, 10 * HOUR)];
    // The interval is shorter, the same, and longer. Nine units have to leak.
    for (hours, by_check, by_peek) in
        [(1, 9 * HOUR / 2, 9 * HOUR / 2), (2, 9 * HOUR, 9 * HOUR), (40, 180 * HOUR, 9 * HOUR)]
    {
        let small = [Limit::new(2, hours * HOUR)];
        let limiter = limiter(&server, Window::Gcra, &large).await;
        limiter.check_n("ada", 10).await.unwrap();
        let state = limiter.peek_with("ada", &small).await.unwrap();
        let wait = limited(limiter.check_with("ada", &small).await).retry_after();
        let more = state.standings()[0].more_after().unwrap();
        for (wait, most) in [(wait, by_check), (state.retry_after(), by_peek), (more, by_peek)] {
            assert!(wait <= most && wait > most - 60 * SECOND, "{small:?}: {wait:?}");
        }
        assert_eq!(remaining(&limiter, &large).await, [0], "the usage of the first limit stays");
        limiter.reset("ada").await.unwrap();
    }
}

#[tokio::test]
async fn more_than_eight_limits_are_bounded_in_size() {
    let server = Server::start();
    let mut plain = server.plain().await;
    for window in WINDOWS {
        let limiter = limiter(&server, window, &[Limit::new(1_000, HOUR)]).await;
        for round in 0..3 {
            for hours in 1..=20 {
                limiter.check_with("ada", &[Limit::new(1_000, hours * HOUR)]).await.unwrap();
            }
            let keys: Vec<String> = plain.keys("*").await.unwrap();
            let bytes: usize = plain.strlen(&keys[0]).await.unwrap();
            assert!(bytes < 44 + 9 * 70 + 12 * 9 * 12 + 12 * 130, "{window:?} {round}: {bytes}");
        }
        // The longest limits are kept.
        let most = if window == Window::Gcra { 941 } else { 940 };
        let left = remaining(&limiter, &[Limit::new(1_000, 20 * HOUR)]).await[0];
        assert!((940..=most).contains(&left), "{window:?}: {left}");
        limiter.reset("ada").await.unwrap();
    }
}

/// Beyond eight limits, the state of the shortest is given up. A refund must then neither free the usage of another
/// limit nor bring back that of its own.
#[tokio::test]
async fn refunds_among_more_than_eight_limits_give_back_no_more_than_was_charged() {
    let server = Server::start();
    for window in WINDOWS {
        let plans: Vec<_> = (1..=12).map(|hours| [Limit::new(50, hours * HOUR)]).collect();
        let limiter = limiter(&server, window, &plans[0]).await;
        for plan in &plans {
            let permit = limiter.check_n_with("ada", 4, plan).await.unwrap();
            limiter.check_n_with("ada", 3, &plans[11]).await.unwrap();
            permit.refund().await.unwrap();
        }
        // 36 are in use by the longest limit, which is always kept. `Gcra` gives back exactly only if nothing else was
        // charged in between.
        let left = remaining(&limiter, &plans[11]).await[0];
        let least = if window == Window::Gcra { 1 } else { 14 };
        assert!((least..=15).contains(&left), "{window:?}: {left}");
        let mut admitted = 0;
        while limiter.check_with("ada", &plans[11]).await.is_ok() {
            admitted += 1;
        }
        assert!(admitted <= 15, "{window:?}: {admitted}");
        limiter.reset("ada").await.unwrap();
    }
}

#[tokio::test]
async fn limit_of_a_century_keeps_its_usage_next_to_short_ones() {
    let server = Server::start();
    let century = [Limit::new(20, Duration::from_secs(100 * 365 * 86_400))];
    for window in WINDOWS {
        let limiter = limiter(&server, window, &century).await;
        let mut admitted = 0;
        for _ in 0..3 {
            limiter.check("ada").await.unwrap().refund().await.unwrap();
            for per in [ms(1), SECOND, 24 * HOUR] {
                limiter.check_with("ada", &[Limit::new(1_000, per)]).await.unwrap();
            }
            admitted += u32::from(limiter.check("ada").await.is_ok());
            sleep(ms(2)).await;
        }
        let denied = loop {
            match limiter.check("ada").await {
                Ok(_) => admitted += 1,
                Err(error) => break limited(Err(error)),
            }
        };
        // The calls by the other limits count, too.
        assert!((3..=11).contains(&admitted), "{window:?}: {admitted}");
        assert!(denied.retry_after() > 4 * 365 * 24 * HOUR, "{window:?}: {denied:?}");
        limiter.reset("ada").await.unwrap();
    }
}

/// Calls of plans with one and with two limits.
#[tokio::test]
async fn calls_count_at_the_positions_of_their_limits() {
    let server = Server::start();
    for window in WINDOWS {
        let one = [Limit::new(1_000, HOUR)];
        let two = [Limit::new(1_000, HOUR), Limit::new(10, 24 * HOUR)];
        let limiter = limiter(&server, window, &one).await;
        for _ in 0..3 {
            let first = limiter.check_n("ada", 4).await.unwrap();
            limiter.check_with("ada", &two).await.unwrap();
            limiter.check_n("ada", 4).await.unwrap();
            first.refund().await.unwrap();
        }
        assert_eq!(remaining(&limiter, &two).await, [985, 7], "{window:?}");
        limiter.check_n_with("ada", 7, &two).await.unwrap();
        let denied = limited(limiter.check_with("ada", &two).await);
        assert_eq!(denied.limit(), &two[1], "{window:?}");
        assert_eq!(limiter.check("ada").await.unwrap().remaining(), 977, "{window:?}");
    }
}

/// A `Log` next to a longer window, which one long limit keeps for a day.
#[tokio::test]
async fn calls_that_exceed_a_quota_anyway_are_not_stored() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let (short, day) =
        ([Limit::new(1_000_000, Duration::from_millis(1))], [Limit::new(5, 24 * HOUR)]);
    let limiter = limiter(&server, Window::Log, &short).await;
    limiter.check_with("ada", &day).await.unwrap();
    for _ in 0..12_000 {
        limiter.check("ada").await.unwrap();
    }
    let keys: Vec<String> = plain.keys("*").await.unwrap();
    let bytes: usize = plain.strlen(&keys[0]).await.unwrap();
    assert!(bytes < 9_000 * 14, "{bytes}");
    // The last call that it still counts is the fifth before the last one.
    assert!(limited(limiter.check_with("ada", &day).await).retry_after() > 23 * HOUR);
}

#[tokio::test]
async fn debts_count_for_all_limits_of_a_key_and_may_be_as_large_as_u32_max() {
    let server = Server::start();
    let (hour, day) = ([Limit::new(10, HOUR)], [Limit::new(u32::MAX, 24 * HOUR)]);
    for window in WINDOWS {
        let limiter = limiter(&server, window, &hour).await;
        limiter.check_with("ada", &day).await.unwrap();
        for _ in 0..3 {
            let permit = limiter.check_n_with("ada", 0, &hour).await.unwrap();
            permit.settle(u32::MAX).await.unwrap();
        }
        limited(limiter.check("ada").await);
        // A bucket of `Gcra` that is known is filled at most, and leaks 50,000 units per second. If it has leaked
        // before the first debt, it begins with the units of all three.
        let wait = limited(limiter.check_n_with("ada", u32::MAX, &day).await).retry_after();
        let most = if window == Window::Gcra { 73 * HOUR } else { 27 * HOUR };
        assert!(wait > 23 * HOUR && wait <= most, "{window:?}: {wait:?}");
        if window != Window::Gcra {
            assert_eq!(remaining(&limiter, &day).await, [0], "{window:?}");
        }
        assert_eq!(remaining(&limiter, &hour).await, [0]);
    }
}

/// After a failover to a server whose clock is behind.
#[tokio::test]
async fn clock_that_goes_back_keeps_the_usage_of_several_limits() {
    in_time(async || {
        for window in WINDOWS {
            let server = Server::start_with_clock();
            server.set_clock(1_000 * HOUR);
            let (short, long) = ([Limit::new(3, ms(600))], [Limit::new(50, HOUR)]);
            let limiter = limiter(&server, window, &long).await;
            limiter.check("ada").await.unwrap();
            let old = limiter.check_with("ada", &short).await.unwrap();
            limiter.check_with("ada", &short).await.unwrap();
            server.set_clock(500 * HOUR);
            limited(limiter.check_n_with("ada", 3, &short).await);
            assert_eq!(remaining(&limiter, &long).await, [47], "{window:?}");
            old.refund().await.unwrap();
            assert_eq!(remaining(&limiter, &long).await, [47], "{window:?}");
            sleep(ms(700)).await;
            limiter.check_n_with("ada", 3, &short).await.unwrap();
            assert_eq!(remaining(&limiter, &long).await, [44], "{window:?}");
        }
    })
    .await;
}
