//! The client: the handle that all types of this module are built from.

mod builder;
mod checked_shards;
mod cluster;
mod connect;
mod connection;
mod counters;
mod eviction;
mod first_ok;
mod invalidations;
mod key_versions;
mod large_keys;
mod large_runtime;
#[cfg(feature = "metrics")]
mod metrics;
mod node;
mod outage;
mod reply_meter;
mod retry;
mod router;
mod sentinel;
mod servers;
mod shard_check;
mod shared_connection;
mod single_flight;
mod sizes;
mod stream;
mod urls;
mod watchdog;

use std::{fmt, sync::Arc, time::Duration};

use ::redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

pub use self::{builder::ClientBuilder, urls::Urls};
use self::{
    checked_shards::{CheckedCaches, ShardCheck},
    connect::Connector,
    counters::ClientCounters,
    large_keys::LargeKeys,
    node::Lane,
    router::Router,
};
pub(super) use self::{
    cluster::SlotPlace,
    connect::MAX_DURATION,
    connection::CommandBatch,
    invalidations::{Invalidations, KeyVersion},
    node::Node,
    outage::{has_waited, is_unreachable},
    retry::Resend,
    shared_connection::is_too_many_in_flight,
};
use super::{
    Error,
    keyspace::{Keyspace, Kind},
};

/// Connection to a server or a cluster, from which you build all types of this module. Cloning it is cheap.
///
/// ```no_run
/// use fleeting::redis::Client;
///
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let cluster = Client::connect(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]).await?;
/// let encrypted = Client::connect("rediss://user:password@cache.example.com:6380").await?;
/// let with_sentinels = Client::connect("redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/main").await?;
/// // Connects on first use, so a service that fails open can start while Redis is down.
/// let lazy = Client::lazy("redis://127.0.0.1:6379")?;
/// # Ok(())
/// # }
/// ```
///
/// # Connections
///
/// All your calls share one multiplexed connection per server, on which a command does not wait for the replies to
/// others.
/// Rate limiters have a second connection and reads of many entries a third, so that large replies do not delay checks.
/// Values above a mebibyte have a fourth, once this client has written or read them; a thread of the process transfers
/// them, so that small calls do not wait for a worker that copies megabytes. In a cluster, each node has up to four
/// connections. Each [near cache](super::CacheBuilder::near) has connections of its own.
///
/// A connection is made on first use, with `TCP_NODELAY`, in RESP3. If the server refuses RESP3, RESP2 is used. The URL
/// parameter `?protocol=2` requests RESP2 from the start.
///
/// # Failures
///
/// A connection that ends is replaced. A connection may also become silent, for example if a network drops all packets
/// or a load balancer has forgotten the connection. A connection on which no byte was received since a call was sent is
/// probed with a `PING` when that call has waited for 0.4 s, or when it is dropped or times out earlier. If nothing is
/// received for another 0.4 s, it is replaced. While the server accepts a large request, the connection is not silent.
/// Idle connections are not probed by a `PING`, except those of a near cache.
/// If a server reports that it is a replica, the client connects to the same address again, because
/// the address may now belong to the master. If your URL names sentinels, the client asks these for the address of the
/// master. Each attempt asks all of them within half a second, beginning with another one each time, and uses the first
/// master that answers: sentinels that lag behind a failover, or are down, do not delay it further.
///
/// Your command is retried until [`timeout`](ClientBuilder::timeout) has passed if there is no connection, or if the
/// server reports that it cannot execute the command now. A command whose reply is lost is only retried if it only
/// reads. See the [table of server replies](Error#server-replies).
///
/// If there was no connection for a whole timeout, the server is unreachable: from then on, calls fail immediately with
/// [`Error::Connect`]. This includes a server that accepts connections but does not answer. The client tries to connect
/// about twice per second, and uses the server again as soon as an attempt succeeds, even if you make no calls. In a
/// cluster, it also looks for the successor of a node that is unreachable.
///
/// At most 1,024 calls are in flight on a connection, and 16 on that for large values. Further calls wait, and fail
/// with [`Error::Unavailable`] if their timeout passes before they are sent.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    lane: Lane,
    /// Check that precedes the commands of a cache.
    shard_check: Option<Arc<ShardCheck>>,
}

struct Inner {
    router: Router,
    connector: Arc<Connector>,
    /// See [`Client::servers`].
    servers: String,
    prefix: String,
    timeout: Duration,
    max_value_bytes: usize,
    large_keys: LargeKeys,
    counters: Arc<ClientCounters>,
    checked_caches: Arc<CheckedCaches>,
}

