//! Proxy in front of the service, which can lose its connection to the service.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU16, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub(crate) struct Proxy {
    pub(crate) url: String,
    answer: Arc<Mutex<Option<&'static str>>>,
    port: Arc<AtomicU16>,
    connections: Arc<Mutex<JoinSet<()>>>,
}

impl Proxy {
    pub(crate) async fn to(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a local address"));
        let proxy =
            Self { url, answer: Arc::default(), port: Arc::default(), connections: Arc::default() };
        proxy.forward_to(address);
        let (answer, port) = (proxy.answer.clone(), proxy.port.clone());
        let connections = proxy.connections.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (answer, port) = (*answer.lock().unwrap(), port.load(Relaxed));
                connections.lock().unwrap().spawn(async move {
                    match answer {
                        None => carry(near, port).await,
                        Some(answer) => refuse(near, answer).await,
                    }
                });
            }
        });
        proxy
    }

    /// Forwards new connections to `address`.
    pub(crate) fn forward_to(&self, address: &str) {
        let (_, port) = address.rsplit_once(':').expect("an address has a port");
        self.port.store(port.parse().expect("a port is a number"), Relaxed);
    }

    /// Sends this response to every request, or with `None` forwards requests again.
    pub(crate) fn respond_with(&self, answer: Option<&'static str>) {
        *self.answer.lock().unwrap() = answer;
        self.connections.lock().unwrap().abort_all();
    }
}

async fn carry(mut near: TcpStream, port: u16) {
    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
        let _ = copy_bidirectional(&mut near, &mut far).await;
    }
}

async fn refuse(mut near: TcpStream, answer: &str) {
    let mut request = [0; 4_096];
    // Requests of the page fit into this buffer.
    if matches!(near.read(&mut request).await, Ok(1..)) {
        let _ = near.write_all(answer.as_bytes()).await;
        let _ = near.shutdown().await;
    }
}
