//! The shared connection to one server: a multiplexed connection that all callers use, and its replacement.
//!
//! 1. At most one attempt to connect runs at a time, for all callers that wait for it. Without callers there is none.
//! 2. A connection that has ended is retired. So is a silent one: nothing was received for [`SILENCE_LIMIT`], or until
//!    a caller gave up, and then nothing for [`PING_TIMEOUT`](super::watchdog::PING_TIMEOUT). The next caller waits for a new connection, and so does
//!    a caller whose command may be repeated. Other waiters still get the replies that arrive on the old one.
//! 3. A connection that is to be renewed is used until its successor is ready.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Release},
    },
    time::Duration,
};

use ::redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    connect::{Connector, NewConnection},
    connection::Connection,
    sentinel::Sentinels,
    single_flight::{Outcome, SingleFlight},
    watchdog::{self, SILENCE_LIMIT, watchdog},
};
use crate::redis::{Error, error::is_refusal};

/// Minimum time between two renewals of a working connection.
const RENEW_INTERVAL: Duration = Duration::from_millis(250);

/// Time for which a failed attempt is the answer to further callers: in general, and if the server refused the login.
const FAILURE_TTL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Handle to the shared connection. A cheap clone.
#[derive(Clone)]
pub(super) struct SharedConnection(Arc<State>);

/// Destination of a shared connection, and the settings to connect with.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) connector: Arc<Connector>,
    pub(super) destination: Destination,
}

#[derive(Clone)]
pub(super) enum Destination {
    Server(Arc<::redis::ConnectionInfo>),
    Master(Arc<Sentinels>),
}

struct State {
    route: Route,
    current: Mutex<Current>,
    attempt: SingleFlight<Attempt>,
}

/// Outcome of an attempt to connect.
type Attempt = RedisResult<Arc<Connection>>;

#[derive(Default)]
struct Current {
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

/// Commands that are sent together.
#[derive(Clone, Copy)]
pub(in crate::redis) enum CommandBatch<'a> {
    One(&'a Cmd),
    /// A read of several keys in one slot.
    MultiKey(&'a Cmd),
    /// Reads of keys in one slot. The reply is an array of all replies, followed by whether later changes of the keys
    /// will be reported.
    Tracked(&'a [&'a Cmd]),
}

/// A reply that a caller waits for. If it is dropped before the reply, and nothing else was received since the request,
/// the connection is probed.
struct PendingReply<'a> {
    shared: &'a SharedConnection,
    connection: &'a Arc<Connection>,
    /// Number of replies on the connection when the request was sent.
    replies_before: u64,
    is_done: bool,
}

