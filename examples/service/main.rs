//! A session store over HTTP, on the embedded cache, or on a Redis server that is shared by many instances.
//!
//! ```text
//! cargo run --example service -- --listen 127.0.0.1:3000
//! ```
//!
//! It prints its address, to open in a browser, and three `curl` lines to try.
//!
//! | request | response |
//! | --- | --- |
//! | `PUT /sessions/{id}?ttl=30` and a body | 201, or 204 if it replaced a live session |
//! | `GET /sessions/{id}` | 200 and the body, or 404; restarts the TTL |
//! | `DELETE /sessions/{id}` | 204, or 404 |
//! | `GET /sessions/{id}/ttl` | `{"ttl": 30}` in seconds, or 404 |
//! | `GET /events` | every expiration, as Server-Sent Events |
//! | `GET /stats` | statistics as JSON |
//! | `GET /` | a page with the dashboard and a form to put, read and delete sessions |
//! | `GET /fleeting` | the dashboard alone |
//! | `GET /metrics` | metrics in Prometheus' text format |
//! | `GET /healthz` | 200 while the service is running |
//!
//! Each client address may send 6,000 requests per minute (`--per-client`), and each session may receive 600
//! (`--per-session`). A request above a limit gets a 429 with `Retry-After`. The last five routes are for operators and
//! have no limit. With `--admin-token TOKEN` (or `FLEETING_ADMIN_TOKEN`), all of them except `/healthz` need the token,
//! as does `/events`: as the password of HTTP `Basic` authentication with any user name (a browser asks for it), or as
//! `Authorization: Bearer TOKEN`. Without a token, they are served only on a loopback address, and only to requests
//! whose `Host` is `localhost` or a loopback address. Behind a proxy, pass the networks of trusted proxies, whose
//! `X-Forwarded-For` gives the client address: `--trust 10.0.0.0/8`.
//!
//! Sessions take at most `--max-bytes` of memory, about; above it, the least useful ones are evicted. Of connections,
//! `--max-connections` may be open in all, and `--connections-per-client` of one client address, unless it is a trusted
//! proxy; at a bound, a new one replaces the one that has been idle for longest. The head of a request must arrive
//! within 10 s, which also ends idle connections, and the request must be answered within 30 s. Use a proxy for TLS,
//! and let it end its idle connections sooner (nginx: `keepalive_timeout 5s` in `upstream`), or it may send a request
//! on a connection that the service is about to close.
//!
//! With `--spool DIR`, each expired session is added to the directory queue `DIR`. Any program can process it, such as
//! `examples/spool_worker.py DIR`.
//!
//! With `--snapshot FILE`, sessions are written over a restart: they are written to the file at Ctrl-C or SIGTERM, and
//! restored at the next start. Their TTLs continue to elapse in the meantime. If the file is not a complete snapshot,
//! the service does not start, and leaves the file unchanged.
//!
//! Built with `--features redis` and started with `--redis redis://127.0.0.1:6379`, sessions and limits are on that
//! server, and all instances with the same server are one service: they share the limits, `/events` of each streams all
//! expirations, and each expired session is handled (counted as `expired`) by one of them. The memory of the server is
//! bounded by its own `maxmemory`.
//!
//! A TTL is 0.001 seconds to `--max-ttl` (a year) and may have a fraction; a session without a TTL gets that one. An id
//! has at most 256 bytes, a body 1 MiB. An invalid request gets a 4xx response with `{"error": "message"}`. Ctrl-C
//! ends the event streams, then the service.
//!
//! The service logs to stderr, filtered by `RUST_LOG` such as `info,fleeting=debug`; the default is `info`.

mod admin;
mod backend;
mod prometheus;
mod server;
mod snapshot;

use std::{
    env,
    error::Error as _,
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    path::{Path as FilePath, PathBuf},
    process::ExitCode,
    str,
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        DefaultBodyLimit, FromRequestParts, Path, Query, Request, State,
        rejection::{BytesRejection, PathRejection, QueryRejection},
    },
    http::{Method, StatusCode, Uri, header, request::Parts},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{
        Html, IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::get,
};
use clap::{Parser, builder::RangedU64ValueParser};
use futures_util::{Stream, StreamExt};
use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use tokio::{
    fs::File,
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};
use tracing_subscriber::{filter::Targets, prelude::*};

