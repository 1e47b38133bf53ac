//! Methods on Redis compared with commands of the plain client: `cargo bench --features redis --bench redis` writes
//! docs/redis.md.
//!
//! It starts its own `redis-server`. Every number is the median of rounds in which all candidates take turns, on one
//! machine in one run; only the ratios are comparable between machines. `FLEETING_QUICK=1` makes the run short, and
//! writes nothing. With arguments (`methods`, `single`, `claims`, `near`, `reservations`, `recovery`, `large`,
//! `sizes`), only these parts run, and nothing is written.

mod measure;
#[path = "../tests/common/patience.rs"]
mod patience;
mod redis_large;
mod redis_near;
mod redis_recovery;
mod redis_reservations;
mod redis_sizes;
#[path = "../tests/common/redis.rs"]
mod servers;

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Window,
    redis::{Cache, Claim, Client, RateLimiter, TimeoutDict},
};
use futures_util::future::join_all;
use measure::median;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use servers::Server;
use tokio::runtime::Runtime;

/// Number of tasks that share one connection.
const CALLERS: usize = 64;

/// Number of entries that are due at once.
const DUE: usize = 1_000;

const HOUR: Duration = Duration::from_secs(3_600);

/// A value of two dozen bytes, as of a session.
const VALUE: &str = "session of a user: 123456";

/// Layout of values with tags.
const TAGS: &str = "## Tags\n\n\
    A value with tags begins with a marker and its tags, each with a random version of 16 bytes; the current version \
    of a tag is stored under one small key per shard. A value is live while all its versions are current, so \
    `remove_tag` deletes 16 keys, for any number of values (after it has told the loads in progress of values with \
    tags), and no value needs to know of the others. The key of a tag expires with the last value that has the tag \
    (and its event), so that the memory is bounded by the values, and removing a tag deletes its keys at once. If it \
    is evicted, its values count as removed: the error is always on the side of a miss. Reads stay plain commands: \
    only a reply that begins with the marker, which neither JSON nor MessagePack can, is checked by a second one \
    (`MGET` of the versions). Scripts check tags where they read a value, in the same slot, also in a cluster. \
    `contains_key` reads the first bytes of the value in place of `EXISTS`, and `set_nx` (`SET NX GET`) gets the \
    present value. The methods whose command does not return a part of the value (`ttl`), or would change a removed \
    value before its marker is seen (`set_keep_ttl`, `expire`, `persist`), are scripts of one key, which do not wait \
    in a slot that is being moved; `GETRANGE` and `PTTL` in one round trip would take as long as the script of `ttl`. \
    Near caches do not keep values with tags. `set_tagged` revokes the load of its key, and the load of a refresh \
    ahead records the tags of the value that it replaces, so no load in progress is published after one of them was \
    removed.\n\n";

/// Why scripts take longer than the commands of the plain client.
const SCRIPTS: &str = "\nThe server executes one command after the other, so its work bounds the calls per second. \
    Counted by callgrind on Redis 7.0, it executes 8,700 instructions for `SETEX`, 12,400 for a script that only \
    returns a number, and 90,000 for a script of nothing but the five commands of `set_ex` with events, which has \
    106,000 in all. Both scripts of the plain client have 32,300 and, with the time, 39,300; `Gcra` has 42,700, \
    `Buckets(10)` 50,900 and `Log`, which changes its state in two places, 60,200.\n\n";

/// Why taking and claiming takes longer than by hand.
const BATCHES: &str = "\nFor 62 entries of one shard, the server executes 0.4 to 0.5 million instructions of the \
    commands of the plain client, and 1.5 million in a script that only reads the due keys with their deadlines \
    (0.5, mostly to format deadlines), reads the values (0.3), and writes the ends of the leases (0.7), each of \
    which an atomic claim needs in this layout. The script of `claim_expired` has 2.0 million. A take adds \
    a script that checks the leases and removes the entries (1.5 million) after the client has received them. Without \
    it, the entries of a lost reply would be lost, too. (Redis 7.0, counted by callgrind.)\n\n";

/// One call of a task, whose number selects the key.
type Call<'a> = Box<dyn Fn(usize) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + 'a>;

/// A method, the implementation with the plain client, and those of this crate.
type Row<'a> = (&'a str, Candidate<'a>, Vec<Candidate<'a>>);

/// A name, and its call.
type Candidate<'a> = (&'a str, Call<'a>);

