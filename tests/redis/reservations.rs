//! Reservations of the rate limiter on Redis: units that a process draws ahead and admits without a round trip.
//!
//! The clock of the server stands still, that of the process passes slowly, and the tests let both pass together.

mod history;
mod oracle;

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Window,
    redis::{Client, Error, LimiterStats, Permit, RateLimiter, RateLimiterBuilder},
};
use futures::FutureExt;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::advance,
};

use super::rate_limiter::{limited, strict};
use crate::servers::{Server, StoppedServer, connect};

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

/// A server and a client whose clocks pass together.
struct World {
    server: StoppedServer,
    client: Client,
    /// Tokio's clock does not advance by itself while a blocking task runs: this one, until the sender is dropped.
    _clock: mpsc::Sender<()>,
    _ticks: AbortOnDrop,
}

impl World {
    /// Returns `None` on Valkey, whose clock cannot be stopped.
    async fn new() -> Option<Self> {
        let server = StoppedServer::start()?;
        let (clock, end) = mpsc::channel::<()>();
        spawn_blocking(move || end.recv());
        // The clock of the process also passes slowly, as some steps of a connection wait for timers.
        let ticks = tokio::spawn(async {
            loop {
                let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(5))).await;
                advance(Duration::from_millis(5)).await;
            }
        });
        let client = connect(server.url()).await;
        Some(Self { server, client, _clock: clock, _ticks: AbortOnDrop(ticks) })
    }

    async fn pass(&self, time: Duration) {
        self.server.pass(time);
        advance(time).await;
    }

    /// Lets reservations lapse, and waits until their units are given back.
    async fn lapse(&self, limiter: &RateLimiter<String>, reserve_for: Duration) {
        self.pass(reserve_for).await;
        self.pass(Duration::from_millis(500)).await;
        let settled = |stats: &LimiterStats| stats.returned + stats.lapsed > 0;
        let begin = Instant::now();
        while !settled(&limiter.stats()) && begin.elapsed() < Duration::from_secs(10) {
            tokio::task::yield_now().await;
        }
    }

    fn builder(&self, name: &str, window: Window) -> RateLimiterBuilder<String> {
        let name = format!("{name} {window:?}").replace(['(', ')'], "-");
        strict(&self.client, &name).window(window)
    }

    /// Returns a limiter of 1,000 calls per hour that reserves up to 500 units for [`LEAD`].
    fn reserving(&self, name: &str, window: Window) -> RateLimiter<String> {
        let builder = self.builder(name, window).limit(Limit::new(1_000, 60 * MINUTE));
        builder.reserve(500).reserve_for(LEAD).build().unwrap()
    }

    /// Returns the number of scripts that the server has executed.
    fn scripts(&self) -> u64 {
        let stats = self.server.ask("INFO commandstats");
        let calls =
            |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
        scripts.filter_map(calls).sum::<u64>()
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes calls until one is denied. Returns their number.
async fn admitted(limiter: &RateLimiter<String>, most: u32) -> u32 {
    for calls in 0..most {
        match limiter.check("ada").await {
            Ok(_) => {}
            Err(Error::Limited(_)) => return calls,
            Err(error) => panic!("server error: {error:?}"),
        }
    }
    most
}

const MINUTE: Duration = Duration::from_secs(60);
const LEAD: Duration = Duration::from_secs(6);

#[tokio::test(start_paused = true)]
async fn busy_key_costs_few_round_trips_and_is_never_admitted_above_its_quota() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("busy", window).limit(Limit::new(10_000, MINUTE));
        let limiter = builder.reserve(500).build().unwrap();
        let before = world.scripts();
        let calls = admitted(&limiter, 20_000).await;
        let scripts = world.scripts() - before;
        // Of a bucket, the part stays empty that leaks while units are reserved.
        let least = if window == Window::Gcra { 8_990 } else { 10_000 };
        assert!((least..=10_000).contains(&calls), "{window:?}: {calls}");
        assert!(scripts < 150, "{window:?}: {scripts} scripts for {calls} calls");
        let stats = limiter.stats();
        assert!(stats.reserved > 8_000 && stats.admitted == u64::from(calls), "{stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rarely_checked_key_costs_one_round_trip_per_check() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("rare", window).limit(Limit::new(1_000, MINUTE));
        let limiter = builder.reserve(500).build().unwrap();
        let before = world.scripts();
        for _ in 0..30 {
            limiter.check("ada").await.unwrap();
            world.pass(LEAD + Duration::from_millis(1)).await;
        }
        assert_eq!(world.scripts() - before, 30, "{window:?}");
        assert_eq!(limiter.stats().reserved, 0, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn small_quota_is_shared_by_several_processes() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let new = || {
            let builder = world.builder("small", window).limit(Limit::new(10, MINUTE));
            builder.reserve(100).build().unwrap()
        };
        let limiters: Vec<_> = (0..8).map(|_| new()).collect();
        let mut calls = 0;
        for round in 0..5 {
            for limiter in &limiters {
                let is_admitted = limiter.check("ada").await.is_ok();
                assert!(is_admitted || round > 0, "{window:?}: a process was admitted nothing");
                calls += u32::from(is_admitted);
            }
        }
        assert_eq!(calls, 10, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unused_units_are_admitted_elsewhere_after_they_have_lapsed() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let [limiter, other] = [(); 2].map(|()| world.reserving("unused", window));
        assert_eq!(admitted(&limiter, 50).await, 50);
        let reserved = 1_000 - 50 - other.peek("ada").await.unwrap().remaining();
        assert!(reserved > 3, "{window:?}: {reserved} units are reserved");
        world.lapse(&limiter, LEAD).await;
        let stats = limiter.stats();
        // The time of the reservation is in use with GCRA: two units, which have leaked by now.
        assert_eq!((stats.returned, stats.lapsed), (stats.reserved - used(&stats), 0), "{stats:?}");
        assert!(
            u64::from(reserved) >= stats.returned && stats.returned > 0,
            "{window:?}: {stats:?}"
        );
        let left = other.peek("ada").await.unwrap().remaining();
        assert!((950..=952).contains(&left), "{window:?}: {left}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_get_the_units_that_another_process_gives_back() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let [limiter, other] = [(); 2].map(|()| world.reserving("waiters", window));
        assert_eq!(admitted(&limiter, 50).await, 50);
        // By a process that draws nothing, whose units would wake its own waiters.
        let rest = world.builder("waiters", window).limit(Limit::new(1_000, 60 * MINUTE));
        let rest = rest.build().unwrap();
        while rest.check("ada").await.is_ok() {}
        let (waiter, before) = (other.clone(), world.scripts());
        let forever =
            AbortOnDrop(tokio::spawn(async move { drop(waiter.until_ready("ada").await) }));
        let waiter = other.clone();
        let minute = tokio::spawn(async move { waiter.until_ready_within("ada", MINUTE).await });
        while world.scripts() == before {
            tokio::task::yield_now().await;
        }
        // The reply arrives before the clock jumps, by which the call would time out.
        let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(100))).await;
        world.lapse(&limiter, LEAD).await;
        assert!(limiter.stats().returned >= 2, "{window:?}");
        let begin = Instant::now();
        while !(forever.0.is_finished() && minute.is_finished()) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{window:?}: the waiters sleep");
            // No faster than in reality, so that no call times out on a busy machine.
            let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(5))).await;
            world.pass(Duration::from_millis(5)).await;
        }
        assert!(minute.await.unwrap().is_ok(), "{window:?}");
    }
}

