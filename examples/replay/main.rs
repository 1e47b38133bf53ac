//! Replays the access log of a web server. The log's times drive the clock of a cache of client sessions, and of a rate
//! limiter that counts each client's requests in the last minute.
//!
//! ```text
//! cargo run --example replay                           the excerpt in this repository
//! cargo run --example replay -- /var/log/access.log    your own, in the combined format
//! zcat access.log.*.gz | cargo run --example replay -- --json -
//! ```
//!
//! Tokio's clock is paused, and advanced from the time of one line to that of the next. So days pass in milliseconds,
//! and every result is exact. Servers write a line when a request ends, with the time at which it began, so lines are
//! out of order. Each line is held until the log has advanced by a minute, and requests are processed in the order of
//! their times. A line that is later than that is processed with the current time.
//!
//! A session expires after 30 minutes without a request, to the second: a request after exactly 30 minutes opens the
//! next session. Malformed lines are counted and listed, and skipped.
//!
//! No request is denied, because the log contains requests that were answered. The limiter has a quota that no client
//! reaches, and the remaining quota of a permit gives the number of requests in its window.
//!
//! `data/access-excerpt.log` is the start of a log from Elastic's public examples
//! (<https://github.com/elastic/examples>, Apache-2.0).

mod report;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    error::Error,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use jiff::Timestamp;
use tokio::{
    task::JoinHandle,
    time::{Instant, advance},
};

use self::report::{LIMIT, Malformed, OverLimit, Report, Spread, histogram};
use fleeting::{Cache, Limit, RateLimiter, Window};

const EXCERPT: &[u8] = include_bytes!("../data/access-excerpt.log");

/// TTL of a session, which restarts at each request.
const IDLE: Duration = Duration::from_secs(30 * 60);

const MINUTE: Duration = Duration::from_secs(60);

/// Maximum delay of a line that is still sorted by its time.
const LATE: Duration = MINUTE;

/// Replays an access log on the clock of a cache: client sessions, and clients with too many requests.
#[derive(Parser)]
struct Args {
    /// Access log in the combined format; `-` reads stdin. By default an excerpt of a real log
    log: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let report = match &args.log {
        None => replay(EXCERPT).await?,
        Some(path) if path.as_os_str() == "-" => replay(io::stdin().lock()).await?,
        Some(path) => {
            let named = |error| format!("{}: {error}", path.display());
            let log = File::open(path).map_err(named)?;
            replay(BufReader::new(log)).await.map_err(named)?
        }
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.to_string(),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Reads the log. Only the current line and the requests of the last minute of the log are in memory.
async fn replay(mut log: impl BufRead) -> io::Result<Report> {
    let mut order = Order::default();
    let mut clock = LogClock::default();
    let mut sessions = Sessions::new();
    let mut rates = Rates::new();
    let mut malformed = Malformed::default();
    let mut lines = 0;
    let mut line = Vec::new();
    loop {
        // A blocking read on the runtime's thread is fine here: no other task has work until the clock advances.
        let is_end = log.read_until(b'\n', &mut line)? == 0;
        if !is_end {
            lines += 1;
            match parse(&String::from_utf8_lossy(&line)) {
                Some((client, time)) => {
                    order.hold(Request { time, line: lines, client: client.into() })
                }
                None => malformed.add(lines),
            }
            line.clear();
        }
        while let Some(Request { time, client, .. }) = order.next(is_end) {
            clock.follow(time).await;
            sessions.request(&client).await;
            rates.request(&client).await;
        }
        if is_end {
            break;
        }
    }

    let opened = sessions.opened;
    let (expired, open) = sessions.end().await;
    let all = || expired.iter().chain(&open);
    Ok(Report {
        lines,
        malformed,
        late: order.late - clock.back_in_time,
        back_in_time: clock.back_in_time,
        from: clock.first.map(|time| time.to_string()),
        to: clock.latest.map(|time| time.to_string()),
        opened,
        expired: expired.len(),
        open: open.len(),
        seconds: Spread::of(all().map(Session::seconds).collect()),
        requests: Spread::of(all().map(|session| session.requests).collect()),
        histogram: histogram(all().map(Session::seconds)),
        over_limit: rates.over_limit(),
    })
}

type Client = Arc<str>;

/// A request, ordered by its time, then by its line.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    time: Timestamp,
    line: u64,
    client: Client,
}

/// Sorts the lines that are at most [`LATE`] late.
#[derive(Default)]
struct Order {
    held: BinaryHeap<Reverse<Request>>,
    latest: Option<Timestamp>,
    /// Number of lines that followed a line with a later time.
    late: u64,
}

impl Order {
    fn hold(&mut self, request: Request) {
        let latest = self.latest.get_or_insert(request.time);
        self.late += u64::from(request.time < *latest);
        *latest = request.time.max(*latest);
        self.held.push(Reverse(request));
    }