/// Ratios and numbers that have a goal.
#[derive(Default)]
struct Goals(Vec<(String, f64, f64)>);

impl Goals {
    fn add(&mut self, name: &str, measured: f64, goal: f64) {
        eprintln!("{name}: {measured:.2}, goal {goal}");
        self.0.push((name.to_owned(), measured, goal));
    }

    fn table(&self) -> String {
        let mut page =
            String::from("\n## Goals\n\n| | measured | at most |\n| --- | --- | --- |\n");
        for (name, measured, goal) in &self.0 {
            writeln!(page, "| {name} | {measured:.2} | {goal} |")
                .expect("writing to a String cannot fail");
        }
        page
    }
}

fn main() {
    let quick = measure::is_quick();
    let rounds = if quick { 3 } else { 41 };
    let calls = if quick { 20 } else { 100 };
    let runtime = Runtime::new().expect("a runtime");
    if runtime.block_on(redis_near::run_as_reader())
        || runtime.block_on(redis_reservations::run_as_checker())
    {
        return;
    }
    let server = Server::start();
    let mut page = String::from(
        "# Methods on Redis compared with the plain client\n\n\
         Made by `cargo bench --features redis --bench redis`, over loopback: medians of rounds in which all \
         candidates take turns, on one machine in one run. Only the ratios to the plain client are comparable between \
         machines. The plain client is the `ConnectionManager` of crate `redis` with its defaults and the same \
         timeouts, and the same keys and JSON. It queues fifty commands, fewer than there are callers; fleeting's \
         client queues more.\n\n",
    );
    let mut goals = Goals::default();
    let is_selected = |part| measure::is_selected(part, true);
    let is_all = std::env::args().skip(1).all(|word| word.starts_with('-'));
    runtime.block_on(async {
        if is_selected("methods") {
            page += &methods(&server, rounds, calls, &mut goals).await;
        }
        if is_selected("single") {
            page += &single_commands(&server, rounds, calls).await;
        }
        if is_selected("claims") {
            page += &claims(&server, rounds, &mut goals).await;
        }
        page += TAGS;
        if is_selected("near") {
            page += &redis_near::table(&server, rounds, quick, &mut goals).await;
        }
        if is_selected("reservations") {
            page += &redis_reservations::table(&server, rounds, quick, &mut goals).await;
        }
        if is_selected("recovery") {
            page += &redis_recovery::table(if quick { 1 } else { 5 }, &mut goals).await;
        }
        if is_selected("large") {
            page += &redis_large::table(quick, &mut goals).await;
        }
        if is_selected("sizes") {
            page += &redis_sizes::table(quick, &mut goals).await;
        }
    });
    page += &goals.table();
    println!("{page}");
    if !quick && is_all {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/redis.md");
        std::fs::write(path, page).expect("docs/redis.md can be written");
    }
}

async fn plain(server: &Server) -> ConnectionManager {
    let client = redis::Client::open(server.url()).expect("a URL");
    let second = Some(Duration::from_secs(1));
    let config =
        ConnectionManagerConfig::new().set_connection_timeout(second).set_response_timeout(second);
    ConnectionManager::new_with_config(client, config).await.expect("the server answers")
}

/// Boxes an expression, which may use the task's number `n`, as a `Call`.
macro_rules! call {
    ($shared:ident, |$n:ident| $call:expr) => {
        Box::new(|$n: usize| {
            let $shared = $shared.clone();
            Box::pin(async move {
                #[allow(unused_mut)]
                let mut $shared = $shared;
                $call;
            })
        })
    };
}

