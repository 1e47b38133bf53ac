//! The one error of all types here, and how what the client library says is sorted into it: by whether the
//! command was carried out.

use std::error::Error as StdError;

use ::redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::rate_limit::Limited;

/// What can go wrong between a verb and its server.
///
/// Two of these tell whether a change happened: after [`Unanswered`](Error::Unanswered) nobody knows, after
/// all others it did not.
///
/// # What servers say
///
/// "Again" is until the client's [timeout](super::ClientBuilder::timeout) has passed, with pauses of 2 to 50 ms, and safe:
/// after such an answer nothing was carried out. The error is what comes where it stays so for so long.
///
/// | it says | because | what we do | error | [temporary](Error::is_temporary) |
/// | --- | --- | --- | --- | --- |
/// | `LOADING` | it reads its data from disk | again | `Unavailable` | yes |
/// | `READONLY`, `MASTERDOWN` | it is a replica, as after a failover | connect anew, as the address may lead to the master; ask the sentinels, or the cluster, who is it; again | `Unavailable` | yes |
/// | `CLUSTERDOWN` | the cluster has no node for the slot | ask the cluster, again | `Unavailable` | yes |
/// | `MOVED`, `ASK` | another node has the slot, or gets it | follow | `Unavailable` | yes |
/// | the same, to a client of one server | it belongs to a cluster | nothing: several URLs, or [`cluster(true)`](super::ClientBuilder::cluster), lead to one | `Server` | no |
/// | `TRYAGAIN` | the slot is being moved, and some of several keys with it | again; what only reads them reads one by one | `Unavailable` | yes |
/// | `BUSY` | a script runs for too long | again | `Unavailable` | yes |
/// | `NOREPLICAS` | too few replicas follow (`min-replicas-to-write`) | again | `Unavailable` | yes |
/// | `max number of clients reached` | it lets nobody in any more | connect again | `Connect` | yes |
/// | `NOAUTH`, `WRONGPASS`, `DENIED` | it wants other credentials | nothing: see [`set_credentials`](super::Client::set_credentials) | `Connect` | no |
/// | `NOPERM` | the user has not the rights | nothing | `Server` | no |
/// | `OOM` | its memory is full (`maxmemory`) | nothing: more calls don't help it | `Server` | no |
/// | `MISCONF` | it can't write to its disk | nothing | `Server` | no |
/// | `WRONGTYPE` | another program has put something there | nothing | `WrongType` | no |
/// | `NOSCRIPT` | it has not seen the script, as after a restart | send it whole | none | |
/// | that it knows no `HELLO` | it, or a proxy before it, is old | speak RESP2 | none | |
/// | anything else | | nothing | `Server` | no |
/// | nothing: the connection ends | it was restarted, or the network cut | connect anew; what only reads is sent once more | `Unanswered` | yes |
/// | nothing at all | it is stopped, or the network drops everything | after 0.4 s ask for a sign of life, and after another 0.4 s connect anew | `Unanswered`, then `Connect` | yes |
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What [`Client::connect`](super::Client::connect) was given is no address of a server. It is not
    /// repeated here, since it may hold a password.
    #[error("not the address of a Redis server")]
    Address(#[source] RedisError),

    /// A name that can't be part of a key: names are not empty, and have no `{` and no `}`, which mean hash
    /// tags to a cluster.
    #[error("a name is not empty and has neither {{ nor }}, unlike {0:?}")]
    Name(String),

    /// No connection could be made, or the server lets nobody in with these credentials. Nothing was carried out.
    #[error("no connection to the server")]
    Connect(#[source] RedisError),

    /// The connection was lost, or the time ran out, before the answer came: it may or may not have been
    /// carried out. It may also be carried out later: a server that was stopped, or that runs a long script, goes on
    /// with what it was sent before, whether anybody still waits or not.
    #[error("no answer from the server, which may or may not have carried it out")]
    Unanswered(#[source] RedisError),

    /// The server can't do it now: it loads its data, is a replica that takes no writes, is busy, or its cluster is
    /// being changed. Nothing was changed.
    #[error("the server can't do this now")]
    Unavailable(#[source] RedisError),

    /// Under the key is something of another type, which other programs put there.
    #[error("under {key:?} is something of another type")]
    WrongType {
        /// The key on the server.
        key: String,
    },

    /// A key or value can't be written in the [`Format`](super::Format) that was chosen.
    #[error("can't be encoded")]
    Encode(#[source] Box<dyn StdError + Send + Sync>),

    /// What is under the key is no value of the type that was asked for.
    #[error("what is under {key:?} can't be decoded")]
    Decode {
        /// The key on the server.
        key: String,
        /// Why not.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// The server refused.
    #[error("the server refused")]
    Server(#[source] RedisError),

    /// A limit has no room: what a [`RateLimiter`](super::RateLimiter) says of a call that must not pass.
    /// Nothing was charged.
    #[error(transparent)]
    Limited(#[from] Limited),

    /// Others changed the value again and again, for as long as the client's timeout. Nothing was changed.
    #[error("others were always faster")]
    Contended,

    /// Nothing that expires is told of, as the [`Cache`](super::Cache) was built without
    /// [events](super::CacheBuilder::events).
    #[error("the cache was built without events")]
    NoEvents,
}

impl Error {
    /// Whether the same call may succeed a moment later, without anyone changing anything.
    ///
    /// After [`Unanswered`](Error::Unanswered) it may also happen twice then.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Connect(error) => !is_refusal(error),
            Self::Unanswered(_) | Self::Unavailable(_) | Self::Contended => true,
            Self::Limited(limited) => limited.ready_at().is_some(),
            _ => false,
        }
    }

    /// What came in place of an answer to `cmd`, which was sent.
    pub(super) fn of(error: RedisError, cmd: &Cmd) -> Self {
        match error.code() {
            Some("WRONGTYPE") => Self::WrongType { key: key_of(cmd) },
            Some("BUSY" | "NOREPLICAS") => Self::Unavailable(error),
            _ if is_refusal(&error) => Self::Connect(error),
            _ if server_kind(&error).is_some_and(is_temporary_state) => Self::Unavailable(error),
            // After half an answer nobody knows the other half.
            _ if matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) => {
                Self::Unanswered(error)
            }
            _ => Self::Server(error),
        }
    }
}

/// The first key of a command, or of a call of a script.
pub(super) fn key_of(cmd: &Cmd) -> String {
    String::from_utf8_lossy(key_bytes(cmd)).into_owned()
}

/// The same as it is sent.
pub(super) fn key_bytes(cmd: &Cmd) -> &[u8] {
    let mut args = cmd.args_iter();
    let key = match args.next() {
        Some(Arg::Simple(b"EVAL" | b"EVALSHA")) => args.nth(2),
        _ => args.next(),
    };
    match key {
        Some(Arg::Simple(key)) => key,
        _ => &[],
    }
}

/// The keys of a call of a script, or the first of a command.
pub(super) fn keys_of(cmd: &Cmd) -> impl Iterator<Item = &[u8]> {
    let mut args = cmd.args_iter();
    let count = match args.next() {
        Some(Arg::Simple(b"EVAL" | b"EVALSHA")) => match args.nth(1) {
            Some(Arg::Simple(count)) => str::from_utf8(count).ok().and_then(|n| n.parse().ok()),
            _ => None,
        },
        _ => Some(1),
    };
    args.take(count.unwrap_or(0)).filter_map(|arg| match arg {
        Arg::Simple(key) => Some(key),
        _ => None,
    })
}

/// Whether the server wants another login, or lets nobody in from here: it stays so until somebody changes that.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig)
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "DENIED"))
}

/// Returns whether the reply is `TRYAGAIN`: the slot is being migrated, and some of the keys are on another node.
pub(super) fn is_try_again(error: &RedisError) -> bool {
    server_kind(error) == Some(ServerErrorKind::TryAgain)
}

pub(super) fn server_kind(error: &RedisError) -> Option<ServerErrorKind> {
    match error.kind() {
        ErrorKind::Server(kind) => Some(kind),
        _ => None,
    }
}

fn is_temporary_state(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
    )
}
