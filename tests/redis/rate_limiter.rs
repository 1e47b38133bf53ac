//! The rate limiter on Redis: what it writes, what it remembers, and its counts against naive ones.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Limited, Window,
    redis::{Client, Error, OnError, Permit, RateLimiter, RateLimiterBuilder},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms, until_enough},
    servers::{Cluster, Server},
};

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

async fn client(server: &Server) -> Client {
    Client::connect(server.url()).await.unwrap()
}

/// Errors are seen as such, and a busy machine is no failing server.
fn strict(client: &Client, name: &str) -> RateLimiterBuilder<String> {
    let builder = RateLimiter::builder(client, name);
    builder.on_error(OnError::Deny).timeout(Duration::from_secs(5))
}

fn limited(checked: Result<Permit, Error>) -> Limited {
    match checked {
        Err(Error::Limited(limited)) => limited,
        other => panic!("it is not limited: {other:?}"),
    }
}

/// How many scripts the server has run.
async fn scripts_run(plain: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(plain).await.unwrap();
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    calls("cmdstat_evalsha:") + calls("cmdstat_eval:")
}

async fn server_time(plain: &mut MultiplexedConnection) -> u64 {
    let (seconds, microseconds): (u64, u64) = redis::cmd("TIME").query_async(plain).await.unwrap();
    seconds * 1_000_000 + microseconds
}

/// Makes `at` the time of the last charge, before which the limiter does not go back.
async fn set_last(plain: &mut MultiplexedConnection, key: &str, at: u64) {
    let () = plain.setrange(key, 10, &(at as f64).to_le_bytes()[..]).await.unwrap();
}

mod model {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Rule {
        pub(super) quota: u64,
        pub(super) per: u64,
    }

    /// What remembers everything, and counts it anew each time.
    pub(super) struct Naive {
        window: Window,
        /// For each limit: when units leave, how many, and of which call.
        parts: Vec<Vec<(u64, u64, usize)>>,
        arrivals: Vec<u64>,
        /// Of each call: when, and what is left of its cost, of each limit the mark.
        calls: Vec<(u64, u64, Vec<u64>)>,
    }

    impl Naive {
        pub(super) fn new(window: Window, limits: usize) -> Self {
            let parts = vec![Vec::new(); limits];
            Self { window, parts, arrivals: vec![0; limits], calls: Vec::new() }
        }

        fn step(&self, rule: Rule) -> u64 {
            match self.window {
                Window::Gcra => rule.per.div_ceil(rule.quota),
                Window::Buckets(n) => rule.per.div_ceil(n as u64),
                _ => 0,
            }
        }

        pub(super) fn used(&self, i: usize, rule: Rule, now: u64) -> u64 {
            match self.window {
                Window::Gcra => self.arrivals[i].saturating_sub(now).div_ceil(self.step(rule)),
                _ => {
                    let live = self.parts[i].iter().filter(|(leaves, ..)| *leaves > now);
                    live.map(|(_, units, _)| units).sum()
                }
            }
        }

