//! Memory and processor time of a server per entry and per call, for sizing.

use std::{fmt::Write, time::Duration};

use fleeting::{
    Limit, Window,
    redis::{Cache, Client, ExpiringSet, Format, RateLimiter, TimeoutDict},
};
use futures_util::{StreamExt, future::BoxFuture, stream::iter};
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::{Goals, HOUR, servers::Server};

/// Makes the call about the entry of this number.
type Call = Box<dyn Fn(usize) -> BoxFuture<'static, ()>>;

/// Creates the call of a feature.
type Feature = fn(&Client, &MultiplexedConnection) -> Call;

/// Why an entry with events cannot be smaller.
const EVENTS: &str = "\nAn entry with events has a record (261 bytes, as without events), an entry in the index of \
    deadlines (128) and a second copy of the value (277), because the server deletes the record at its deadline, and \
    the event contains the value. The copy is a string at its own key. Another place would not save much: an entry takes \
    576 bytes with the copies of a shard in a hash, 534 with the copies in a stream, and 486 with the copy in the member \
    of the index, whose replacement would then have to know the old value. Only an entry without a copy would take less \
    than 450 bytes (389). Its record would have to outlive its deadline, so that a `get`, which is a plain `GET`, \
    would return expired values.\n";

const SECOND: Duration = Duration::from_secs(1);

const VALUE: [u8; 100] = [7; 100];

/// Costs of a call.
struct Costs {
    bytes: f64,
    /// Commands that the server executed, including those of scripts.
    commands: f64,
    /// Processor time of the server's main thread.
    micros: f64,
}

/// Boxes a call that uses a clone of `$handle`.
macro_rules! call {
    ($handle:ident, |$n:ident| $call:expr) => {
        Box::new(move |$n: usize| {
            #[allow(unused_mut)]
            let mut $handle = $handle.clone();
            Box::pin(async move {
                let _ = $call.await.expect("the call succeeds");
            })
        })
    };
}

const FEATURES: [(&str, Feature, Option<f64>); 11] = [
    ("`SET PX` of the plain client", plain, None),
    ("`Cache::set_ex`", |client, _| set_ex(client, None), None),
    ("`Cache::set_ex`, with events", |client, _| set_ex(client, Some(HOUR)), Some(450.0)),
    ("`Cache::set_tagged`, one tag", |client, _| set_tagged(client), None),
    ("`TimeoutDict::set`", |client, _| dict(client), None),
    ("`ExpiringSet::push`", |client, _| set(client), None),
    ("`RateLimiter::check`, `Gcra`", |client, _| check(client, Window::Gcra, 1), None),
    (
        "`RateLimiter::check`, `Buckets(10)`",
        |client, _| check(client, Window::Buckets(10), 1),
        None,
    ),
    ("`RateLimiter::check`, `Log`", |client, _| check(client, Window::Log, 1), None),
    ("the same, ten calls per key", |client, _| check(client, Window::Log, 10), None),
    ("the same, a hundred calls per key", |client, _| check(client, Window::Log, 100), None),
];

pub(crate) async fn table(quick: bool, goals: &mut Goals) -> String {
    let mut page = String::from(
        "\n## Sizes\n\n\
         Costs on the server for keys of 16 bytes and values of 100 bytes with a TTL of an hour: growth of \
         `used_memory`, number of commands, including those in scripts, and processor time of the server's main \
         thread, which executes one command after the other. Each call is for another key, unless noted otherwise.\n\n\
         | one call | bytes | commands | µs |\n| --- | --- | --- | --- |\n",
    );
    for (name, feature, goal) in FEATURES {
        let Costs { bytes, commands, micros } = costs(feature, quick).await;
        eprintln!("{name}: {bytes:.0} bytes, {commands:.1} commands, {micros:.1} µs");
        writeln!(page, "| {name} | {bytes:.0} | {commands:.1} | {micros:.1} |")
            .expect("writing to a String cannot fail");
        if let Some(goal) = goal {
            goals.add(&format!("bytes per entry, {name}"), bytes, goal);
        }
    }
    page += EVENTS;
    page + &idle(if quick { SECOND } else { 20 * SECOND }).await
}

/// Returns the costs per call, and the bytes per entry: entries that are called repeatedly count for each call.
async fn costs(feature: Feature, quick: bool) -> Costs {
    let server = Server::start();
    let count = if quick { 2_000 } else { 100_000 };
    let client = Client::builder(server.url()).timeout(30 * SECOND).connect().await;
    let mut plain = server.plain().await;
    let call = feature(&client.expect("the server answers"), &plain);
    // Loads the script, and makes the buffers of the connection.
    call(10 * count).await;
    let () = ask(&mut plain, &["CONFIG", "RESETSTAT"]).await;
    let (bytes, micros) = (used_memory(&mut plain).await, cpu_micros(&mut plain).await);
    iter(0..count).for_each_concurrent(64, call).await;
    let micros = cpu_micros(&mut plain).await - micros;
    let commands = commands(&mut plain).await;
    let bytes = used_memory(&mut plain).await - bytes;
    let count = count as f64;
    Costs { bytes: bytes / count, commands: commands / count, micros: micros / count }
}