    /// Returns the next request, if no line may come before it any more.
    fn next(&mut self, is_end: bool) -> Option<Request> {
        let Reverse(first) = self.held.peek()?;
        let is_due = is_end || self.latest?.duration_since(first.time).unsigned_abs() >= LATE;
        if is_due { self.held.pop().map(|Reverse(request)| request) } else { None }
    }
}

/// Advances Tokio's paused clock to the times of the log.
#[derive(Default)]
struct LogClock {
    first: Option<Timestamp>,
    latest: Option<Timestamp>,
    back_in_time: u64,
}

impl LogClock {
    async fn follow(&mut self, time: Timestamp) {
        self.first.get_or_insert(time);
        let latest = *self.latest.get_or_insert(time);
        if time < latest {
            self.back_in_time += 1;
        } else {
            // `advance` also yields, so the sweeper runs.
            advance(time.duration_since(latest).unsigned_abs()).await;
            self.latest = Some(time);
        }
    }
}

/// The session of each client, whose TTL restarts at each request.
struct Sessions {
    cache: Cache<Client, Session>,
    opened: u64,
    /// Task that collects expired sessions until the cache is shut down.
    expired: JoinHandle<Vec<Session>>,
}

#[derive(Clone, Copy)]
struct Session {
    first: Instant,
    last: Instant,
    requests: u64,
}

impl Sessions {
    fn new() -> Self {
        let cache = Cache::builder().name("sessions").build();
        let mut events = cache.events_lossless(1_024);
        let expired = tokio::spawn(async move {
            let mut expired = Vec::new();
            while let Some(event) = events.recv().await {
                expired.push(event.value);
            }
            expired
        });
        Self { cache, opened: 0, expired }
    }

    async fn request(&mut self, client: &Client) {
        let now = Instant::now();
        let has_session = self.cache.update(client, |session| {
            session.last = now;
            session.requests += 1;
        });
        if has_session.await.is_some() {
            self.cache.expire(client, IDLE).await;
        } else {
            let session = Session { first: now, last: now, requests: 1 };
            self.cache.set_ex(client.clone(), session, IDLE).await;
            self.opened += 1;
        }
    }

    /// Returns the expired sessions and the open ones.
    async fn end(self) -> (Vec<Session>, Vec<Session>) {
        let open = self.cache.values().collect();
        // The sweeper may be behind. The shutdown delivers the events of all sessions that have expired by now, and
        // then ends the stream.
        self.cache.shutdown().await;
        (self.expired.await.expect("collecting does not panic"), open)
    }
}

impl Session {
    fn seconds(&self) -> u64 {
        (self.last - self.first).as_secs()
    }
}

/// Number of requests of each client in the last minute, to the nanosecond: `Window::Log` counts exactly the requests
/// in `(now - 1 min, now]`.
struct Rates {
    limiter: RateLimiter<Client>,
    /// Maximum number of requests in a minute, for the clients above the limit.
    over: BTreeMap<Client, u64>,
}

impl Rates {
    fn new() -> Self {
        let counts_all = Limit::new(u32::MAX, MINUTE);
        let limiter = RateLimiter::builder()
            .name("rates")
            .window(Window::Log)
            .limit(counts_all)
            .max_keys(usize::MAX)
            .build();
        Self { limiter, over: BTreeMap::new() }
    }

    async fn request(&mut self, client: &Client) {
        let permit = self.limiter.check(client).await;
        let permit = permit.expect("no client sends four billion requests in a minute");
        let in_a_minute = u64::from(u32::MAX - permit.remaining());
        if in_a_minute > LIMIT {
            let most = self.over.entry(client.clone()).or_default();
            *most = in_a_minute.max(*most);
        }
    }

    /// Returns the clients above the limit, busiest first.
    fn over_limit(self) -> Vec<OverLimit> {
        let over = self.over.into_iter();
        let mut over: Vec<_> = over
            .map(|(client, most)| OverLimit { client: client.to_string(), most_in_a_minute: most })
            .collect();
        over.sort_by_key(|over| Reverse(over.most_in_a_minute));
        over
    }
}

/// Returns the client and the time of a complete line of the combined format:
/// `client ident user [day/month/year:h:m:s zone] "request" status bytes "referer" "agent"`.
fn parse(line: &str) -> Option<(&str, Timestamp)> {
    let (client, rest) = line.trim_end().split_once(' ')?;
    let (names, rest) = rest.split_once(" [")?;
    let (time, rest) = rest.split_once("] ")?;
    let (status, rest) = after_quoted(rest)?.strip_prefix(' ')?.split_once(' ')?;
    let (bytes, rest) = rest.split_once(' ')?;
    let rest = after_quoted(after_quoted(rest)?.strip_prefix(' ')?)?;

    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_whole = !client.is_empty()
        && names.contains(' ')
        && (status.len() == 3 && is_number(status))
        && (bytes == "-" || is_number(bytes))
        && rest.is_empty();
    let time = Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", time).ok()?;
    // From 1970 to 2106: Tokio's clock, which counts nanoseconds, could not be advanced to the year 9999.
    let is_possible = u32::try_from(time.as_second()).is_ok();
    (is_whole && is_possible).then_some((client, time))
}

/// Returns the rest of a line after a quoted field. A quote within the field is written `\"`.
fn after_quoted(text: &str) -> Option<&str> {
    let field = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = field.find(|c| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    })?;
    Some(&field[end + 1..])
}