/// Returns the number of units that were used out of reservations, if each call costs one unit.
fn used(stats: &LimiterStats) -> u64 {
    stats.reserved - stats.returned - stats.lapsed
}

#[tokio::test(start_paused = true)]
async fn drop_of_the_limiter_gives_its_units_back() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let [limiter, other] = [(); 2].map(|()| world.reserving("dropped", window));
        admitted(&limiter, 50).await;
        drop(limiter);
        let begin = Instant::now();
        while other.peek("ada").await.unwrap().remaining() < 940 {
            assert!(begin.elapsed() < Duration::from_secs(10), "{window:?}: nothing is returned");
        }
        world.pass(LEAD).await;
        assert!((950..=953).contains(&other.peek("ada").await.unwrap().remaining()));
    }
}

#[tokio::test(start_paused = true)]
async fn permits_of_reserved_units_are_refunded_and_settled() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("permits", window).limit(Limit::new(1_000, 60 * MINUTE));
        let builder = builder.limit(Limit::new(5_000, 100 * MINUTE));
        let limiter = builder.reserve(500).reserve_for(LEAD).build().unwrap();
        let mut permits: Vec<Permit> = Vec::new();
        for _ in 0..30 {
            permits.push(limiter.check_n("ada", 4).await.unwrap());
        }
        let before = limiter.peek("ada").await.unwrap().remaining();
        for permit in permits.drain(..10) {
            permit.refund().await.unwrap();
        }
        for permit in permits.drain(..10) {
            permit.settle(1).await.unwrap();
        }
        permits.pop().expect("there are ten").settle(9).await.unwrap();
        let after = limiter.peek("ada").await.unwrap().remaining();
        let back = 10 * 4 + 10 * 3 - 5;
        match window {
            // Its refunds are exact only for the last charge.
            Window::Gcra => assert!((before..=before + back).contains(&after), "{before}, {after}"),
            _ => assert_eq!(after, before + back, "{window:?}"),
        }
        assert_eq!(limiter.stats().refunded, 10, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reservation_ends_when_limits_change() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("changed", window).limit(Limit::new(1_000, MINUTE));
        let limiter = builder.reserve(500).build().unwrap();
        assert_eq!(admitted(&limiter, 100).await, 100);
        // Fewer than are in use.
        limiter.set_limits([Limit::new(50, MINUTE)]).await.unwrap();
        limited(limiter.check("ada").await);
        // A shorter limit, of which a tenth is the longest time of a reservation.
        limiter.set_limits([Limit::new(10_000, MINUTE / 10)]).await.unwrap();
        limiter.reset("ada").await.unwrap();
        assert_eq!(admitted(&limiter, 100).await, 100);
        world.pass(MINUTE / 100 + Duration::from_millis(500)).await;
        let before = world.scripts();
        limiter.check("ada").await.unwrap();
        assert!(world.scripts() > before, "{window:?}: the units have lapsed");
    }
}

