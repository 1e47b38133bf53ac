//! Calls of commands and of Lua scripts. Every check-and-change is one script.
//!
//! Lua files are next to the Rust code that sends them. Each script of a folder begins with its `prelude.lua`, which
//! documents `KEYS` and the first arguments. Scripts of one line are written inline in the Rust code.

use std::{sync::OnceLock, time::Duration};

use ::redis::{Arg, Cmd, FromRedisValue, ToRedisArgs, Value};

use super::{
    Client, Error,
    client::{CommandBatch, Resend},
    error::{is_try_again, key_of},
};

/// Initial capacity of a call, as the number of arguments and their bytes: of commands, and of scripts. Sufficient for
/// most calls.
const CAPACITY: [(usize, usize); 2] = [(8, 192), (16, 512)];

/// Maximum number of files of a script: layout, preludes, and the operation itself.
const MAX_PARTS: usize = 6;

/// A Lua script. It is called by its hash, and sent as a whole only if the server does not have it.
pub(super) struct Script {
    parts: [&'static str; MAX_PARTS],
    /// Built on first use: most programs use few of the scripts.
    source: OnceLock<ScriptSource>,
}

struct ScriptSource {
    code: String,
    hash: String,
}

impl Script {
    /// Creates a script from files that are concatenated: each sees the locals of the files before it.
    pub(super) const fn new<const N: usize>(parts: [&'static str; N]) -> Self {
        let mut all = [""; MAX_PARTS];
        let mut at = 0;
        while at < N {
            all[at] = parts[at];
            at += 1;
        }
        Self { parts: all, source: OnceLock::new() }
    }

    /// Creates a call with `keys`, which must share a hash tag.
    pub(super) fn call<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        let mut call =
            Call::new(Some(self)).arg("EVALSHA").arg(&self.source().hash).arg(keys.len());
        for key in keys {
            call.cmd.arg(key.as_ref());
        }
        call
    }

    fn source(&self) -> &ScriptSource {
        self.source.get_or_init(|| {
            // With line breaks: an inline script does not end with one.
            let code = self.parts.join("\n");
            let hash = ::redis::Script::new(&code).get_hash().to_owned();
            ScriptSource { code, hash }
        })
    }
}

/// One call of a script or a command.
pub(super) struct Call<'a> {
    script: Option<&'a Script>,
    cmd: Cmd,
    /// Timeout, if not that of the client.
    timeout: Option<Duration>,
    /// True if it reads several keys, which the caller can read one by one instead.
    is_multi_key: bool,
}

impl<'a> Call<'a> {
    fn new(script: Option<&'a Script>) -> Self {
        let (args, bytes) = CAPACITY[usize::from(script.is_some())];
        let cmd = Cmd::with_capacity(args, bytes);
        Self { script, cmd, timeout: None, is_multi_key: false }
    }

    /// Creates a call of the command `name`, with `key` as the first argument.
    pub(super) fn command(name: &str, key: &[u8]) -> Self {
        Self::new(None).arg(name).arg(key)
    }

    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Sets a timeout in place of the client's.
    pub(super) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends an idempotent call: one that only reads, or whose copy does no harm, no matter how late the server
    /// executes it. It is sent again once if its reply is lost.
    pub(super) async fn send_idempotent<T: FromRedisValue>(
        self,
        client: &Client,
    ) -> Result<T, Error> {
        self.send(client, Resend::Once).await
    }

    /// Sends a read of several keys. Returns `None` if they are on two nodes, because their slot is being migrated,
    /// which may take longer than the timeout: the caller then reads them one by one.
    pub(super) async fn send_multi_key<T: FromRedisValue>(
        mut self,
        client: &Client,
    ) -> Result<Option<T>, Error> {
        self.is_multi_key = true;
        match self.send_idempotent(client).await {
            Err(Error::Unavailable(cause)) if is_try_again(&cause) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Sends a call that must not be executed twice. If its reply is lost, the error is [`Error::Unanswered`].
    pub(super) async fn send_once<T: FromRedisValue>(self, client: &Client) -> Result<T, Error> {
        self.send(client, Resend::Never).await
    }

    /// Sends this read together with `other` of the same key. Also returns whether later changes of the key will be
    /// reported, so that the answers may be cached.
    pub(super) async fn send_both_tracked<T: FromRedisValue, U: FromRedisValue>(
        self,
        other: Call<'_>,
        client: &Client,
    ) -> Result<(T, U, bool), Error> {
        let answer = client.send_tracked(&[&self.cmd, &other.cmd]).await;
        self.decode(answer)
    }

    /// Sends this read. Also returns whether later changes of its keys will be reported, so that the answer may be
    /// cached.
    pub(super) async fn send_tracked<T: FromRedisValue>(
        mut self,
        client: &Client,
    ) -> Result<(T, bool), Error> {
        let mut answer = client.send_tracked(&[&self.cmd]).await;
        if self.is_unknown(&answer) {
            answer = client.send_tracked(&[&self.cmd]).await;
        }
        self.decode(answer)
    }

    async fn send<T: FromRedisValue>(
        mut self,
        client: &Client,
        resend: Resend,
    ) -> Result<T, Error> {
        let deadline = client.deadline(self.timeout);
        let mut answer = client.send(None, self.batch(), resend, deadline).await;
        if self.is_unknown(&answer) {
            answer = client.send(None, self.batch(), resend, deadline).await;
        }
        self.decode(answer)
    }

    fn batch(&self) -> CommandBatch<'_> {
        match self.is_multi_key {
            true => CommandBatch::MultiKey(&self.cmd),
            false => CommandBatch::One(&self.cmd),
        }
    }

    /// Returns whether the server does not have the script, and changes the call to `EVAL` if so.
    ///
    /// The first attempt is by hash, which is shorter. A server that was restarted, or another one after a failover,
    /// does not have the script. It has not executed anything, so the call is safe to repeat.
    fn is_unknown(&mut self, answer: &Result<Value, Error>) -> bool {
        match (answer, self.script) {
            (Err(Error::Server(error)), Some(script)) if error.code() == Some("NOSCRIPT") => {
                self.cmd = with_source(&self.cmd, script);
                true
            }
            _ => false,
        }
    }

    fn decode<T: FromRedisValue>(&self, answer: Result<Value, Error>) -> Result<T, Error> {
        // Without the text of the error, which contains the reply.
        T::from_redis_value(answer?).map_err(|_| Error::Decode {
            key: key_of(&self.cmd),
            source: "the reply of the server has an unexpected type".into(),
        })
    }
}

/// Returns the same call with the source of the script in place of its hash.
fn with_source(by_hash: &Cmd, script: &Script) -> Cmd {
    let mut call = ::redis::cmd("EVAL");
    call.arg(&script.source().code);
    // Without the name of the command and the hash.
    for arg in by_hash.args_iter().skip(2) {
        if let Arg::Simple(arg) = arg {
            call.arg(arg);
        }
    }
    call
}
