//! Server of a test, for replies that a real server does not send.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// Handle to a server that answers each command with a [`Reply`]. Connections are accepted as long as it exists.
///
/// It logs clients in by itself: they need no `Reply` to connect.
pub(crate) struct FakeServer {
    address: SocketAddr,
    task: AbortHandle,
    most_sent: Arc<AtomicU64>,
}

/// Answer to a command.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Bytes(Vec<u8>),
    /// These bytes, and then nothing more on this connection, whose requests are still read.
    Last(Vec<u8>),
    /// The first bytes once, and the second ones until the client closes the connection.
    Endless(Vec<u8>, Vec<u8>),
    /// The end of the connection.
    Close,
}

impl FakeServer {
    pub(crate) async fn start(reply: impl Fn(&[Vec<u8>]) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (reply, most_sent) = (Arc::new(reply), Arc::<AtomicU64>::default());
        let shared = most_sent.clone();
        let task = tokio::spawn(async move {
            // Dropped with the task, which closes the connections.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (reply, most_sent) = (reply.clone(), shared.clone());
                connections.spawn(async move { serve(client, &*reply, &most_sent).await });
            }
        });
        Self { address, task: task.abort_handle(), most_sent }
    }

    /// Starts a sentinel that reports the local port `master` for any service; none while it is 0.
    pub(crate) async fn sentinel(master: Arc<AtomicU16>) -> Self {
        Self::start(move |_| match master.load(Relaxed) {
            0 => Reply::Bytes(b"*-1\r\n".into()),
            port => {
                let port = port.to_string();
                let reply = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
                Reply::Bytes(reply.into())
            }
        })
        .await
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the largest number of bytes that were sent on one connection.
    pub(crate) fn most_sent(&self) -> u64 {
        self.most_sent.load(Relaxed)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves a connection until the client closes it.
async fn serve(
    client: TcpStream,
    reply: &(impl Fn(&[Vec<u8>]) -> Reply + Send + Sync),
    most_sent: &AtomicU64,
) {
    let _ = client.set_nodelay(true);
    let (requests, mut replies) = client.into_split();
    let mut requests = BufReader::with_capacity(64 << 10, requests);
    let (mut is_silent, mut sent) = (false, 0);
    while let Some(command) = read_command(&mut requests).await {
        let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        let reply = match &name[..] {
            b"HELLO" => Reply::Bytes(b"%1\r\n+server\r\n+fake\r\n".into()),
            b"AUTH" | b"CLIENT" | b"SELECT" => Reply::Bytes(b"+OK\r\n".into()),
            b"ROLE" => Reply::Bytes(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".into()),
            _ => reply(&command),
        };
        if is_silent {
            continue;
        }
        let (bytes, then) = match reply {
            Reply::Bytes(bytes) => (bytes, None),
            Reply::Last(bytes) => {
                is_silent = true;
                (bytes, None)
            }
            Reply::Endless(bytes, then) => (bytes, Some(then)),
            Reply::Close => return,
        };
        let mut bytes = &bytes;
        loop {
            if replies.write_all(bytes).await.is_err() {
                return;
            }
            sent += bytes.len() as u64;
            most_sent.fetch_max(sent, Relaxed);
            let Some(then) = &then else { break };
            bytes = then;
        }
    }
}

/// Reads an array of strings; `None` at the end of the connection.
async fn read_command(
    requests: &mut BufReader<tokio::net::tcp::OwnedReadHalf>,
) -> Option<Vec<Vec<u8>>> {
    let mut command = Vec::new();
    for _ in 0..read_len(requests, b'*').await? {
        let mut arg = vec![0; read_len(requests, b'$').await? + 2];
        requests.read_exact(&mut arg).await.ok()?;
        arg.truncate(arg.len() - 2);
        command.push(arg);
    }
    Some(command)
}

async fn read_len(
    requests: &mut BufReader<tokio::net::tcp::OwnedReadHalf>,
    kind: u8,
) -> Option<usize> {
    let mut line = Vec::new();
    requests.read_until(b'\n', &mut line).await.ok()?;
    let (first, rest) = line.split_first()?;
    (*first == kind).then(|| str::from_utf8(rest).ok()?.trim_end().parse().ok())?
}
