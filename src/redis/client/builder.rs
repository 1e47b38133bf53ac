//! How a [`Client`] connects: the settings and their defaults.

use std::{sync::Arc, time::Duration};

use ::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};

use super::{
    Client, Inner,
    cluster::Cluster,
    connect::Dial,
    node::{Lane, Node},
    router::Connection,
    servers::Servers,
    shared_connection::{Destination, Route},
    urls::Urls,
};
use crate::redis::{Error, keyspace};

/// How a [`Client`] connects.
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    /// An error waits for `connect`, which returns errors: setters don't.
    servers: RedisResult<Servers>,
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

    /// A client with the defaults of [`builder`](Client::builder), which connects when it is first asked.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] for what is no URL of a server.
    pub fn lazy(urls: impl Urls) -> Result<Self, Error> {
        Self::builder(urls).lazy()
    }

    /// Begins a client with other than the default settings.
    pub fn builder(urls: impl Urls) -> ClientBuilder {
        let (urls, cluster) = urls.into_urls();
        ClientBuilder {
            servers: Servers::of(&urls),
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

    /// How long an attempt to connect may take, with all that belongs to it: names, encryption, login, and
    /// sentinels. So long it may take, too, until a server that is back is found. Defaults to one second.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Whether the servers belong to a cluster. Defaults to true where several URLs were given; it says nothing about
    /// sentinels.
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
        let client = self.lazy()?;
        client.inner.connection.connect().await?;
        Ok(client)
    }

    /// Makes a client that connects when it is first asked, and waits for the server then as long as each call does.
    ///
    /// # Errors
    ///
    /// As those of [`connect`](ClientBuilder::connect), but for [`Error::Connect`].
    pub fn lazy(self) -> Result<Client, Error> {
        keyspace::check_name(&self.prefix)?;
        let servers = self.servers.map_err(Error::Address)?;
        let is_encrypted =
            |server: &ConnectionInfo| matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        let needs_provider = match &servers {
            Servers::Plain(servers) => servers.iter().any(is_encrypted),
            Servers::Watched(sentinels) => is_encrypted(&sentinels.master),
        };
        if needs_provider {
            // Who else installed one was first, and keeps it.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let dial = Arc::new(Dial::new(self.connect_timeout, self.authority));
        let to = match servers {
            Servers::Plain(servers) if self.cluster => {
                if servers.iter().any(|server| matches!(server.addr(), ConnectionAddr::Unix(_))) {
                    return Err(Error::Address(no_cluster()));
                }
                let connection = Connection::Cluster(Cluster::new(dial.clone(), servers));
                return Ok(Client::new(connection, dial, self.prefix, self.timeout));
            }
            Servers::Plain(servers) => Destination::Server(Arc::new(
                servers.into_iter().next().expect("there is one, or it is an error"),
            )),
            Servers::Watched(sentinels) => Destination::Master(sentinels),
        };
        let node = Node::new(&Route { dial: dial.clone(), to });
        Ok(Client::new(Connection::Server(node), dial, self.prefix, self.timeout))
    }
}

impl Client {
    fn new(connection: Connection, dial: Arc<Dial>, prefix: String, timeout: Duration) -> Self {
        let counters = Arc::default();
        #[cfg(feature = "metrics")]
        super::metrics::follow(&prefix, &counters);
        let inner = Inner { connection, dial, prefix, timeout, counters };
        Self { inner: Arc::new(inner), lane: Lane::Verbs }
    }
}

fn no_cluster() -> RedisError {
    (ErrorKind::InvalidClientConfig, "the nodes of a cluster have no paths").into()
}
