//! A session store over HTTP, on the embedded cache alone.
//!
//! ```text
//! cargo run --example service -- --listen 127.0.0.1:3000
//! ```
//!
//! It prints its address, which a browser can open, and three `curl` lines to try.
//!
//! | request | answer |
//! | --- | --- |
//! | `PUT /sessions/{id}?ttl=30` and a body | 201, or 204 where it replaced a live one |
//! | `GET /sessions/{id}` | 200 and the body, or 404; the session may live for its TTL anew |
//! | `DELETE /sessions/{id}` | 204, or 404 |
//! | `GET /sessions/{id}/ttl` | `{"ttl": 30}` in seconds, -1 for a persistent one, or 404 |
//! | `GET /events` | every expiration, as Server-Sent Events |
//! | `GET /stats` | figures, as JSON |
//! | `GET /` | a page that shows them |
//!
//! Each client address may ask 6,000 times a minute, and each session be asked for 600 times
//! (`--per-client`, `--per-session`); what is above is answered by a 429 that says when to come again.
//! Behind a proxy, name the networks that may say who the client is: `--trust 10.0.0.0/8`.
//!
//! A TTL is 0.001 to 31,536,000 seconds (a year), whole or not; without one a session is
//! persistent. An id has at most 256 bytes, a body 1 MiB. What can't be done is answered by a 4xx
//! and `{"error": "a sentence"}`. Ctrl-C ends the streams, then the service.

use std::{
    hash::RandomState,
    io::{self, Write},
    net::SocketAddr,
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
    middleware::{Next, from_fn},
    response::{
        Html, IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::get,
};
use clap::{Parser, builder::RangedU64ValueParser};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use fleeting::{
    Cache, Cause, Lagged, Limit, Limited, RateLimitLayer, RateLimiter, Sweep, TrustedProxies, Ttl,
    Window,
};

const MAX_ID_BYTES: usize = 256;
const MAX_BODY_BYTES: usize = 1024 * 1024;
const MIN_TTL_SECONDS: f64 = 0.001;
const MAX_TTL_SECONDS: f64 = 31_536_000.0;

/// The TTL of a persistent session: to the cache, a deadline that overflows is none.
const FOREVER: Duration = Duration::MAX;

/// How long requests that are under way may still take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(3);

/// The page loads nothing from anywhere, and talks to nobody but this service.
const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; \
    style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'";

/// A session store over HTTP.
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:3000", value_name = "ADDR")]
    listen: String,
    /// Requests a minute from one client address.
    #[arg(long, default_value_t = 6_000, value_name = "N", value_parser = above_zero())]
    per_client: u32,
    /// Requests a minute for one session.
    #[arg(long, default_value_t = 600, value_name = "N", value_parser = above_zero())]
    per_session: u32,
    /// A network of proxies that may say who the client is.
    #[arg(long, value_name = "NETWORK")]
    trust: Vec<String>,
}

fn above_zero() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let signal = stop_signal()?;
    let listener = TcpListener::bind(&args.listen)
        .await
        .map_err(|error| format!("can't listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;

    let service = Service::start(&args);
    let clients = RateLimiter::builder().limit(Limit::per_minute(args.per_client).named("client"));
    let by_client = RateLimitLayer::by_ip(clients.build(), TrustedProxies::new(&args.trust)?)
        .on_limited(|limited, _| Error::from(limited.clone()));
    let app = routes(service.clone()).layer(by_client);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { drop(stopped.await) });
    let server = tokio::spawn(server.into_future());
    greet(address)?;

    signal.await;
    // First the streams: the server waits for all answers under way, and theirs have no end.
    service.sessions.shutdown().await;
    drop(stop);
    // A client that stopped in the middle of a request or an answer is left behind.
    let _ = timeout(GRACE, server).await;
    Ok(())
}

/// All at once, so that who reads the first line can close the pipe.
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

/// Comes at Ctrl-C or SIGTERM, both of which are caught from now on.
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

/// Comes at Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

fn routes(service: Service) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/stats", get(stats))
        .route("/sessions/{id}", get(read).put(put).delete(remove))
        .route("/sessions/{id}/ttl", get(ttl))
        .route_layer(from_fn(refuse_query))
        .fallback(async |uri: Uri| {
            Error::Refused(StatusCode::NOT_FOUND, format!("there is no {}", uri.path()))
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Error::Refused(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{} takes no {method}", uri.path()),
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(service)
}

/// The state that all handlers share.
#[derive(Clone)]
struct Service {
    sessions: Cache<String, Session, RandomState>,
    requests: RateLimiter<String, RandomState>,
    lag: watch::Receiver<Lag>,
    started: Instant,
}

#[derive(Clone)]
struct Session {
    body: Bytes,
    /// What it was put with, to be given anew at each read.
    ttl: Duration,
}

#[derive(Clone, Copy, Default)]
struct Lag {
    last: Duration,
    max: Duration,
}

impl Service {
    fn start(args: &Args) -> Self {
        let sessions = Cache::builder()
            .name("sessions")
            // A quarter of the sessions ten times a second: none stays dead for much over 0.4 s.
            .sweep(Sweep::default().every(Duration::from_millis(100)).sample(0.25))
            .publish([Cause::Expired])
            // The ids are the clients' choice, so collisions could be too.
            .hasher(RandomState::new())
            .build();
        let requests = RateLimiter::builder()
            .name("requests")
            .limit(Limit::per_minute(args.per_session).named("session"))
            .window(Window::Buckets(10))
            .hasher(RandomState::new())
            .build();
        let lag = watch_lag(&sessions);
        Self { sessions, requests, lag, started: Instant::now() }
    }
}

/// Follows how late sessions leave, until the cache is shut down.
fn watch_lag(sessions: &Cache<String, Session, RandomState>) -> watch::Receiver<Lag> {
    let (sender, receiver) = watch::channel(Lag::default());
    let mut events = sessions.events();
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let Some(last) = event.ok().and_then(|event| event.lag()) {
                sender.send_modify(|lag| *lag = Lag { last, max: lag.max.max(last) });
            }
        }
    });
    receiver
}