use self::{
    admin::Admin,
    backend::{Client, Requests, Sessions},
    prometheus::Page,
};
use fleeting::{Lagged, Limited, Spool, SpoolStats, TrustedProxies, Ttl, dirq::QueueSimple};

const MAX_ID_BYTES: usize = 256;
const MAX_BODY_BYTES: usize = 1024 * 1024;
const MIN_TTL_SECONDS: f64 = 0.001;

/// Least of `--max-bytes`: room for a session with the largest id and body.
const MIN_MAX_BYTES: u64 = 2_000_000;

/// Time in which a request must be answered, including the time in which the client sends its body.
const ANSWER: Duration = Duration::from_secs(30);

/// Time that the spool gets to write the last expired sessions after Ctrl-C.
const GRACE: Duration = Duration::from_secs(3);

/// Routes for operators, who must be able to inspect the service even if their address is above its limit.
const OPERATORS: [&str; 5] = ["/", "/page.js", "/stats", "/metrics", "/healthz"];

/// Path of the dashboard and its resources.
const DASHBOARD: &str = "/fleeting";

/// Content security policy of the page: it loads scripts, styles and data from this service only.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// Session store over HTTP, with rate limits, a stream of expirations, a dashboard and metrics
#[derive(Parser)]
#[command(name = "service", version, after_help = OPEN_PAGES)]
struct Args {
    /// Address to listen on; with port 0, the system chooses a free port
    #[arg(long, default_value = "127.0.0.1:3000", value_name = "ADDR")]
    listen: String,
    /// Requests per minute for each client address
    #[arg(long, default_value_t = 6_000, value_name = "N", value_parser = above_zero())]
    per_client: u32,
    /// Requests per minute for each session
    #[arg(long, default_value_t = 600, value_name = "N", value_parser = above_zero())]
    per_session: u32,
    /// Bytes of memory for sessions, about; above it, the least useful ones are evicted
    #[arg(long, default_value_t = 256_000_000, value_name = "BYTES", conflicts_with = "redis")]
    #[arg(value_parser = RangedU64ValueParser::<u64>::new().range(MIN_MAX_BYTES..))]
    max_bytes: u64,
    /// Longest TTL of a session in seconds, and the TTL of those put without one
    #[arg(long, default_value_t = 31_536_000, value_name = "SECONDS")]
    #[arg(value_parser = RangedU64ValueParser::<u32>::new().range(1..=31_536_000))]
    max_ttl: u32,
    /// Open connections in all
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = above_zero())]
    max_connections: u32,
    /// Open connections from one client address that is not a trusted proxy
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = above_zero())]
    connections_per_client: u32,
    /// Network of trusted proxies, whose X-Forwarded-For field is believed; may be repeated
    #[arg(long, value_name = "NETWORK")]
    trust: Vec<String>,
    /// Token that the pages for operators and the stream of expirations require; also read from FLEETING_ADMIN_TOKEN
    #[arg(long, value_name = "TOKEN")]
    admin_token: Option<String>,
    /// Directory queue to which expired sessions are written
    #[arg(long, value_name = "DIR", conflicts_with = "redis")]
    spool: Option<PathBuf>,
    /// File in which sessions are kept over a restart
    #[arg(long, value_name = "FILE", conflicts_with = "redis")]
    snapshot: Option<PathBuf>,
    /// URL of the Redis server that all instances share, or of a node of its cluster; may be repeated
    #[arg(long, value_name = "URL")]
    redis: Vec<String>,
}

/// The end of `--help`.
const OPEN_PAGES: &str = "\
Pages that are open to everybody:
  /sessions/ID    put, read and delete a session; limited per client and per session
  /healthz        200 while the service is running