impl Client {
    /// Changes the credentials of new connections, for passwords and tokens that rotate.
    ///
    /// With a `username` of `None`, you keep the user of the URL. The next call starts a new connection; the existing
    /// one is used until the new one is ready. So no call fails because of the change, as long as the server accepts
    /// both credentials. Sentinels keep their login of the URL. If they refuse it, these credentials are used for them,
    /// too.
    ///
    /// ```
    /// # use fleeting::redis::Client;
    /// # fn f(client: Client, token: &str) {
    /// // Whenever the identity provider issues a new token:
    /// client.set_credentials(None, token);
    /// # }
    /// ```
    pub fn set_credentials(&self, username: Option<&str>, password: &str) {
        self.inner.connector.set_credentials(username, password);
    }

    /// Returns the keyspace of `name`.
    pub(super) fn keyspace(&self, kind: Kind, name: &str) -> Result<Keyspace, Error> {
        Keyspace::new(&self.inner.prefix, kind, name)
    }

    /// Returns the keyspace of the cache `name` with this number of shards.
    pub(super) fn cache_keyspace(&self, name: &str, shards: u16) -> Result<Keyspace, Error> {
        Keyspace::with_shards(&self.inner.prefix, Kind::Cache, name, shards)
    }

    /// Returns a client of the same servers over separate connections that report changed keys to `invalidations`.
    pub(super) fn with_tracking(&self, invalidations: Arc<Invalidations>) -> Self {
        let connector = Arc::new(self.inner.connector.with_tracking(invalidations));
        let inner = Inner {
            router: self.inner.router.with_connector(connector.clone()),
            connector,
            servers: self.inner.servers.clone(),
            prefix: self.inner.prefix.clone(),
            timeout: self.inner.timeout,
            max_value_bytes: self.inner.max_value_bytes,
            large_keys: LargeKeys::new(),
            counters: self.inner.counters.clone(),
            checked_caches: self.inner.checked_caches.clone(),
        };
        Self { inner: Arc::new(inner), lane: Lane::Verbs, shard_check: None }
    }

    /// Returns a text that is the same for clients with the same URLs, and contains no credentials.
    #[cfg(feature = "metrics")]
    pub(super) fn servers(&self) -> &str {
        &self.inner.servers
    }

    /// Returns the receiver of changed keys, if this client tracks them.
    pub(super) fn invalidations(&self) -> Option<&Arc<Invalidations>> {
        self.inner.connector.invalidations()
    }

    /// Returns this client with the lane of rate limit checks, which are answered within milliseconds.
    pub(super) fn for_limits(&self) -> Self {
        Self { lane: Lane::Limits, ..self.clone() }
    }

    /// Returns this client with the lane of large replies.
    ///
    /// A client that tracks changed keys keeps its lane: replies and invalidations are only ordered within one
    /// connection.
    pub(super) fn for_batches(&self) -> Self {
        let lane = if self.invalidations().is_some() { self.lane } else { Lane::Batches };
        Self { lane, ..self.clone() }
    }

    /// Returns whether this is a cluster, in which one command cannot access keys of several slots.
    pub(super) fn is_cluster(&self) -> bool {
        self.inner.router.is_cluster()
    }

    /// Returns all servers that hold keys.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, Error> {
        self.inner.router.nodes(self.deadline(None)).await
    }

    /// Sends a read-only command to `node`.
    pub(super) async fn send_to(&self, node: &Node, cmd: &Cmd) -> Result<Value, Error> {
        let batch = CommandBatch::One(cmd);
        self.send(Some(node), batch, Resend::Once, self.deadline(None)).await
    }

    /// Sends read-only commands on keys of one slot whose replies may be cached: see [`CommandBatch::Tracked`].
    pub(super) async fn send_tracked(&self, cmds: &[&Cmd]) -> Result<Value, Error> {
        let batch = CommandBatch::Tracked(cmds);
        self.send(None, batch, Resend::Once, self.deadline(None)).await
    }

    /// Returns the deadline of a call that begins now, with `timeout` or else the timeout of the client.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        Instant::now() + timeout.unwrap_or(self.inner.timeout).min(MAX_DURATION)
    }

    /// Returns the error of a call on `key` if its server has been unreachable for a whole timeout.
    pub(super) fn unreachable(&self, key: &[u8]) -> Option<RedisError> {
        self.inner.router.unreachable(key, self.lane)
    }

    /// Returns whether a call on `key` needs no new connection.
    pub(super) fn is_connected(&self, key: &[u8]) -> bool {
        self.inner.router.node_of(key).is_some_and(|node| node.on(self.lane).is_connected())
    }

    /// Returns the current places of the slots of `absent_keys`, which are keys that cannot exist; empty unless this is
    /// a cluster.
    pub(super) async fn places(&self, absent_keys: &[Vec<u8>]) -> Result<Vec<SlotPlace>, Error> {
        self.inner.router.places(absent_keys, self.deadline(None)).await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("servers", &self.inner.servers)
            .field("prefix", &self.inner.prefix)
            .field("cluster", &self.inner.router.is_cluster())
            .finish_non_exhaustive()
    }
}
