//! How a [`Client`] connects: the settings and their defaults.

use std::{sync::Arc, time::Duration};

use ::redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError,
    RedisResult, TlsCertificates,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClient,
};

use super::{Client, Inner, connection::Connection, urls::Urls};
use crate::redis::{Error, keyspace};

/// So many commands wait to be sent before callers have to. With the client library's own fifty, callers
/// wait for each other where there are more of them.
const PIPELINE_BUFFER: usize = 1_024;

/// How a [`Client`] connects.
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    /// An error waits for `connect`, which returns errors: setters don't.
    servers: Result<Vec<ConnectionInfo>, Arc<RedisError>>,
    cluster: bool,
    prefix: String,
    timeout: Duration,
    connect_timeout: Duration,
    authority: Option<Vec<u8>>,
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
        keyspace::check_name(&self.prefix)?;
        let servers = self.servers.map_err(|error| Error::Address((*error).clone()))?;
        if servers.iter().any(|server| matches!(server.addr(), ConnectionAddr::TcpTls { .. })) {
            // Who else installed one was first, and keeps it.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let certificates = TlsCertificates { client_tls: None, root_cert: self.authority };
        let connection = if self.cluster {
            // What is sent again `Client::send` decides: only there it is known what may be.
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
            Connection::Cluster(client.get_async_connection().await.map_err(Error::Connect)?)
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
                .set_pipeline_buffer_size(PIPELINE_BUFFER);
            let manager = ConnectionManager::new_with_config(client, config).await;
            Connection::Server(manager.map_err(Error::Connect)?)
        };
        let counters = Arc::default();
        #[cfg(feature = "metrics")]
        super::metrics::follow(&self.prefix, &counters);
        let Self { prefix, timeout, .. } = self;
        Ok(Client(Arc::new(Inner { connection, prefix, timeout, counters })))
    }
}

fn no_url() -> Error {
    let cause = (ErrorKind::InvalidClientConfig, "no URL was given");
    Error::Address(cause.into())
}
