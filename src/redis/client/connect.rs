//! Making of connections: socket options, TLS, login, the version of the protocol, and how many commands may be in
//! flight.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates,
    aio::MultiplexedConnection,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::task::JoinHandle;

use super::{
    invalidations::Invalidations,
    outage::Outages,
    stream::{Stream, Tls, Traffic},
};

/// Maximum number of commands in flight on a connection. Further callers wait until one of them was answered, so that a
/// call that runs out of time has not been sent. A server answers so many small commands within a fraction of the
/// default timeout.
pub(super) const MAX_IN_FLIGHT: usize = 1_024;

/// The same of a connection for large values, whose replies the server and this process have to buffer.
pub(super) const MAX_LARGE_IN_FLIGHT: usize = 16;

/// Longest duration that settings may have, a century: longer ones could overflow an `Instant` or the server's
/// counters.
pub(in crate::redis) const MAX_DURATION: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Connection settings of a client, shared by all its connections.
pub(super) struct Connector {
    /// Timeout of an attempt, until the connection can be used; at most [`MAX_DURATION`].
    pub(super) timeout: Duration,
    /// After the timeout of a call without a connection, calls fail immediately.
    pub(super) outages: Arc<Outages>,
    /// Maximum size of a reply.
    max_reply: usize,
    tls: Arc<Tls>,
    login: Arc<Login>,
    /// Receiver of changed keys, from every connection to a server that holds keys.
    invalidations: Option<Arc<Invalidations>>,
}

#[derive(Default)]
struct Login {
    /// Username and password that replace those of the URLs.
    credentials: Mutex<Option<(Option<String>, String)>>,
    /// Version of the credentials: connections that were made with older ones are renewed.
    version: AtomicU64,
}

/// A connection that was just made.
pub(super) struct NewConnection {
    pub(super) connection: MultiplexedConnection,
    /// True if the connection can carry pushes.
    is_resp3: bool,
    /// True if the server reports changed keys on it.
    pub(super) is_tracking: bool,
    pub(super) traffic: Arc<Traffic>,
    pub(super) driver: Driver,
}

