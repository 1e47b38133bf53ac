//! What is sent: commands, and scripts by which everything that checks and changes is one.

use std::{mem, sync::OnceLock};

use ::redis::{Cmd, FromRedisValue, ToRedisArgs, cmd};

use super::{Client, Error, client::Repeat};

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
        let mut call = cmd("EVALSHA");
        call.arg(hash).arg(keys.len());
        for key in keys {
            call.arg(key.as_ref());
        }
        let key = keys.first().map(|key| key.as_ref().to_vec()).unwrap_or_default();
        Call { script: Some(self), cmd: call, key }
    }
}

/// One call of a script, or of a command.
pub(super) struct Call<'a> {
    script: Option<&'a Script>,
    cmd: Cmd,
    /// Which an error names.
    key: Vec<u8>,
}

impl Call<'_> {
    /// Of the command `name`, whose first argument is `key`.
    pub(super) fn command(name: &str, key: &[u8]) -> Self {
        let mut call = cmd(name);
        call.arg(key);
        Self { script: None, cmd: call, key: key.to_vec() }
    }

    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
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
        let mut answer = client.send(&self.cmd, &self.key, repeat).await;
        if let (Err(Error::Server(error)), Some(script)) = (&answer, self.script)
            && error.code() == Some("NOSCRIPT")
        {
            self.cmd = by_code(&mem::take(&mut self.cmd), script);
            answer = client.send(&self.cmd, &self.key, repeat).await;
        }
        T::from_redis_value(answer?).map_err(|source| Error::Decode {
            key: String::from_utf8_lossy(&self.key).into_owned(),
            source: source.into(),
        })
    }
}

/// The same call for a server that has not seen the script.
fn by_code(by_hash: &Cmd, script: &Script) -> Cmd {
    let mut call = cmd("EVAL");
    call.arg(script.code);
    for arg in by_hash.args_iter().skip(2) {
        if let ::redis::Arg::Simple(arg) = arg {
            call.arg(arg);
        }
    }
    call
}
