//! The shared connection to one server: a multiplexed connection that all callers use, and its replacement.
//!
//! 1. At most one attempt to connect runs at a time, for all callers that wait for it. After a failed one, further
//!    attempts are made in the background until one succeeds. While the server is unreachable, callers do not wait: see
//!    [`Outage`].
//! 2. A connection that has ended is retired. So is a silent one: it made no progress for [`SILENCE_LIMIT`], or
//!    until a caller gave up, and then none for [`PING_TIMEOUT`](super::watchdog::PING_TIMEOUT). The next caller waits
//!    for a new connection, and so does a caller whose command may be repeated. Other waiters still get the replies
//!    that arrive on the old one.
//! 3. A connection that is to be renewed is used until its successor is ready.

mod attempts;

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicBool},
    time::Duration,
};

use ::redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    connect::{Connector, NewConnection},
    connection::{CommandBatch, Connection, NotAdmitted},
    outage::Outage,
    sentinel::Sentinels,
    single_flight::SingleFlight,
    watchdog::{self, SILENCE_LIMIT},
};
use crate::redis::Error;

/// Time after which a pending attempt to connect is joined by another one, and duration of the latter: packets of the
/// first may have been lost in a network that works by now.
const ATTEMPT_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Minimum time between two renewals of a working connection.
const RENEW_INTERVAL: Duration = Duration::from_millis(250);

/// Handle to the shared connection. A cheap clone.
#[derive(Clone)]
pub(super) struct SharedConnection(Arc<State>);

/// Destination of a shared connection, and the settings to connect with.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) connector: Arc<Connector>,
    pub(super) destination: Destination,
    /// Looks for the successor of the server, which is unreachable; `None` if it is not a node of a cluster.
    pub(super) find_successor: Option<Arc<dyn Fn() + Send + Sync>>,
}

#[derive(Clone)]
pub(super) enum Destination {
    Server(Arc<::redis::ConnectionInfo>),
    Master(Arc<Sentinels>),
}

struct State {
    route: Route,
    outage: Arc<Outage>,
    /// True if it carries large values, on a [`LargeRuntime`](super::large_runtime::LargeRuntime).
    is_large: bool,
    /// True while a task makes attempts in the background.
    is_retrying: AtomicBool,
    current: Mutex<CurrentConnection>,
    attempt: SingleFlight<ConnectionAttempt>,
}

/// Outcome of an attempt to connect.
type ConnectionAttempt = RedisResult<Arc<Connection>>;

#[derive(Default)]
struct CurrentConnection {
    connection: Option<Arc<Connection>>,
    /// Error of the last failed attempt, the version of its credentials, and until when it is returned to callers.
    failure: Option<(RedisError, u64, Instant)>,
    renewed_at: Option<Instant>,
}

/// Commands to send, with their deadline.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) batch: CommandBatch<'a>,
    pub(super) deadline: Instant,
    /// True if the caller repeats the request after a lost reply, so that it need not wait on a retired connection.
    pub(super) may_repeat: bool,
}

/// A reply that a caller waits for. If it is dropped before the reply, and the connection made no progress since the
/// request, it is probed.
struct PendingReply<'a> {
    shared: &'a SharedConnection,
    connection: &'a Arc<Connection>,
    /// [`Progress`](Connection::progress) of the connection at the last check.
    progress_before: u64,
    is_done: bool,
}

impl SharedConnection {
    pub(super) fn new(route: Route, outage: Arc<Outage>, is_large: bool) -> Self {
        let attempt = SingleFlight::new(route.connector.timeout);
        let is_retrying = AtomicBool::new(false);
        let current = Mutex::default();
        Self(Arc::new(State { route, outage, is_large, is_retrying, current, attempt }))
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.0.route.destination
    }

