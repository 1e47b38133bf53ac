//! How a connection is made: what its socket is set to, who logs in, and in which protocol.

use std::{
    sync::{
        Mutex, PoisonError,
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

/// So many commands wait to be sent before callers have to. With the client library's own fifty, callers
/// wait for each other where there are more of them.
const PIPELINE_BUFFER: usize = 1_024;

/// After this the kernel asks a peer that says nothing whether it is there, and how often then: what is dead and
/// idle is noticed before it is needed.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// After this the kernel gives up what is not acknowledged: it would send it anew for a quarter of an hour.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// The settings that all connections of a client have in common.
pub(super) struct Dial {
    /// For all that it takes until a connection can be used.
    pub(super) timeout: Duration,
    authority: Option<Vec<u8>>,
    /// In place of what the URLs say.
    credentials: Mutex<Option<(Option<String>, String)>>,
    /// Of the credentials: what was made with older ones is made anew.
    version: AtomicU64,
}

impl Dial {
    pub(super) fn new(timeout: Duration, authority: Option<Vec<u8>>) -> Self {
        Self { timeout, authority, credentials: Mutex::default(), version: AtomicU64::new(0) }
    }

    pub(super) fn set_credentials(&self, username: Option<&str>, password: &str) {
        let new = (username.map(str::to_owned), password.to_owned());
        *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        self.version.fetch_add(1, Relaxed);
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Connects to a server that holds keys. `on_end` is called when the connection ends by itself, where the server
    /// speaks RESP3.
    pub(super) async fn server(
        &self,
        to: &ConnectionInfo,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let mut settings = to.redis_settings().clone();
        let given = self.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((username, password)) = given {
            settings = settings.set_password(password);
            if let Some(username) = username {
                settings = settings.set_username(username);
            }
        }
        self.connect(to.clone().set_redis_settings(settings), on_end).await
    }

    /// Connects as the URL says.
    pub(super) async fn connect(
        &self,
        to: ConnectionInfo,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = to.redis_settings().clone();
        if settings.protocol() == ProtocolVersion::RESP2 {
            return self.open(to, AsyncConnectionConfig::new()).await;
        }
        // Only in RESP3 the library tells of it.
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_end();
            }
            Ok::<(), ()>(())
        });
        match self.open(to.clone(), config).await {
            Err(error) if refuses_resp3(&error) => {
                let settings = settings.set_protocol(ProtocolVersion::RESP2);
                self.open(to.set_redis_settings(settings), AsyncConnectionConfig::new()).await
            }
            answer => answer,
        }
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
