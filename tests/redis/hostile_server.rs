//! Replies that no real server sends. Each call ends in time, with a clear error if it cannot use the reply, and memory
//! stays bounded.

use std::{
    error::Error as StdError,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use fleeting::{
    Limit, When,
    redis::{Cache, Claim, Client, Error, ExpiringSet, OnError, Permit, RateLimiter, TimeoutDict},
};
use futures::{
    StreamExt, TryStreamExt,
    future::{BoxFuture, join_all},
};
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{FakeServer, Reply, Server, connect},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Maximum size of a reply.
const MAX_REPLY: usize = 1 << 20;

/// Timeout of the clients.
fn call_timeout() -> Duration {
    ms(250)
}

/// Server that forwards commands to a real one until it becomes hostile.
struct HostileServer {
    server: FakeServer,
    is_hostile: Arc<AtomicBool>,
}

impl HostileServer {
    async fn start(reply: Reply) -> Self {
        let (real, is_hostile) = (Server::shared(), Arc::<AtomicBool>::default());
        let is_now_hostile = is_hostile.clone();
        let server = FakeServer::start(move |command| match is_now_hostile.load(Relaxed) {
            true => reply.clone(),
            false => Reply::Bytes(real.forward(command)),
        })
        .await;
        Self { server, is_hostile }
    }

    async fn client(&self) -> Client {
        let client = Client::builder(self.server.url()).timeout(call_timeout());
        // The real server is shared.
        let client = client.prefix(format!("hostile-{}", self.server.port()));
        client.max_reply_bytes(MAX_REPLY).connect().await.unwrap()
    }
}

/// One object of each type.
struct Types {
    cache: Cache<String, u64>,
    with_events: Cache<String, u64>,
    shut_down: Cache<String, u64>,
    near: Cache<String, u64>,
    set: ExpiringSet<String>,
    dict: TimeoutDict<String, u64>,
    claims: Mutex<Vec<Claim<String, u64>>>,
    limiter: RateLimiter<String>,
    permits: Mutex<Vec<Permit>>,
}

impl Types {
    /// Creates the objects, and lets the server become hostile.
    async fn new(server: &HostileServer) -> Self {
        let client = server.client().await;
        let cache = |name: &str| Cache::builder(&client, name).poll_every(ms(10));
        let dict = TimeoutDict::new(&client, "dict").unwrap();
        let limiter = RateLimiter::builder(&client, "limiter")
            .limit(Limit::per_second(1_000))
            .timeout(call_timeout())
            .on_error(OnError::Deny)
            .build()
            .unwrap();
        // As many as the table needs. On a late machine, the timeouts of some of these calls pass.
        let (mut claims, mut permits) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        while claims.len() < 5 || permits.len() < 3 {
            assert!(begin.elapsed() < patience(), "{} {}", claims.len(), permits.len());
            let _ = dict.set(begin.elapsed().as_nanos().to_string(), 1, Duration::ZERO).await;
            claims.extend(dict.claim_expired(5, MINUTE).await.unwrap_or_default());
            permits.extend(limiter.check_n("a", 2).await.ok());
        }
        server.is_hostile.store(true, Relaxed);
        Self {
            cache: cache("plain").build().unwrap(),
            with_events: cache("events").events(MINUTE).build().unwrap(),
            shut_down: cache("shut-down").events(MINUTE).build().unwrap(),
            near: cache("near").near(100).build().unwrap(),
            set: ExpiringSet::new(&client, "set", MINUTE).unwrap(),
            dict,
            claims: Mutex::new(claims),
            limiter,
            permits: Mutex::new(permits),
        }
    }

    fn claim(&self) -> Claim<String, u64> {
        self.claims.lock().unwrap().pop().expect("there are enough claims")
    }

    fn permit(&self) -> Permit {
        self.permits.lock().unwrap().pop().expect("there are enough permits")
    }
}

type Call = (&'static str, fn(&Types) -> BoxFuture<'_, Result<(), Error>>);

fn call(name: &'static str, start: fn(&Types) -> BoxFuture<'_, Result<(), Error>>) -> Call {
    (name, start)
}

/// Lists calls by their name. Each is an expression of a future, whose value is discarded.
macro_rules! calls {
    (|$types:ident| $($call:expr,)*) => {
        vec![$(call(stringify!($call), |$types| Box::pin(async move { $call.await.map(drop) })),)*]
    };
}

/// All methods that send commands. Those that wait for an entry or event do so for a moment.
fn calls() -> Vec<Call> {
    fn a() -> String {
        "a".to_owned()
    }
    fn all() -> [String; 2] {
        ["a".to_owned(), "b".to_owned()]
    }
    async fn briefly<T>(call: impl Future<Output = Result<T, Error>>) -> Result<(), Error> {
        timeout(call_timeout(), call).await.map_or(Ok(()), |result| result.map(drop))
    }
    calls! { |t|
        t.cache.get("a"),
        t.cache.get_ex("a", MINUTE),
        t.cache.set(a(), 1),
        t.cache.set_ex(a(), 1, MINUTE),
        t.cache.set_nx(a(), 1, Some(MINUTE)),
        t.cache.set_keep_ttl(a(), 1),
        t.cache.remove("a"),
        t.cache.contains_key("a"),
        t.cache.ttl("a"),
        t.cache.get_with_ttl("a"),
        t.cache.expire("a", MINUTE),
        t.cache.expire_if("a", MINUTE, When::Later),
        t.cache.expire_at("a", tokio::time::Instant::now() + MINUTE),
        t.cache.extend("a", MINUTE),
        t.cache.persist("a"),
        t.cache.expire_now("a"),
        t.cache.get_or_set_with("a", MINUTE, async || 1),
        t.cache.get_or_try_set_with("a", MINUTE, async || Ok::<_, io::Error>(1)),
        t.cache.get_many(&all()),
        t.cache.set_many(all().map(|key| (key, 1)), None),
        t.cache.remove_many(&all()),
        t.cache.iter().try_collect::<Vec<_>>(),
        t.cache.keys().try_collect::<Vec<_>>(),
        t.cache.values().try_collect::<Vec<_>>(),
        t.cache.len(),
        t.cache.is_empty(),
        t.cache.clear(),
        t.cache.set_tagged(a(), 1, MINUTE, ["tag"]),
        t.cache.remove_tag("tag"),
        t.cache.update("a", |value| *value += 1),
        t.with_events.set_ex(a(), 1, MINUTE),
        t.with_events.get_ex("a", MINUTE),
        t.with_events.remove("a"),
        t.with_events.expire_now("a"),
        t.with_events.set_many(all().map(|key| (key, 1)), Some(MINUTE)),
        t.with_events.clear(),
        t.with_events.groups(),
        t.with_events.remove_group("group"),
        briefly(async {
            let mut events = t.with_events.events().await?;
            events.recv().await;
            Ok(())
        }),
        briefly(async {
            let mut events = t.with_events.events_lossless("group").await?;
            events.recv().await.transpose()
        }),
        briefly(async {
            let task = t.with_events.on_expired("callbacks", |_| async {}).await?;
            sleep(call_timeout() / 4).await;
            task.abort();
            Ok(())
        }),
        briefly(async {
            let events = t.shut_down.events().await;
            t.shut_down.shutdown().await;
            // The stream ends without the server.
            let mut events = events?;
            while events.recv().await.is_some() {}
            Ok(())
        }),
        t.near.get("a"),
        t.near.get_many(&all()),
        t.near.set(a(), 1),
        t.near.contains_key("a"),
        t.near.get_with_ttl("a"),
        t.near.iter().take(10).try_collect::<Vec<_>>(),
        t.set.push(a()),
        t.set.push_at(a(), SystemTime::now()),
        t.set.push_unique_at(a(), SystemTime::now()),
        t.set.extend(all()),
        t.set.elements(),
        t.set.range(SystemTime::UNIX_EPOCH..),
        t.set.peek(),
        t.set.pop(),
        t.set.remove("a"),
        t.set.score("a"),
        t.set.contains("a"),
        t.set.remove_range(..),
        t.set.len(),
        t.set.is_empty(),
        t.set.clear(),
        t.dict.set(a(), 1, MINUTE),
        t.dict.set_nx(a(), 1, MINUTE),
        t.dict.set_timeout("a", MINUTE),
        t.dict.remove_timeout("a"),
        t.dict.get("a"),
        t.dict.contains_key("a"),
        t.dict.ttl("a"),
        t.dict.remove("a"),
        t.dict.len(),
        t.dict.is_empty(),
        t.dict.clear(),
        t.dict.take_expired(10),
        t.dict.claim_expired(10, MINUTE),
        briefly(t.dict.next_expired()),
        briefly(t.dict.next_claim(MINUTE)),
        t.dict.take_dead(10),
        t.dict.dead_letters(10),
        t.dict.dead_len(),
        t.dict.revive("a", MINUTE),
        t.claim().ack(),
        t.claim().retry_in(MINUTE),
        t.claim().fail("reason"),
        t.claim().release(),
        t.claim().extend(MINUTE),
        t.limiter.check("a"),
        t.limiter.check_n("a", 2),
        t.limiter.check_with("a", &[Limit::per_second(2)]),
        t.limiter.peek("a"),
        t.limiter.reset("a"),
        briefly(t.limiter.until_ready("a")),
        t.limiter.until_ready_within("a", call_timeout()),
        t.limiter.set_limits([Limit::per_second(1)]),
        t.limiter.clear_limits(),
        t.permit().refund(),
        // More than was charged, and less.
        t.permit().settle(3),
        t.permit().settle(1),
    }
}

/// Makes each call on a server with this reply, one after the other or concurrently, and checks the texts of their
/// errors; of a call without an error, `ok`.
async fn run(name: &str, reply: Reply, is_concurrent: bool, check: fn(&str, &str) -> bool) {
    let server = HostileServer::start(reply).await;
    let types = Types::new(&server).await;
    let failure_of = async |(call, start): Call| {
        let begin = Instant::now();
        let Ok(result) = timeout(20 * call_timeout(), start(&types)).await else {
            return Some(format!("{name}: {call} does not end"));
        };
        let text = result.map_or_else(|error| texts(&error), |()| "ok".to_owned());
        // A call for several keys or shards may take several timeouts.
        let is_in_time = begin.elapsed() < 8 * call_timeout();
        (!is_in_time || !check(call, &text))
            .then(|| format!("{name}: {call}: {text} after {:?}", begin.elapsed()))
    };
    let mut failures = Vec::new();
    match is_concurrent {
        true => failures = join_all(calls().into_iter().map(failure_of)).await,
        false => {
            for call in calls() {
                failures.push(failure_of(call).await);
            }
        }
    }
    let failures: Vec<_> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{failures:#?}");
    // With the buffers of both sockets.
    let max = (MAX_REPLY + (16 << 20)) as u64;
    let sent = server.server.most_sent();
    assert!(sent < max, "{name}: {sent} bytes were sent");
}

/// Returns the texts of an error and its sources.
fn texts(error: &Error) -> String {
    let (mut all, mut source) = (error.to_string(), error.source());
    while let Some(error) = source {
        all += &format!(": {error}");
        source = error.source();
    }
    all
}

fn text(reply: &str) -> Reply {
    Reply::Bytes(reply.into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_with_any_reply() {
    let replies = [
        "$-1\r\n",
        "_\r\n",
        "*-1\r\n",
        "*0\r\n",
        "%0\r\n",
        "$0\r\n\r\n",
        "+\r\n",
        "+OK\r\n",
        "$3\r\n\u{1}\u{2}\u{3}\r\n",
        ":0\r\n",
        ":1\r\n",
        ":-1\r\n",
        ":9223372036854775807\r\n",
        ":-9223372036854775808\r\n",
        ",nan\r\n",
        ",-inf\r\n",
        "#t\r\n",
        "(99999999999999999999\r\n",
        "=5\r\ntxt:a\r\n",
        "%1\r\n+a\r\n:1\r\n",
        "|1\r\n+a\r\n:1\r\n:2\r\n",
        "~1\r\n:1\r\n",
        "*1\r\n$-1\r\n",
        "*2\r\n$1\r\n1\r\n*0\r\n",
        "*3\r\n:1\r\n:2\r\n:3\r\n",
        "*5\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n$1\r\na\r\n",
        "*2\r\n-ERR part\r\n:1\r\n",
    ];
    in_time(async || {
        join_all(replies.iter().map(|reply| run(reply, text(reply), false, |_, _| true))).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_replies_are_returned_with_their_text() {
    in_time(async || {
        let is_returned = |_: &str, text: &str| text.contains("hostile");
        join_all(
            ["-ERR hostile\r\n", "-hostile\r\n", "!11\r\nERR hostile\r\n"]
                .map(|reply| run(reply, text(reply), false, is_returned)),
        )
        .await;
        // Retried until the timeout.
        run("busy", text("-BUSY hostile\r\n"), true, |_, _| true).await;
    })
    .await;
}

/// Such bytes end the connection, as the replies after them cannot be assigned to calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_and_too_large_replies_are_errors() {
    in_time(async || {
        let is_error = |_: &str, text: &str| text != "ok";
        let nested = "*1\r\n".repeat(100_000);
        let invalid = ["hello\r\n", "$x\r\n", "%-1\r\n", ">1\r\n:1\r\n", &nested];
        join_all(
            invalid.map(|reply| run(&reply[..reply.len().min(20)], text(reply), false, is_error)),
        )
        .await;
        // Other methods send several commands, all but one of which only find that their connection has ended.
        let is_too_large = |call: &str, text: &str| match call {
            "t.cache.get(\"a\")" => text.contains("max_reply_bytes"),
            _ => text != "ok",
        };
        let large = [
            ("huge string", text("$9223372036854775807\r\n")),
            ("huge error", text("!-1\r\n")),
            ("huge array", text("*9223372036854775807\r\n")),
            ("endless text", Reply::Endless("+".into(), vec![b'a'; 1 << 16])),
            ("endless parts", Reply::Endless("*16000\r\n".into(), endless_strings())),
        ];
        join_all(large.map(|(name, reply)| run(name, reply, false, is_too_large))).await;
    })
    .await;
}

fn endless_strings() -> Vec<u8> {
    format!("$1000\r\n{}\r\n", "a".repeat(1_000)).repeat(50).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_reply_end_in_time() {
    // Calls that wait for an entry are cancelled without an error.
    let is_any = |_: &str, _: &str| true;
    in_time(async || {
        join_all([
            run("silence", Reply::Last(Vec::new()), true, is_any),
            run("half a reply", Reply::Last("*2\r\n$5\r\nab".into()), true, is_any),
            run("half a line", Reply::Last("$".into()), true, is_any),
            run("pushes", text(">2\r\n+message\r\n$1\r\na\r\n"), true, is_any),
            run("changes", text(">2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n"), true, is_any),
            run("end", Reply::Close, false, is_any),
        ])
        .await;
    })
    .await;
}

/// Server whose reply depends on the number of commands before, which it counts.
async fn numbering_server(
    reply: impl Fn(u64, &[Vec<u8>]) -> String + Send + Sync + 'static,
) -> (FakeServer, Arc<AtomicU64>) {
    let commands = Arc::<AtomicU64>::default();
    let count = commands.clone();
    let server =
        FakeServer::start(move |command| text(&reply(count.fetch_add(1, Relaxed), command)));
    (server.await, commands)
}

/// Waits until no more commands are sent.
async fn until_quiet(commands: &AtomicU64) {
    let begin = Instant::now();
    let mut before = u64::MAX;
    while before != commands.load(Relaxed) {
        assert!(begin.elapsed() < patience(), "{before} commands, and more are sent");
        before = commands.load(Relaxed);
        sleep(ms(200)).await;
    }
}

/// Checks that a call continues until its caller gives up, and then sends nothing more.
async fn check_endless(call: impl Future<Output = Result<(), Error>>, commands: &AtomicU64) {
    let begin = Instant::now();
    let outcome = timeout(call_timeout(), call).await;
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(begin.elapsed() < patience(), "{:?}", begin.elapsed());
    assert!(commands.load(Relaxed) > 10, "it continues");
    until_quiet(commands).await;
}

/// Only the server knows how many entries there are, so calls that go through all of them continue as long as it claims
/// that there are more. On one thread, so that such a call must let the timeout of its caller elapse.
#[tokio::test]
async fn calls_with_more_and_more_to_do_end_with_their_callers() {
    let full_batch = |size: u64| move |_: u64, _: &[Vec<u8>]| format!(":{size}\r\n");
    let (server, commands) = numbering_server(full_batch(1_000)).await;
    let set = ExpiringSet::<u64>::new(&connect(server.url()).await, "set", MINUTE).unwrap();
    check_endless(async { set.remove_range(..).await.map(drop) }, &commands).await;

    let (server, commands) = numbering_server(full_batch(512)).await;
    let dict = TimeoutDict::<u64, u64>::new(&connect(server.url()).await, "dict").unwrap();
    check_endless(dict.clear(), &commands).await;

    let new_cursors = |n: u64, command: &[Vec<u8>]| match &command[0][..] {
        b"SCAN" => {
            let cursor = (n + 1).to_string();
            format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.len())
        }
        _ => "+OK\r\n".to_owned(),
    };
    let (server, commands) = numbering_server(new_cursors).await;
    let cache = Cache::<u64, u64>::new(&connect(server.url()).await, "cache").unwrap();
    check_endless(async { cache.len().await.map(drop) }, &commands).await;
    check_endless(async { cache.is_empty().await.map(drop) }, &commands).await;
    check_endless(cache.keys().map_ok(drop).try_collect(), &commands).await;
    check_endless(cache.clear(), &commands).await;

    // Another process always loads the key.
    let loading = |_: u64, command: &[Vec<u8>]| match &command[0][..] {
        b"GET" => "$-1\r\n".to_owned(),
        _ => "*4\r\n$-1\r\n$-1\r\n:1\r\n$-1\r\n".to_owned(),
    };
    let (server, commands) = numbering_server(loading).await;
    let cache = Cache::<u64, u64>::new(&connect(server.url()).await, "cache").unwrap();
    let load = async { cache.get_or_set_with(&1, MINUTE, async || 1).await.map(drop) };
    check_endless(load, &commands).await;

    let (server, commands) =
        numbering_server(|n, command| read_stream_reply(n, command, true)).await;
    let builder = Cache::<u64, u64>::builder(&connect(server.url()).await, "cache").events(MINUTE);
    let cache = builder.build().unwrap();
    check_endless(async { cache.events().await.map(drop) }, &commands).await;
}

#[tokio::test]
async fn scan_whose_cursors_return_is_an_error() {
    for cycle in [1, 2, 3, 10] {
        let (server, commands) = numbering_server(move |n, _| {
            // Some others first.
            let cursor = 100 + if n < 5 { n } else { 5 + n % cycle };
            format!("*2\r\n$3\r\n{cursor}\r\n*0\r\n")
        })
        .await;
        let client = connect(server.url()).await;
        let cache = Cache::<u64, u64>::new(&client, "cache").unwrap();
        let error = cache.len().await.unwrap_err();
        assert!(texts(&error).contains("its cursor has returned"), "{error:?}");
        let commands = commands.load(Relaxed);
        assert!(commands < 10 + 3 * cycle, "{commands} commands");
    }
}

/// Returns the reply to a poll of the stream of a shard, with no event and, unless it begins the subscription, `more`.
fn read_stream_reply(n: u64, command: &[Vec<u8>], more_at_first: bool) -> String {
    let is_first = command.iter().any(Vec::is_empty);
    let more = u8::from(!is_first || more_at_first);
    match &command[0][..] {
        b"MGET" => format!("*32\r\n{}", "$-1\r\n".repeat(32)),
        _ => format!("*8\r\n:{n}\r\n*0\r\n:{more}\r\n+v\r\n+0-0\r\n:0\r\n+id\r\n:0\r\n"),
    }
}

#[tokio::test]
async fn polls_for_events_that_never_come_leave_the_processor_idle() {
    let (server, commands) =
        numbering_server(|n, command| read_stream_reply(n, command, false)).await;
    let client = connect(server.url()).await;
    let builder = Cache::<u64, u64>::builder(&client, "cache").events(MINUTE);
    let cache = builder.build().unwrap();
    let events = cache.events().await.unwrap();
    let (begin, before) = (Instant::now(), commands.load(Relaxed));
    sleep(ms(1_000)).await;
    let polls = (commands.load(Relaxed) - before) / 17;
    println!("{polls} polls in {:?}", begin.elapsed());
    assert!(polls > 10, "{polls} polls: it continues");
    // One in 5 ms.
    let most = 1 + begin.elapsed().as_millis() as u64 / 5;
    assert!(polls <= most, "{polls} polls, at most {most}");
    drop(events);
    until_quiet(&commands).await;
}

#[tokio::test]
async fn task_that_reads_more_and_more_events_ends_with_its_subscribers() {
    let (server, commands) = numbering_server(|n, command| {
        let reply = read_stream_reply(n, command, false);
        // Each event is new.
        let event = format!("*1\r\n*2\r\n+{n}-0\r\n*2\r\n$3\r\nkey\r\n$1\r\n1\r\n");
        match &command[0][..] {
            b"MGET" => reply,
            _ => reply.replacen("*0\r\n", &event, 1),
        }
    })
    .await;
    let client = connect(server.url()).await;
    let builder = Cache::<u64, u64>::builder(&client, "cache").events(MINUTE);
    let cache = builder.build().unwrap();
    let mut events = cache.events().await.unwrap();
    assert!(events.recv().await.is_some());
    drop(events);
    until_quiet(&commands).await;
}