Pages for operators:
  /               page with the dashboard and a form
  /fleeting       dashboard, which shows the addresses of clients above their limit
  /stats          statistics as JSON
  /metrics        metrics in Prometheus' text format
  /events         every expiration with its session id, as Server-Sent Events
With --admin-token, they need the token: as the password of HTTP Basic authentication with
any user name, or as the header Authorization: Bearer TOKEN. Use TLS, or a local address.
Without it, they are served only on a loopback address, to requests for localhost.";

fn above_zero() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    log()?;
    let signal = stop_signal()?;
    let listener = TcpListener::bind(&args.listen).await.map_err(|error| {
        let listen = &args.listen;
        format!(
            "cannot listen on {listen}: {error}; choose another address: --listen 127.0.0.1:3001"
        )
    })?;
    let address = listener.local_addr()?;
    let admin = Admin::new(args.admin_token.clone(), address)?;

    let recorder = Page::install()?;
    let client = backend::connect(&args.redis).await?;
    let mut service = Service::start(&args, client.as_ref(), recorder).await?;
    let sessions = service.sessions.clone();
    if let Some(file) = &args.snapshot {
        snapshot::restore(&sessions, file).await?;
    }
    let spooling = match &args.spool {
        Some(folder) => Some(service.spool(folder).await?),
        None => None,
    };
    let trusted = TrustedProxies::new(&args.trust).map_err(|error| {
        format!("invalid --trust, expected a network such as 10.0.0.0/8: {error}")
    })?;
    let known = admin.clone();
    let by_client = backend::by_client(client.as_ref(), args.per_client, trusted)?
        // A request with a wrong token is limited, which slows down guessing.
        .skip(move |parts| is_for_operators(parts.uri.path()) && known.admits(parts))
        .on_limited(|limited, _| Error::from(limited.clone()));
    let app = routes(service.clone())
        .layer(from_fn_with_state(admin, check_access))
        .layer(from_fn(answer_in_time))
        .layer(by_client);
    let (stop, stopped) = oneshot::channel::<()>();
    let limits = server::Limits {
        connections: args.max_connections as usize,
        per_client: args.connections_per_client as usize,
        proxies: args.trust.iter().filter_map(|network| parse_network(network)).collect(),
    };
    let stopped = async { drop(stopped.await) };
    let server = tokio::spawn(server::serve(listener, app, limits, stopped));
    greet(address)?;

    signal.await;
    // First the event streams: the server waits for all open responses, and these would never end.
    sessions.shutdown().await;
    drop(stop);
    server.await?;
    // After the server has stopped: no request changes the sessions any more.
    let written = match &args.snapshot {
        Some(file) => snapshot::write(&sessions, file).await,
        None => Ok(()),
    };
    if let Some(spooling) = spooling
        && timeout(GRACE, spooling).await.is_err()
    {
        return Err("the spool could not write all expired sessions in time".into());
    }
    Ok(written?)
}