async fn put(
    State(service): State<Service>,
    Id(id): Id,
    GivenTtl(ttl): GivenTtl,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Error> {
    service.requests.check(&id).await?;
    // Copied: `body` is a piece of the connection's buffer, and would keep all of it in memory.
    let body = Bytes::copy_from_slice(&body?);
    let replaced = service.sessions.set_ex(id, Session { body, ttl }, ttl).await;
    Ok(if replaced.is_some() { StatusCode::NO_CONTENT } else { StatusCode::CREATED })
}

async fn read(State(service): State<Service>, Id(id): Id) -> Result<impl IntoResponse, Error> {
    service.requests.check(&id).await?;
    let session = service.sessions.get_ex_with(&id, |session| session.ttl).await;
    let session = session.ok_or_else(|| no_session(&id))?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        // Bodies are anybody's: a browser must not take one for a page of this origin.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, session.body))
}

async fn remove(State(service): State<Service>, Id(id): Id) -> Result<StatusCode, Error> {
    service.requests.check(&id).await?;
    service.sessions.remove(&id).await.ok_or_else(|| no_session(&id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn ttl(State(service): State<Service>, Id(id): Id) -> Result<impl IntoResponse, Error> {
    service.requests.check(&id).await?;
    match service.sessions.ttl(&id).await {
        Ttl::Missing => Err(no_session(&id)),
        ttl => Ok(Json(json!({ "ttl": ttl.as_secs() }))),
    }
}

async fn events(
    State(service): State<Service>,
) -> Sse<impl Stream<Item = Result<Event, axum::Error>>> {
    let events = service.sessions.events().map(|event| match event {
        Ok(event) => Event::default().event("expired").json_data(json!({
            "key": event.key,
            "cause": event.cause.as_str(),
            "lag_ms": event.lag().map(milliseconds),
        })),
        Err(Lagged(missed)) => {
            Event::default().event("lagged").json_data(json!({ "missed": missed }))
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

async fn stats(State(service): State<Service>) -> Json<Value> {
    let stats = service.sessions.stats();
    let lag = *service.lag.borrow();
    Json(json!({
        "entries": stats.resident,
        "hits": stats.hits,
        "misses": stats.misses,
        "hit_ratio": stats.hit_ratio(),
        "expired": stats.expired,
        "removed": stats.removed,
        "replaced": stats.replaced,
        "sweeps": stats.sweeps,
        "limited": service.requests.stats().denied,
        // One is our own, which follows the lag.
        "subscribers": stats.subscribers.saturating_sub(1),
        "last_lag_ms": milliseconds(lag.last),
        "max_lag_ms": milliseconds(lag.max),
        "uptime_s": service.started.elapsed().as_secs_f64(),
    }))
}

async fn page() -> impl IntoResponse {
    let policy = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)];
    (policy, Html(include_str!("service/page.html")))
}

/// A `?ttl=` on anything but a PUT would be ignored without a word.
async fn refuse_query(request: Request, next: Next) -> Result<Response, Error> {
    match request.uri().query() {
        None | Some("") => {}
        Some(_) if request.method() == Method::PUT => {}
        Some(_) => {
            return Err(Error::Refused(StatusCode::BAD_REQUEST, "only PUT takes a query".into()));
        }
    }
    Ok(next.run(request).await)
}

/// The id in the path.
struct Id(String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await?;
        if id.len() > MAX_ID_BYTES {
            let sentence = format!("an id has at most {MAX_ID_BYTES} bytes, this has {}", id.len());
            return Err(Error::Refused(StatusCode::BAD_REQUEST, sentence));
        }
        Ok(Self(id))
    }
}

/// The `?ttl=` of a PUT.
struct GivenTtl(Duration);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    ttl: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for GivenTtl {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let Query(query) = Query::<PutQuery>::from_request_parts(parts, state).await?;
        let Some(ttl) = query.ttl else { return Ok(Self(FOREVER)) };
        match ttl.parse() {
            Ok(seconds) if (MIN_TTL_SECONDS..=MAX_TTL_SECONDS).contains(&seconds) => {
                Ok(Self(Duration::from_secs_f64(seconds)))
            }
            _ => {
                let range = format!("{MIN_TTL_SECONDS} to {MAX_TTL_SECONDS} seconds");
                Err(Error::Refused(
                    StatusCode::BAD_REQUEST,
                    format!("ttl must be {range}, got {ttl:?}"),
                ))
            }
        }
    }
}

/// What the client is told where it can't have what it asked for.
enum Error {
    Refused(StatusCode, String),
    Limited(Limited),
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        match self {
            Error::Refused(status, sentence) => {
                (status, Json(json!({ "error": sentence }))).into_response()
            }
            Error::Limited(limited) => {
                let sentence = Json(json!({ "error": limited.to_string() }));
                // With its fields, but the body that all refusals have here.
                let mut response = limited.into_response();
                let (body, bytes) = sentence.into_response().into_parts();
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

/// To the microsecond.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}
