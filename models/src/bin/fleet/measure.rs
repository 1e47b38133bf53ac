//! Measures the costs of a real server: of its event loop by connections without a client library, and of the methods
//! of `fleeting` by [`methods`](crate::methods).
//!
//! Costs are times of the server's processor (`INFO cpu`), which other processes disturb less than elapsed times. They
//! are medians of rounds.
//!
//! Run it on one processor (`taskset -c 0`). On two, each reply wakes the other, idle processor, which costs a virtual
//! machine more than ten commands. With many clients, it is awake.

use std::{
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use fleeting_models::fleet::costs::{CONNECTIONS, Costs, LONG_PAUSE, PAUSES, TurnCosts};

use crate::{HERE, methods, probe::Probe, servers::Server};

const ROUNDS: usize = 9;

pub(crate) fn run() {
    let server = Server::start();
    let mut costs = Costs { server: versions(), ..Costs::default() };
    costs.turns = turns(&server);
    eprintln!("{:?}", costs.turns);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(methods::measure(&server, &mut costs));
    std::fs::write(format!("{HERE}/costs.txt"), costs.write()).expect("the package is writable");
    print!("{}", costs.write());
}

fn versions() -> String {
    let version = Command::new(crate::servers::program()).arg("--version").output();
    let version = String::from_utf8(version.expect("the server runs").stdout).expect("text");
    let version = version.split_whitespace().find_map(|word| word.strip_prefix("v="));
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    format!("{}, {}", version.unwrap_or("unknown"), cpu.unwrap_or("unknown processor"))
}

pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn turns(server: &Server) -> TurnCosts {
    let mut control = Probe::new(server);
    control.ask(&["SET", "key", "session of a user: 123456"]);
    let median_of =
        |sample: &mut dyn FnMut() -> f64| median((0..ROUNDS).map(|_| sample()).collect());
    let get: &[&str] = &["GET", "key"];
    let mut one = Probe::new(server);
    let alone = median_of(&mut || pipelined(&mut control, &mut one, &[get], 4_000));
    let together = median_of(&mut || pipelined(&mut control, &mut one, &[get; 64], 200));
    // alone = turn + connection + get, together = turn + connection + 64 get.
    let get_us = (together - alone) / 63.0;
    let mut many: Vec<Probe> = (0..CONNECTIONS[3]).map(|_| Probe::new(server)).collect();
    let nothing = median_of(&mut || in_one_turn(&mut control, &mut [], get));
    // By the number of connections: the cost of one in a turn of all, and of one in a turn of its own.
    let mut measured = [1, 2, 3].map(|i| {
        let probes = &mut many[..CONNECTIONS[i]];
        let count = probes.len() as f64;
        let shared = median_of(&mut || in_one_turn(&mut control, probes, get)) - nothing;
        let single = median_of(&mut || one_by_one(&mut control, probes, get));
        eprintln!("{count} connections: {:.2} together, {single:.2} one by one", shared / count);
        // A connection costs most in a turn of its own.
        ((shared / count).min(single) - get_us, single - get_us)
    });
    let turn_us = median(measured.map(|(shared, single)| single - shared).into()).max(0.0);
    let first = (alone - get_us - turn_us).max(0.0);
    // More connections do not cost less each.
    measured[0].0 = measured[0].0.max(first);
    let [few, some, all] = measured.map(|(shared, _)| shared);
    let connection_us = [first, few, some.max(few), all.max(some)];
    let (push_us, pushed_key_us) = pushes(server, &mut control, &mut many[..200]);
    let connect_us = connects(server, &mut control);
    let wake_us = wake_us(server);
    let pause_share = pause_share(server);
    TurnCosts { turn_us, wake_us, pause_share, connection_us, push_us, pushed_key_us, connect_us }
}

/// Returns the processor time of a turn after a long pause, in addition to that of a turn in a series.
pub(crate) fn wake_us(server: &Server) -> f64 {
    median((0..7).map(|_| after_pauses(server, &[LONG_PAUSE])[0]).collect()).max(0.0)
}

/// Returns the shares of these costs after shorter pauses.
fn pause_share(server: &Server) -> [f64; PAUSES.len()] {
    let mut pauses = PAUSES.to_vec();
    pauses.push(LONG_PAUSE);
    let rounds: Vec<Vec<f64>> = (0..ROUNDS).map(|_| after_pauses(server, &pauses)).collect();
    let medians: Vec<f64> =
        (0..pauses.len()).map(|i| median(rounds.iter().map(|round| round[i]).collect())).collect();
    let whole = medians[PAUSES.len()].max(0.1);
    // A longer pause does not cost less.
    let mut least = 0.0_f64;
    std::array::from_fn(|i| {
        least = least.max((medians[i] / whole).clamp(0.0, 1.0));
        least
    })
}

/// Returns the processor time of a turn after each of these pauses, in microseconds, in addition to that of a turn in a
/// series.
fn after_pauses(server: &Server, pauses: &[usize]) -> Vec<f64> {
    let (mut control, mut probe) = (Probe::new(server), Probe::new(server));
    let get: &[&str] = &["GET", "key"];
    let in_series = pipelined(&mut control, &mut probe, &[get], 2_000);
    let mut after = |pause| {
        let (before, times) = (control.counters(), 250);
        for _ in 0..times {
            rest(Duration::from_micros(pause as u64));
            probe.ask(get);
        }
        control.counters().since(before).cpu_us / f64::from(times) - in_series
    };
    pauses.iter().map(|&pause| after(pause)).collect()
}

/// Waits exactly: a sleep takes about 60 us longer than it should.
fn rest(time: Duration) {
    let begin = Instant::now();
    if let Some(most) = time.checked_sub(Duration::from_micros(150)) {
        sleep(most);
    }
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Returns the processor time per command if each connection is served in a turn of its own.
fn one_by_one(control: &mut Probe, probes: &mut [Probe], command: &[&str]) -> f64 {
    let before = control.counters();
    let rounds = 2_000 / probes.len();
    for _ in 0..rounds {
        probes.iter_mut().for_each(|probe| drop(probe.ask(command)));
    }
    control.counters().since(before).cpu_us / (rounds * probes.len()) as f64
}

/// Returns the processor time per batch that is sent and answered as one.
fn pipelined(control: &mut Probe, probe: &mut Probe, batch: &[&[&str]], times: usize) -> f64 {
    let before = control.counters();
    for _ in 0..times {
        probe.send(batch);
        batch.iter().for_each(|_| drop(probe.receive()));
    }
    control.counters().since(before).cpu_us / times as f64
}

/// Returns the processor time of a turn with a command from each connection. The commands arrive while the server
/// sleeps.
fn in_one_turn(control: &mut Probe, probes: &mut [Probe], command: &[&str]) -> f64 {
    let before = control.counters();
    let times = 20;
    for _ in 0..times {
        control.send(&[&["DEBUG", "SLEEP", "0.02"]]);
        sleep(Duration::from_millis(4));
        probes.iter_mut().for_each(|probe| probe.send(&[command]));
        control.receive();
        probes.iter_mut().for_each(|probe| drop(probe.receive()));
    }
    control.counters().since(before).cpu_us / times as f64
}

/// Returns the processor times per notified connection, and per changed key in its notification.
fn pushes(server: &Server, control: &mut Probe, probes: &mut [Probe]) -> (f64, f64) {
    let set: &[&str] = &["SET", "fleeting:cache1:{sessions:7}:key", "session of a user: 123456"];
    let mut writer = Probe::new(server);
    let mut sample = |batch: &[&[&str]], times| {
        let rounds = (0..ROUNDS).map(|_| pipelined(control, &mut writer, batch, times));
        median(rounds.collect())
    };
    let untracked = [sample(&[set], 100), sample(&[set; 32], 20)];
    for probe in probes.iter_mut() {
        probe.send(&[&["HELLO", "3"]]);
        probe.send(&[&[
            "CLIENT",
            "TRACKING",
            "ON",
            "BCAST",
            "PREFIX",
            "fleeting:cache1:{sessions:",
        ]]);
    }
    probes.iter_mut().for_each(Probe::skip_until_tracked);
    let tracked = [sample(&[set], 100), sample(&[set; 32], 20)];
    let count = probes.len() as f64;
    let one = (tracked[0] - untracked[0]) / count;
    let many = (tracked[1] - untracked[1]) / count;
    // Redis reports a key once for all changes in a turn, so 32 changes of one key are one key.
    let other: Vec<String> =
        (0..32).map(|n| format!("fleeting:cache1:{{sessions:7}}:{n}")).collect();
    let distinct: Vec<[&str; 3]> = other.iter().map(|key| ["SET", key, set[2]]).collect();
    let distinct: Vec<&[&str]> = distinct.iter().map(|command| &command[..]).collect();
    let keys = (sample(&distinct, 20) - untracked[1]) / count;
    let key_us = ((keys - many) / 31.0).max(0.0);
    (one - key_us, key_us)
}

impl Probe {
    /// Receives the replies to `HELLO` and `CLIENT TRACKING`.
    fn skip_until_tracked(&mut self) {
        while self.receive() != "+OK" {}
    }
}

/// Returns the processor time per new connection of this crate's client.
fn connects(server: &Server, control: &mut Probe) -> f64 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = server.url();
    let samples = (0..ROUNDS).map(|_| {
        let before = control.counters();
        runtime.block_on(async {
            for _ in 0..50 {
                let client = fleeting::redis::Client::connect(&*url).await.expect("it answers");
                drop(client);
            }
        });
        control.counters().since(before).cpu_us / 50.0
    });
    median(samples.collect())
}
