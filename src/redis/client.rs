//! The handle that everything here is built from, and the one place where a command is sent: again and again
//! while it certainly was not carried out and there is time, and never twice where it may have been.

mod builder;
mod connection;
mod counters;
#[cfg(feature = "metrics")]
mod metrics;
mod urls;

use std::{fmt, sync::Arc, time::Duration};

use ::redis::{Cmd, ErrorKind, FromRedisValue, Value};
use tokio::time::{Instant, sleep, timeout_at};

pub(super) use self::connection::Node;
use self::{connection::Connection, counters::ClientCounters};

pub use self::{builder::ClientBuilder, urls::Urls};
use super::{Error, keyspace::Keyspace};

/// Between attempts to reach a server: the first, which is doubled from one to the next, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// A connection to a server or a cluster that all types here are built from. A cheap clone.
///
/// All callers share one multiplexed connection (in a cluster: one a node), on which their commands wait for
/// nobody's answer. It reconnects by itself. A command for which there is no connection, or whose server
/// says that it can't do it now, is tried again until [`timeout`](ClientBuilder::timeout) has passed; one
/// whose answer is lost is not, unless it only reads.
///
/// ```no_run
/// use fleeting::redis::Client;
///
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let cluster = Client::connect(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]).await?;
/// let encrypted = Client::connect("rediss://user:password@cache.example.com:6380").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    connection: Connection,
    prefix: String,
    timeout: Duration,
    counters: Arc<ClientCounters>,
}

/// Whether a command whose answer was lost is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Resend {
    Never,
    Once,
}

impl Client {
    /// The keys of `name`.
    pub(super) fn keyspace(&self, name: &str) -> Result<Keyspace, Error> {
        Keyspace::new(&self.0.prefix, name)
    }

    /// All servers that hold keys.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, Error> {
        if matches!(self.0.connection, Connection::Server(_)) {
            return Ok(vec![Node(None)]);
        }
        let mut slots = ::redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let answer = self.send_to(Node(Some(0)), &slots).await?;
        // A range is its first and last slot, its master, and the replicas.
        let ranges: Vec<Vec<Value>> = FromRedisValue::from_redis_value(answer)
            .map_err(|error| Error::Server(error.into()))?;
        // A master that has several ranges is one node: asked twice, it would be scanned twice.
        let mut masters = Vec::new();
        for range in ranges {
            if let [Value::Int(first), _, master, ..] = &range[..]
                && !masters.iter().any(|(_, known)| known == master)
            {
                masters.push((Node(u16::try_from(*first).ok()), master.clone()));
            }
        }
        Ok(masters.into_iter().map(|(node, _)| node).collect())
    }

    /// Sends what only reads to one server.
    pub(super) async fn send_to(&self, node: Node, cmd: &Cmd) -> Result<Value, Error> {
        match self.0.connection.send_to(node, cmd).await {
            Some(answer) => answer.map_err(|error| Error::of(error, cmd)),
            None => self.send(cmd, Resend::Once, self.deadline(None)).await,
        }
    }

    /// When what begins now has to be done: within `timeout`, or the client's own one.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        /// As good as none, and no overflow.
        const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);
        Instant::now() + timeout.unwrap_or(self.0.timeout).min(LONGEST)
    }

    /// Sends a command, again and again while it certainly was not carried out and there is time.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        resend: Resend,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let (mut pause, longest) = BACKOFF;
        let (mut resend, only_reads) = (resend, resend == Resend::Once);
        let mut refusal = None;
        loop {
            let Ok(answer) = timeout_at(deadline, self.0.connection.send(cmd)).await else {
                self.0.counters.failed();
                // Where nothing was to change, what was said before says more.
                return Err(refusal.filter(|_| only_reads).unwrap_or_else(no_answer));
            };
            // What the server answers as an error comes as a value.
            let error = match answer.and_then(Value::extract_error) {
                Ok(answer) => {
                    self.0.counters.answered();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            // A wrong password stays wrong: no reason to try until the deadline.
            let may_pass = !matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig
            );
            let error = Error::of(error, cmd);
            match error {
                Error::Connect(_) | Error::Unanswered(_) => self.0.counters.failed(),
                _ => self.0.counters.answered(),
            }
            match error {
                // At once and without a pause: the connection that lost the answer is made anew meanwhile.
                Error::Unanswered(_) if resend == Resend::Once && Instant::now() < deadline => {
                    resend = Resend::Never;
                }
                // Not carried out for certain, so also what changes something is safe to send again.
                error @ (Error::Connect(_) | Error::Unavailable(_))
                    if may_pass && Instant::now() + pause < deadline =>
                {
                    sleep(pause).await;
                    pause = longest.min(2 * pause);
                    refusal = Some(error);
                }
                error => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = matches!(self.0.connection, Connection::Cluster(_));
        f.debug_struct("Client")
            .field("prefix", &self.0.prefix)
            .field("cluster", &cluster)
            .finish_non_exhaustive()
    }
}

fn no_answer() -> Error {
    Error::Unanswered((ErrorKind::Io, "no answer in time").into())
}