    /// Connects, unless there is a connection.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.connection().await.map_err(Error::Connect).map(drop)
    }

    /// Sends a request and returns the reply. If `is_asking`, the commands follow `ASKING`, as their slot is being
    /// migrated to this node.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] if the request was not sent, and [`Error::Unavailable`] if too many others were in flight.
    pub(super) async fn send(&self, request: Request<'_>, is_asking: bool) -> Result<Value, Error> {
        let Request { batch, deadline, may_repeat } = request;
        let connection = self.connection_until(deadline).await?;
        // Held until the reply.
        let _permit = match timeout_at(deadline, connection.admit()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(NotAdmitted::Ended)) => return Err(no_connection()),
            Ok(Err(NotAdmitted::Silent)) | Err(_) => return Err(too_many_in_flight()),
        };
        let mut pending = PendingReply::new(self, &connection);
        let probe_at = deadline.min(Instant::now() + SILENCE_LIMIT);
        let mut reply = pin!(connection.send(batch, is_asking));
        let mut outcome = timeout_at(probe_at, &mut reply).await;
        // Repeatedly: the connection may become silent after a part of the request or of the reply.
        while outcome.is_err() && Instant::now() < deadline {
            pending.probe_if_silent();
            let probe_at = deadline.min(Instant::now() + SILENCE_LIMIT);
            outcome = tokio::select! {
                // The reply first: it counts even if the connection was retired in the meantime.
                biased;
                outcome = timeout_at(probe_at, &mut reply) => outcome,
                () = connection.until_retired(), if may_repeat => return Err(no_reply()),
            };
        }
        let Ok(reply) = outcome else { return Err(no_reply()) };
        pending.is_done = true;
        drop(pending);
        let reply = match reply {
            // The client library returns an error reply of the server as a value.
            Ok(reply) => reply.extract_error(),
            Err(error) => {
                // The connection is broken, or its next replies cannot be assigned to requests.
                if matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) {
                    self.retire(&connection);
                }
                Err(error)
            }
        };
        reply.map_err(|error| Error::of(error, batch.first()))
    }

    /// Replaces a working connection, because its address may lead to another server by now.
    pub(super) fn renew(&self) {
        let mut current = self.current();
        let now = Instant::now();
        let is_early = current.renewed_at.is_some_and(|last| now < last + RENEW_INTERVAL);
        // Without a connection, the next caller makes a new one anyway.
        if is_early || current.connection.is_none() {
            return;
        }
        current.renewed_at = Some(now);
        drop(current);
        // It runs without a waiter. The old connection is used until it has finished.
        drop(self.attempt());
    }

    pub(super) fn is_connected(&self) -> bool {
        self.open_connection().is_some()
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        let is_open = |connection: &&Arc<Connection>| connection.is_open();
        let connection = self.current().connection.as_ref().filter(is_open)?.clone();
        if connection.credentials_version != self.0.route.connector.credentials_version() {
            self.renew();
        }
        Some(connection)
    }

    fn retire(&self, connection: &Arc<Connection>) {
        let mut current = self.current();
        let old = current.connection.take_if(|current| Arc::ptr_eq(current, connection));
        drop(current);
        if let Some(old) = old {
            self.0.route.connector.on_connection_retired();
            // Starts the next attempt without waiting for a caller.
            drop(self.attempt());
            // Last: the callers that this wakes join the attempt.
            old.retire();
        }
    }

    /// Probes the connection, and retires it if it is silent.
    fn probe(&self, connection: &Arc<Connection>) {
        // Weak: the probe must not keep the shared connection alive.
        let state = Arc::downgrade(&self.0);
        watchdog::probe(connection.clone(), move |connection| {
            if let Some(shared) = Self::upgrade(&state) {
                tracing::warn!("a connection to the server is silent, replacing it");
                shared.retire(connection);
            }
        });
    }

    fn upgrade(state: &Weak<State>) -> Option<Self> {
        state.upgrade().map(Self)
    }

    fn current(&self) -> MutexGuard<'_, CurrentConnection> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Route {
    /// Returns the state of outages of this destination.
    pub(super) fn outage(&self) -> Arc<Outage> {
        let server = match &self.destination {
            Destination::Server(server) => server.addr().to_string(),
            Destination::Master(sentinels) => format!("master of {}", sentinels.service),
        };
        self.connector.outages.of(server)
    }

    /// Connects by the attempt that completes first: one with the whole timeout, for a server that needs it, or a later
    /// one.
    async fn connect(&self) -> RedisResult<NewConnection> {
        let mut first = pin!(self.connect_once());
        if let Ok(outcome) = timeout(ATTEMPT_AGAIN_AFTER, &mut first).await {
            return outcome;
        }
        loop {
            tokio::select! {
                outcome = &mut first => return outcome,
                again = timeout(ATTEMPT_AGAIN_AFTER, self.connect_once()) => {
                    if let Ok(outcome) = again {
                        return outcome;
                    }
                }
            }
        }
    }

    async fn connect_once(&self) -> RedisResult<NewConnection> {
        match &self.destination {
            Destination::Server(server) => self.connector.connect_to_server(server).await,
            Destination::Master(sentinels) => {
                // The shortest duration of an attempt.
                let timeout = self.connector.timeout.min(ATTEMPT_AGAIN_AFTER);
                sentinels.connect(&self.connector, timeout).await
            }
        }
    }
}

impl<'a> PendingReply<'a> {
    fn new(shared: &'a SharedConnection, connection: &'a Arc<Connection>) -> Self {
        Self { shared, connection, progress_before: connection.progress(), is_done: false }
    }

    /// Probes the connection if it made no progress since the last check.
    fn probe_if_silent(&mut self) {
        let before = std::mem::replace(&mut self.progress_before, self.connection.progress());
        if self.progress_before == before {
            self.shared.probe(self.connection);
        }
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.probe_if_silent();
        }
    }
}

fn no_connection() -> Error {
    Error::Connect((ErrorKind::Io, "no connection within the timeout").into())
}

fn too_many_in_flight() -> Error {
    let cause =
        "too many calls were in flight on the connection until the timeout, nothing was sent";
    Error::Unavailable((ErrorKind::Io, cause).into())
}

/// Returns whether the call was not sent because too many others were in flight.
pub(in crate::redis) fn is_too_many_in_flight(error: &Error) -> bool {
    // All other errors of this variant are replies of the server.
    matches!(error, Error::Unavailable(cause) if cause.kind() == ErrorKind::Io)
}

fn no_reply() -> Error {
    Error::Unanswered((ErrorKind::Io, "no reply within the timeout").into())
}
