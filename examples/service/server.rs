//! The server of HTTP connections, with the bounds that a service on the internet needs and `axum::serve` lacks: on the
//! time that a client may take for the head of a request, and on the number of connections, in all and of one client.
//!
//! At a bound, a new connection replaces the one that has waited longest for the head of a request: a client that only
//! opens connections cannot keep others out. If all of them have a request in progress, it replaces the oldest request
//! that takes longer than [`STALLED`], such as a response that the client does not read; else it is refused.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{ConnectInfo, Request},
    http::HeaderMap,
    response::Response,
};
use fleeting::{ClientIp, TrustedProxies};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use ipnet::IpNet;
use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tower_service::Service as _;

/// Time in which the head of a request must arrive, and for which an idle connection is kept.
const HEAD: Duration = Duration::from_secs(10);

/// Time after which a request in progress may be replaced at a bound.
const STALLED: Duration = Duration::from_secs(60);

/// Time that requests in progress get to finish after the stop.
const GRACE: Duration = Duration::from_secs(3);

/// Pause after an accept that failed, for instance because the process has no descriptor left and no connection to
/// close.
const PAUSE: Duration = Duration::from_millis(50);

const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// Bounds on open connections.
pub(super) struct Limits {
    /// In all.
    pub(super) connections: usize,
    /// From one client address.
    pub(super) per_client: usize,
    /// Networks of proxies, whose connections are those of many clients.
    pub(super) proxies: Vec<IpNet>,
}

/// Serves `app` until `stop` resolves, and then for at most [`GRACE`] the requests in progress.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let open = Arc::new(Connections::default());
    let (mut tasks, graceful) = (JoinSet::new(), GracefulShutdown::new());
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // The same prefix of IPv6 addresses is one client as for the rate limits.
    let (direct, no_headers) = (TrustedProxies::none(), HeaderMap::new());
    let mut stop = pin!(stop);
    let mut warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Attackers can cause it as often as they like.
                if warned.is_none_or(|at| at.elapsed() > BETWEEN_WARNINGS) {
                    tracing::warn!(%error, "accepting a connection failed");
                    warned = Some(Instant::now());
                }
                // Its descriptor is free as soon as its task has been dropped.
                sleep(if open.close_one(|_| true) { Duration::ZERO } else { PAUSE }).await;
                continue;
            }
        };
        let ip = peer.ip().to_canonical();
        let client = direct.client_ip(ip, &no_headers);
        let is_client = |other: &Connection| other.client == client;
        let is_proxy = limits.proxies.iter().any(|network| network.contains(&ip));
        let at_client_limit = !is_proxy && open.count(is_client) >= limits.per_client;
        if at_client_limit && !open.close_one(is_client)
            || open.count(|_| true) >= limits.connections && !open.close_one(|_| true)
        {
            tracing::debug!(%peer, "connection refused: too many are open");
            continue;
        }
        let id = open.insert(client);
        let guard = Arc::new(ConnectionGuard { open: open.clone(), id });
        let (app, its_guard) = (app.clone(), guard.clone());
        let respond =
            service_fn(move |request| respond(app.clone(), request, peer, its_guard.clone()));
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), respond));
        let task = tasks.spawn(async move {
            let _open = guard;
            // An error is the client's doing: it sent no valid request, or has disconnected.
            if let Err(error) = connection.await {
                tracing::debug!(%peer, error = &error as &dyn std::error::Error, "connection failed");
            }
        });
        open.set_task(id, task);
    }
    drop(listener);
    let _ = timeout(GRACE, graceful.shutdown()).await;
    tasks.shutdown().await;
}

async fn respond(
    mut app: Router,
    request: Request<Incoming>,
    peer: SocketAddr,
    guard: Arc<ConnectionGuard>,
) -> Result<Response, Infallible> {
    let request_guard = RequestGuard::begin(guard);
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(peer));
    let response = app.call(request).await?;
    // The request is in progress until its response is sent or dropped.
    Ok(response.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        Body::new(body.map_frame(move |frame| {
            let _in_progress = &request_guard;
            frame
        }))
    }))
}

/// The open connections by their numbers, which are never used again.
#[derive(Default)]
struct Connections {
    open: Mutex<BTreeMap<u64, Connection>>,
    last_id: AtomicU64,
}

struct Connection {
    client: ClientIp,
    /// Set once the task is spawned.
    task: Option<AbortHandle>,
    is_in_progress: bool,
    /// Begin of the request in progress, or of the wait for the next one.
    since: Instant,
}

impl Connections {
    /// Adds a connection, and returns its number.
    fn insert(&self, client: ClientIp) -> u64 {
        let id = self.last_id.fetch_add(1, Relaxed);
        let since = Instant::now();
        self.lock().insert(id, Connection { client, task: None, is_in_progress: false, since });
        id
    }

    fn set_task(&self, id: u64, task: AbortHandle) {
        if let Some(connection) = self.lock().get_mut(&id) {
            connection.task = Some(task);
        }
    }

    fn count(&self, is_counted: impl Fn(&Connection) -> bool) -> usize {
        self.lock().values().filter(|connection| is_counted(connection)).count()
    }

    /// Closes the connection that may be replaced first. Returns false if there is none.
    fn close_one(&self, may_close: impl Fn(&Connection) -> bool) -> bool {
        let mut open = self.lock();
        let replaceable = open.iter().filter(|(_, connection)| {
            may_close(connection)
                && (!connection.is_in_progress || connection.since.elapsed() > STALLED)
        });
        let oldest = replaceable.min_by_key(|(_, open)| (open.is_in_progress, open.since));
        let Some((&id, _)) = oldest else { return false };
        let closed = open.remove(&id);
        drop(open);
        if let Some(task) = closed.and_then(|connection| connection.task) {
            task.abort();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a connection when it is closed.
struct ConnectionGuard {
    open: Arc<Connections>,
    id: u64,
}

impl ConnectionGuard {
    fn set_in_progress(&self, is_in_progress: bool) {
        if let Some(connection) = self.open.lock().get_mut(&self.id) {
            connection.is_in_progress = is_in_progress;
            connection.since = Instant::now();
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
    }
}

/// Marks a request as in progress.
struct RequestGuard(Arc<ConnectionGuard>);

impl RequestGuard {
    fn begin(connection: Arc<ConnectionGuard>) -> Self {
        connection.set_in_progress(true);
        Self(connection)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.set_in_progress(false);
    }
}
