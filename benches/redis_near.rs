//! A near cache: what a local hit costs, how soon a change is seen, and what a hot key costs its server.

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

use crate::{HOUR, VALUE, key, median, servers::Server};

/// A process of this benchmark that does nothing but read a hot key: the server's URL.
const READER: &str = "FLEETING_NEAR_READER";

/// What a reader reads, and what tells it to end.
const HOT: &str = "hot";
const END: u64 = u64::MAX;

/// Processes that read one key.
const PROCESSES: usize = 8;

/// Keys in turns, as each task has.
const KEYS: usize = 64;

/// What a run of the test said, which takes longer than this.
const HISTORY: &str = "Whether anything is ever older than it may be is checked by a history of four processes \
    (`FLEETING_NEAR_SECONDS=420 cargo test --release --features axum,redis --test redis near_history`): 16,387,619 \
    operations, 9,691,751 of them answered near, beside 68 cuts, 72 connections that went silent, 72 stops of the server, \
    86 of a process, 71 failovers, and values that expire. None was.";

/// What this process does where it is a reader.
pub(super) async fn read_where_asked() -> bool {
    let Ok(url) = env::var(READER) else { return false };
    let cache = near(&Client::connect(url).await.expect("the server answers"));
    while !matches!(cache.get(HOT).await, Ok(Some(END))) {
        // As often as a busy service.
        sleep(Duration::from_millis(1)).await;
    }
    true
}

pub(super) async fn table(server: &Server, rounds: usize, quick: bool) -> String {
    let mut page = String::from(
        "## Near: what is answered in this process\n\n\
         A local hit of `.near(n)` beside a `get` of the embedded `Cache` with `max_entries`, of the same keys and values \
         (strings), and beside a `Cache::get` that asks the server, by one caller who awaits one after the other.\n\n\
         | | ns | to the embedded `get` |\n| --- | --- | --- |\n",
    );
    let [embedded, kept, asked] = hits(server, rounds).await;
    for (name, figure) in [
        ("`Cache::get`, embedded", embedded),
        ("`redis::Cache::get`, near", kept),
        ("`redis::Cache::get`, one round trip", asked),
    ] {
        eprintln!("near: {name} {figure:.0} ({:.2})", figure / embedded);
        writeln!(page, "| {name} | {figure:.0} | {:.2} |", figure / embedded)
            .expect("it is a string");
    }
    let told = delays(server, if quick { 1 } else { 10 }).await;
    eprintln!("near: a change is seen after {told:?}");
    let [rate, middle, late, latest] = told;
    write!(
        page,
        "\nAnother process' change is seen by one who reads again and again, while others write to that cache at the same \
         time ({rate:.0} a second): after {middle:.2} ms in the middle, {late:.2} ms at the 99th percentile, {latest:.2} ms at \
         the most.\n\n"
    )
    .expect("it is a string");
    let changes = if quick { 20 } else { 200 };
    let reads = hot_key(server, changes).await;
    let reads = reads / changes as f64;
    eprintln!("near: {reads:.2} reads of the server a change, of {PROCESSES} processes");
    writeln!(
        page,
        "A hot key that {PROCESSES} processes read each millisecond and that changes {changes} times: {reads:.2} reads of \
         the server a change by all of them together.\n\n{HISTORY}"
    )
    .expect("it is a string");
    page
}

fn near(client: &Client) -> Cache<String, u64> {
    let builder = Cache::builder(client, "hot").near(10_000);
    builder.near_max_age(HOUR).build().expect("a name")
}

/// Nanoseconds of a hit: embedded, near, and by the server.
async fn hits(server: &Server, rounds: usize) -> [f64; 3] {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let embedded = fleeting::Cache::builder().max_entries(10_000).build();
    let plain: Cache<String, String> = Cache::new(&client, "near").expect("a name");
    let builder = Cache::builder(&client, "near").near(10_000);
    let near: Cache<String, String> = builder.near_max_age(HOUR).build().expect("a name");
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    for key in &keys {
        // With a TTL, as all that is kept has one.
        embedded.set_ex(key.clone(), VALUE.to_owned(), HOUR).await;
        plain.set(key.clone(), VALUE.to_owned()).await.expect("it is set");
    }
    // The server may still tell of what was set while an answer is on its way.
    let mut hits = near.stats().near_hits;
    while hits < KEYS as u64 {
        let before = near.stats().near_hits;
        near.get_many(&keys).await.expect("they are read");
        hits = near.stats().near_hits - before;
    }
    let before = near.stats().near_hits;
    let mut figures = [const { Vec::new() }; 3];
    // Short ones, so that most of them are interrupted by nobody.
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
            figures[at].push(begin.elapsed().as_secs_f64() * 1e9 / (times * KEYS) as f64);
        }
    }
    let hits = near.stats().near_hits - before;
    // A machine that is late may take a connection to be silent, and ask anew.
    assert!(hits as usize >= 180 * rounds * KEYS, "nearly each is answered here");
    figures.map(median)
}

/// Writes a second; milliseconds from the answer of a write to when it is seen: in the middle, the 99th percentile, and
/// the most.
async fn delays(server: &Server, seconds: u64) -> [f64; 4] {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let other = Client::connect(server.url()).await.expect("the server answers");
    let (near, other) = (near(&client), Cache::<String, u64>::new(&other, "hot").expect("a name"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let writer = other.clone();
    let others = tokio::spawn(async move {
        let (mut writes, begin) = (0_u64, Instant::now());
        while Instant::now() < end {
            // A hundred each ten milliseconds.
            join_all((0..100).map(|n| writer.set(key(n), writes))).await;
            writes += 100;
            sleep(Duration::from_millis(10 * writes / 100).saturating_sub(begin.elapsed())).await;
        }
        writes as f64 / begin.elapsed().as_secs_f64()
    });
    let (mut delays, mut n) = (Vec::new(), 0);
    while Instant::now() < end {
        n += 1;
        other.set(HOT.into(), n).await.expect("it is set");
        let begin = Instant::now();
        while near.get(HOT).await.expect("it is read") != Some(n) {
            tokio::task::yield_now().await;
        }
        delays.push(begin.elapsed().as_secs_f64() * 1e3);
        sleep(Duration::from_millis(2)).await;
    }
    let rate = others.await.expect("it writes");
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    [rate, at(0.5), at(0.99), at(1.0)]
}

/// How often the server is read while a key that many processes read changes so many times.
async fn hot_key(server: &Server, changes: u64) -> f64 {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let cache: Cache<String, u64> = Cache::new(&client, "hot").expect("a name");
    cache.set(HOT.into(), 0).await.expect("it is set");
    let exe = env::current_exe().expect("it has a path");
    let start = |_| Command::new(&exe).env(READER, server.url()).spawn().expect("it starts");
    let mut processes: Vec<Child> = (0..PROCESSES).map(start).collect();
    sleep(Duration::from_secs(2)).await;
    let mut plain = server.plain().await;
    let () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut plain).await.expect("it may");
    for n in 1..=changes {
        cache.set(HOT.into(), n).await.expect("it is set");
        sleep(Duration::from_millis(20)).await;
    }
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut plain).await.expect("it answers");
    let gets = info.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    let gets = gets.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0.0);
    cache.set(HOT.into(), END).await.expect("it is set");
    processes.iter_mut().for_each(|process| {
        process.wait().expect("it ends");
    });
    gets
}
