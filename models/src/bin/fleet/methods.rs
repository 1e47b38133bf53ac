//! Costs of the methods of `fleeting` on a real server: commands, bytes, processor time and memory.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use fleeting::{
    Limit, Window,
    redis::{Cache, Client, ExpiringSet, RateLimiter, TimeoutDict},
};
use fleeting_models::fleet::costs::{Call, Costs};
use futures_util::future::{BoxFuture, FutureExt, join_all};

use crate::{measure::median, probe::Probe, servers::Server};

/// A value of two dozen bytes, as of a session.
const VALUE: &str = "session of a user: 123456";

const HOUR: Duration = Duration::from_secs(3_600);

/// Number of calls in flight, and of calls per round.
const CALLERS: usize = 64;
const CALLS: usize = 6_400;
const ROUNDS: usize = 5;

/// Number of entries claimed at once.
const BATCH: usize = 100;

/// Number of calls after a pause.
const COLD: usize = 200;

/// Number of calls watched by `MONITOR`.
const WATCHED: usize = 100;

/// A call with a number that differs between calls.
type Method = Arc<dyn Fn(usize) -> BoxFuture<'static, ()> + Send + Sync>;

/// Makes a [`Method`] of an expression that uses clones of a handle and the number.
macro_rules! method {
    ($handle:ident, |$n:ident| $call:expr) => {{
        let $handle = $handle.clone();
        let method: Method = Arc::new(move |$n| {
            let $handle = $handle.clone();
            async move {
                let _ = $call.await.expect("the server answers");
            }
            .boxed()
        });
        method
    }};
}

pub(crate) async fn measure(server: &Server, costs: &mut Costs) {
    let client = Client::connect(server.url()).await.expect("the server answers");
    caches(server, &client, costs).await;
    limiters(server, &client, costs).await;
    others(server, &client, costs).await;
    costs.idle = idle(server, &client).await;
}

fn key(n: usize) -> String {
    format!("user:{n:016}")
}

async fn caches(server: &Server, client: &Client, costs: &mut Costs) {
    let plain: Cache<String, String> = Cache::new(client, "plain").expect("a name");
    let events = Cache::builder(client, "events").events(HOUR);
    let events: Cache<String, String> = events.build().expect("a name");
    let near = Cache::builder(client, "near").near(1_000);
    let near: Cache<String, String> = near.build().expect("a name");
    let loads: Cache<String, String> = Cache::new(client, "loads").expect("a name");
    let set = method!(plain, |n| plain.set_ex(key(n), VALUE.into(), HOUR));
    record(server, costs, "set_ex", Some("value of a cache"), &set).await;
    let get = method!(plain, |n| plain.get(&key(n % CALLS)));
    record(server, costs, "get", None, &get).await;
    let remove = method!(plain, |n| plain.remove(&key(n)));
    record(server, costs, "remove", None, &remove).await;
    let set = method!(events, |n| events.set_ex(key(n), VALUE.into(), HOUR));
    record(server, costs, "set_ex with events", Some("value of a cache with events"), &set).await;
    let set = method!(plain, |n| plain.set_tagged(key(n), VALUE.into(), HOUR, ["tag"]));
    record(server, costs, "set_tagged", Some("value with a tag"), &set).await;
    let get = method!(plain, |n| plain.get(&key(n % CALLS)));
    record(server, costs, "get of a value with tags", None, &get).await;
    let writer: Cache<String, String> = Cache::new(client, "near").expect("a name");
    let set = method!(writer, |n| writer.set(key(n), VALUE.into()));
    rounds((ROUNDS + 1) * CALLS, &set, 0).await;
    // Each key is read once, so that no answer is cached yet.
    let read = method!(near, |n| near.get(&key(n)));
    record(server, costs, "near miss", None, &read).await;
    let load = method!(loads, |n| loads.get_or_set_with(&key(n), HOUR, async || VALUE.into()));
    record(server, costs, "get_or_set_with, miss", None, &load).await;
    let (get, load) = (costs.call("get"), costs.call("get_or_set_with, miss"));
    // A miss is a `get` and two scripts, which are about equal.
    let half = |whole: f64, get: f64| (whole - get) / 2.0;
    let script = Call {
        sent: half(load.sent, get.sent),
        executed: half(load.executed, get.executed),
        us: half(load.us, get.us),
        cold_us: half(load.cold_us, get.cold_us).max(0.0),
        bytes_in: half(load.bytes_in, get.bytes_in),
        bytes_out: half(load.bytes_out, get.bytes_out),
    };
    costs.calls.push(("lookup_lease".to_owned(), script));
    costs.calls.push(("publish".to_owned(), script));
}

