//! What is sent: commands, and scripts by which everything that checks and changes is one.
//!
//! Lua files stand beside the Rust that sends them. `prelude.lua` of a folder is what its scripts begin with: it
//! says what `KEYS` and the first of `ARGV` are. A script of one line stands in the Rust, beside its name.

use std::{sync::OnceLock, time::Duration};

use ::redis::{Arg, Cmd, FromRedisValue, ToRedisArgs, Value};

use super::{
    Client, Error,
    client::{Asked, Resend},
    error::key_of,
};

/// Arguments and their bytes, for which most calls need no more memory: of commands, and of scripts.
const CAPACITY: [(usize, usize); 2] = [(8, 192), (16, 512)];

/// Of so many files a script is made at most: a layout, a prelude, and what it is about.
const PARTS: usize = 3;

/// A Lua script. A server knows it by its hash once it has seen it.
pub(super) struct Script {
    parts: [&'static str; PARTS],
    /// Made when it is first sent: most programs send few of the scripts.
    source: OnceLock<Source>,
}

struct Source {
    code: String,
    hash: String,
}

impl Script {
    /// One script of several files, which follow one another: each sees the locals of those before.
    pub(super) const fn new<const N: usize>(parts: [&'static str; N]) -> Self {
        let mut all = [""; PARTS];
        let mut at = 0;
        while at < N {
            all[at] = parts[at];
            at += 1;
        }
        Self { parts: all, source: OnceLock::new() }
    }

    /// To be called with these keys, which share a hash tag.
    pub(super) fn call<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        let mut call =
            Call::new(Some(self)).arg("EVALSHA").arg(&self.source().hash).arg(keys.len());
        for key in keys {
            call.cmd.arg(key.as_ref());
        }
        call
    }

    fn source(&self) -> &Source {
        self.source.get_or_init(|| {
            // A file may end within a line, as one of a single line in the Rust does.
            let code = self.parts.join("\n");
            let hash = ::redis::Script::new(&code).get_hash().to_owned();
            Source { code, hash }
        })
    }
}

/// One call of a script, or of a command.
pub(super) struct Call<'a> {
    script: Option<&'a Script>,
    cmd: Cmd,
    /// How long it may take, where that is not as long as all others.
    timeout: Option<Duration>,
    /// It reads several keys, and its caller asks for each where that can't be.
    is_divisible: bool,
}

impl<'a> Call<'a> {
    fn new(script: Option<&'a Script>) -> Self {
        let (args, bytes) = CAPACITY[usize::from(script.is_some())];
        let cmd = Cmd::with_capacity(args, bytes);
        Self { script, cmd, timeout: None, is_divisible: false }
    }

    /// Of the command `name`, whose first argument is `key`.
    pub(super) fn command(name: &str, key: &[u8]) -> Self {
        Self::new(None).arg(name).arg(key)
    }

    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// In place of the client's own timeout.
    pub(super) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Where some of its keys are elsewhere, as their slot is being moved, that is said at once: see `is_divided`.
    pub(super) fn divisible(mut self) -> Self {
        self.is_divisible = true;
        self
    }

    /// Sends what may be sent twice: what only reads, or leaves the same state if it is repeated. Where an
    /// answer is lost, it is.
    pub(super) async fn send_idempotent<T: FromRedisValue>(
        self,
        client: &Client,
    ) -> Result<T, Error> {
        self.send(client, Resend::Once).await
    }

    /// Sends what must not be carried out twice. Where the answer is lost, the error is
    /// [`Error::Unanswered`].
    pub(super) async fn send_once<T: FromRedisValue>(self, client: &Client) -> Result<T, Error> {
        self.send(client, Resend::Never).await
    }

    /// Sends what only reads, with another of the same key, so that the answers may be kept; and tells whether changes are
    /// told of from then on.
    pub(super) async fn send_both<T: FromRedisValue, U: FromRedisValue>(
        self,
        other: Call<'_>,
        client: &Client,
    ) -> Result<(T, U, bool), Error> {
        let answer = client.send_told(&[&self.cmd, &other.cmd]).await;
        self.read(answer)
    }

    /// The same of one alone.
    pub(super) async fn send_told<T: FromRedisValue>(
        mut self,
        client: &Client,
    ) -> Result<(T, bool), Error> {
        let mut answer = client.send_told(&[&self.cmd]).await;
        if self.is_unknown(&answer) {
            answer = client.send_told(&[&self.cmd]).await;
        }
        self.read(answer)
    }

    async fn send<T: FromRedisValue>(
        mut self,
        client: &Client,
        resend: Resend,
    ) -> Result<T, Error> {
        let deadline = client.deadline(self.timeout);
        let mut answer = client.send(self.asked(), resend, deadline).await;
        if self.is_unknown(&answer) {
            answer = client.send(self.asked(), resend, deadline).await;
        }
        self.read(answer)
    }

    fn asked(&self) -> Asked<'_> {
        if self.is_divisible { Asked::Many(&self.cmd) } else { Asked::One(&self.cmd) }
    }

    /// Whether the server does not know the script, which is sent by its hash at first: that is shorter. A server that
    /// restarted, or another after a failover, has not seen it. It has changed nothing, so the whole script is safe to
    /// send, which this call is from then on.
    fn is_unknown(&mut self, answer: &Result<Value, Error>) -> bool {
        match (answer, self.script) {
            (Err(Error::Server(error)), Some(script)) if error.code() == Some("NOSCRIPT") => {
                self.cmd = by_code(&self.cmd, script);
                true
            }
            _ => false,
        }
    }

    fn read<T: FromRedisValue>(&self, answer: Result<Value, Error>) -> Result<T, Error> {
        T::from_redis_value(answer?)
            .map_err(|source| Error::Decode { key: key_of(&self.cmd), source: source.into() })
    }
}

/// The same call for a server that has not seen the script.
fn by_code(by_hash: &Cmd, script: &Script) -> Cmd {
    let mut call = ::redis::cmd("EVAL");
    call.arg(&script.source().code);
    for arg in by_hash.args_iter().skip(2) {
        if let Arg::Simple(arg) = arg {
            call.arg(arg);
        }
    }
    call
}
