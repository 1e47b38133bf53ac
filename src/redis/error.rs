//! The one error of all types here, and how what the client library says is sorted into it: by whether the
//! command was carried out.

use std::error::Error as StdError;

use ::redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::rate_limit::Limited;

/// What can go wrong between a verb and its server.
///
/// Two of these tell whether a change happened: after [`Unanswered`](Error::Unanswered) nobody knows, after
/// all others it did not.
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

    /// No connection could be made. Nothing was sent.
    #[error("no connection to the server")]
    Connect(#[source] RedisError),

    /// The connection was lost, or the time ran out, before the answer came: it may or may not have been
    /// carried out.
    #[error("no answer from the server, which may or may not have carried it out")]
    Unanswered(#[source] RedisError),

    /// The server can't do it now: it loads its data, is a replica that takes no writes, or its cluster is
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

/// Whether the server wants another login, or lets nobody in from here: it stays so until somebody changes that.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig)
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "DENIED"))
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