async fn limiters(server: &Server, client: &Client, costs: &mut Costs) {
    for (name, window) in
        [("Log", Window::Log), ("Buckets(10)", Window::Buckets(10)), ("Gcra", Window::Gcra)]
    {
        let limiter = |quota, end: &str| -> RateLimiter<u64> {
            let limiter = RateLimiter::builder(client, format!("{name} {end}")).window(window);
            limiter.limit(Limit::new(quota, HOUR)).deny_cache(0).build().expect("a name")
        };
        let admits = limiter(1_000_000, "admits");
        // A thousand keys, each checked a few dozen times: a typical number of calls in a window.
        let check = method!(admits, |n| admits.check(&(n as u64 % 1_000)));
        record(server, costs, &format!("check {name}, admitted"), None, &check).await;
        let denies = limiter(1, "denies");
        let handle = denies.clone();
        let check: Method = Arc::new(move |n| {
            let handle = handle.clone();
            async move { drop(handle.check(&(n as u64 % 10)).await) }.boxed()
        });
        rounds(CALLS, &check, 0).await;
        record(server, costs, &format!("check {name}, denied"), None, &check).await;
        let keys = limiter(100, "keys");
        let check = method!(keys, |n| keys.check(&(n as u64 / 10)));
        memory(server, costs, &format!("key of a limiter, {name}, 10 calls"), 10, &check).await;
    }
}

async fn others(server: &Server, client: &Client, costs: &mut Costs) {
    let jobs: TimeoutDict<String, String> = TimeoutDict::new(client, "jobs").expect("a name");
    let set = method!(jobs, |n| jobs.set(key(n), VALUE.into(), HOUR));
    record(server, costs, "TimeoutDict::set", Some("entry of a dictionary"), &set).await;
    let due: TimeoutDict<String, String> = TimeoutDict::new(client, "due").expect("a name");
    let add = method!(due, |n| due.set(key(n), VALUE.into(), Duration::ZERO));
    rounds(8_000, &add, 0).await;
    let claim: Method = Arc::new(move |_| {
        let due = due.clone();
        async move {
            let claims = due.claim_expired(BATCH, HOUR).await.expect("the server answers");
            for acked in join_all(claims.into_iter().map(|claim| claim.ack())).await {
                acked.expect("the server answers");
            }
        }
        .boxed()
    });
    let batches = 8_000 / BATCH / 2;
    let mut call = spend(server, costs, &claim, batches, 1, 0).await;
    (call.sent, call.executed) = watch(server, &claim, batches / 2).await;
    let per_entry = |whole: f64| whole / BATCH as f64;
    call = Call {
        sent: per_entry(call.sent),
        executed: per_entry(call.executed),
        us: per_entry(call.us),
        cold_us: 0.0,
        bytes_in: per_entry(call.bytes_in),
        bytes_out: per_entry(call.bytes_out),
    };
    costs.calls.push(("claim_expired(100) and acks, per entry".to_owned(), call));
    let set: ExpiringSet<String> = ExpiringSet::new(client, "set", HOUR).expect("a name");
    let push = method!(set, |n| set.push_at(key(n), SystemTime::now()));
    record(server, costs, "ExpiringSet::push", Some("member of a set"), &push).await;
}

/// Measures a method, and the memory of each key that it adds.
async fn record(
    server: &Server,
    costs: &mut Costs,
    name: &str,
    key: Option<&str>,
    method: &Method,
) {
    let mut probe = Probe::new(server);
    let memory_before = probe.counters().memory;
    let (mut samples, mut call) = (Vec::new(), Call::default());
    for round in 0..ROUNDS {
        call = spend(server, costs, method, CALLS, CALLERS, round * CALLS).await;
        samples.push(call.us);
    }
    if let Some(key) = key {
        let added = probe.counters().memory - memory_before;
        costs.bytes.push((key.to_owned(), added / (ROUNDS * CALLS) as f64));
    }
    call.us = median(samples);
    call.cold_us = cold(server, costs, method, call.us).await;
    (call.sent, call.executed) = watch(server, method, WATCHED).await;
    eprintln!("{name}: {call:?}");
    costs.calls.push((name.to_owned(), call));
}

