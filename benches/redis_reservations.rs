//! Reservations of limits: duration of a check from a reservation, and what many processes that check one key together
//! cost the server.

use std::{
    env,
    fmt::Write,
    hint::black_box,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Window,
    redis::{Client, RateLimiter},
};
use futures_util::future::join_all;
use tokio::time::interval;

use crate::{CALLERS, Goals, key, measure::median, servers::Server};

/// Environment variable with the units of a draw, the seconds and the server's URL. It turns a process of this
/// benchmark into one that checks the busy key.
const CHECKER: &str = "FLEETING_RESERVATIONS_CHECKER";

/// Number of these processes, and the checks per second of all of them with reservations.
const PROCESSES: usize = 8;
const RATE: usize = 200_000;

/// Time of the limit, of which a tenth is that of a reservation.
const PER: Duration = Duration::from_secs(10);

/// Number of keys that are checked in turns.
const KEYS: usize = 64;

/// Checks the busy key, and prints the number of its checks, if this process is to do so. Returns false if it is not.
pub(super) async fn run_as_checker() -> bool {
    let Ok(task) = env::var(CHECKER) else { return false };
    let mut words = task.split(' ');
    let mut next = || words.next().expect("three words");
    let (most, seconds): (u32, u64) =
        (next().parse().expect("a number"), next().parse().expect("a number"));
    let client = Client::connect(next()).await.expect("the server answers");
    let limiter = limiter(&client, "busy", most);
    let end = Instant::now() + Duration::from_secs(seconds);
    let checks = match most {
        // As many as the server answers.
        0 => {
            let callers = (0..CALLERS).map(async |_| {
                let mut checks = 0;
                while Instant::now() < end {
                    checks += usize::from(limiter.check("busy").await.is_ok());
                }
                checks
            });
            join_all(callers).await.into_iter().sum()
        }
        _ => {
            let (mut checks, mut ticks) = (0, interval(Duration::from_millis(1)));
            while Instant::now() < end {
                ticks.tick().await;
                for _ in 0..RATE / PROCESSES / 1_000 {
                    checks += usize::from(limiter.check("busy").await.is_ok());
                }
            }
            checks
        }
    };
    println!("{checks}");
    true
}

pub(super) async fn table(
    server: &Server,
    rounds: usize,
    quick: bool,
    goals: &mut Goals,
) -> String {
    let mut page = String::from(
        "\n## Reservations\n\n\
         A `check` from a reservation is compared with a `check` of the embedded `RateLimiter` with the same limit and \
         window (`Gcra`). One caller checks 64 keys in turns.\n\n\
         | | ns | relative to the embedded `check` |\n| --- | --- | --- |\n",
    );
    let [embedded, reserved] = checks(server, rounds).await;
    for (name, value) in [
        ("`RateLimiter::check`, embedded", embedded),
        ("`redis::RateLimiter::check`, reserved", reserved),
    ] {
        writeln!(page, "| {name} | {value:.0} | {:.2} |", value / embedded)
            .expect("writing to a String cannot fail");
    }
    goals.add(
        "check from a reservation, relative to the embedded `check`",
        reserved / embedded,
        1.5,
    );
    let seconds = if quick { 3 } else { 12 };
    let mut rows = [const { Vec::new() }; 2];
    for _ in 0..if quick { 1 } else { 3 } {
        for (rows, most) in rows.iter_mut().zip([0, 10_000]) {
            rows.push(busy_key(server, most, seconds).await);
        }
    }
    write!(
        page,
        "\n{PROCESSES} processes check one key (`Gcra`): without reservations as often as the server answers, and with \
         `reserve(10_000)` for a second {RATE} times per second together. Medians of runs of {seconds} s in turns, from \
         the first check on.\n\n\
         | | checks per second | scripts per 1,000 checks | server µs per 1,000 checks |\n| --- | --- | --- | --- |\n"
    )
    .expect("writing to a String cannot fail");
    let rows =
        rows.map(|runs| [0, 1, 2].map(|at| median(runs.iter().map(|run| run[at]).collect())));
    for (name, [rate, scripts, micros]) in ["without", "with reservations"].iter().zip(rows) {
        writeln!(page, "| {name} | {rate:.0} | {scripts:.2} | {micros:.0} |")
            .expect("writing to a String cannot fail");
    }
    let [without, with] = rows;
    goals.add("scripts of a busy key with reservations, in %", 100.0 * with[1] / without[1], 2.0);
    goals.add(
        "server time of a busy key with reservations, in %",
        100.0 * with[2] / without[2],
        2.0,
    );
    page
}

/// Returns a limit that is never exhausted.
fn limit() -> Limit {
    Limit::new(10_000_000, PER)
}

fn limiter(client: &Client, name: &str, most: u32) -> RateLimiter<String> {
    let builder = RateLimiter::builder(client, name).window(Window::Gcra).limit(limit());
    if most == 0 { builder.build() } else { builder.reserve(most).build() }.expect("a name")
}

/// Returns nanoseconds per check: embedded, and from a reservation.
async fn checks(server: &Server, rounds: usize) -> [f64; 2] {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let embedded: fleeting::RateLimiter<String> =
        fleeting::RateLimiter::builder().window(Window::Gcra).limit(limit()).build();
    let reserved = limiter(&client, "reserved", 1_000_000);
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let mut samples = [const { Vec::new() }; 2];
    // Long enough for draws of a million units: short rounds, most of which contain no draw.
    for _ in 0..100 * rounds {
        for (at, samples) in samples.iter_mut().enumerate() {
            let begin = Instant::now();
            for _ in 0..10 {
                for key in &keys {
                    match at {
                        0 => drop(black_box(embedded.check(key).await)),
                        _ => drop(black_box(reserved.check(key).await)),
                    }
                }
            }
            samples.push(begin.elapsed().as_secs_f64() * 1e9 / (10 * KEYS) as f64);
        }
    }
    let stats = reserved.stats();
    assert!(stats.reserved > 0, "checks are admitted from reservations: {stats:?}");
    samples.map(median)
}

/// Returns the checks per second of all processes, and the scripts and microseconds of the server for a thousand
/// checks.
async fn busy_key(server: &Server, most: u32, seconds: u64) -> [f64; 3] {
    let exe = env::current_exe().expect("the path of this benchmark");
    let (scripts, micros) = work(server).await;
    let start = |_| {
        let task = format!("{most} {seconds} {}", server.url());
        let command = &mut Command::new(&exe);
        command.env(CHECKER, task).stdout(Stdio::piped()).spawn().expect("the process starts")
    };
    let processes: Vec<_> = (0..PROCESSES).map(start).collect();
    let mut checks = 0.0;
    for process in processes {
        let output = process.wait_with_output().expect("the process exits");
        let text = String::from_utf8(output.stdout).expect("text");
        checks += text.trim().parse::<f64>().expect("it prints the number of its checks");
    }
    let (scripts_after, micros_after) = work(server).await;
    let per_thousand = 1_000.0 / checks;
    [
        checks / seconds as f64,
        (scripts_after - scripts) * per_thousand,
        (micros_after - micros) * per_thousand,
    ]
}

/// Returns the scripts that the server has executed, and the microseconds of its processor.
async fn work(server: &Server) -> (f64, f64) {
    let info: String = redis::cmd("INFO")
        .arg("everything")
        .query_async(&mut server.plain().await)
        .await
        .expect("the server answers");
    let number = |prefix: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(prefix)).unwrap_or("0");
        value.split(',').next().and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    };
    let seconds: f64 = number("used_cpu_user:") + number("used_cpu_sys:");
    (number("cmdstat_evalsha:calls="), 1e6 * seconds)
}