async fn methods(server: &Server, rounds: usize, calls: usize, goals: &mut Goals) -> String {
    let plain = plain(server).await;
    let client = Client::connect(server.url()).await.expect("the server answers");
    let cache: Cache<String, String> = Cache::new(&client, "plain").expect("a name");
    let with_events: Cache<String, String> =
        Cache::builder(&client, "events").events(HOUR).build().expect("a name");
    let limiter = |window, name| -> RateLimiter<String> {
        let limiter = RateLimiter::builder(&client, name).window(window);
        limiter.limit(Limit::new(1_000_000, HOUR)).build().expect("a name")
    };
    let gcra = limiter(Window::Gcra, "gcra");
    let buckets = limiter(Window::Buckets(10), "buckets");
    let log = limiter(Window::Log, "log");
    for n in 0..CALLERS {
        let json = serde_json::to_vec(VALUE).expect("a string");
        let mut set = redis::cmd("SETEX");
        set.arg(record(n)).arg(3_600).arg(json);
        let () = set.query_async(&mut plain.clone()).await.expect("the write succeeds");
        with_events.set_ex(key(n), VALUE.into(), HOUR).await.expect("the write succeeds");
        cache.set_ex(key(n), VALUE.into(), HOUR).await.expect("the write succeeds");
    }
    let script = redis::Script::new(
        "local n = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], ARGV[1], 'PX', 3600000) return n",
    );
    let timed = redis::Script::new(
        "redis.call('TIME') local n = redis.call('GET', KEYS[1]) \
         redis.call('SET', KEYS[1], ARGV[1], 'PX', 3600000) return n",
    );
    let (scripted, timed) = ((plain.clone(), script), (plain.clone(), timed));
    let rows: [Row<'_>; 3] = [
        (
            "get",
            (
                "`GET`",
                call!(plain, |n| {
                    let json: Option<Vec<u8>> =
                        redis::cmd("GET").arg(record(n)).query_async(&mut plain).await.unwrap();
                    json.map(|json| serde_json::from_slice::<String>(&json).unwrap())
                }),
            ),
            vec![
                ("`Cache::get`", call!(cache, |n| cache.get(&key(n)).await.unwrap())),
                (
                    "`Cache::get`, with events",
                    call!(with_events, |n| with_events.get(&key(n)).await.unwrap()),
                ),
            ],
        ),
        (
            "set_ex",
            (
                "`SETEX`",
                call!(plain, |n| {
                    let json = serde_json::to_vec(VALUE).unwrap();
                    let () = redis::cmd("SETEX")
                        .arg(record(n))
                        .arg(3_600)
                        .arg(json)
                        .query_async(&mut plain)
                        .await
                        .unwrap();
                }),
            ),
            vec![
                (
                    "`SET PX GET`",
                    call!(plain, |n| {
                        let json = serde_json::to_vec(VALUE).unwrap();
                        let mut set = redis::cmd("SET");
                        set.arg(record(n)).arg(json).arg("PX").arg(3_600_000).arg("GET");
                        let json: Option<Vec<u8>> = set.query_async(&mut plain).await.unwrap();
                        json.map(|json| serde_json::from_slice::<String>(&json).unwrap())
                    }),
                ),
                (
                    "`Cache::set_ex`",
                    call!(cache, |n| cache.set_ex(key(n), VALUE.into(), HOUR).await.unwrap()),
                ),
                (
                    "`Cache::set_ex`, with events",
                    call!(with_events, |n| with_events
                        .set_ex(key(n), VALUE.into(), HOUR)
                        .await
                        .unwrap()),
                ),
            ],
        ),
        (
            "check",
            (
                "`EVALSHA` of one `GET` and one `SET`",
                call!(scripted, |n| {
                    let call = &mut scripted.0;
                    let _: Option<String> =
                        scripted.1.key(record(n)).arg(n).invoke_async(call).await.unwrap();
                }),
            ),
            vec![
                (
                    "`EVALSHA` of `TIME`, one `GET` and one `SET`",
                    call!(timed, |n| {
                        let call = &mut timed.0;
                        let _: Option<String> =
                            timed.1.key(record(n)).arg(n).invoke_async(call).await.unwrap();
                    }),
                ),
                (
                    "`RateLimiter::check`, `Gcra`",
                    call!(gcra, |n| gcra.check(&key(n)).await.unwrap()),
                ),
                (
                    "`RateLimiter::check`, `Buckets(10)`",
                    call!(buckets, |n| buckets.check(&key(n)).await.unwrap()),
                ),
                ("`RateLimiter::check`, `Log`", call!(log, |n| log.check(&key(n)).await.unwrap())),
            ],
        ),
    ];
    let mut page = String::from(
        "## One method, with 64 callers on one connection\n\n\
         - `Cache::get` is compared with a `GET` of a JSON string under a key of the same length.\n\
         - `Cache::set_ex` is compared with a `SETEX` of the same string, and with `SET PX GET`, which returns the \
         previous value, as `set_ex` does.\n\
         - With events, `get` is a plain command, too. `set_ex` is a script that also stores the deadline in an \
         index, and the value a second time.\n\
         - `RateLimiter::check` of one limit is compared with a script that reads a string and writes one with a TTL, \
         and with a script that also reads the time: the minimum for a limiter.\n\n\
         | | µs per call (elapsed time / calls of all callers) | relative to the plain client |\n| --- | --- | --- |\n",
    );
    for row in rows {
        let ratios = time_row(row, rounds, calls, &mut page).await;
        for (name, ratio) in ratios {
            match name {
                "`Cache::set_ex`, with events" => goals.add(name, ratio, 2.2),
                name if name.starts_with("`RateLimiter") => goals.add(name, ratio, 1.25),
                _ => {}
            }
        }
    }
    page + SCRIPTS
}

