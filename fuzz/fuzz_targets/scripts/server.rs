//! The server.

use std::{
    env,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

pub(crate) struct Server {
    socket: String,
    prefixes: AtomicU64,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let socket = env::var("FLEETING_FUZZ_REDIS")
        .expect("FLEETING_FUZZ_REDIS is the socket of a server; scripts/fuzz.sh starts one");
    Server { socket, prefixes: AtomicU64::new(0) }
});

impl Server {
    pub(crate) fn of_environment() -> &'static Self {
        &SERVER
    }

    pub(crate) fn url(&self, is_resp2: bool) -> String {
        format!("unix://{}{}", self.socket, if is_resp2 { "?protocol=2" } else { "" })
    }

    /// Returns a prefix of keys that no input of this process has used.
    pub(crate) fn unused_prefix(&self) -> String {
        self.prefixes.fetch_add(1, Relaxed).to_string()
    }

    /// Sends a command on a new connection, and returns its reply of one line.
    pub(crate) fn ask(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).expect("the server is alive");
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("the server is alive");
        let mut reply = Vec::new();
        let mut byte = [0];
        while reply.last() != Some(&b'\n') {
            stream.read_exact(&mut byte).expect("the server replies");
            reply.push(byte[0]);
        }
        String::from_utf8_lossy(&reply).into_owned()
    }
}
