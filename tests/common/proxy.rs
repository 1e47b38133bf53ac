//! TCP proxy in front of a server, whose connections can be cut, silenced, slowed down or redirected.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    task::JoinSet,
};

/// Handle to a proxy; clients connect to its [`url`](Proxy::url).
pub(crate) struct Proxy {
    address: SocketAddr,
    connections: Arc<Mutex<JoinSet<()>>>,
    settings: Arc<Settings>,
}

/// Current settings of a proxy.
#[derive(Default)]
struct Settings {
    /// Port of the server for new connections.
    port: AtomicU16,
    /// True if new connections are closed immediately.
    closed: AtomicBool,
    /// True if all data is discarded.
    hole: AtomicBool,
    /// Number of connections made.
    made: AtomicU64,
    /// Number of connections, from the first on, that are silent permanently.
    silent: AtomicU64,
    /// Limit of reply bytes per second and connection; 0 for none.
    rate: AtomicU64,
    /// The same for requests.
    request_rate: AtomicU64,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let settings = Arc::new(Settings { port: port.into(), ..Settings::default() });
        let (running, shared) = (Arc::clone(&connections), Arc::clone(&settings));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let settings = Arc::clone(&shared);
                if settings.closed.load(Relaxed) {
                    continue;
                }
                let number = settings.made.fetch_add(1, Relaxed);
                running.lock().unwrap().spawn(async move {
                    let port = settings.port.load(Relaxed);
                    let Ok(far) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (near, far) = (near.into_split(), far.into_split());
                    // If one end closes, both are closed.
                    tokio::select! {
                        () = settings.carry(number, near.0, far.1, false) => {}
                        () = settings.carry(number, far.0, near.1, true) => {}
                    }
                });
            }
        });
        Self { address, connections, settings }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Closes all connections and discards data in flight. New connections are accepted.
    pub(crate) fn cut(&self) {
        self.connections.lock().unwrap().abort_all();
    }

    /// Sets whether new connections are closed immediately.
    pub(crate) fn close(&self, closed: bool) {
        self.settings.closed.store(closed, Relaxed);
    }

    /// Silences all existing connections permanently, without closing them. New ones work.
    pub(crate) fn silence(&self) {
        self.settings.silent.store(self.settings.made.load(Relaxed), Relaxed);
    }

    /// Sets whether data is discarded, on existing and new connections. Connections that existed at a change stay
    /// silent.
    pub(crate) fn hole(&self, hole: bool) {
        self.silence();
        self.settings.hole.store(hole, Relaxed);
    }

    /// Redirects new connections to another server.
    pub(crate) fn lead_to(&self, port: u16) {
        self.settings.port.store(port, Relaxed);
    }

    /// Limits the replies on each connection to `bytes_per_second`.
    pub(crate) fn slow_down(&self, bytes_per_second: u64) {
        self.settings.rate.store(bytes_per_second, Relaxed);
    }

    /// Limits the requests on each connection to `bytes_per_second`.
    pub(crate) fn slow_requests_down(&self, bytes_per_second: u64) {
        self.settings.request_rate.store(bytes_per_second, Relaxed);
    }

    /// Returns the number of connections made.
    pub(crate) fn made(&self) -> u64 {
        self.settings.made.load(Relaxed)
    }
}

impl Settings {
    async fn carry(
        &self,
        number: u64,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        is_replies: bool,
    ) {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(n @ 1..) = from.read(&mut bytes).await {
            let is_silent = number < self.silent.load(Relaxed) || self.hole.load(Relaxed);
            if is_silent {
                continue;
            }
            let rate = if is_replies { &self.rate } else { &self.request_rate }.load(Relaxed);
            if rate > 0 {
                tokio::time::sleep(Duration::from_secs(n as u64) / rate as u32).await;
            }
            if to.write_all(&bytes[..n]).await.is_err() {
                return;
            }
        }
    }
}