/// Compares methods that check whether a value has tags with the commands that do not.
async fn single_commands(server: &Server, rounds: usize, calls: usize) -> String {
    let plain = plain(server).await;
    let client = Client::connect(server.url()).await.expect("the server answers");
    let cache: Cache<String, String> = Cache::new(&client, "single").expect("a name");
    for n in 0..CALLERS {
        let mut set = redis::cmd("SETEX");
        set.arg(record(n)).arg(3_600).arg(VALUE);
        let () = set.query_async(&mut plain.clone()).await.expect("the write succeeds");
        cache.set_ex(key(n), VALUE.into(), HOUR).await.expect("the write succeeds");
    }
    /// Sends a command of the plain client about the record of a task.
    macro_rules! command {
        ($name:literal $(, $arg:expr)*) => {
            call!(plain, |n| {
                let mut command = redis::cmd($name);
                command.arg(record(n))$(.arg($arg))*;
                let _: redis::Value = command.query_async(&mut plain).await.unwrap();
            })
        };
    }
    let json = || serde_json::to_vec(VALUE).unwrap();
    let rows: [Row<'_>; 6] = [
        (
            "ttl",
            ("`PTTL`", command!("PTTL")),
            vec![("`Cache::ttl`", call!(cache, |n| cache.ttl(&key(n)).await.unwrap()))],
        ),
        (
            "contains_key",
            ("`EXISTS`", command!("EXISTS")),
            vec![(
                "`Cache::contains_key`",
                call!(cache, |n| cache.contains_key(&key(n)).await.unwrap()),
            )],
        ),
        (
            "set_nx",
            ("`SET PX NX`", command!("SET", json(), "PX", 3_600_000, "NX")),
            vec![(
                "`Cache::set_nx`",
                call!(cache, |n| cache.set_nx(key(n), VALUE.into(), Some(HOUR)).await.unwrap()),
            )],
        ),
        (
            "set_keep_ttl",
            ("`SET KEEPTTL GET`", command!("SET", json(), "KEEPTTL", "GET")),
            vec![(
                "`Cache::set_keep_ttl`",
                call!(cache, |n| cache.set_keep_ttl(key(n), VALUE.into()).await.unwrap()),
            )],
        ),
        (
            "expire",
            ("`PEXPIRE`", command!("PEXPIRE", 3_600_000)),
            vec![("`Cache::expire`", call!(cache, |n| cache.expire(&key(n), HOUR).await.unwrap()))],
        ),
        (
            "persist",
            ("`PERSIST`", command!("PERSIST")),
            vec![("`Cache::persist`", call!(cache, |n| cache.persist(&key(n)).await.unwrap()))],
        ),
    ];
    let mut page = String::from(
        "## Methods that check tags\n\n\
         Each is compared with the command that would be sufficient without tags, in a cache without events, with 64 \
         callers on one connection and a TTL of an hour.\n\n\
         | | µs per call | relative to the plain client |\n| --- | --- | --- |\n",
    );
    for row in rows {
        time_row(row, rounds, calls, &mut page).await;
    }
    page + "\n"
}

/// Measures the candidates of a row in turns, and adds them to the page. Returns the ratios of those of this crate.
async fn time_row<'a>(
    (method, (name, plain), ours): Row<'a>,
    rounds: usize,
    calls: usize,
    page: &mut String,
) -> Vec<(&'a str, f64)> {
    let mut samples = vec![Vec::new(); 1 + ours.len()];
    for _ in 0..rounds {
        samples[0].push(time(&plain, calls).await);
        for (at, (_, ours)) in ours.iter().enumerate() {
            samples[at + 1].push(time(ours, calls).await);
        }
    }
    let samples: Vec<_> = samples.into_iter().map(median).collect();
    let names = [name].into_iter().chain(ours.iter().map(|(name, _)| *name));
    let mut ratios = Vec::new();
    for (name, value) in names.zip(&samples) {
        let ratio = value / samples[0];
        eprintln!("{method}: {name} {value:.2} ({ratio:.2})");
        writeln!(page, "| {name} | {value:.2} | {ratio:.2} |")
            .expect("writing to a String cannot fail");
        ratios.push((name, ratio));
    }
    ratios
}

