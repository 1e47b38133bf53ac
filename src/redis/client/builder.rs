//! Builder of a [`Client`]: its settings and their defaults.

use std::{sync::Arc, time::Duration};

use ::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};

use super::{
    Client, Inner,
    cluster::Cluster,
    connect::Connector,
    node::{Lane, Node},
    router::Router,
    servers::Servers,
    shared_connection::{Destination, Route},
    urls::Urls,
};
use crate::redis::{Error, keyspace};

/// Builder of a [`Client`], created by [`Client::builder`].
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    /// Kept as a result, since setters do not return errors: `connect` and `lazy` do.
    servers: RedisResult<Servers>,
    cluster: bool,
    prefix: String,
    timeout: Duration,
    connect_timeout: Duration,
    authority: Option<Vec<u8>>,
}

impl Client {
    /// Connects with default settings: to the server of one URL, or to the cluster of several.
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
    /// # Errors
    ///
    /// [`Error::Address`] if a URL is invalid.
    pub fn lazy(urls: impl Urls) -> Result<Self, Error> {
        Self::builder(urls).lazy()
    }

    /// Creates a builder for a client with other than the default settings.
    pub fn builder(urls: impl Urls) -> ClientBuilder {
        let (urls, cluster) = urls.into_urls();
        ClientBuilder {
            servers: Servers::parse(&urls),
            cluster,
            prefix: "fleeting".into(),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            authority: None,
        }
    }
}

impl ClientBuilder {
    /// Sets the prefix of all keys on the server, which separates programs that share a server. Defaults to `fleeting`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the timeout of a call, including the retries while the server is unavailable.
    ///
    /// A rate limiter has a shorter [timeout](super::super::RateLimiterBuilder::timeout) of its own. Defaults to one
    /// second.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the timeout of one attempt to connect, including name resolution, TLS handshake, login, and the queries to
    /// sentinels.
    ///
    /// It also bounds the time until a server that is available again is found. Defaults to one second.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets whether the servers belong to a cluster. Ignored for sentinel URLs. Defaults to true if several URLs are
    /// given.
    pub fn cluster(mut self, cluster: bool) -> Self {
        self.cluster = cluster;
        self
    }

    /// Sets the certificate authority (in PEM) that must have signed the certificates of `rediss://` servers.
    ///
    /// Defaults to the authorities that the system trusts.
    pub fn authority(mut self, certificate: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(certificate.into());
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
    /// [`Error::Connect`] if no server can be reached.
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
    /// The same as those of [`connect`](ClientBuilder::connect), except [`Error::Connect`].
    pub fn lazy(self) -> Result<Client, Error> {
        keyspace::check_name(&self.prefix)?;
        let servers = self.servers.map_err(Error::Address)?;
        let is_encrypted =
            |server: &ConnectionInfo| matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        let needs_provider = match &servers {
            Servers::Direct(servers) => servers.iter().any(is_encrypted),
            Servers::Sentinels(sentinels) => is_encrypted(&sentinels.master),
        };
        // `rustls` cannot choose a provider by itself if several are compiled in.
        if needs_provider {
            // Fails if a provider was installed concurrently, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let connector = Arc::new(Connector::new(self.connect_timeout, self.authority));
        let destination = match servers {
            Servers::Direct(servers) if self.cluster => {
                if servers.iter().any(|server| matches!(server.addr(), ConnectionAddr::Unix(_))) {
                    return Err(Error::Address(unix_cluster()));
                }
                let router = Router::Cluster(Cluster::new(connector.clone(), servers));
                return Ok(Client::new(router, connector, self.prefix, self.timeout));
            }
            Servers::Direct(servers) => Destination::Server(Arc::new(
                servers.into_iter().next().expect("`Servers::parse` returns at least one"),
            )),
            Servers::Sentinels(sentinels) => Destination::Master(sentinels),
        };
        let node = Node::new(&Route { connector: connector.clone(), destination });
        Ok(Client::new(Router::Server(node), connector, self.prefix, self.timeout))
    }
}

impl Client {
    fn new(router: Router, connector: Arc<Connector>, prefix: String, timeout: Duration) -> Self {
        let counters = Arc::default();
        #[cfg(feature = "metrics")]
        super::metrics::follow(&prefix, &counters);
        let inner = Inner { router, connector, prefix, timeout, counters };
        Self { inner: Arc::new(inner), lane: Lane::Verbs }
    }
}

fn unix_cluster() -> RedisError {
    (ErrorKind::InvalidClientConfig, "a cluster cannot be reached by a Unix socket path").into()
}