        /// The first time at which there is room, from `now` on.
        pub(super) fn ready(&self, i: usize, rule: Rule, now: u64, cost: u64) -> u64 {
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

        pub(super) fn charge(&mut self, rules: &[Rule], now: u64, cost: u64) -> usize {
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
                        marks.push(self.arrivals[i]);
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

        pub(super) fn refund(&mut self, rules: &[Rule], call: usize, now: u64) {
            for (i, rule) in rules.iter().enumerate() {
                if self.window == Window::Gcra {
                    let (_, cost, marks) = &self.calls[call];
                    let amount = self.step(*rule) * cost;
                    self.arrivals[i] -= marks[i].saturating_sub(now).min(amount);
                }
                self.parts[i].retain(|(.., of)| *of != call);
            }
            self.calls[call].1 = 0;
        }

        /// Whether any `(t - per, t]` has more than the quota.
        pub(super) fn check_windows(&self, rule: Rule) {
            for (end, ..) in &self.calls {
                let within = self.calls.iter().filter(|(at, ..)| at <= end && at + rule.per > *end);
                assert!(within.map(|(_, cost, _)| cost).sum::<u64>() <= rule.quota);
            }
        }
    }

    /// The time of the limiter stands where the test puts it: far ahead of the server's clock.
    pub(super) async fn run(window: Window, rules: &[(u32, u64)], costs: u32, gap: u64, seed: u64) {
        println!("{window:?} {rules:?} seed {seed}");
        let server = Server::start();
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
            limits
                .iter()
                .map(|limit| Rule { quota: limit.quota().into(), per: per(limit) })
                .collect()
        };
        let least = |rules: &[Rule]| rules.iter().map(|rule| rule.quota).min().unwrap();
        let key = "fleeting:{model:ada}";
        let mut random = SmallRng::seed_from_u64(seed);
        let mut naive = Naive::new(window, limits.len());
        let mut permits = Vec::new();

        let mut now = server_time(&mut plain).await + 1_000_000 * SECOND;
        // So that there is a state to put the time in; it has left long before.
        let first = limiter.check("ada").await.unwrap();
        first.refund().await.unwrap();
        let (mut admitted, mut denied) = (0, 0);
        for op in 0..1_500 {
            set_last(&mut plain, key, now).await;
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
                        let more =
                            standing.more_after().map(|wait| clock + wait.as_micros() as u64);
                        let expected = (used > 0).then(|| naive.ready(i, *rule, now, left + 1));
                        same(more, expected);
                    }
                }
                1 if !permits.is_empty() => {
                    let (permit, call): (Permit, usize) =
                        permits.swap_remove(random.random_range(0..permits.len()));
                    permit.refund().await.unwrap();
                    naive.refund(&rules, call, now);
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
            if window != Window::Gcra && op % 100 == 99 {
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
}

#[tokio::test]
async fn the_log_counts_as_one_that_remembers_all() {
    in_time(async || {
        model::run(Window::Log, &[(5, 10)], 2, 4, 1).await;
        model::run(Window::Log, &[(3, 7), (10, 60)], 3, 5, 2).await;
        // More than are read at a time, and than fit into a small state.
        model::run(Window::Log, &[(90, 60), (300, 600)], 2, 2, 3).await;
    })
    .await;
}

#[tokio::test]
async fn buckets_count_as_ones_that_remember_all() {
    in_time(async || {
        model::run(Window::Buckets(4), &[(5, 12)], 2, 4, 4).await;
        model::run(Window::Buckets(5), &[(3, 10), (10, 60)], 3, 5, 5).await;
        model::run(Window::Buckets(30), &[(90, 60), (300, 600)], 4, 3, 6).await;
    })
    .await;
}

#[tokio::test]
async fn gcra_counts_as_one_that_remembers_all() {
    in_time(async || {
        model::run(Window::Gcra, &[(5, 10)], 2, 4, 7).await;
        model::run(Window::Gcra, &[(4, 8), (10, 60)], 3, 5, 8).await;
    })
    .await;
}

#[tokio::test]
async fn sixty_four_callers_on_two_connections_share_an_exact_quota() {
    let server = Server::start();
    for window in WINDOWS {
        let (one, other) = (client(&server).await, client(&server).await);
        let mut callers = tokio::task::JoinSet::new();
        for client in [one, other] {
            // Nothing is free again before the test is over.
            let limiter = strict(&client, &format!("{window:?}").replace(['(', ')'], "-"))
                .window(window)
                .limit(Limit::new(100, Duration::from_secs(86_400)))
                .build()
                .unwrap();
            for _ in 0..32 {
                let limiter = limiter.clone();
                callers.spawn(async move {
                    let mut passed = 0;
                    for _ in 0..5 {
                        passed += u32::from(limiter.check("ada").await.is_ok());
                    }
                    passed
                });
            }
        }
        assert_eq!(callers.join_all().await.into_iter().sum::<u32>(), 100, "{window:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_has_more_than_the_quota_whatever_many_callers_do() {
    for window in [Window::Log, Window::Buckets(5)] {
        until_enough(async || hammer(window).await).await;
    }
}

/// Whether much passed, where no window had more than its quota.
async fn hammer(window: Window) -> bool {
    let server = Server::start();
    let (quota, per) = (40, Duration::from_millis(100));
    let limiter = strict(&client(&server).await, "busy")
        .window(window)
        .limit(Limit::new(quota, per))
        .build()
        .unwrap();
    let begin = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..64 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            let mut random = SmallRng::seed_from_u64(caller);
            let mut passed = Vec::new();
            while begin.elapsed() < 8 * per {
                let before = Instant::now();
                if limiter.check("ada").await.is_ok() {
                    passed.push((before, Instant::now()));
                }
                sleep(Duration::from_millis(random.random_range(0..20))).await;
            }
            passed
        });
    }
    let passed: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    for (start, _) in &passed {
        // Those that were charged within less than the window, for certain.
        let within = passed
            .iter()
            .filter(|(before, after)| before >= start && after.duration_since(*start) < per);
        let count = within.count();
        assert!(count <= quota as usize, "{window:?}: {count}");
    }
    println!("{window:?}: {} passed", passed.len());
    passed.len() > 4 * quota as usize
}

#[tokio::test]
async fn a_denial_is_repeated_without_asking_until_it_would_pass() {
    in_time(async || {
        let server = Server::start();
        let mut plain = server.plain().await;
        for window in WINDOWS {
            let limiter = strict(&client(&server).await, "denials")
                .window(window)
                .limit(Limit::new(4, ms(400)))
                .build()
                .unwrap();
            limiter.check_n("ada", 3).await.unwrap();
            let first = limited(limiter.check_n("ada", 2).await);
            let before = scripts_run(&mut plain).await;
            for _ in 0..10 {
                let again = limited(limiter.check_n("ada", 2).await);
                assert_eq!(again.ready_at(), first.ready_at());
                assert_eq!((again.cost(), again.limit()), (2, first.limit()));
            }
            assert_eq!(scripts_run(&mut plain).await, before, "{window:?}");
            assert_eq!(limiter.stats().denied_locally, 10);
            assert_eq!(limiter.stats().denied, 11);
            // Less has room, and more waits longer: only the server knows.
            let more = limited(limiter.check_n("ada", 4).await);
            // They wait for the same; the answers did not take equally long.
            let jitter = ms(50);
            assert!(more.ready_at().unwrap() + jitter >= first.ready_at().unwrap());
            limiter.check_n("ada", 1).await.unwrap();
            assert_eq!(scripts_run(&mut plain).await, before + 2);
            let last = limited(limiter.check_n("ada", 4).await);
            tokio::time::sleep_until(last.ready_at().unwrap()).await;
            limiter.check_n("ada", 4).await.unwrap();
            limiter.reset("ada").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_denial_is_of_its_key_and_its_plan() {
    let server = Server::start();
    let limiter =
        strict(&client(&server).await, "plans").limit(Limit::per_minute(1)).build().unwrap();
    let paid = [Limit::per_minute(3)];
    limiter.check("ada").await.unwrap();
    limited(limiter.check("ada").await);
    limiter.check("grace").await.unwrap();
    limiter.check_with("ada", &paid).await.unwrap();
    limiter.check_with("ada", &paid).await.unwrap();
    limited(limiter.check_with("ada", &paid).await);
    limited(limiter.check_with("ada", &paid).await);
    assert_eq!(limiter.stats().denied_locally, 1);
}

#[tokio::test]
async fn what_is_taken_back_ends_a_denial() {
    let server = Server::start();
    let client = client(&server).await;
    let limiter = strict(&client, "back").limit(Limit::per_minute(1)).build().unwrap();
    let permit = limiter.check("ada").await.unwrap();
    limited(limiter.check("ada").await);
    permit.refund().await.unwrap();
    limiter.check("ada").await.unwrap();
    limited(limiter.check("ada").await);
    limiter.reset("ada").await.unwrap();
    let permit = limiter.check("ada").await.unwrap();

    // Another process learns of it when its denial is over, and one without a cache at once.
    let other = strict(&client, "back").limit(Limit::per_minute(1)).build().unwrap();
    let forgetful =
        strict(&client, "back").limit(Limit::per_minute(1)).deny_cache(0).build().unwrap();
    limited(other.check("ada").await);
    limited(forgetful.check("ada").await);
    permit.refund().await.unwrap();
    limited(other.check("ada").await);
    forgetful.check("ada").await.unwrap();
    assert_eq!((other.stats().denied_locally, forgetful.stats().denied_locally), (1, 0));
}

#[tokio::test]
async fn denials_are_remembered_of_so_many_keys() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "few")
        .limit(Limit::per_minute(1))
        .deny_cache(2)
        .build()
        .unwrap();
    for key in ["a", "b", "c", "d"] {
        limiter.check(key).await.unwrap();
        limited(limiter.check(key).await);
    }
    for key in ["a", "b", "c", "d"] {
        limited(limiter.check(key).await);
    }
    assert_eq!(limiter.stats().denied_locally, 2);
    assert_eq!(limiter.stats().denied, 8);
}

#[tokio::test]
async fn time_does_not_go_back() {
    in_time(async || {
        let server = Server::start();
        let mut plain = server.plain().await;
        for window in WINDOWS {
            let limiter = strict(&client(&server).await, "future")
                .window(window)
                .limit(Limit::new(2, ms(100)))
                .deny_cache(0)
                .build()
                .unwrap();
            limiter.check("ada").await.unwrap();
            // As if the clock had been an hour ahead when it was charged last, and was put right.
            let ahead = server_time(&mut plain).await + 3_600_000_000;
            set_last(&mut plain, "fleeting:{future:ada}", ahead).await;
            // All has left by then, and nothing leaves before the clock is there again.
            limiter.check_n("ada", 2).await.unwrap();
            sleep(ms(150)).await;
            let wait = limited(limiter.check("ada").await).retry_after();
            assert!(wait > Duration::from_secs(3_590), "{window:?}: {wait:?}");
            assert!(wait < Duration::from_secs(3_601), "{window:?}: {wait:?}");
            limiter.reset("ada").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_subject_has_one_key_that_leaves_when_it_is_idle() {
    in_time(async || {
        let server = Server::start();
        let mut plain = server.plain().await;
        for window in WINDOWS {
            let limiter = strict(&client(&server).await, "api")
                .window(window)
                .limit(Limit::new(100, ms(300)))
                .limit(Limit::new(300, ms(200)))
                .build()
                .unwrap();
            for _ in 0..100 {
                limiter.check("ada").await.unwrap();
            }
            let keys: Vec<String> = plain.keys("*").await.unwrap();
            assert_eq!(keys, ["fleeting:{api:ada}"]);
            let ttl: i64 = plain.pttl(&keys[0]).await.unwrap();
            assert!((1..=ms(340).as_millis() as i64).contains(&ttl), "{window:?}: {ttl}");
            limiter.peek("grace").await.unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            while plain.exists::<_, bool>(&keys[0]).await.unwrap() {
                assert!(Instant::now() < until, "the key stays");
                sleep(Duration::from_millis(10)).await;
            }
        }
        let keys: Vec<String> = plain.keys("*").await.unwrap();
        assert!(keys.is_empty(), "a look writes nothing: {keys:?}");
    })
    .await;
}

#[tokio::test]
async fn a_key_in_use_stays_and_a_log_keeps_no_more_than_it_has_to() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let limiter = strict(&client(&server).await, "long")
        .limit(Limit::new(100, Duration::from_millis(50)))
        .deny_cache(0)
        .build()
        .unwrap();
    let begin = Instant::now();
    let (mut passed, mut most) = (0, 0);
    while begin.elapsed() < Duration::from_millis(600) || passed <= 250 {
        assert!(begin.elapsed() < Duration::from_secs(120), "only {passed} passed");
        match limiter.check("ada").await {
            Ok(_) => passed += 1,
            Err(error) => {
                tokio::time::sleep_until(limited(Err(error)).ready_at().unwrap()).await;
            }
        }
        let bytes: usize = plain.strlen("fleeting:{long:ada}").await.unwrap();
        most = most.max(bytes);
    }
    // As many that have left as stay, and a part that is read at a time.
    assert!(most <= 44 + 28 + 12 * (2 * 100 + 64 + 1), "{passed} calls took {most} bytes");
}

#[tokio::test]
async fn a_long_key_is_shortened_and_still_its_own() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    let make = || strict(&client, "keys").limit(Limit::per_minute(1)).build().unwrap();
    let (limiter, other) = (make(), make());
    let (one, two) = ("x".repeat(9_000) + "1", "x".repeat(9_000) + "2");
    limiter.check(&one).await.unwrap();
    limiter.check(&two).await.unwrap();
    // In every process it is the same.
    limited(other.check(&one).await);
    let keys: Vec<String> = plain.keys("*").await.unwrap();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.len() < 350), "{keys:?}");
    // The longest that is not.
    let whole = "y".repeat(256);
    limiter.check(&whole).await.unwrap();
    assert!(plain.exists::<_, bool>(format!("fleeting:{{keys:{whole}}}")).await.unwrap());
}

#[tokio::test]
async fn what_others_have_put_there_is_an_error_whatever_the_policy() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = client(&server).await;
    for policy in [OnError::Allow, OnError::Deny, OnError::Local] {
        for window in WINDOWS {
            let limiter: RateLimiter<String> = RateLimiter::builder(&client, "taken")
                .window(window)
                .limit(Limit::per_minute(1))
                .on_error(policy)
                .timeout(Duration::from_secs(5))
                .build()
                .unwrap();
            let () = plain.lpush("fleeting:{taken:list}", 1).await.unwrap();
            let () = plain.set("fleeting:{taken:text}", "hello").await.unwrap();
            for key in ["list", "text"] {
                let error = limiter.check(key).await.unwrap_err();
                let name = format!("fleeting:{{taken:{key}}}");
                assert!(
                    matches!(&error, Error::WrongType { key } if *key == name),
                    "{window:?}: {error:?}"
                );
                assert!(matches!(limiter.peek(key).await, Err(Error::WrongType { .. })));
            }
            let text: String = plain.get("fleeting:{taken:text}").await.unwrap();
            assert_eq!(text, "hello");
        }
    }
    // What another window has written is no other program's, but as little understood.
    let log = strict(&client, "kinds").limit(Limit::per_minute(1)).build().unwrap();
    let gcra =
        strict(&client, "kinds").window(Window::Gcra).limit(Limit::per_minute(1)).build().unwrap();
    log.check("ada").await.unwrap();
    assert!(matches!(gcra.check("ada").await, Err(Error::WrongType { .. })));
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
    let server = Server::start();
    let mut plain = server.plain().await;
    for window in WINDOWS {
        let limiter =
            strict(&client(&server).await, &format!("{window:?}").replace(['(', ')'], "-"))
                .window(window)
                .limit(Limit::per_hour(10))
                .build()
                .unwrap();
        for left in [9, 8, 7] {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut plain).await.unwrap();
            assert_eq!(limiter.check("ada").await.unwrap().remaining(), left);
        }
    }
}

#[tokio::test]
async fn a_plan_of_another_window_counts_the_same_calls_of_a_log() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "log").limit(Limit::per_hour(5)).build().unwrap();
    for _ in 0..4 {
        limiter.check("ada").await.unwrap();
    }
    let plan = [Limit::per_minute(9), Limit::per_hour(6)];
    let permit = limiter.check_with("ada", &plan).await.unwrap();
    assert_eq!(permit.remaining(), 1);
    assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 0);
    permit.refund().await.unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn a_smaller_plan_of_gcra_finds_more_in_use_than_it_has() {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "gcra")
        .window(Window::Gcra)
        .limit(Limit::per_hour(100))
        .build()
        .unwrap();
    limiter.check_n("ada", 100).await.unwrap();
    // A unit leaks in 36 s by both; 51 have to before one has room.
    let half = [Limit::new(50, Duration::from_secs(1_800))];
    let state = limiter.peek_with("ada", &half).await.unwrap();
    assert_eq!(state.remaining(), 0);
    for wait in [state.retry_after(), state.standings()[0].more_after().unwrap()] {
        assert!((51 * 36 - 5..=51 * 36).contains(&wait.as_secs()), "{wait:?}");
    }
}

