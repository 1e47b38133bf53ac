//! How a connection is made: what its socket is set to, who logs in, and in which protocol.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    PushInfo, PushKind, RedisError, RedisResult, TlsCertificates,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::invalidations::Feed;

/// So many commands wait to be sent before callers have to. With the client library's own fifty, callers
/// wait for each other where there are more of them.
const PIPELINE_BUFFER: usize = 1_024;

/// After this the kernel asks a peer that says nothing whether it is there, and how often then: what is dead and
/// idle is noticed before it is needed.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// After this the kernel gives up what is not acknowledged: it would send it anew for a quarter of an hour.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// As good as for ever: no server counts further, nor does an `Instant`.
pub(in crate::redis) const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// The settings that all connections of a client have in common.
pub(super) struct Dial {
    /// For all that it takes until a connection can be used; not more than [`LONGEST`].
    pub(super) timeout: Duration,
    authority: Option<Vec<u8>>,
    login: Arc<Login>,
    /// Who is told of changes, by each connection to a server that holds keys.
    feed: Option<Arc<Feed>>,
}

#[derive(Default)]
struct Login {
    /// In place of what the URLs say.
    credentials: Mutex<Option<(Option<String>, String)>>,
    /// Of the credentials: what was made with older ones is made anew.
    version: AtomicU64,
}

/// A connection that was just made.
pub(super) struct Dialled {
    pub(super) connection: MultiplexedConnection,
    /// Whether pushes can come by it.
    is_resp3: bool,
    /// Whether the feed is told of changes by it.
    pub(super) is_told: bool,
}

impl Dial {
    pub(super) fn new(timeout: Duration, authority: Option<Vec<u8>>) -> Self {
        let timeout = timeout.min(LONGEST);
        Self { timeout, authority, login: Arc::default(), feed: None }
    }

    /// The same, by whose connections `feed` is told of changes.
    pub(super) fn telling(&self, feed: Arc<Feed>) -> Self {
        let (authority, login) = (self.authority.clone(), self.login.clone());
        Self { timeout: self.timeout, authority, login, feed: Some(feed) }
    }

    pub(super) fn feed(&self) -> Option<&Arc<Feed>> {
        self.feed.as_ref()
    }

    /// A connection is not used any more, and nobody is given it from now on.
    pub(super) fn is_left(&self) {
        if let Some(feed) = &self.feed {
            feed.fall_all();
        }
    }

    pub(super) fn set_credentials(&self, username: Option<&str>, password: &str) {
        let new = (username.map(str::to_owned), password.to_owned());
        *self.login.credentials.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        self.login.version.fetch_add(1, Relaxed);
    }

    pub(super) fn version(&self) -> u64 {
        self.login.version.load(Relaxed)
    }

    /// Connects to a server that holds keys. `on_end` is called when the connection ends by itself, where the server
    /// speaks RESP3.
    pub(super) async fn server(
        &self,
        to: &ConnectionInfo,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<Dialled> {
        let mut settings = to.redis_settings().clone();
        let given = self.login.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((username, password)) = given {
            settings = settings.set_password(password);
            if let Some(username) = username {
                settings = settings.set_username(username);
            }
        }
        let mut dialled = self.connect(to.clone().set_redis_settings(settings), on_end).await?;
        if let Some(feed) = &self.feed {
            dialled.is_told = dialled.tell(feed).await?;
        }
        Ok(dialled)
    }

    /// Connects as the URL says.
    pub(super) async fn connect(
        &self,
        to: ConnectionInfo,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<Dialled> {
        let settings = to.redis_settings().clone();
        if settings.protocol() == ProtocolVersion::RESP2 {
            let connection = self.open(to, AsyncConnectionConfig::new()).await?;
            return Ok(Dialled { connection, is_resp3: false, is_told: false });
        }
        // Only in RESP3 the library tells of it.
        let feed = self.feed.clone();
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            match (push.kind, &feed) {
                (PushKind::Disconnection, _) => on_end(),
                (PushKind::Invalidate, Some(feed)) => feed.tell(&push.data),
                _ => {}
            }
            Ok::<(), ()>(())
        });
        let (connection, is_resp3) = match self.open(to.clone(), config).await {
            Err(error) if refuses_resp3(&error) => {
                let settings = settings.set_protocol(ProtocolVersion::RESP2);
                let to = to.set_redis_settings(settings);
                (self.open(to, AsyncConnectionConfig::new()).await?, false)
            }
            answer => (answer?, true),
        };
        Ok(Dialled { connection, is_resp3, is_told: false })
    }

    async fn open(
        &self,
        to: ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let is_encrypted = matches!(to.addr(), ConnectionAddr::TcpTls { .. });
        let to = to.set_tcp_settings(tcp_settings());
        let client = match &self.authority {
            Some(authority) if is_encrypted => {
                let root_cert = Some(authority.clone());
                Client::build_with_tls(to, TlsCertificates { client_tls: None, root_cert })
            }
            _ => Client::open(to),
        };
        // Whoever waits has a time of his own.
        let config = config
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        client?.get_multiplexed_async_connection_with_config(&config).await
    }
}

impl Dialled {
    /// Has the server tell of changes; whether it does from now on.
    async fn tell(&mut self, feed: &Feed) -> RedisResult<bool> {
        if !self.is_resp3 {
            // It would promise to, and have no way.
            feed.refused(&"RESP2 was spoken");
            return Ok(false);
        }
        match feed.track().exec_async(&mut self.connection).await {
            Ok(()) => Ok(true),
            // It knows no such command, or this user may not ask for it. Anything else is over soon.
            Err(error) if matches!(error.code(), Some("ERR" | "NOPERM")) => {
                feed.refused(&error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a server, or what stands before it, knows no `HELLO`.
fn refuses_resp3(error: &RedisError) -> bool {
    let is_about_hello = || {
        let detail = error.detail().unwrap_or_default();
        detail.to_ascii_lowercase().contains("hello")
    };
    match error.code() {
        Some("NOPROTO") => true,
        // It is known, and wants a password.
        Some("NOAUTH" | "WRONGPASS") => false,
        Some(_) => is_about_hello(),
        None => error.kind() == ErrorKind::RESP3NotSupported,
    }
}

fn tcp_settings() -> TcpSettings {
    let (idle, interval) = KEEPALIVE;
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(TcpKeepalive::new().with_time(idle).with_interval(interval));
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED);
    settings
}
