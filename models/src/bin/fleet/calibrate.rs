//! Compares the simulation with 1, 2, 4 and 8 processes that use a real server on this machine.

use std::{
    env,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fleeting::redis::{Cache, Client};
use fleeting_models::fleet::{
    SEED,
    costs::Costs,
    random::{Random, Zipf},
};

use crate::{
    HERE,
    measure::{median, wake_us},
    probe::{Counters, Probe},
    servers::Server,
    simulate::{Setup, simulate},
};

/// Period of the ticks at which processes make their calls.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Time before the measurement, in which near caches fill.
pub(crate) const WARM_UP: Duration = Duration::from_secs(2);

/// Time in which the processes start.
const START: Duration = Duration::from_secs(1);

pub(crate) struct NearLoad {
    pub(crate) keys: usize,
    pub(crate) exponent: f64,
    pub(crate) reads: f64,
    pub(crate) changes: f64,
}

pub(crate) const NEAR: NearLoad =
    NearLoad { keys: 1_000, exponent: 1.0, reads: 1_000.0, changes: 200.0 };

pub(crate) struct LimitsLoad {
    pub(crate) keys: usize,
    pub(crate) quota: u32,
    pub(crate) checks: f64,
}

pub(crate) const LIMITS: LimitsLoad = LimitsLoad { keys: 20, quota: 50, checks: 1_000.0 };

pub(crate) struct LoadsLoad {
    pub(crate) keys: usize,
    pub(crate) exponent: f64,
    pub(crate) calls: f64,
    pub(crate) ttl: Duration,
    pub(crate) load_time: Duration,
}

pub(crate) const LOADS: LoadsLoad = LoadsLoad {
    keys: 200,
    exponent: 1.0,
    calls: 1_000.0,
    ttl: Duration::from_millis(500),
    load_time: Duration::from_millis(20),
};

pub(crate) struct RequestsLoad {
    pub(crate) keys: usize,
    pub(crate) rate: f64,
}

pub(crate) const REQUESTS: RequestsLoad = RequestsLoad { keys: 1_000, rate: 4_000.0 };

/// Numbers of one run, each per second, except for shares.
pub(crate) type Numbers = Vec<(&'static str, f64)>;

pub(crate) fn run(seconds: u64) {
    let mut costs = Costs::measured();
    let round_trip = round_trip();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut table = format!(
        "{seconds} s per run; load average before: {}; round trip of one `get`: {} µs.\n\n\
         | | processes | measured | simulated | difference |\n| --- | --- | --- | --- | --- |\n",
        load.split_whitespace().next().unwrap_or("unknown"),
        round_trip / 1_000
    );
    for scenario in ["requests", "near", "limits", "loads"] {
        for processes in [1, 2, 4, 8] {
            let (measured, wake_us) = measure(scenario, processes, seconds);
            costs.adapt_cold(wake_us);
            let simulated = simulate(scenario, Setup { processes, seconds, round_trip }, &costs);
            for ((name, real), (_, simulated)) in measured.into_iter().zip(simulated) {
                let difference = 100.0 * (simulated / real - 1.0);
                let row = format!(
                    "| {name} | {processes} | {real:.1} | {simulated:.1} | {difference:+.0} % |\n"
                );
                eprint!("{row}");
                table += &row;
            }
        }
    }
    println!("{table}");
    std::fs::write(format!("{HERE}/calibration.md"), table).expect("the package is writable");
}

/// Returns the nanoseconds of one call after another of an idle process.
fn round_trip() -> u64 {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(server.url()).await.expect("the server answers");
        let cache: Cache<u32, u64> = Cache::new(&client, "calibration").expect("a name");
        let mut samples = Vec::new();
        for _ in 0..2_000 {
            let begin = Instant::now();
            cache.get(&1).await.expect("the server answers");
            samples.push(begin.elapsed().as_nanos() as f64);
        }
        median(samples) as u64
    })
}