/// Returns the commands per second of idle types.
async fn idle(time: Duration) -> String {
    let mut page = String::from(
        "\nCommands per second, including those in scripts, that are sent without any call:\n\n\
         | | commands per second |\n| --- | --- |\n",
    );
    let mut add = |name: &str, rate: f64| {
        eprintln!("idle: {name} {rate:.1}");
        writeln!(page, "| {name} | {rate:.1} |").expect("writing to a String cannot fail");
    };
    let server = Server::start();
    let client = Client::connect(server.url()).await.expect("the server answers");
    let cache: Cache<String, u64> =
        Cache::builder(&client, "c").events(HOUR).build().expect("a name");
    let subscription = cache.events_lossless("group").await.expect("the server answers");
    add("`events_lossless`, and each further subscription", rate(&server, time).await);
    drop(subscription);
    let server = Server::start();
    let client = Client::connect(server.url()).await.expect("the server answers");
    let near: Cache<String, u64> = Cache::builder(&client, "c").near(10).build().expect("a name");
    near.get("a").await.expect("the server answers");
    add("a near cache", rate(&server, time).await);
    let server = Server::start();
    let client = Client::connect(server.url()).await.expect("the server answers");
    let limiter = RateLimiter::<String>::builder(&client, "l").limit(Limit::per_hour(9));
    let limiter = limiter.timeout(SECOND).build().expect("a name");
    limiter.check("a").await.expect("the server answers");
    add("a rate limiter", rate(&server, time).await);
    let server = Server::start();
    let client = Client::connect(server.url()).await.expect("the server answers");
    let dict: TimeoutDict<String, u64> = TimeoutDict::new(&client, "d").expect("a name");
    let worker = tokio::spawn(async move { dict.next_claim(HOUR).await.map(drop) });
    add("a worker in `TimeoutDict::next_claim`", rate(&server, time).await);
    worker.abort();
    page
}

/// Returns the commands per second that the server executes during this time.
async fn rate(server: &Server, time: Duration) -> f64 {
    let mut plain = server.plain().await;
    sleep(SECOND).await;
    let () = ask(&mut plain, &["CONFIG", "RESETSTAT"]).await;
    sleep(time).await;
    commands(&mut plain).await / time.as_secs_f64()
}

/// Returns a key of 16 bytes.
fn key(n: usize) -> String {
    format!("user:{n:011}")
}

fn plain(_: &Client, plain: &MultiplexedConnection) -> Call {
    let plain = plain.clone();
    call!(plain, |n| {
        let mut set = redis::cmd("SET");
        set.arg(key(n)).arg(&VALUE).arg("PX").arg(3_600_000);
        async move { set.exec_async(&mut plain).await }
    })
}

fn cache(client: &Client, events: Option<Duration>) -> Cache<String, Vec<u8>> {
    let builder = Cache::builder(client, "c").format(Format::Raw);
    let builder = match events {
        Some(retention) => builder.events(retention),
        None => builder,
    };
    builder.build().expect("a name")
}

fn set_ex(client: &Client, events: Option<Duration>) -> Call {
    let cache = cache(client, events);
    call!(cache, |n| cache.set_ex(key(n), VALUE.to_vec(), HOUR))
}

fn set_tagged(client: &Client) -> Call {
    let cache = cache(client, None);
    call!(cache, |n| cache.set_tagged(key(n), VALUE.to_vec(), HOUR, ["tag"]))
}

fn dict(client: &Client) -> Call {
    let builder = TimeoutDict::builder(client, "d").format(Format::Raw);
    let dict: TimeoutDict<String, Vec<u8>> = builder.build().expect("a name");
    call!(dict, |n| dict.set(key(n), VALUE.to_vec(), HOUR))
}

fn set(client: &Client) -> Call {
    let set: ExpiringSet<String> = ExpiringSet::new(client, "s", HOUR).expect("a name");
    call!(set, |n| set.push(key(n)))
}

fn check(client: &Client, window: Window, each: usize) -> Call {
    let builder = RateLimiter::<String>::builder(client, "l").window(window);
    let limiter = builder.limit(Limit::per_hour(1_000)).timeout(30 * SECOND);
    let limiter = limiter.build().expect("a name");
    Box::new(move |n| {
        let limiter = limiter.clone();
        Box::pin(async move {
            let permit = limiter.check(&key(n / each)).await;
            permit.expect("the call is within the limit");
        })
    })
}

async fn ask<T: redis::FromRedisValue>(plain: &mut MultiplexedConnection, command: &[&str]) -> T {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]).query_async(plain).await.expect("the server answers")
}

async fn field(plain: &mut MultiplexedConnection, section: &str, name: &str) -> f64 {
    let info: String = ask(plain, &["INFO", section]).await;
    let field = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field.and_then(|field| field.trim().parse().ok()).expect("the server reports it")
}

async fn used_memory(plain: &mut MultiplexedConnection) -> f64 {
    field(plain, "memory", "used_memory").await
}

async fn cpu_micros(plain: &mut MultiplexedConnection) -> f64 {
    let user = field(plain, "cpu", "used_cpu_user_main_thread").await;
    1e6 * (user + field(plain, "cpu", "used_cpu_sys_main_thread").await)
}

/// Returns the number of commands since the last `CONFIG RESETSTAT`, without those of this benchmark.
async fn commands(plain: &mut MultiplexedConnection) -> f64 {
    let info: String = ask(plain, &["INFO", "commandstats"]).await;
    let counts = info.lines().filter_map(|line| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_own = name == "info" || name.starts_with("config");
        (!is_own).then(|| stats.split(',').next()?.parse::<f64>().ok())?
    });
    counts.sum()
}