/// Returns microseconds per call of all callers together, each of which makes `calls` calls.
async fn time(call: &Call<'_>, calls: usize) -> f64 {
    let begin = Instant::now();
    join_all((0..CALLERS).map(async |n| {
        for _ in 0..calls {
            call(n).await;
        }
    }))
    .await;
    begin.elapsed().as_secs_f64() * 1e6 / (calls * CALLERS) as f64
}

async fn claims(server: &Server, rounds: usize, goals: &mut Goals) -> String {
    let client = Client::connect(server.url()).await.expect("the server answers");
    let dict: TimeoutDict<String, String> = TimeoutDict::new(&client, "dict").expect("a name");
    let mut plain = plain(server).await;
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        samples[0].push(by_hand(&mut plain).await);
        for claims in [false, true] {
            join_all((0..DUE).map(|n| dict.set(key(n), VALUE.into(), Duration::ZERO))).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
            let begin = Instant::now();
            if claims {
                let claims = dict.claim_expired(DUE, HOUR).await.expect("the claim succeeds");
                samples[2].push(begin.elapsed().as_secs_f64() * 1e6);
                assert_eq!(claims.len(), DUE);
                // Dropped claims would return to the dictionary during the next round.
                join_all(claims.into_iter().map(Claim::ack)).await;
            } else {
                let taken = dict.take_expired(DUE).await.expect("the take succeeds");
                samples[1].push(begin.elapsed().as_secs_f64() * 1e6);
                assert_eq!(taken.len(), DUE);
            }
            dict.clear().await.expect("the clear succeeds");
        }
    }
    let [bare, taken, claimed] = samples.map(median);
    let mut page = String::from(
        "## 1,000 due entries at once\n\n\
         `TimeoutDict` takes or leases them atomically, oldest first, from sixteen shards. The plain client requests \
         the same number from one sorted set, removes them from it, and reads each value. This is not atomic: other \
         callers could do the same at that time.\n\n| | µs | relative to the plain client |\n| --- | --- | --- |\n",
    );
    for (name, value) in [
        ("`ZRANGEBYSCORE`, `ZREM`, pipelined `GET`s", bare),
        ("`TimeoutDict::take_expired`", taken),
        ("`TimeoutDict::claim_expired`", claimed),
    ] {
        eprintln!("claims: {name} {value:.0} ({:.2})", value / bare);
        if value != bare {
            goals.add(name, value / bare, 2.0);
        }
        writeln!(page, "| {name} | {value:.0} | {:.2} |", value / bare)
            .expect("writing to a String cannot fail");
    }
    page + BATCHES
}

/// Returns the microseconds to take due entries without a script: not atomic, and in one slot.
async fn by_hand(plain: &mut ConnectionManager) -> f64 {
    let mut fill = redis::pipe();
    for n in 0..DUE {
        fill.zadd("due", key(n), 1).ignore();
        fill.set(record(n), serde_json::to_vec(VALUE).expect("a string")).ignore();
    }
    let () = fill.query_async(plain).await.expect("the write succeeds");
    let begin = Instant::now();
    let due: Vec<String> = redis::cmd("ZRANGEBYSCORE")
        .arg(&["due", "-inf", "2", "LIMIT", "0"])
        .arg(DUE)
        .query_async(plain)
        .await
        .expect("the read succeeds");
    let () = redis::cmd("ZREM")
        .arg("due")
        .arg(&due)
        .query_async(plain)
        .await
        .expect("the removal succeeds");
    let mut gets = redis::pipe();
    for n in 0..due.len() {
        gets.get(record(n));
    }
    let values: Vec<Vec<u8>> = gets.query_async(plain).await.expect("the read succeeds");
    let values = values.iter().map(|json| serde_json::from_slice::<String>(json));
    assert_eq!(values.filter(Result::is_ok).count(), DUE);
    begin.elapsed().as_secs_f64() * 1e6
}

fn key(n: usize) -> String {
    format!("user {n}")
}

/// Returns a record key as long as those of a `Cache`.
fn record(n: usize) -> String {
    format!("fleeting:cache1:{{bench:{}}}:user {n}", n % 16)
}