/// Returns the longest time after which a call of now has left a limit that did not draw the reserved units.
fn longest(limit: &Limit, window: Window) -> Duration {
    let buckets =
        if let Window::Buckets(n) = window { limit.per() / n as u32 } else { Duration::ZERO };
    limit.per() + limit.per() / 10 + buckets
}

#[tokio::test(start_paused = true)]
async fn reserved_units_do_not_block_a_shorter_limit() {
    let Some(world) = World::new().await else { return };
    let (hourly, short) = (Limit::per_hour(100_000), Limit::per_second(5));
    for window in WINDOWS {
        for is_other in [false, true] {
            let name = if is_other { "of-others" } else { "set" };
            let new = |limit: &Limit| world.builder(name, window).limit(limit.clone());
            let limiter = new(&hourly).reserve(100).build().unwrap();
            let other = new(&short).build().unwrap();
            for _ in 0..60 {
                limiter.check("ada").await.unwrap();
            }
            assert!(limiter.stats().reserved > 50, "{window:?}");
            let checked = if is_other { &other } else { &limiter };
            if !is_other {
                limiter.set_limits([short.clone()]).await.unwrap();
            }
            let denied = limited(checked.check("ada").await).retry_after();
            let most = match window {
                // As many units of it leak in this time as were admitted, and as are reserved.
                Window::Gcra => Duration::from_secs(160) / 5,
                _ => longest(&short, window),
            };
            assert!(denied <= most, "{window:?}, {is_other}: denied for {denied:?}");
            world.pass(denied + Duration::from_millis(1)).await;
            assert!(checked.check("ada").await.is_ok(), "{window:?}, {is_other}");
        }
    }
}