/// Returns the costs per call of a round, except for its commands.
async fn spend(
    server: &Server,
    costs: &Costs,
    method: &Method,
    calls: usize,
    callers: usize,
    first: usize,
) -> Call {
    let mut probe = Probe::new(server);
    let before = probe.counters();
    rounds_of(calls, callers, method, first).await;
    let spent = probe.counters().since(before);
    // The rest are the commands.
    let turns = spent.reads * (costs.turns.turn_us + costs.turns.connection_us[0]);
    let per_call = |whole: f64| whole / calls as f64;
    Call {
        us: per_call(spent.cpu_us - turns).max(0.0),
        bytes_in: per_call(spent.bytes_in),
        bytes_out: per_call(spent.bytes_out),
        ..Call::default()
    }
}

/// Returns the additional processor time of a call after a pause.
async fn cold(server: &Server, costs: &Costs, method: &Method, hot_us: f64) -> f64 {
    let mut probe = Probe::new(server);
    let mut samples = Vec::new();
    for round in 0..3 {
        let before = probe.counters();
        for n in 0..COLD {
            tokio::time::sleep(Duration::from_millis(2)).await;
            method(ROUNDS * CALLS + WATCHED + round * COLD + n).await;
        }
        let spent = probe.counters().since(before);
        let turns = spent.reads * (costs.turns.turn_us + costs.turns.connection_us[0]);
        samples.push((spent.cpu_us - turns) / COLD as f64 - hot_us);
    }
    median(samples).max(0.0)
}

/// Measures the memory of each key that a method adds in `calls` calls.
async fn memory(server: &Server, costs: &mut Costs, name: &str, calls: usize, method: &Method) {
    let mut probe = Probe::new(server);
    let before = probe.counters().memory;
    rounds(calls * CALLS, method, 0).await;
    let added = probe.counters().memory - before;
    costs.bytes.push((name.to_owned(), added / CALLS as f64));
}

/// Makes calls with the numbers from `first`, some at a time.
async fn rounds(calls: usize, method: &Method, first: usize) {
    rounds_of(calls, CALLERS, method, first).await;
}

async fn rounds_of(calls: usize, callers: usize, method: &Method, first: usize) {
    let tasks = (0..callers).map(|caller| {
        let method = method.clone();
        tokio::spawn(async move {
            for call in (caller..calls).step_by(callers) {
                method(first + call).await;
            }
        })
    });
    for caller in join_all(tasks).await {
        caller.expect("no call panics");
    }
}

/// Returns the commands per call that clients send, and those that the server executes.
async fn watch(server: &Server, method: &Method, calls: usize) -> (f64, f64) {
    let mut monitor = Probe::new(server);
    monitor.ask(&["MONITOR"]);
    for n in 0..calls {
        method(ROUNDS * CALLS + n).await;
    }
    let lines = monitor.lines();
    let is_background = |line: &&String| line.contains("\"PING\"") || line.contains("\"INFO\"");
    let of_scripts = lines.iter().filter(|line| line.contains(" lua] ")).count();
    let all = lines.iter().filter(|line| !is_background(line)).count();
    ((all - of_scripts) as f64 / calls as f64, all as f64 / calls as f64)
}

/// Returns the commands per second of a process without calls, by the handle that it has.
async fn idle(server: &Server, client: &Client) -> Vec<(String, f64)> {
    // One after the other, because each sends its commands until it is dropped.
    let near = Cache::<String, String>::builder(client, "idle").near(1_000);
    let near: Cache<String, String> = near.build().expect("a name");
    near.get("key").await.expect("the server answers");
    let of_near = idle_rate(server).await;
    drop(near);
    let limiter = RateLimiter::<u64>::builder(client, "idle").limit(Limit::per_second(1));
    let limiter: RateLimiter<u64> = limiter.build().expect("a name");
    drop(limiter.check(&1).await);
    let of_limiter = idle_rate(server).await;
    drop(limiter);
    let events = Cache::<String, String>::builder(client, "idle events").events(HOUR);
    let events: Cache<String, String> = events.build().expect("a name");
    let mut stream = events.events_lossless("group").await.expect("the server answers");
    let subscriber = tokio::spawn(async move { stream.recv().await.is_some() });
    let of_events = idle_rate(server).await;
    subscriber.abort();
    let rates = [
        ("a near cache", of_near),
        ("a limiter", of_limiter),
        ("a subscriber of events", of_events),
    ];
    rates.map(|(name, rate)| (name.to_owned(), rate)).into()
}

/// Returns the commands per second that the server executes now.
async fn idle_rate(server: &Server) -> f64 {
    let mut probe = Probe::new(server);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = probe.counters();
    tokio::time::sleep(Duration::from_secs(10)).await;
    (probe.counters().since(before).commands - 1.0) / 10.0
}