/// Returns the numbers of a run, and the cost of a turn after a pause, which depends most on the present load of the
/// machine.
fn measure(scenario: &str, processes: usize, seconds: u64) -> (Numbers, f64) {
    let server = Server::start();
    let mut probe = Probe::new(&server);
    let idle = idle_cpu(&mut probe);
    let wake_us = wake_us(&server);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let writer = (scenario == "near").then(|| runtime.spawn(write(server.url())));
    // The values exist before the processes start.
    sleep(Duration::from_millis(500));
    let start = SystemTime::now() + START;
    let children: Vec<_> = (0..processes)
        .map(|n| {
            // Ticks at different times, as in the simulation.
            let start = start + TICK * n as u32 / processes as u32;
            spawn(scenario, &server, n, start, seconds)
        })
        .collect();
    sleep(START + WARM_UP);
    probe.ask(&["CONFIG", "RESETSTAT"]);
    let (before, begin) = (probe.counters(), Instant::now());
    sleep(Duration::from_secs(seconds).saturating_sub(begin.elapsed()));
    let (spent, elapsed) = (probe.counters().since(before), begin.elapsed().as_secs_f64());
    let calls = ["evalsha", "get"].map(|command| probe.calls(command) / elapsed);
    if let Some(writer) = writer {
        writer.abort();
    }
    let sums = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("the process ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut numbers = text.split_whitespace().map(|word| word.parse::<f64>());
        let mut next = || numbers.next().and_then(Result::ok).expect("the process prints numbers");
        (next(), next())
    });
    let (first, second) = sums.fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    let busy = busy(spent, elapsed, idle);
    (numbers(scenario, first, second, seconds as f64, calls, busy), wake_us)
}

fn busy(spent: Counters, elapsed: f64, idle: f64) -> f64 {
    100.0 * (spent.cpu_us / 1e6 / elapsed - idle)
}

pub(crate) fn numbers(
    kind: &str,
    a: f64,
    b: f64,
    seconds: f64,
    [scripts, gets]: [f64; 2],
    busy: f64,
) -> Numbers {
    match kind {
        "near" => vec![
            ("near: hits, %", 100.0 * b / a),
            ("near: `GET`s per second", gets),
            ("near: server busy, %", busy),
        ],
        "limits" => vec![
            ("limits: admitted per second", a / seconds),
            ("limits: checks sent per second", scripts),
            ("limits: server busy, %", busy),
        ],
        "requests" => {
            vec![("requests: `get`s per second", gets), ("requests: server busy, %", busy)]
        }
        _ => vec![
            ("loads: loads per second", b / seconds),
            ("loads: leases requested and values published per second", scripts),
            ("loads: server busy, %", busy),
        ],
    }
}

/// Returns the share of its time in which an idle server is busy.
fn idle_cpu(probe: &mut Probe) -> f64 {
    let before = probe.counters();
    sleep(Duration::from_secs(1));
    probe.counters().since(before).cpu_us / 1e6
}

fn spawn(scenario: &str, server: &Server, n: usize, start: SystemTime, seconds: u64) -> Child {
    let start = start.duration_since(UNIX_EPOCH).expect("a time after 1970").as_micros();
    let seed = SEED + 1 + n as u64;
    Command::new(env::current_exe().expect("the path of this program"))
        .args(["child", scenario, &server.url(), &seed.to_string(), &start.to_string()])
        .arg(seconds.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the process starts")
}

/// Writes all keys, and then random ones at the rate of changes.
async fn write(url: String) {
    let client = Client::connect(url).await.expect("the server answers");
    let cache: Cache<u32, u64> = Cache::new(&client, "calibration").expect("a name");
    for key in 0..NEAR.keys as u32 {
        cache.set(key, 0).await.expect("the server answers");
    }
    let (mut random, keys) = (Random::new(SEED), Zipf::new(NEAR.keys, NEAR.exponent));
    let mut next = tokio::time::Instant::now();
    for value in 1.. {
        next += Duration::from_nanos(random.until_next(NEAR.changes));
        tokio::time::sleep_until(next).await;
        cache.set(keys.key(&mut random), value).await.expect("the server answers");
    }
}