/// Returns a limiter that reserves units, of which some are used, and their permits; and one of the same key with a
/// shorter limit.
async fn used_by_another_limit(
    world: &World,
    name: &str,
    window: Window,
) -> (Vec<Permit>, RateLimiter<String>) {
    let new = |quota, per: Duration| {
        world.builder(name, window).limit(Limit::new(quota, per)).deny_cache(0)
    };
    let limiter = new(100_000, Duration::from_secs(1_000)).reserve(1_000).build().unwrap();
    let other = new(50, Duration::from_secs(1)).build().unwrap();
    let mut permits = Vec::new();
    for _ in 0..40 {
        permits.push(limiter.check("ada").await.unwrap());
    }
    world.pass(Duration::from_millis(1)).await;
    (permits, other)
}

#[tokio::test(start_paused = true)]
async fn refund_of_reserved_units_extends_no_wait_of_another_limit() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let (mut permits, other) = used_by_another_limit(&world, "waits", window).await;
        let wait = limited(other.check_n("ada", 50).await).retry_after();
        world.pass(wait / 2).await;
        permits.pop().expect("there are forty").refund().await.unwrap();
        world.pass(wait / 2 + Duration::from_millis(1)).await;
        assert!(other.check_n("ada", 50).await.is_ok(), "{window:?}: after {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_were_drawn_long_ago_are_no_usage_of_a_new_limit() {
    let Some(world) = World::new().await else { return };
    for window in [Window::Log, Window::Gcra] {
        let (_permits, other) = used_by_another_limit(&world, "long-ago", window).await;
        world.pass(Duration::from_secs(5)).await;
        assert_eq!(other.peek("ada").await.unwrap().remaining(), 50, "{window:?}");
        assert!(other.check_n("ada", 50).await.is_ok(), "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_above_the_reserved_units_of_its_process_may_use_them() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("dear", window).limit(Limit::new(100, 20 * MINUTE));
        let limiter = builder.reserve(1_000).build().unwrap();
        let mut remaining = 0;
        for cost in [1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 5, 1, 1, 1] {
            remaining = limiter.check_n("ada", cost).await.unwrap().remaining();
        }
        assert!(limiter.stats().reserved > 5, "{window:?}");
        let permit = limiter.check_n("ada", remaining).await;
        // With Gcra, units that are given back may leave less than they took.
        let permit = match (window, permit) {
            (Window::Gcra, Err(_)) => continue,
            (_, permit) => permit.unwrap(),
        };
        assert_eq!(permit.remaining(), 0, "{window:?}");
        assert_eq!(limiter.stats().reserved, used(&limiter.stats()) + limiter.stats().returned);
    }
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_dear_call_counts_the_reserved_units_of_its_process() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let limiter = world.reserving("counts", window);
        admitted(&limiter, 40).await;
        let before = limiter.check("ada").await.unwrap().remaining();
        let after = limiter.check_n("ada", 100).await.unwrap().remaining();
        assert_eq!(after, before - 100, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_with_a_shorter_limit_passes_while_units_are_reserved() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("beside", window).limit(Limit::per_hour(100_000));
        let limiter = builder.reserve(5).build().unwrap();
        let short = [Limit::per_second(40)];
        for round in 0..100 {
            limiter.check("ada").await.unwrap();
            let checked = limiter.check_with("ada", &short).await;
            assert!(checked.is_ok(), "{window:?}, round {round}: {checked:?}");
            world.pass(Duration::from_millis(100)).await;
        }
        assert!(limiter.stats().reserved > 70, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reset_ends_the_reservation() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let limiter = world.reserving("reset", window);
        admitted(&limiter, 100).await;
        limiter.reset("ada").await.unwrap();
        let stats = limiter.stats();
        assert_eq!(stats.admitted + stats.returned, stats.reserved + server_checks(&stats));
        let calls = admitted(&limiter, 2_000).await;
        assert!((995..=1_000).contains(&calls), "{window:?}: {calls}");
    }
}

/// Returns the number of admitted checks of one unit that asked the server.
fn server_checks(stats: &LimiterStats) -> u64 {
    stats.admitted - used(stats)
}

#[tokio::test(start_paused = true)]
async fn call_that_costs_more_than_is_reserved_asks_the_server() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("costly", window).limit(Limit::new(1_000, 60 * MINUTE));
        let limiter = builder.reserve(20).reserve_for(LEAD).build().unwrap();
        admitted(&limiter, 20).await;
        limiter.check_n("ada", 700).await.unwrap();
        limited(limiter.check_n("ada", 700).await);
        // It has left the reserved units.
        let calls = admitted(&limiter, 2_000).await;
        assert!((275..=280).contains(&calls), "{window:?}: {calls}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_draw_blocks_no_other_check() {
    let Some(world) = World::new().await else { return };
    for window in WINDOWS {
        let builder = world.builder("cancelled", window).limit(Limit::new(100, 60 * MINUTE));
        let limiter = builder.reserve(50).reserve_for(LEAD).build().unwrap();
        let mut calls = 0;
        for call in 0..300 {
            let check = limiter.check("ada");
            let checked = match call % 3 {
                // Polled once.
                0 => check.now_or_never(),
                _ => Some(check.await),
            };
            calls += u32::from(checked.is_some_and(|checked| checked.is_ok()));
        }
        assert!((30..=100).contains(&calls), "{window:?}: {calls}");
    }
}

#[tokio::test]
async fn reserved_units_are_admitted_while_the_server_fails() {
    let mut server = Server::start();
    let client = connect(server.url()).await;
    // They do not lapse during the test.
    let builder = strict(&client, "failing").limit(Limit::new(1_000, 100 * MINUTE));
    let limiter = builder.reserve(500).build().unwrap();
    assert_eq!(admitted(&limiter, 24).await, 24);
    let reserved = limiter.stats().reserved - used_by(&limiter).await;
    server.kill();
    for _ in 0..reserved {
        limiter.check("ada").await.unwrap();
    }
    assert!(limiter.check("ada").await.is_err_and(|error| error.is_temporary()));
}

/// Returns the number of units that `limiter` has taken from reservations, by what a permit still shows as reserved.
async fn used_by(limiter: &RateLimiter<String>) -> u64 {
    let left = limiter.check("ada").await.unwrap().remaining();
    let on_server = limiter.peek("ada").await.unwrap().remaining();
    limiter.stats().reserved - u64::from(left - on_server)
}

#[tokio::test]
#[should_panic(expected = "reserve_for must be above zero")]
async fn reserving_for_no_time_panics() {
    let client = Client::lazy("redis://127.0.0.1:1").unwrap();
    let _ = RateLimiter::<String>::builder(&client, "zero").reserve_for(Duration::ZERO);
}

#[tokio::test]
#[should_panic(expected = "reserve_for must be at most a tenth of the shortest limit, 6s, got 7s")]
async fn reserving_for_more_than_a_tenth_of_the_shortest_limit_panics() {
    let client = Client::lazy("redis://127.0.0.1:1").unwrap();
    let builder = RateLimiter::<String>::builder(&client, "long").limit(Limit::per_hour(1));
    let _ = builder.limit(Limit::per_minute(1)).reserve_for(Duration::from_secs(7)).build();
}
