//! Small calls next to large values of the same client, and many callers at once.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client, Error, Format};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;

use crate::{
    Goals, key,
    measure::{ms, quantile},
    servers::Server,
};

/// Size of a large value.
const LARGE: usize = 64 << 20;

/// Number of tasks that read small values.
const READERS: usize = 8;

const SECOND: Duration = Duration::from_secs(1);

/// Calls next to the small ones.
#[derive(Clone, Copy)]
enum Load {
    Sets,
    Gets,
}

/// Client of the large calls.
#[derive(Clone, Copy)]
enum Caller {
    /// That of the small calls.
    Same,
    /// Another client on a thread of its own.
    Other,
    /// As `Other`, and both are plain clients with a connection each: the share of the server.
    Plain,
}

/// Each load with its name.
const LOADS: [(&str, Option<(Load, Caller)>); 7] = [
    ("nothing", None),
    ("64 MB sets, both by plain clients", Some((Load::Sets, Caller::Plain))),
    ("64 MB sets of another client", Some((Load::Sets, Caller::Other))),
    ("64 MB sets of the same client", Some((Load::Sets, Caller::Same))),
    ("64 MB gets, both by plain clients", Some((Load::Gets, Caller::Plain))),
    ("64 MB gets of another client", Some((Load::Gets, Caller::Other))),
    ("64 MB gets of the same client", Some((Load::Gets, Caller::Same))),
];

/// A client, and a connection of the plain one.
#[derive(Clone)]
enum Candidate {
    Ours(Cache<String, String>),
    Plain(MultiplexedConnection),
}

impl Candidate {
    async fn get(&mut self, key: &str) {
        match self {
            Self::Ours(cache) => drop(cache.get(key).await.expect("the read succeeds")),
            Self::Plain(plain) => {
                let value: Option<String> =
                    redis::cmd("GET").arg(key).query_async(plain).await.expect("the read succeeds");
                drop(value);
            }
        }
    }

    async fn set(&mut self, key: &str, value: String) {
        match self {
            Self::Ours(cache) => {
                drop(cache.set(key.into(), value).await.expect("the write succeeds"))
            }
            Self::Plain(plain) => {
                let mut set = redis::cmd("SET");
                let () = set.arg(key).arg(value).query_async(plain).await.expect("it succeeds");
            }
        }
    }
}

pub(crate) async fn table(quick: bool, goals: &mut Goals) -> String {
    let server = Server::start();
    let ours = Candidate::Ours(texts(server.url()).await);
    let plain = Candidate::Plain(connection(server.url()).await);
    for candidate in [&ours, &plain] {
        candidate.clone().set("large", "7".repeat(LARGE)).await;
        for n in 0..READERS {
            candidate.clone().set(&key(n), "7".repeat(100)).await;
        }
    }
    let rounds = if quick { 2 } else { 8 };
    let mut latencies = [const { Vec::new() }; LOADS.len()];
    let mut transfers = [0; LOADS.len()];
    for _ in 0..rounds {
        for (at, (_, load)) in LOADS.into_iter().enumerate() {
            let is_plain = matches!(load, Some((_, Caller::Plain)));
            let reader = if is_plain { &plain } else { &ours };
            let (more, count) = small_calls(&server, reader, load).await;
            latencies[at].extend(more);
            transfers[at] += count;
        }
    }
    let mut page = String::from(
        "\n## Small calls next to large values\n\n\
         Eight tasks read values of 100 bytes in a loop, with a pause of 1 ms, while a value of 64 MB is written or \
         read in a loop: by the same client, or by another one, with a runtime of its own. The rows of plain clients \
         (one connection each, in the same way) show the share of the server and of the machine: the server executes \
         nothing else while it copies 64 MB from a connection or to it, so that no client of the same server can have \
         shorter delays.\n\n\
         | next to | large values per second | median in ms | 99th percentile | maximum |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    let mut late_before = 0.0;
    for (at, (name, load)) in LOADS.into_iter().enumerate() {
        let sorted = &mut latencies[at];
        sorted.sort();
        let [middle, late, latest] = [0.5, 0.99, 1.0].map(|share| ms(quantile(sorted, share)));
        let rate = f64::from(transfers[at]) / f64::from(rounds);
        eprintln!("next to {name} ({rate:.1}/s): {middle:.3} {late:.3} {latest:.3} ms");
        writeln!(page, "| {name} | {rate:.1} | {middle:.3} | {late:.3} | {latest:.3} |")
            .expect("writing to a String cannot fail");
        if let Some((_, Caller::Same)) = load {
            let name = format!("p99 of small calls next to {name}, relative to another client");
            goals.add(&name, late / late_before, 2.0);
        }
        late_before = late;
    }
    page + &many_callers(&server, quick, goals).await
}

async fn texts(url: String) -> Cache<String, String> {
    // The load, not the timeout, is the subject.
    let client = Client::builder(url).timeout(30 * SECOND).connect().await;
    let builder = Cache::builder(&client.expect("the server answers"), "large");
    builder.format(Format::Raw).build().expect("a name")
}

async fn connection(url: String) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(30 * SECOND));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.expect("the server answers")
}

