//! What is sent: commands, and scripts by which everything that checks and changes is one.

use std::{sync::OnceLock, time::Duration};

use ::redis::{Arg, Cmd, FromRedisValue, ToRedisArgs};

use super::{Client, Error, client::Repeat, error::key_of};

/// Arguments and their bytes, for which most calls need no more memory.
const ROOM: (usize, usize) = (8, 192);

/// A Lua script. A server knows it by its hash once it has seen it.
pub(super) struct Script {
    code: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(super) const fn new(code: &'static str) -> Self {
        Self { code, hash: OnceLock::new() }
    }

    /// To be called with these keys, which share a hash tag.
    pub(super) fn call<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        let hash = self.hash.get_or_init(|| ::redis::Script::new(self.code).get_hash().to_owned());
        let mut call = Call::new(Some(self)).arg("EVALSHA").arg(hash).arg(keys.len());
        for key in keys {
            call.cmd.arg(key.as_ref());
        }
        call
    }
}

/// One call of a script, or of a command.
pub(super) struct Call<'a> {
    script: Option<&'a Script>,
    cmd: Cmd,
    /// How long it may take, where that is not as long as all others.
    timeout: Option<Duration>,
}

impl<'a> Call<'a> {
    fn new(script: Option<&'a Script>) -> Self {
        Self { script, cmd: Cmd::with_capacity(ROOM.0, ROOM.1), timeout: None }
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

    /// Sends what may be sent twice: what only reads, or leaves the same state if it is repeated. Where an
    /// answer is lost, it is.
    pub(super) async fn read<T: FromRedisValue>(self, client: &Client) -> Result<T, Error> {
        self.send(client, Repeat::Once).await
    }

    /// Sends what must not be carried out twice. Where the answer is lost, the error is
    /// [`Error::Unanswered`].
    pub(super) async fn change<T: FromRedisValue>(self, client: &Client) -> Result<T, Error> {
        self.send(client, Repeat::Never).await
    }

    async fn send<T: FromRedisValue>(
        mut self,
        client: &Client,
        repeat: Repeat,
    ) -> Result<T, Error> {
        let until = client.end(self.timeout);
        let mut answer = client.send(&self.cmd, repeat, until).await;
        if let (Err(Error::Server(error)), Some(script)) = (&answer, self.script)
            && error.code() == Some("NOSCRIPT")
        {
            self.cmd = by_code(&self.cmd, script);
            answer = client.send(&self.cmd, repeat, until).await;
        }
        T::from_redis_value(answer?)
            .map_err(|source| Error::Decode { key: key_of(&self.cmd), source: source.into() })
    }
}

/// The same call for a server that has not seen the script.
fn by_code(by_hash: &Cmd, script: &Script) -> Cmd {
    let mut call = ::redis::cmd("EVAL");
    call.arg(script.code);
    for arg in by_hash.args_iter().skip(2) {
        if let Arg::Simple(arg) = arg {
            call.arg(arg);
        }
    }
    call
}
