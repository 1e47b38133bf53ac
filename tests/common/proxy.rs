//! A way to a server that can be cut, slowed down, or led elsewhere, and that can go silent.

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

/// `redis://` to it is [`url`](Proxy::url).
pub(crate) struct Proxy {
    address: SocketAddr,
    connections: Arc<Mutex<JoinSet<()>>>,
    way: Arc<Way>,
}

/// How it is just now.
#[derive(Default)]
struct Way {
    /// To where new connections lead.
    port: AtomicU16,
    closed: AtomicBool,
    /// Nothing gets through.
    hole: AtomicBool,
    /// How many connections were made, and how many of these are silent for ever.
    made: AtomicU64,
    silent: AtomicU64,
    /// How many bytes of answers a connection carries in a second; 0 is no bound.
    rate: AtomicU64,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let way = Arc::new(Way { port: port.into(), ..Way::default() });
        let (running, shared) = (Arc::clone(&connections), Arc::clone(&way));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let way = Arc::clone(&shared);
                if way.closed.load(Relaxed) {
                    continue;
                }
                let number = way.made.fetch_add(1, Relaxed);
                running.lock().unwrap().spawn(async move {
                    let port = way.port.load(Relaxed);
                    let Ok(far) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (near, far) = (near.into_split(), far.into_split());
                    // Whichever end closes, both do.
                    tokio::select! {
                        () = way.carry(number, near.0, far.1, false) => {}
                        () = way.carry(number, far.0, near.1, true) => {}
                    }
                });
            }
        });
        Self { address, connections, way }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Cuts all connections, whatever is on its way; new ones may be made.
    pub(crate) fn cut(&self) {
        self.connections.lock().unwrap().abort_all();
    }

    /// Whether new connections are closed at once.
    pub(crate) fn close(&self, closed: bool) {
        self.way.closed.store(closed, Relaxed);
    }

    /// All connections that there are go silent, for ever, and stay open; new ones get through.
    pub(crate) fn silence(&self) {
        self.way.silent.store(self.way.made.load(Relaxed), Relaxed);
    }

    /// Whether nothing gets through, neither on the connections that there are nor on new ones. Those that have seen
    /// it stay silent when it is over.
    pub(crate) fn hole(&self, hole: bool) {
        self.silence();
        self.way.hole.store(hole, Relaxed);
    }

    /// New connections lead to another server.
    pub(crate) fn lead_to(&self, port: u16) {
        self.way.port.store(port, Relaxed);
    }

    /// Each connection carries at most so many bytes of answers in a second.
    pub(crate) fn slow_down(&self, bytes_per_second: u64) {
        self.way.rate.store(bytes_per_second, Relaxed);
    }

    /// How many connections were made.
    pub(crate) fn made(&self) -> u64 {
        self.way.made.load(Relaxed)
    }
}

impl Way {
    async fn carry(
        &self,
        number: u64,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        is_answers: bool,
    ) {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(n @ 1..) = from.read(&mut bytes).await {
            let is_silent = number < self.silent.load(Relaxed) || self.hole.load(Relaxed);
            if is_silent {
                continue;
            }
            let rate = self.rate.load(Relaxed);
            if is_answers && rate > 0 {
                tokio::time::sleep(Duration::from_secs(n as u64) / rate as u32).await;
            }
            if to.write_all(&bytes[..n]).await.is_err() {
                return;
            }
        }
    }
}