/// Task that reads and writes a connection, which ends with it.
pub(super) struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connector {
    pub(super) fn new(
        timeout: Duration,
        call_timeout: Duration,
        max_reply: usize,
        certificates: Option<TlsCertificates>,
    ) -> Self {
        Self {
            timeout: timeout.min(MAX_DURATION),
            outages: Arc::new(Outages::new(
                call_timeout.min(MAX_DURATION),
                timeout.min(MAX_DURATION),
            )),
            max_reply,
            tls: Arc::new(Tls::new(certificates)),
            login: Arc::default(),
            invalidations: None,
        }
    }

    /// Returns a connector with the same settings, whose connections report changed keys to `invalidations`.
    pub(super) fn with_tracking(&self, invalidations: Arc<Invalidations>) -> Self {
        Self {
            outages: self.outages.clone(),
            tls: self.tls.clone(),
            login: self.login.clone(),
            invalidations: Some(invalidations),
            ..*self
        }
    }

    pub(super) fn invalidations(&self) -> Option<&Arc<Invalidations>> {
        self.invalidations.as_ref()
    }

    /// Invalidates all keys, because a connection is not used any more: changes may have been missed.
    ///
    /// To be called when no caller can obtain that connection any more.
    pub(super) fn on_connection_retired(&self) {
        if let Some(invalidations) = &self.invalidations {
            invalidations.invalidate_all();
        }
    }

    pub(super) fn set_credentials(&self, username: Option<&str>, password: &str) {
        let new = (username.map(str::to_owned), password.to_owned());
        *self.login.credentials.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        // After the credentials, so that an attempt that sees the new version logs in with them. `Relaxed`: the lock
        // orders them.
        self.login.version.fetch_add(1, Relaxed);
    }

    pub(super) fn credentials_version(&self) -> u64 {
        self.login.version.load(Relaxed)
    }

    /// Connects to a server that holds keys.
    pub(super) async fn connect_to_server(
        &self,
        to: &ConnectionInfo,
    ) -> RedisResult<NewConnection> {
        let to = self.with_credentials(to).unwrap_or_else(|| to.clone());
        let mut connection = self.connect(to).await?;
        if let Some(invalidations) = &self.invalidations {
            connection.is_tracking = connection.enable_tracking(invalidations).await?;
        }
        Ok(connection)
    }

    /// Returns the server with the credentials that replace those of the URLs, if any.
    pub(super) fn with_credentials(&self, server: &ConnectionInfo) -> Option<ConnectionInfo> {
        let given = self.login.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (username, password) = given?;
        let mut settings = server.redis_settings().clone().set_password(password);
        if let Some(username) = username {
            settings = settings.set_username(username);
        }
        Some(server.clone().set_redis_settings(settings))
    }

    /// Connects with the login and protocol of the URL. Falls back to RESP2 if the server refuses RESP3.
    pub(super) async fn connect(&self, to: ConnectionInfo) -> RedisResult<NewConnection> {
        let mut settings = to.redis_settings().clone();
        let mut connection = None;
        if settings.protocol() != ProtocolVersion::RESP2 {
            let invalidations = self.invalidations.clone();
            let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
                if let (PushKind::Invalidate, Some(invalidations)) = (push.kind, &invalidations) {
                    invalidations.on_push(&push.data);
                }
                Ok::<(), ()>(())
            });
            connection = match self.open(to.addr(), &settings, config).await {
                Err(error) if refuses_resp3(&error) => None,
                answer => Some(answer?),
            };
            settings = settings.set_protocol(ProtocolVersion::RESP2);
        }
        let (is_resp3, (connection, traffic, driver)) = match connection {
            Some(connection) => (true, connection),
            None => (false, self.open(to.addr(), &settings, AsyncConnectionConfig::new()).await?),
        };
        Ok(NewConnection { connection, is_resp3, is_tracking: false, traffic, driver })
    }

    /// Checks that the certificates can be parsed.
    pub(super) fn check_certificates(&self, to: &ConnectionInfo) -> RedisResult<()> {
        let chain = self.tls.certificates.as_ref().and_then(|all| all.client_tls.as_ref());
        // The client library accepts a text without any certificate.
        if chain
            .is_some_and(|tls| CertificateDer::pem_slice_iter(&tls.client_cert).next().is_none())
        {
            let cause = "the client certificate chain contains no certificate in PEM";
            return Err((ErrorKind::InvalidClientConfig, cause).into());
        }
        self.client(to.clone()).map(drop)
    }

    async fn open(
        &self,
        to: &ConnectionAddr,
        settings: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Arc<Traffic>, Driver)> {
        let (stream, traffic) = Stream::open(to, &self.tls, self.max_reply).await?;
        // No timeouts in the library: each caller has its own.
        let config = config
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MAX_IN_FLIGHT);
        let connected = MultiplexedConnection::new_with_config(settings, stream, config).await;
        let (connection, driver) = connected.map_err(|error| match error.kind() {
            // The reason why the server has closed the connection.
            ErrorKind::Io => traffic.first_error().unwrap_or(error),
            _ => error,
        })?;
        Ok((connection, traffic, Driver(tokio::spawn(driver))))
    }

    fn client(&self, to: ConnectionInfo) -> RedisResult<Client> {
        match &self.tls.certificates {
            Some(certificates) if is_encrypted(&to) => {
                // An I/O error in the client library, which would count as temporary.
                Client::build_with_tls(to, certificates.clone()).map_err(|error| {
                    let cause = "cannot parse the authority, client certificate or key";
                    (ErrorKind::InvalidClientConfig, cause, error.to_string()).into()
                })
            }
            _ => Client::open(to),
        }
    }
}

impl NewConnection {
    /// Makes the server report changed keys. Returns whether it does.
    async fn enable_tracking(&mut self, invalidations: &Invalidations) -> RedisResult<bool> {
        if !self.is_resp3 {
            // The server would accept the command, but cannot send pushes over RESP2.
            invalidations.tracking_refused(&"the connection uses RESP2");
            return Ok(false);
        }
        match invalidations.tracking_command().exec_async(&mut self.connection).await {
            Ok(()) => Ok(true),
            // The command is unknown, or the user has no right to it: permanent. Other errors are temporary and fail
            // the attempt.
            Err(error) if matches!(error.code(), Some("ERR" | "NOPERM")) => {
                invalidations.tracking_refused(&error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns whether the error means that a server, or a proxy in front of it, does not support `HELLO`.
fn refuses_resp3(error: &RedisError) -> bool {
    let is_about_hello = || {
        let detail = error.detail().unwrap_or_default();
        detail.to_ascii_lowercase().contains("hello")
    };
    match error.code() {
        Some("NOPROTO") => true,
        // `HELLO` is supported, and its login failed: the text mentions it too.
        Some("NOAUTH" | "WRONGPASS") => false,
        Some(_) => is_about_hello(),
        None => error.kind() == ErrorKind::RESP3NotSupported,
    }
}

pub(super) fn is_encrypted(server: &ConnectionInfo) -> bool {
    matches!(server.addr(), ConnectionAddr::TcpTls { .. })
}
