//! The handle that everything here is built from, and the one place where a command is sent: again and again
//! while it certainly was not carried out and there is time, and never twice where it may have been.

mod builder;
mod cluster;
mod connect;
mod connection;
mod counters;
mod eviction;
mod first_ok;
mod invalidations;
mod key_versions;
#[cfg(feature = "metrics")]
mod metrics;
mod node;
mod router;
mod sentinel;
mod servers;
mod shared_connection;
mod single_flight;
mod urls;

use std::{fmt, sync::Arc, time::Duration};

use ::redis::{Cmd, Value};
use tokio::time::{Instant, sleep};

pub use self::{builder::ClientBuilder, urls::Urls};
pub(super) use self::{
    cluster::SlotPlace,
    connect::LONGEST,
    invalidations::{Feed, Mark},
    node::Node,
    shared_connection::Asked,
};
use self::{
    connect::Dial, counters::ClientCounters, invalidations::Sent, node::Lane, router::Connection,
    shared_connection::Request,
};
use super::{
    Error,
    error::is_divided,
    keyspace::{Keyspace, Kind},
};

/// Between attempts to reach a server: the first, which is doubled from one to the next, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// A way to a server or a cluster that all types here are built from. A cheap clone.
///
/// All callers share one multiplexed connection, on which their commands wait for nobody's answer; so that large answers
/// keep no limiter waiting, limiters have one of their own, and so has what reads many entries at once. (In a cluster, so
/// many to each node.) A connection is made when it is first used, with `TCP_NODELAY`, in RESP3, or in RESP2 where the
/// server refuses that; `?protocol=2` in the URL asks for nothing else.
///
/// # When something fails
///
/// A connection that ends is made anew by itself. One that goes silent (a network that drops everything, a load balancer
/// that has forgotten it) is given up when nothing came for 0.4 s, or until the first call on it has run
/// out of time, and then no answer to a `PING` for another 0.4 s. Where the server says that it is a replica, the address is connected to
/// anew, as it may lead to the master by now; sentinels are asked who is it.
///
/// A command for which there is no connection, or whose server says that it can't do it now, is tried again until
/// [`timeout`](ClientBuilder::timeout) has passed; one whose answer is lost is not, unless it only reads. What
/// [each answer of a server](Error#what-servers-say) means is in a table.
///
/// ```no_run
/// use fleeting::redis::Client;
///
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let cluster = Client::connect(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]).await?;
/// let encrypted = Client::connect("rediss://user:password@cache.example.com:6380").await?;
/// let watched = Client::connect("redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/main").await?;
/// // Connects when it is first asked: a service that fails open starts while Redis is down.
/// let lazy = Client::lazy("redis://127.0.0.1:6379")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    lane: Lane,
}

struct Inner {
    connection: Connection,
    dial: Arc<Dial>,
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
    /// Logs in otherwise from now on: for passwords and tokens that change. `None` is the user that the URL names.
    ///
    /// The connections that there are go on until new ones stand, which are made when they are next used. No call fails
    /// because of it, while the server knows both.
    pub fn set_credentials(&self, username: Option<&str>, password: &str) {
        self.inner.dial.set_credentials(username, password);
    }

    /// The keys of `name`.
    pub(super) fn keyspace(&self, kind: Kind, name: &str) -> Result<Keyspace, Error> {
        Keyspace::new(&self.inner.prefix, kind, name)
    }

    /// The same servers on connections of their own, by which `feed` is told of changes.
    pub(super) fn telling(&self, feed: Arc<Feed>) -> Self {
        let dial = Arc::new(self.inner.dial.telling(feed));
        let inner = Inner {
            connection: self.inner.connection.by(dial.clone()),
            dial,
            prefix: self.inner.prefix.clone(),
            timeout: self.inner.timeout,
            counters: self.inner.counters.clone(),
        };
        Self { inner: Arc::new(inner), lane: Lane::Verbs }
    }