/// Logs to stderr, filtered by `RUST_LOG`.
fn log() -> Result<(), String> {
    let filter = env::var("RUST_LOG").unwrap_or_default();
    let filter = if filter.is_empty() { "info" } else { &filter };
    let targets: Targets = filter.parse().map_err(|error| {
        format!("invalid RUST_LOG {filter:?}: {error}; use a filter such as info,fleeting=debug")
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_filter(targets);
    tracing_subscriber::registry().with(lines).init();
    Ok(())
}

/// Returns the network that `--trust` names, which may be one address. Its text has been checked.
fn parse_network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn is_for_operators(path: &str) -> bool {
    let below = path.strip_prefix(DASHBOARD);
    OPERATORS.contains(&path) || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Prints the address and the `curl` lines in one write, so that a reader may close the pipe after the first line.
fn greet(address: SocketAddr) -> io::Result<()> {
    let greeting = format!(
        "http://{address}\n\
         curl -X PUT --data 'hello' 'http://{address}/sessions/ada?ttl=5'\n\
         curl -i 'http://{address}/sessions/ada'\n\
         curl -N 'http://{address}/events'\n"
    );
    let mut out = io::stdout().lock();
    out.write_all(greeting.as_bytes())?;
    out.flush()
}

/// Returns a future that resolves at Ctrl-C or SIGTERM. Both signals are caught from this call on.
#[cfg(unix)]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Returns a future that resolves at Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

fn routes(service: Service) -> Router {
    Router::new()
        .route("/events", get(events))
        .route("/stats", get(stats))
        .route("/metrics", get(metrics))
        .route("/sessions/{id}", get(read).put(put).delete(remove))
        .route("/sessions/{id}/ttl", get(ttl))
        .route_layer(from_fn(refuse_query))
        // The routes below ignore query parameters, which links and probes may add.
        .route("/", get(page))
        .route("/page.js", get(page_script))
        .route("/healthz", get(async || "ok\n"))
        .fallback(async |uri: Uri| {
            Error::Refused(StatusCode::NOT_FOUND, format!("there is no {}", uri.path()))
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Error::Refused(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{} does not support {method}", uri.path()),
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(service)
        .nest_service(DASHBOARD, fleeting::dashboard())
}

/// State shared by all handlers.
#[derive(Clone)]
struct Service {
    sessions: Sessions,
    requests: Requests,
    lag: watch::Receiver<Lag>,
    spool: Option<Spool>,
    recorder: Page,
    started: Instant,
    max_ttl: Duration,
}

#[derive(Clone)]
struct Session {
    body: Bytes,
    /// TTL of the PUT; restarts at each read.
    ttl: Duration,
}

/// For a queue: text, or a list of bytes if the body is not UTF-8. For a snapshot: the TTL and the body.
impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&backend::pack(self));
        }
        match str::from_utf8(&self.body) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.serialize_bytes(&self.body),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Lag {
    last: Duration,
    max: Duration,
    /// Number of sessions handled.
    count: u64,
}

impl Service {
    async fn start(args: &Args, client: Option<&Client>, recorder: Page) -> Result<Self, Error> {
        let sessions = Sessions::new(client, args.max_bytes)?;
        let requests = Requests::new(client, args.per_session)?;
        let lag = watch_lag(&sessions).await?;
        let (started, max_ttl) = (Instant::now(), Duration::from_secs(args.max_ttl.into()));
        Ok(Self { sessions, requests, lag, spool: None, recorder, started, max_ttl })
    }

    /// Writes sessions that expire from now on to a queue, until the cache is shut down.
    async fn spool(&mut self, folder: &FilePath) -> Result<JoinHandle<SpoolStats>, String> {
        let queue = QueueSimple::open(folder).await.map_err(|error| match error.source() {
            Some(reason) => format!("{error}: {reason}"),
            None => error.to_string(),
        })?;
        // Fails at the start, and not when the first session expires. The probe's name is not a queue's, so other
        // users of the queue ignore it. A file that is there already was put there by somebody else.
        let probe = folder.join(format!(".{:016x}.probe", RandomState::new().hash_one(folder)));
        let created = File::options().write(true).create_new(true).open(&probe).await;
        let probed = match created {
            Ok(_) => tokio::fs::remove_file(&probe).await,
            Err(error) => Err(error),
        };
        probed.map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
        let spool = Spool::new(queue);
        #[allow(irrefutable_let_patterns)]
        // Without the feature `redis`, there is no other variant.
        let Sessions::Embedded(sessions) = &self.sessions else {
            return Err("sessions on a Redis server cannot be spooled; omit --spool".into());
        };
        let spooling = tokio::spawn(spool.run(sessions.events_lossless(1_024)));
        self.spool = Some(spool);
        Ok(spooling)
    }
}

/// Tracks the lag of expirations until the cache is shut down.
async fn watch_lag(sessions: &Sessions) -> Result<watch::Receiver<Lag>, Error> {
    let (sender, receiver) = watch::channel(Lag::default());
    let handle = move |gone: backend::ExpiredSession| {
        let last = gone.lag.unwrap_or_default();
        sender.send_modify(|lag| {
            *lag = Lag { last, max: lag.max.max(last), count: lag.count + 1 };
        });
    };
    sessions.handle(handle).await?;
    Ok(receiver)
}

async fn put(
    State(service): State<Service>,
    Id(id): Id,
    GivenTtl(ttl): GivenTtl,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Error> {
    service.requests.check(&id).await?;
    // Copied, because `body` is a slice of the connection's buffer and would keep all of it in memory.
    let body = Bytes::copy_from_slice(&body?);
    let replaced = service.sessions.put(id, Session { body, ttl }).await?;
    Ok(if replaced { StatusCode::NO_CONTENT } else { StatusCode::CREATED })
}

async fn read(State(service): State<Service>, Id(id): Id) -> Result<impl IntoResponse, Error> {
    service.requests.check(&id).await?;
    let body = service.sessions.read(&id).await?.ok_or_else(|| no_session(&id))?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        // Clients choose the bodies: a browser must not interpret one as a page of this origin.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, body))
}

async fn remove(State(service): State<Service>, Id(id): Id) -> Result<StatusCode, Error> {
    service.requests.check(&id).await?;
    match service.sessions.remove(&id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(no_session(&id)),
    }
}

async fn ttl(State(service): State<Service>, Id(id): Id) -> Result<impl IntoResponse, Error> {
    service.requests.check(&id).await?;
    match service.sessions.ttl(&id).await? {
        Ttl::Missing => Err(no_session(&id)),
        ttl => Ok(Json(json!({ "ttl": ttl.as_secs() }))),
    }
}

async fn events(
    State(service): State<Service>,
) -> Result<Sse<impl Stream<Item = Result<Event, axum::Error>>>, Error> {
    let events = service.sessions.events().await?.map(|event| match event {
        Ok(gone) => Event::default().event("expired").json_data(json!({
            "key": gone.key,
            "cause": gone.cause.as_str(),
            "lag_ms": gone.lag.map(milliseconds),
        })),
        Err(Lagged(missed)) => {
            Event::default().event("lagged").json_data(json!({ "missed": missed }))
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

async fn stats(State(service): State<Service>) -> Json<Value> {
    let lag = *service.lag.borrow();
    // One subscriber is this service itself, which tracks the lag, and another one the spool.
    let own_subscribers = 1 + usize::from(service.spool.is_some());
    let mut stats = service.sessions.stats(own_subscribers, lag.count);
    stats["limited"] = service.requests.denied().into();
    let spool = service.spool.as_ref().map(Spool::stats);
    stats["spooled"] = spool.map(|spool| spool.written).into();
    stats["spool"] = spool
        .map(|spool| {
            json!({
                "in_hand": spool.in_hand,
                "unwritable": spool.unwritable,
                "failures": spool.failures,
                "stalled_s": spool.stalled.map(|stalled| stalled.as_secs_f64()),
            })
        })
        .into();
    stats["last_lag_ms"] = milliseconds(lag.last).into();
    stats["max_lag_ms"] = milliseconds(lag.max).into();
    stats["uptime_s"] = service.started.elapsed().as_secs_f64().into();
    Json(stats)
}

/// Returns the metrics of all caches, limiters and other types of the crate.
async fn metrics(State(service): State<Service>) -> impl IntoResponse {
    fleeting::publish_metrics();
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        service.recorder.render(),
    )
}

async fn page() -> impl IntoResponse {
    let policy = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)];
    (policy, Html(include_str!("page.html")))
}

async fn page_script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("page.js"))
}

/// Rejects requests for operators' pages that are not admitted.
async fn check_access(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_closed = (is_for_operators(path) && path != "/healthz") || path == "/events";
    if !is_closed {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    if admin.admits(&parts) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let (status, message) = admin.refusal();
    let refused = Error::Refused(status, message.to_owned());
    if status != StatusCode::UNAUTHORIZED {
        return refused.into_response();
    }
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"fleeting\", charset=\"UTF-8\"")];
    (challenge, refused).into_response()
}

/// Rejects a request that is not answered in time, for instance because its client sends the body too slowly. The body
/// of the response has no limit, as that of an event stream.
async fn answer_in_time(request: Request, next: Next) -> Result<Response, Error> {
    timeout(ANSWER, next.run(request)).await.map_err(|_| {
        let message = format!("the request was not complete within {} s", ANSWER.as_secs());
        Error::Refused(StatusCode::REQUEST_TIMEOUT, message)
    })
}

/// Rejects queries on routes without parameters: a `?ttl=` on anything but a PUT would be ignored silently.
async fn refuse_query(request: Request, next: Next) -> Result<Response, Error> {
    match request.uri().query() {
        None | Some("") => {}
        Some(_) if request.method() == Method::PUT => {}
        Some(_) => {
            return Err(Error::Refused(StatusCode::BAD_REQUEST, "only PUT accepts a query".into()));
        }
    }
    Ok(next.run(request).await)
}

/// Session id in the path.
struct Id(String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await?;
        if id.len() > MAX_ID_BYTES {
            let message = format!("an id has at most {MAX_ID_BYTES} bytes, this has {}", id.len());
            return Err(Error::Refused(StatusCode::BAD_REQUEST, message));
        }
        Ok(Self(id))
    }
}

/// `?ttl=` of a PUT.
struct GivenTtl(Duration);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    ttl: Option<String>,
}

impl FromRequestParts<Service> for GivenTtl {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Error> {
        let Query(query) = Query::<PutQuery>::from_request_parts(parts, service).await?;
        let Some(ttl) = query.ttl else { return Ok(Self(service.max_ttl)) };
        let max = service.max_ttl.as_secs_f64();
        match ttl.parse() {
            Ok(seconds) if (MIN_TTL_SECONDS..=max).contains(&seconds) => {
                Ok(Self(Duration::from_secs_f64(seconds)))
            }
            _ => {
                let range = format!("{MIN_TTL_SECONDS} to {max} seconds");
                Err(Error::Refused(
                    StatusCode::BAD_REQUEST,
                    format!("ttl must be {range}, got {ttl:?}"),
                ))
            }
        }
    }
}

/// Error response to a client.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{1}")]
    Refused(StatusCode, String),
    #[error(transparent)]
    Limited(Limited),
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        match self {
            Error::Refused(status, message) => {
                (status, Json(json!({ "error": message }))).into_response()
            }
            Error::Limited(limited) => {
                let message = Json(json!({ "error": limited.to_string() }));
                // Keeps the rate limit fields, and replaces the body by the JSON of all other errors.
                let mut response = limited.into_response();
                let (body, bytes) = message.into_response().into_parts();
                response.headers_mut().extend(body.headers);
                *response.body_mut() = bytes;
                response
            }
        }
    }
}

impl From<Limited> for Error {
    fn from(limited: Limited) -> Self {
        Self::Limited(limited)
    }
}

#[cfg(feature = "redis")]
impl From<fleeting::redis::Error> for Error {
    fn from(error: fleeting::redis::Error) -> Self {
        match error {
            fleeting::redis::Error::Limited(limited) => Self::Limited(limited),
            error => {
                tracing::warn!(error = &error as &dyn std::error::Error, "Redis call failed");
                Self::Refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
        }
    }
}

impl From<PathRejection> for Error {
    fn from(rejection: PathRejection) -> Self {
        Self::Refused(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for Error {
    fn from(rejection: QueryRejection) -> Self {
        Self::Refused(rejection.status(), rejection.body_text())
    }
}

impl From<BytesRejection> for Error {
    fn from(rejection: BytesRejection) -> Self {
        let status = rejection.status();
        Self::Refused(
            status,
            match status {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    format!("a body has at most {MAX_BODY_BYTES} bytes")
                }
                _ => rejection.body_text(),
            },
        )
    }
}

fn no_session(id: &str) -> Error {
    Error::Refused(StatusCode::NOT_FOUND, format!("there is no session {id:?}"))
}

/// Converts a duration to milliseconds, with microsecond precision.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}
