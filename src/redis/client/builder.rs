//! Builder of a [`Client`]: its settings and their defaults.

use std::{sync::Arc, time::Duration};

use ::redis::{
    ClientTlsConfig, ConnectionAddr, ErrorKind, RedisError, RedisResult, TlsCertificates,
};

use super::{
    Client, Inner,
    cluster::Cluster,
    connect::{Connector, is_encrypted},
    counters::ClientCounters,
    large_keys::LargeKeys,
    node::{Lane, Node},
    router::Router,
    servers::Servers,
    shared_connection::{Destination, Route},
    urls::Urls,
};
use crate::redis::{Error, keyspace};

/// Size of a reply without its largest value.
const REPLY_MARGIN: usize = 64 << 20;

/// Builder of a [`Client`]: prefix, timeouts, TLS, cluster. Created by [`Client::builder`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use fleeting::redis::Client;
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::builder("rediss://user:password@cache.example.com")
///     .prefix("shop")
///     .timeout(Duration::from_millis(300))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    /// Kept as a result, since setters do not return errors: `connect` and `lazy` do.
    servers: RedisResult<Servers>,
    cluster: bool,
    prefix: String,
    timeout: Duration,
    connect_timeout: Duration,
    max_value_bytes: usize,
    max_reply_bytes: Option<usize>,
    authority: Option<Vec<u8>>,
    client_certificate: Option<ClientTlsConfig>,
}

impl Client {
    /// Connects with default settings: to the server of one URL, or to the cluster of several.
    ///
    /// ```no_run
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// let client = Client::connect("redis://127.0.0.1:6379").await?;
    /// let sessions: Cache<String, u64> = Cache::new(&client, "sessions")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For other settings, see [`builder`](Client::builder).
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if a URL is invalid, [`Error::Connect`] if no server can be reached.
    pub async fn connect(urls: impl Urls) -> Result<Self, Error> {
        Self::builder(urls).connect().await
    }

    /// Creates a client with default settings that connects on first use.
    ///
    /// ```no_run
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // The service starts while Redis is down; its first calls fail.
    /// let client = Client::lazy("redis://127.0.0.1:6379")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if a URL is invalid.
    pub fn lazy(urls: impl Urls) -> Result<Self, Error> {
        Self::builder(urls).lazy()
    }

    /// Creates a builder for a client with custom settings.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// let client = Client::builder("redis://127.0.0.1:6379")
    ///     .prefix("shop")
    ///     .timeout(Duration::from_millis(300))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(urls: impl Urls) -> ClientBuilder {
        let (urls, cluster) = urls.into_urls();
        ClientBuilder {
            servers: Servers::parse(&urls),
            cluster,
            prefix: "fleeting".into(),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            // The default `proto-max-bulk-len` of a server.
            max_value_bytes: 512 << 20,
            max_reply_bytes: None,
            authority: None,
            client_certificate: None,
        }
    }
}