/// Returns the latencies of small reads during a second of this load, and the number of large calls.
async fn small_calls(
    server: &Server,
    reader: &Candidate,
    load: Option<(Load, Caller)>,
) -> (Vec<Duration>, u32) {
    let is_done = Arc::new(AtomicBool::new(false));
    let (mut same, mut other) = (None, None);
    match load {
        Some((load, Caller::Same)) => {
            same = Some(tokio::spawn(large_calls(reader.clone(), load, is_done.clone())));
        }
        Some((load, caller)) => {
            let (url, done) = (server.url(), is_done.clone());
            other = Some(thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    let candidate = match caller {
                        Caller::Plain => Candidate::Plain(connection(url).await),
                        _ => Candidate::Ours(texts(url).await),
                    };
                    large_calls(candidate, load, done).await
                })
            }));
        }
        None => {}
    }
    let readers = (0..READERS).map(|n| {
        let (mut reader, begin) = (reader.clone(), Instant::now());
        tokio::spawn(async move {
            let (key, mut latencies) = (key(n), Vec::new());
            while begin.elapsed() < SECOND {
                let begin = Instant::now();
                reader.get(&key).await;
                latencies.push(begin.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            latencies
        })
    });
    let latencies = join_all(readers.collect::<Vec<_>>()).await;
    is_done.store(true, Relaxed);
    let mut count = 0;
    if let Some(same) = same {
        count += same.await.expect("the task does not panic");
    }
    if let Some(other) = other {
        count += other.join().expect("the thread does not panic");
    }
    (latencies.into_iter().flat_map(|it| it.expect("no task panics")).collect(), count)
}

/// Makes large calls, one after the other, until `is_done`. Returns their number.
async fn large_calls(mut candidate: Candidate, load: Load, is_done: Arc<AtomicBool>) -> u32 {
    let mut count = 0;
    while !is_done.load(Relaxed) {
        match load {
            Load::Sets => candidate.set("large", "7".repeat(LARGE)).await,
            Load::Gets => candidate.get("large").await,
        }
        count += 1;
    }
    count
}

/// Returns the outcomes of ten thousand callers at once, with the default timeout.
async fn many_callers(server: &Server, quick: bool, goals: &mut Goals) -> String {
    let rounds = if quick { 1 } else { 5 };
    let client = Client::connect(server.url()).await.expect("the server answers");
    let cache: Cache<String, u64> = Cache::new(&client, "many").expect("a name");
    let (mut unsent, mut unanswered, mut longest) = (0, 0, Duration::ZERO);
    for _ in 0..rounds {
        let begin = Instant::now();
        let calls = (0..10_000).map(|n| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.set(n.to_string(), n).await })
        });
        for answer in join_all(calls.collect::<Vec<_>>()).await {
            match answer.expect("no task panics") {
                Ok(_) => {}
                Err(Error::Unavailable(_)) => unsent += 1,
                Err(_) => unanswered += 1,
            }
        }
        longest = longest.max(begin.elapsed());
    }
    goals.add("calls without a reply, of 10,000 at once", f64::from(unanswered), 0.0);
    format!(
        "\n10,000 callers at once, with the default timeout, {rounds} times: {unanswered} calls without a reply \
         (`Unanswered`), {unsent} that were not sent (`Unavailable`); all had returned after {:.0} ms.\n",
        ms(longest)
    )
}
