//! A server that sends given replies, one for each command after the handshake.

use std::{
    collections::VecDeque,
    net::TcpListener,
    sync::{Arc, LazyLock, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

use super::reply::Reply;

/// One for all inputs, because ports are scarce.
static LISTENER: LazyLock<TcpListener> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("the listener is open");
    listener
});

pub(crate) struct Server {
    task: JoinHandle<()>,
}

/// Replies that no command has received, shared by all connections.
type Replies = Arc<Mutex<VecDeque<Reply>>>;

impl Server {
    /// Must be called on a runtime, on which the server runs.
    pub(crate) fn start(replies: Vec<Reply>, is_resp3: bool) -> Self {
        let replies: Replies = Arc::new(Mutex::new(replies.into()));
        let listener = LISTENER.try_clone().expect("a file descriptor is free");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, replies.clone(), is_resp3));
            }
        });
        Self { task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", LISTENER.local_addr().expect("the listener is open"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, replies: Replies, is_resp3: bool) {
    // A reset instead of waiting for late packets, which would use up the ports.
    let _ = stream.set_zero_linger();
    let mut received = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut received).await {
        let mut answers = Vec::new();
        let mut stays_open = true;
        while stays_open && let Some(command) = take_command(&mut received) {
            stays_open = answer(&command, &replies, is_resp3, &mut answers);
        }
        if stream.write_all(&answers).await.is_err() || !stays_open {
            return;
        }
    }
}

/// Appends the answer to a command. Returns false if the connection ends after it.
fn answer(command: &[u8], replies: &Replies, is_resp3: bool, into: &mut Vec<u8>) -> bool {
    match &command.to_ascii_uppercase()[..] {
        b"HELLO" if is_resp3 => into.extend(b"%1\r\n+proto\r\n:3\r\n"),
        b"HELLO" => into.extend(b"-ERR unknown command\r\n"),
        b"CLIENT" | b"AUTH" | b"SELECT" | b"READONLY" => into.extend(b"+OK\r\n"),
        b"PING" => into.extend(b"+PONG\r\n"),
        _ => match replies.lock().expect("no panic").pop_front() {
            Some(reply) => return reply.write(is_resp3, into),
            None => return false,
        },
    }
    true
}

/// Removes a command from what was received, and returns its name; `None` until all of it has arrived.
fn take_command(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (mut at, parts) = number_after(received, 0, b'*')?;
    let mut name = None;
    for _ in 0..parts {
        let (start, length) = number_after(received, at, b'$')?;
        let part = received.get(start..start + length)?;
        name.get_or_insert_with(|| part.to_vec());
        at = start + length + 2;
    }
    if at > received.len() {
        return None;
    }
    received.drain(..at);
    name
}

/// Parses a line such as `*3`; returns the place after the line, and its number.
fn number_after(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let line = bytes.get(at..)?;
    let end = line.windows(2).position(|two| two == b"\r\n")?;
    assert_eq!(line[0], kind, "a client sends arrays of strings");
    let digits = std::str::from_utf8(&line[1..end]).expect("digits");
    Some((at + end + 2, digits.parse().expect("a number")))
}
