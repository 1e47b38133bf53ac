use std::{fmt, sync::Arc, time::Duration};

use ::redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, IntoConnectionInfo,
    ProtocolVersion, RedisError, RedisResult, ServerErrorKind, TlsCertificates, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Error, keyspace::Names};

/// Between attempts to reach a server: the first, which is doubled from one to the next, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// So many commands wait to be sent before callers have to. With the client library's own fifty, callers
/// wait for each other where there are more of them.
const QUEUE: usize = 1_024;

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
    link: Link,
    prefix: String,
    timeout: Duration,
}

#[derive(Clone)]
enum Link {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

/// One of the servers that hold keys, by a slot that it has; `None` where there is no cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node(Option<u16>);

/// Whether a command whose answer was lost is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Never,
    Once,
}

/// How a [`Client`] connects.
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    servers: Result<Vec<ConnectionInfo>, Arc<RedisError>>,
    cluster: bool,
    prefix: String,
    timeout: Duration,
    connect_timeout: Duration,
    authority: Option<Vec<u8>>,
}

/// One URL, or several: those of a cluster's nodes. `redis://`, and `rediss://` for TLS.
pub trait Urls {
    /// The URLs, and whether they are those of a cluster.
    #[doc(hidden)]
    fn into_urls(self) -> (Vec<String>, bool);
}

impl Client {
    /// Connects with the defaults of [`builder`](Client::builder): to one server by its URL, or to the
    /// cluster to which the servers of several URLs belong.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] for what is no URL of a server, [`Error::Connect`] where none can be reached.
    pub async fn connect(urls: impl Urls) -> Result<Self, Error> {
        Self::builder(urls).connect().await
    }

    /// Begins a client with other than the default settings.
    pub fn builder(urls: impl Urls) -> ClientBuilder {
        let (urls, cluster) = urls.into_urls();
        let servers = urls.into_iter().map(|url| {
            let info = url.into_connection_info()?;
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            Ok(info.set_redis_settings(settings))
        });
        ClientBuilder {
            servers: servers.collect::<RedisResult<_>>().map_err(Arc::new),
            cluster,
            prefix: "fleeting".into(),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            authority: None,
        }
    }

    /// The keys of `name`.
    pub(super) fn names(&self, name: &str) -> Result<Names, Error> {
        Names::new(&self.0.prefix, name)
    }

