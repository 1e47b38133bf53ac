//! Near caches: duration of a local hit, delay until a change is seen, and server reads for a hot key.

use std::{
    env,
    fmt::Write,
    hint::black_box,
    process::{Child, Command},
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::{Goals, HOUR, VALUE, key, measure::median, servers::Server};

/// Environment variable with the server's URL. It turns a process of this benchmark into a reader of the hot key.
const READER: &str = "FLEETING_NEAR_READER";

/// Key that the readers read, and the value at which they exit.
const HOT: &str = "hot";
const END: u64 = u64::MAX;

/// Number of reader processes.
const PROCESSES: usize = 8;

/// Number of keys that are read in turns.
const KEYS: usize = 64;

/// Results of runs of the histories, which take longer than this benchmark.
const HISTORIES: &str = include_str!("redis_histories.md");

/// Reads the hot key until the end if this process is a reader. Returns false if it is not.
pub(super) async fn run_as_reader() -> bool {
    let Ok(url) = env::var(READER) else { return false };
    let cache = near(&Client::connect(url).await.expect("the server answers"));
    while !matches!(cache.get(HOT).await, Ok(Some(END))) {
        // The rate of a busy service.
        sleep(Duration::from_millis(1)).await;
    }
    true
}

pub(super) async fn table(
    server: &Server,
    rounds: usize,
    quick: bool,
    goals: &mut Goals,
) -> String {
    let mut page = String::from(
        "## Near cache: local answers\n\n\
         A local hit of `.near(n)` is compared with a `get` of the embedded `Cache` with `max_entries`, with the same \
         keys and values (strings), and with a `Cache::get` that asks the server. One caller awaits one call after the \
         other.\n\n\
         | | ns | relative to the embedded `get` |\n| --- | --- | --- |\n",
    );
    let [embedded, near_hit, round_trip] = hits(server, rounds).await;
    for (name, value) in [
        ("`Cache::get`, embedded", embedded),
        ("`redis::Cache::get`, near", near_hit),
        ("`redis::Cache::get`, one round trip", round_trip),
    ] {
        eprintln!("near: {name} {value:.0} ({:.2})", value / embedded);
        writeln!(page, "| {name} | {value:.0} | {:.2} |", value / embedded)
            .expect("writing to a String cannot fail");
    }
    goals.add("near hit, relative to the embedded `get`", near_hit / embedded, 1.3);
    let seen = delays(server, if quick { 1 } else { 10 }).await;
    eprintln!("near: a change is seen after {seen:?}");
    let [rate, middle, late, latest] = seen;
    goals.add("99th percentile of invalidations, in ms", late, 2.0);
    write!(
        page,
        "\nA process that reads in a loop sees a change by another process after {middle:.2} ms (median), {late:.2} \
         ms (99th percentile), {latest:.2} ms (maximum), while others write to the cache at a rate of {rate:.0} \
         writes/s.\n\n"
    )
    .expect("writing to a String cannot fail");
    let changes = if quick { 20 } else { 200 };
    let reads = hot_key(server, changes).await;
    let reads = reads / changes as f64;
    eprintln!("near: {reads:.2} server reads per change, by {PROCESSES} processes");
    writeln!(
        page,
        "A hot key is read by {PROCESSES} processes every millisecond, and changes {changes} times: together, they \
         read it from the server {reads:.2} times for each change.\n\n{HISTORIES}"
    )
    .expect("writing to a String cannot fail");
    page
}

fn near(client: &Client) -> Cache<String, u64> {
    let builder = Cache::builder(client, "hot").near(10_000);
    builder.near_max_age(HOUR).build().expect("a name")
}

/// Returns nanoseconds per hit: embedded, near, and from the server.
async fn hits(server: &Server, rounds: usize) -> [f64; 3] {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let embedded = fleeting::Cache::builder().max_entries(10_000).build();
    let plain: Cache<String, String> = Cache::new(&client, "near").expect("a name");
    let builder = Cache::builder(&client, "near").near(10_000);
    let near: Cache<String, String> = builder.near_max_age(HOUR).build().expect("a name");
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    for key in &keys {
        // With a TTL, because every entry of a near cache has one.
        embedded.set_ex(key.clone(), VALUE.to_owned(), HOUR).await;
        plain.set(key.clone(), VALUE.to_owned()).await.expect("the write succeeds");
    }
    // Reads until all keys are near: a late invalidation from the writes above may discard an answer.
    let mut hits = near.stats().near_hits;
    while hits < KEYS as u64 {
        let before = near.stats().near_hits;
        near.get_many(&keys).await.expect("the read succeeds");
        hits = near.stats().near_hits - before;
    }
    let before = near.stats().near_hits;
    let mut samples = [const { Vec::new() }; 3];
    // Short rounds, most of which are not interrupted by another process.
    for round in 0..20 * rounds {
        for (at, times) in [(0, 10), (1, 10), (2, usize::from(round % 20 == 0))] {
            if times == 0 {
                continue;
            }
            let begin = Instant::now();
            for _ in 0..times {
                for key in &keys {
                    match at {
                        0 => drop(black_box(embedded.get(key).await)),
                        1 => drop(black_box(near.get(key).await)),
                        _ => drop(black_box(plain.get(key).await)),
                    }
                }
            }
            samples[at].push(begin.elapsed().as_secs_f64() * 1e9 / (times * KEYS) as f64);
        }
    }
    let hits = near.stats().near_hits - before;
    // On an overloaded machine a connection may count as silent, so that some keys are read from the server again.
    assert!(hits as usize >= 180 * rounds * KEYS, "nearly every read is answered locally");
    samples.map(median)
}

/// Returns writes per second, and the milliseconds from the completion of a write until another process sees it:
/// median, 99th percentile and maximum.
async fn delays(server: &Server, seconds: u64) -> [f64; 4] {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let other = Client::connect(server.url()).await.expect("the server answers");
    let (near, other) = (near(&client), Cache::<String, u64>::new(&other, "hot").expect("a name"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let writer = other.clone();
    let others = tokio::spawn(async move {
        let (mut writes, begin) = (0_u64, Instant::now());
        while Instant::now() < end {
            // A hundred writes every ten milliseconds.
            join_all((0..100).map(|n| writer.set(key(n), writes))).await;
            writes += 100;
            sleep(Duration::from_millis(10 * writes / 100).saturating_sub(begin.elapsed())).await;
        }
        writes as f64 / begin.elapsed().as_secs_f64()
    });
    let (mut delays, mut n) = (Vec::new(), 0);
    while Instant::now() < end {
        n += 1;
        other.set(HOT.into(), n).await.expect("the write succeeds");
        let begin = Instant::now();
        while near.get(HOT).await.expect("the read succeeds") != Some(n) {
            tokio::task::yield_now().await;
        }
        delays.push(begin.elapsed().as_secs_f64() * 1e3);
        sleep(Duration::from_millis(2)).await;
    }
    let rate = others.await.expect("the writer does not panic");
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    [rate, at(0.5), at(0.99), at(1.0)]
}

/// Returns the number of server reads by all processes while the hot key changes `changes` times.
async fn hot_key(server: &Server, changes: u64) -> f64 {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let cache: Cache<String, u64> = Cache::new(&client, "hot").expect("a name");
    cache.set(HOT.into(), 0).await.expect("the write succeeds");
    let exe = env::current_exe().expect("the path of this benchmark");
    let start =
        |_| Command::new(&exe).env(READER, server.url()).spawn().expect("the reader starts");
    let mut processes: Vec<Child> = (0..PROCESSES).map(start).collect();
    sleep(Duration::from_secs(2)).await;
    let mut plain = server.plain().await;
    let () = redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .query_async(&mut plain)
        .await
        .expect("the command is permitted");
    for n in 1..=changes {
        cache.set(HOT.into(), n).await.expect("the write succeeds");
        sleep(Duration::from_millis(20)).await;
    }
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut plain)
        .await
        .expect("the server answers");
    let gets = info.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    let gets = gets.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0.0);
    cache.set(HOT.into(), END).await.expect("the write succeeds");
    processes.iter_mut().for_each(|process| {
        process.wait().expect("the reader exits");
    });
    gets
}