impl ClientBuilder {
    /// Sets the prefix of all keys on the server, which separates programs that share a server. It must not be empty,
    /// contain `{` or `}`, nor end with or contain a part `:limit1`, which precedes the names of limiters. Defaults to
    /// `fleeting`.
    ///
    /// ```no_run
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // Production and staging share a server.
    /// let client = Client::builder("redis://127.0.0.1:6379").prefix("staging").connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the timeout of a call, including the retries while the server is unavailable.
    ///
    /// A rate limiter has a shorter [timeout](super::super::RateLimiterBuilder::timeout) of its own. Defaults to one
    /// second.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // A page that waits longer is better rendered without the cache.
    /// let client = Client::builder("redis://127.0.0.1:6379")
    ///     .timeout(Duration::from_millis(200))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the timeout of one attempt to connect, including name resolution, TLS handshake, login, and the queries to
    /// sentinels.
    ///
    /// While an attempt is pending, another one begins each second, and the one that completes first counts. So a long
    /// timeout does not delay the use of a server that is available again. Defaults to one second.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // The login goes through a slow proxy.
    /// let client = Client::builder("rediss://cache.example.com")
    ///     .connect_timeout(Duration::from_secs(5))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the maximum length of an encoded key, value or tag in bytes. A call with a longer one fails with
    /// [`Error::TooLarge`], and nothing is sent.
    ///
    /// The server closes the connection after a longer value than its setting `proto-max-bulk-len`, so that all other
    /// calls in flight fail. If your server has another setting than its default, set the same here. Defaults to 512
    /// MiB.
    ///
    /// ```no_run
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // A page of more than a megabyte is a mistake.
    /// let client = Client::builder("redis://127.0.0.1:6379").max_value_bytes(1_000_000).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_value_bytes(mut self, bytes: usize) -> Self {
        self.max_value_bytes = bytes;
        self
    }

    /// Sets the maximum size of a reply. A call with a larger one fails with [`Error::Server`], and its connection is
    /// closed, so that a faulty server cannot fill the memory of this process.
    ///
    /// ```no_run
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // No reply may take more than 16 MB of this small machine.
    /// let client = Client::builder("redis://127.0.0.1:6379").max_reply_bytes(16_000_000).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A reply has a size of its bytes plus 64 for each of its parts, such as a member of a set. Methods that read many
    /// values read them in replies of about a mebibyte or a single larger value. So only
    /// [`ExpiringSet::elements`](super::super::ExpiringSet::elements) and [`range`](super::super::ExpiringSet::range),
    /// whose reply has all members, need a larger maximum than the default.
    ///
    /// A reply is in memory until its caller is polled or dropped, and one per connection is incomplete, up to twice in
    /// memory. Replies cannot wait on the server, since those of other callers are behind them on the same connection.
    /// So up to 1,024 calls in flight, or 16 of values known to be above a mebibyte, can have a reply of the maximum
    /// each. If the memory of your program must not depend on the server, bound your concurrent calls or lower this
    /// maximum.
    ///
    /// Defaults to [`max_value_bytes`](Self::max_value_bytes) plus 64 MiB.
    pub fn max_reply_bytes(mut self, bytes: usize) -> Self {
        self.max_reply_bytes = Some(bytes);
        self
    }

    /// Sets whether the servers belong to a cluster. Ignored for sentinel URLs. Defaults to true if you give several
    /// URLs.
    ///
    /// ```no_run
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// // One name for all nodes of the cluster.
    /// let client = Client::builder("redis://cluster.example.com").cluster(true).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cluster(mut self, cluster: bool) -> Self {
        self.cluster = cluster;
        self
    }

    /// Sets the certificate authority (in PEM) that must have signed the certificates of `rediss://` servers.
    ///
    /// Defaults to the authorities that the system trusts.
    ///
    /// ```
    /// # use fleeting::redis::Client;
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// // The company signs the certificates of its servers itself.
    /// let client = Client::builder("rediss://cache.example.com")
    ///     .authority(std::fs::read("authority.pem")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn authority(mut self, certificate: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(certificate.into());
        self
    }

    /// Sets the certificate of this client and its private key (both in PEM), for `rediss://` servers that require one
    /// (`tls-auth-clients yes`, the default of a server).
    ///
    /// ```no_run
    /// use fleeting::redis::Client;
    ///
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Client::builder("rediss://cache.example")
    ///     .authority(std::fs::read("authority.pem")?)
    ///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The chain begins with the certificate of the client; certificates of intermediate authorities follow. The
    /// certificate is presented on each connection: to servers, to nodes of a cluster, and to sentinels. Connections
    /// without TLS ignore it. If a certificate or key is not valid PEM, [`connect`](ClientBuilder::connect) and
    /// [`lazy`](ClientBuilder::lazy) return [`Error::Connect`]. Defaults to no certificate.
    pub fn client_certificate(
        mut self,
        chain_pem: impl AsRef<[u8]>,
        key_pem: impl AsRef<[u8]>,
    ) -> Self {
        let (client_cert, client_key) = (chain_pem.as_ref().into(), key_pem.as_ref().into());
        self.client_certificate = Some(ClientTlsConfig { client_cert, client_key });
        self
    }

    /// Connects.
    ///
    /// `rediss://` URLs need a default `CryptoProvider` of rustls. If the process has none, that of `ring` is
    /// installed.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if a URL is invalid, [`Error::Name`] if the prefix cannot be part of a key, and
    /// [`Error::Connect`] if no server can be reached, or a certificate or key is not valid PEM.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.lazy()?;
        client.inner.router.connect().await?;
        Ok(client)
    }

    /// Creates a client that connects on first use.
    ///
    /// A call that needs a connection waits for it within its own timeout.
    ///
    /// # Errors
    ///
    /// The same as those of [`connect`](ClientBuilder::connect), but [`Error::Connect`] only if a certificate or key is
    /// not valid PEM.
    pub fn lazy(self) -> Result<Client, Error> {
        keyspace::register_prefix(&self.prefix)?;
        let servers = self.servers.map_err(Error::Address)?;
        let encrypted = match &servers {
            Servers::Direct(servers) => servers.iter().find(|server| is_encrypted(server)),
            Servers::Sentinels(sentinels) => {
                Some(&sentinels.master).filter(|server| is_encrypted(server))
            }
        };
        let (client_tls, root_cert) = (self.client_certificate, self.authority);
        let certificates = (client_tls.is_some() || root_cert.is_some())
            .then_some(TlsCertificates { client_tls, root_cert });
        let max_reply = self
            .max_reply_bytes
            .unwrap_or_else(|| self.max_value_bytes.saturating_add(REPLY_MARGIN));
        let connector =
            Arc::new(Connector::new(self.connect_timeout, self.timeout, max_reply, certificates));
        // `rustls` cannot choose a provider by itself if several are compiled in.
        if let Some(server) = encrypted {
            // Fails if a provider was installed concurrently, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
            connector.check_certificates(server).map_err(Error::Connect)?;
        }
        let settings = (self.prefix, self.timeout, self.max_value_bytes, servers.id());
        let destination = match servers {
            Servers::Direct(servers) if self.cluster => {
                if servers.iter().any(|server| matches!(server.addr(), ConnectionAddr::Unix(_))) {
                    return Err(Error::Address(unix_cluster()));
                }
                let router = Router::Cluster(Cluster::new(connector.clone(), servers));
                return Ok(Client::new(router, connector, settings));
            }
            Servers::Direct(servers) => Destination::Server(Arc::new(
                servers.into_iter().next().expect("`Servers::parse` returns at least one"),
            )),
            Servers::Sentinels(sentinels) => Destination::Master(sentinels),
        };
        let node =
            Node::new(&Route { connector: connector.clone(), destination, find_successor: None });
        Ok(Client::new(Router::Server(node), connector, settings))
    }
}

impl Client {
    fn new(
        router: Router,
        connector: Arc<Connector>,
        (prefix, timeout, max_value_bytes, servers): (String, Duration, usize, String),
    ) -> Self {
        let counters = Arc::new(ClientCounters::new(connector.outages.reported().clone()));
        #[cfg(feature = "metrics")]
        super::metrics::follow(&prefix, &counters);
        let large_keys = LargeKeys::new();
        let inner = Inner {
            router,
            connector,
            servers,
            prefix,
            timeout,
            max_value_bytes,
            large_keys,
            counters,
            checked_caches: Arc::default(),
        };
        Self { inner: Arc::new(inner), lane: Lane::Verbs, shard_check: None }
    }
}

fn unix_cluster() -> RedisError {
    (ErrorKind::InvalidClientConfig, "a cluster cannot be reached by a Unix socket path").into()
}