impl SharedConnection {
    pub(super) fn new(route: Route) -> Self {
        let attempt = SingleFlight::new(route.connector.timeout);
        Self(Arc::new(State { route, current: Mutex::default(), attempt }))
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
    /// [`Error::Connect`] if the request was not sent.
    pub(super) async fn send(&self, request: Request<'_>, is_asking: bool) -> Result<Value, Error> {
        let Request { batch, deadline, may_repeat } = request;
        let connection = match self.open_connection() {
            Some(connection) => connection,
            None => match timeout_at(deadline, self.connection()).await {
                Ok(connection) => connection.map_err(Error::Connect)?,
                Err(_) => return Err(no_connection()),
            },
        };
        let mut pending = PendingReply::new(self, &connection);
        let probe_at = deadline.min(Instant::now() + SILENCE_LIMIT);
        let mut reply = std::pin::pin!(async {
            match batch {
                CommandBatch::One(cmd) | CommandBatch::MultiKey(cmd) => {
                    connection.send(cmd, is_asking).await
                }
                CommandBatch::Tracked(cmds) => connection.send_tracked(cmds, is_asking).await,
            }
        });
        let mut outcome = timeout_at(probe_at, &mut reply).await;
        if outcome.is_err() {
            pending.probe_if_silent();
            outcome = tokio::select! {
                // The reply first: it counts even if the connection was retired in the meantime.
                biased;
                outcome = timeout_at(deadline, reply) => outcome,
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

    fn open_connection(&self) -> Option<Arc<Connection>> {
        let is_open = |connection: &&Arc<Connection>| connection.is_open();
        let connection = self.current().connection.as_ref().filter(is_open)?.clone();
        if connection.credentials_version != self.0.route.connector.credentials_version() {
            self.renew();
        }
        Some(connection)
    }

    async fn connection(&self) -> Attempt {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let version = self.0.route.connector.credentials_version();
        // Otherwise, while the server is down, each caller in turn would wait for another attempt.
        if let Some((error, with, until)) = &self.current().failure
            && *with == version
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let gone = |_| Err((ErrorKind::Io, "the runtime that connected was shut down").into());
        match self.attempt().await.unwrap_or_else(gone) {
            // The attempt began with credentials that have been replaced since.
            Err(error)
                if is_refusal(&error)
                    && version != self.0.route.connector.credentials_version() =>
            {
                self.attempt().await.unwrap_or_else(gone)
            }
            attempt => attempt,
        }
    }

    /// Joins the attempt in flight, or starts one.
    fn attempt(&self) -> Outcome<Attempt> {
        self.0.attempt.join(|| {
            let (route, state) = (self.0.route.clone(), Arc::downgrade(&self.0));
            async move {
                let has_ended = Arc::new(AtomicBool::new(false));
                let on_end = {
                    let (state, has_ended) = (state.clone(), has_ended.clone());
                    let connector = route.connector.clone();
                    move || {
                        // Before the invalidation: from here on `is_open` is false, so no caller can obtain the
                        // connection.
                        has_ended.store(true, Release);
                        connector.on_connection_retired();
                        if let Some(shared) = Self::upgrade(&state) {
                            shared.on_end(&has_ended);
                        }
                    }
                };
                // Before the login: if the credentials change during the attempt, the connection is renewed.
                let version = route.connector.credentials_version();
                let attempt = timeout(route.connector.timeout, route.connect(on_end));
                let new = match attempt.await {
                    Ok(new) => new,
                    Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                };
                let attempt = new.map(|new| Arc::new(Connection::new(new, version, has_ended)));
                if let Some(shared) = Self::upgrade(&state) {
                    shared.finish_attempt(&attempt, version);
                }
                if let Ok(connection) = &attempt
                    && connection.is_tracking()
                {
                    let probe = move |connection: &_| {
                        Self::upgrade(&state).map(|shared| shared.probe(connection))
                    };
                    tokio::spawn(watchdog(Arc::downgrade(connection), probe));
                }
                attempt
            }
        })
    }

    fn finish_attempt(&self, attempt: &Attempt, version: u64) {
        let mut current = self.current();
        let old = match attempt {
            Ok(connection) => {
                current.failure = None;
                current.connection.replace(connection.clone())
            }
            Err(error) => {
                let (short, long) = FAILURE_TTL;
                let ttl = if is_refusal(error) { long } else { short };
                current.failure = Some((error.clone(), version, Instant::now() + ttl));
                None
            }
        };
        drop(current);
        // Only now: no caller can obtain the old connection any more.
        if old.is_some() {
            self.0.route.connector.on_connection_retired();
        }
        // After unlock: without waiters, this closes the connection.
        drop(old);
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

    /// Reconnects after the peer or the network has closed the connection with this flag.
    fn on_end(&self, has_ended: &Arc<AtomicBool>) {
        // Only if it has replied before: otherwise a server that closes each new connection would cause endless
        // attempts.
        let was_used =
            |current: &Arc<Connection>| current.has_end_flag(has_ended) && current.replies() > 0;
        let reconnects = self.current().connection.as_ref().is_some_and(was_used);
        if reconnects {
            drop(self.attempt());
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

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Route {
    async fn connect(
        &self,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<NewConnection> {
        match &self.destination {
            Destination::Server(server) => self.connector.connect_to_server(server, on_end).await,
            Destination::Master(sentinels) => sentinels.connect(&self.connector, on_end).await,
        }
    }
}

impl<'a> CommandBatch<'a> {
    /// Returns the first command, whose key selects the server.
    pub(super) fn first(self) -> &'a Cmd {
        match self {
            Self::One(cmd) | Self::MultiKey(cmd) => cmd,
            Self::Tracked(cmds) => cmds.first().expect("a batch has at least one command"),
        }
    }
}

impl<'a> PendingReply<'a> {
    fn new(shared: &'a SharedConnection, connection: &'a Arc<Connection>) -> Self {
        Self { shared, connection, replies_before: connection.replies(), is_done: false }
    }

    fn probe_if_silent(&self) {
        if self.connection.replies() == self.replies_before {
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

fn no_reply() -> Error {
    Error::Unanswered((ErrorKind::Io, "no reply within the timeout").into())
}