#[tokio::test]
async fn a_name_that_can_not_be_part_of_a_key_is_refused() {
    let server = Server::start();
    let client = client(&server).await;
    for name in ["", "a{b", "a}b"] {
        let limiter = RateLimiter::<String>::builder(&client, name).limit(Limit::per_second(1));
        assert!(matches!(limiter.build(), Err(Error::Name(bad)) if bad == name));
    }
}

#[tokio::test]
#[should_panic(expected = "a rate limiter needs at least one limit, got none")]
async fn no_limit() {
    let server = Server::start();
    let _ = RateLimiter::<String>::builder(&client(&server).await, "api").build();
}

#[tokio::test]
#[should_panic(expected = "Buckets must be 1 to 10000, got 0")]
async fn no_buckets() {
    let server = Server::start();
    let _ =
        RateLimiter::<String>::builder(&client(&server).await, "api").window(Window::Buckets(0));
}

#[tokio::test]
async fn keys_are_whatever_serde_writes() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let limiter: RateLimiter<(u32, String)> = RateLimiter::builder(&client(&server).await, "pairs")
        .limit(Limit::per_minute(1))
        .build()
        .unwrap();
    limiter.check(&(1, "23".to_owned())).await.unwrap();
    limiter.check(&(12, "3".to_owned())).await.unwrap();
    let mut keys: Vec<String> = plain.keys("*").await.unwrap();
    keys.sort();
    assert_eq!(keys, [r#"fleeting:{pairs:[1,"23"]}"#, r#"fleeting:{pairs:[12,"3"]}"#]);
}

#[tokio::test]
async fn in_a_cluster_keys_are_on_all_nodes() {
    let mut cluster = Cluster::start();
    let client = Client::connect(cluster.urls()).await.unwrap();
    let limiter = Arc::new(strict(&client, "spread").limit(Limit::per_hour(2)).build().unwrap());
    let mut callers = tokio::task::JoinSet::new();
    for key in 0..60 {
        let limiter = Arc::clone(&limiter);
        callers.spawn(async move {
            let key = key.to_string();
            let permit = limiter.check(&key).await.unwrap();
            assert_eq!(limiter.check(&key).await.unwrap().remaining(), 0);
            limited(limiter.check(&key).await);
            permit.refund().await.unwrap();
            assert_eq!(limiter.peek(&key).await.unwrap().remaining(), 1);
        });
    }
    callers.join_all().await;
    for node in cluster.nodes() {
        let keys: usize = redis::cmd("DBSIZE").query_async(&mut node.plain().await).await.unwrap();
        assert!(keys > 5, "{keys} keys are on this node");
    }
}