    /// All servers that hold keys.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, Error> {
        if matches!(self.0.link, Link::Server(_)) {
            return Ok(vec![Node(None)]);
        }
        let mut slots = ::redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let answer = self.send_to(Node(Some(0)), &slots).await?;
        // A range is its first and last slot, its master, and the replicas.
        let ranges: Vec<Vec<Value>> = FromRedisValue::from_redis_value(answer)
            .map_err(|error| Error::Server(error.into()))?;
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
        match (self.0.link.clone(), node) {
            (Link::Cluster(mut cluster), Node(Some(slot))) => {
                let route = SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master));
                let route = RoutingInfo::SingleNode(route);
                cluster
                    .route_command(cmd.clone(), route)
                    .await
                    .map_err(|error| Error::of(error, cmd))
            }
            _ => self.send(cmd, Repeat::Once, self.end(None)).await,
        }
    }

    /// When what begins now has to be done: within `timeout`, or the client's own one.
    pub(super) fn end(&self, timeout: Option<Duration>) -> Instant {
        /// As good as none, and no overflow.
        const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);
        Instant::now() + timeout.unwrap_or(self.0.timeout).min(LONGEST)
    }

    /// Sends a command, again and again while it certainly was not carried out and there is time.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        repeat: Repeat,
        until: Instant,
    ) -> Result<Value, Error> {
        let (mut pause, longest) = PAUSE;
        let (mut repeat, reads) = (repeat, repeat == Repeat::Once);
        let mut refusal = None;
        loop {
            let Ok(answer) = timeout_at(until, self.0.link.send(cmd)).await else {
                // Where nothing was to change, what was said before says more.
                return Err(refusal.filter(|_| reads).unwrap_or_else(no_answer));
            };
            // What the server answers as an error comes as a value.
            let error = match answer.and_then(Value::extract_error) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let passes = !matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig
            );
            match Error::of(error, cmd) {
                Error::Unanswered(_) if repeat == Repeat::Once && Instant::now() < until => {
                    repeat = Repeat::Never;
                }
                error @ (Error::Connect(_) | Error::Unavailable(_))
                    if passes && Instant::now() + pause < until =>
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
        let cluster = matches!(self.0.link, Link::Cluster(_));
        f.debug_struct("Client")
            .field("prefix", &self.0.prefix)
            .field("cluster", &cluster)
            .finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// What all keys on the server begin with, so that programs don't meet under a name by chance. Defaults
    /// to `fleeting`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a verb waits for its answer, and for a server that can't do it now. A rate limiter has a
    /// shorter one of its own. Defaults to one second.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long an attempt to connect may take. Defaults to one second.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Whether the servers belong to a cluster. Defaults to true where several URLs were given.
    pub fn cluster(mut self, cluster: bool) -> Self {
        self.cluster = cluster;
        self
    }

    /// The authority (its certificate, in PEM) that must have signed the certificates of `rediss://` servers.
    /// Defaults to those that the system trusts.
    pub fn authority(mut self, certificate: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(certificate.into());
        self
    }

    /// Connects.
    ///
    /// For `rediss://` something must encrypt: where the process has no default `CryptoProvider` of rustls,
    /// that of `ring` becomes it.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] for what is no URL of a server, [`Error::Name`] for a prefix that can't be part of
    /// a key, [`Error::Connect`] where no server can be reached.
    pub async fn connect(self) -> Result<Client, Error> {
        super::keyspace::check(&self.prefix)?;
        let servers = self.servers.map_err(|error| Error::Address((*error).clone()))?;
        if servers.iter().any(|server| matches!(server.addr(), ConnectionAddr::TcpTls { .. })) {
            // Who else installed one was first, and keeps it.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let certificates = TlsCertificates { client_tls: None, root_cert: self.authority };
        let link = if self.cluster {
            // What is repeated is decided here, since only here it is known what may be.
            let mut client = ClusterClient::builder(servers);
            if certificates.root_cert.is_some() {
                client = client.certs(certificates);
            }
            let client = client
                .retries(0)
                .connection_timeout(self.connect_timeout)
                .response_timeout(self.timeout)
                .use_protocol(ProtocolVersion::RESP3)
                .build()
                .map_err(Error::Address)?;
            Link::Cluster(client.get_async_connection().await.map_err(Error::Connect)?)
        } else {
            let server = servers.into_iter().next().ok_or_else(no_url)?;
            let client = match certificates.root_cert {
                Some(_) => ::redis::Client::build_with_tls(server, certificates),
                None => ::redis::Client::open(server),
            };
            let client = client.map_err(Error::Address)?;
            // One attempt at a time, as long as `send` waits, which decides about the next.
            let config = ConnectionManagerConfig::new()
                .set_number_of_retries(0)
                .set_connection_timeout(Some(self.connect_timeout))
                .set_response_timeout(None)
                .set_pipeline_buffer_size(QUEUE);
            let manager = ConnectionManager::new_with_config(client, config).await;
            Link::Server(manager.map_err(Error::Connect)?)
        };
        Ok(Client(Arc::new(Inner { link, prefix: self.prefix, timeout: self.timeout })))
    }
}

impl Link {
    async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(server) => server.clone().send_packed_command(cmd).await,
            Self::Cluster(cluster) => {
                let mut cluster = cluster.clone();
                let answer = cluster.req_packed_command(cmd).await;
                match answer {
                    Err(error) if is_ask(&error) => ask(&mut cluster, cmd, error).await,
                    answer => answer,
                }
            }
        }
    }
}

fn is_ask(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Ask)
}

/// Sends it to the node to which its slot is being moved.
async fn ask(cluster: &mut ClusterConnection, cmd: &Cmd, error: RedisError) -> RedisResult<Value> {
    let Some((host, port)) = error.redirect_node().and_then(|(node, _)| node.rsplit_once(':'))
    else {
        return Err(error);
    };
    let Ok(port) = port.parse() else { return Err(error) };
    let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
    let mut pipeline = ::redis::pipe();
    pipeline.cmd("ASKING").add_command(cmd.clone());
    let mut answers = cluster.route_pipeline(pipeline, 0, 2, node).await?;
    answers.pop().ok_or(error)?.extract_error()
}

fn no_answer() -> Error {
    Error::Unanswered((ErrorKind::Io, "no answer in time").into())
}

fn no_url() -> Error {
    let cause = (ErrorKind::InvalidClientConfig, "no URL was given");
    Error::Address(cause.into())
}

impl Urls for &str {
    fn into_urls(self) -> (Vec<String>, bool) {
        (vec![self.to_owned()], false)
    }
}

impl Urls for String {
    fn into_urls(self) -> (Vec<String>, bool) {
        (vec![self], false)
    }
}

impl Urls for &String {
    fn into_urls(self) -> (Vec<String>, bool) {
        (vec![self.clone()], false)
    }
}

impl<U: AsRef<str>> Urls for &[U] {
    fn into_urls(self) -> (Vec<String>, bool) {
        (self.iter().map(|url| url.as_ref().to_owned()).collect(), self.len() > 1)
    }
}

impl<U: AsRef<str>> Urls for Vec<U> {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}

impl<U: AsRef<str>> Urls for &Vec<U> {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}

impl<U: AsRef<str>, const N: usize> Urls for [U; N] {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}

impl<U: AsRef<str>, const N: usize> Urls for &[U; N] {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}