    /// Who is told of changes by these connections.
    pub(super) fn feed(&self) -> Option<&Arc<Feed>> {
        self.inner.dial.feed()
    }

    /// The same on the connection of what has to be answered within milliseconds.
    pub(super) fn for_limits(&self) -> Self {
        Self { lane: Lane::Limits, ..self.clone() }
    }

    /// The same on the connection of answers that may be large. Where changes are told of there is one for all: their order
    /// is the server's.
    pub(super) fn for_batches(&self) -> Self {
        let lane = if self.feed().is_some() { self.lane } else { Lane::Batches };
        Self { lane, ..self.clone() }
    }

    /// Whether what is in several slots can't be had by one command.
    pub(super) fn is_cluster(&self) -> bool {
        self.inner.connection.is_cluster()
    }

    /// All servers that hold keys.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, Error> {
        self.inner.connection.nodes(self.deadline(None)).await
    }

    /// Sends what only reads to one server.
    pub(super) async fn send_to(&self, node: &Node, cmd: &Cmd) -> Result<Value, Error> {
        self.send_until(Some(node), Asked::One(cmd), Resend::Once, self.deadline(None)).await
    }

    /// Sends some that only read, of keys in one slot, so that what they answer may be kept: see [`Asked::Told`].
    pub(super) async fn send_told(&self, cmds: &[&Cmd]) -> Result<Value, Error> {
        self.send_until(None, Asked::Told(cmds), Resend::Once, self.deadline(None)).await
    }

    /// When what begins now has to be done: within `timeout`, or the client's own one.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        Instant::now() + timeout.unwrap_or(self.inner.timeout).min(LONGEST)
    }

    /// Sends a command, again and again while it certainly was not carried out and there is time. Where it reads several keys,
    /// that some of them are elsewhere, as their slot is being moved, is said at once: `is_divided`.
    pub(super) async fn send(
        &self,
        asked: Asked<'_>,
        resend: Resend,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let _falls = self.feed().map(|feed| Sent { feed, cmd: asked.first() });
        self.send_until(None, asked, resend, deadline).await
    }

    /// In a cluster, where the slots of some keys are; the keys are those that there can't be.
    pub(super) async fn places(&self, absent: &[Vec<u8>]) -> Result<Vec<SlotPlace>, Error> {
        self.inner.connection.places(absent, self.deadline(None)).await
    }

    async fn send_until(
        &self,
        node: Option<&Node>,
        asked: Asked<'_>,
        resend: Resend,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let (mut pause, longest) = BACKOFF;
        let (mut resend, only_reads) = (resend, resend == Resend::Once);
        let mut refusal = None;
        loop {
            let request = Request { asked, deadline, may_repeat: resend == Resend::Once };
            let answer = self.inner.connection.send(node, self.lane, request).await;
            self.inner.counters.note(&answer);
            let Err(error) = answer else { return answer };
            let now = Instant::now();
            match error {
                // At once and without a pause: the connection that lost the answer is made anew meanwhile.
                Error::Unanswered(_) if resend == Resend::Once && now < deadline => {
                    resend = Resend::Never;
                }
                Error::Unavailable(ref cause)
                    if !matches!(asked, Asked::One(_)) && is_divided(cause) =>
                {
                    return Err(error);
                }
                // Not carried out for certain, so also what changes something is safe to send again.
                Error::Connect(_) | Error::Unavailable(_)
                    if error.is_temporary() && now + pause < deadline =>
                {
                    sleep(pause).await;
                    pause = longest.min(2 * pause);
                    refusal = Some(error);
                }
                // The time ran out. Where nothing was to change, or was sent, what was said before says more.
                Error::Unanswered(_) if only_reads => return Err(refusal.unwrap_or(error)),
                Error::Connect(_) if now >= deadline => return Err(refusal.unwrap_or(error)),
                error => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("prefix", &self.inner.prefix)
            .field("cluster", &self.inner.connection.is_cluster())
            .finish_non_exhaustive()
    }
}
