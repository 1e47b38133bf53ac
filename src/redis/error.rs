//! Error of all types of this module. Errors of the client library are classified by whether the command was executed.

use std::{error::Error as StdError, fmt, io, sync::Arc};

use ::redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind};

use super::keyspace::{Kind, split_head};
use crate::{engine::shown_hash::shown_hash, rate_limit::Limited};

/// Error of a call to a server. Match on it to decide whether to call again, to continue without the server, or to
/// report it.
///
/// ```no_run
/// # use fleeting::redis::{Cache, Error};
/// # async fn f(users: Cache<u64, String>) -> Result<(), Error> {
/// match users.set(7, "Ada".into()).await {
///     Ok(_) => println!("stored"),
///     Err(Error::Unanswered(_)) => println!("perhaps stored"),
///     Err(error) if error.is_temporary() => println!("not stored, try again later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Is the change made?
///
/// * After [`Unanswered`](Error::Unanswered) you do not know: the change may or may not have happened.
/// * After [`Decode`](Error::Decode), a method of a [`Cache`](super::Cache) that returns the replaced or removed value
///   has replaced or removed it; only that value could not be decoded. `get_ex` has set the TTL, and `update` has
///   changed nothing. [`ExpiringSet::pop`](super::ExpiringSet::pop),
///   [`TimeoutDict::remove`](super::TimeoutDict::remove) and the methods that take or claim entries keep the entry.
/// * After all other errors nothing was changed, except that a call for many keys may have changed some of them.
///
/// # Server replies
///
/// A retry repeats the command until the client's [timeout](super::ClientBuilder::timeout) has passed, with pauses of 2
/// to 50 ms. Retries are safe: after such a reply, nothing was executed. The error is returned if the timeout has
/// passed.
///
/// | reply | reason | reaction | error | [temporary](Error::is_temporary) |
/// | --- | --- | --- | --- | --- |
/// | `LOADING` | the server reads its data from disk | retry | `Unavailable` | yes |
/// | `READONLY`, `MASTERDOWN` | the server is a replica, for example after a failover | connect to the address again, which may lead to the master now, or ask the sentinels or the cluster for the master; retry | `Unavailable` | yes |
/// | `CLUSTERDOWN` | the cluster has no node for the slot | fetch the slot map; retry | `Unavailable` | yes |
/// | `MOVED`, `ASK` | another node serves the slot, or imports it | follow the redirection | `Unavailable` | yes |
/// | the same, to a client of a single server | the server belongs to a cluster | none; configure several URLs, or [`cluster(true)`](super::ClientBuilder::cluster) | `Server` | no |
/// | `TRYAGAIN`, `non local key` | the slot is being migrated, and some of the keys are on the other node | retry; reads fall back to one key at a time | `Unavailable` | yes |
/// | `BUSY` | a script runs for too long | retry | `Unavailable` | yes |
/// | `NOREPLICAS` | the master has too few replicas (`min-replicas-to-write`) | retry | `Unavailable` | yes |
/// | `max number of clients reached` | the server accepts no more connections | connect again | `Connect` | yes |
/// | `NOAUTH`, `WRONGPASS`, `DENIED` | the login is refused | none; see [`set_credentials`](super::Client::set_credentials) | `Connect` | no |
/// | `NOPERM` | the user lacks a permission | none | `Server` | no |
/// | `OOM` | the memory of the server is full (`maxmemory`) | none, as retries would add load | `Server` | no |
/// | `MISCONF` | the server cannot write to its disk | none | `Server` | no |
/// | `WRONGTYPE` | another program has written the key | none | `WrongType` | no |
/// | `NOSCRIPT` | the server does not have the script, for example after a restart | send the script | none | |
/// | `HELLO` is unknown | the server, or a proxy in front of it, is old | use RESP2 | none | |
/// | any other error | | none | `Server` | no |
/// | a reply above [`max_reply_bytes`](super::ClientBuilder::max_reply_bytes) | a set or value is too large, or the server is faulty | close the connection, since the rest may be endless | `Server` | no |
/// | fewer values than were requested, for example none | the server is faulty | none | `Server` | no |
/// | the connection ends without a reply | the server was restarted, or the network failed | reconnect; reads are sent again once | `Unanswered` | yes |
/// | no reply | the server is stopped, or the network drops all packets | send a `PING` after 0.4 s, and reconnect after another 0.4 s | `Unanswered`, then `Connect` | yes |
///
/// # Keys in texts
///
/// A key may be a secret, such as a session token. So the texts of an error (`Display` and `Debug`), and the log
/// messages that contain them, have a hash in place of the part of the key that the program chose. The hash is that of
/// the dashboard, and differs between processes. The field `key` is the whole key. The source of a
/// [`Decode`](Error::Decode) names the expected type, and nothing of the data.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address given to the [`Client`](super::Client) is not that of a Redis server. The text does not repeat it,
    /// since it may contain a password.
    #[error("invalid address of a Redis server; see `Urls` for the supported URLs")]
    Address(#[source] RedisError),

    /// A name or prefix cannot be part of a key: it is empty, or contains `{` or `}`, which delimit hash tags in a
    /// cluster. Or a prefix contains `:limit1:` or ends with `:limit1`, so that limiters of another prefix could have
    /// the same keys. Or the name of a group is reserved.
    #[error(
        "invalid name {0:?}; a name must not be empty, contain {{ or }}, or be that of a reserved group, \
         and a prefix must not have a part `:limit1`"
    )]
    Name(String),

    /// No connection could be made, or the server refused the login. Nothing was executed.
    #[error("cannot connect to the server")]
    Connect(#[source] RedisError),

    /// The connection was lost, or the timeout passed, before the reply arrived: the command may or may not have been
    /// executed.
    ///
    /// It may also be executed later. A server that was stopped, or that runs a long script, then executes the commands
    /// that it had received, even if no caller waits for them any more.
    #[error("no reply from the server, the command may or may not have been executed")]
    Unanswered(#[source] RedisError),

    /// The server cannot execute the command now: it loads its data, is a read-only replica, is busy, or its cluster is
    /// being reconfigured. Nothing was changed.
    #[error("the server is temporarily unavailable")]
    Unavailable(#[source] RedisError),

    /// The key holds a value of another type, written by another program.
    #[error("key {:?} holds a value of another type; use another name or key prefix", hide(key))]
    WrongType {
        /// The key on the server.
        key: String,
    },

    /// A key or value cannot be encoded in the configured [`Format`](super::Format).
    #[error("cannot encode a key or value")]
    Encode(#[source] Box<dyn StdError + Send + Sync>),

    /// A key or value is longer than [`max_value_bytes`](super::ClientBuilder::max_value_bytes). Nothing was sent.
    #[error(
        "a key or value of {bytes} bytes is longer than the maximum of {max}; \
         store smaller values, or raise `ClientBuilder::max_value_bytes`"
    )]
    TooLarge {
        /// Length of the encoded key or value.
        bytes: usize,
        /// The maximum.
        max: usize,
    },

    /// The value of the key cannot be decoded as the requested type.
    #[error("cannot decode the value of key {:?}", hide(key))]
    Decode {
        /// The key on the server.
        key: String,
        /// Error of the decoder.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// The server refused the command, permanently; or its reply is too large, or not a reply to this command.
    #[error("the server refused the command, or its reply cannot be used")]
    Server(#[source] RedisError),

    /// A limit of a [`RateLimiter`](super::RateLimiter) is exhausted. Nothing was charged.
    #[error(transparent)]
    Limited(#[from] Limited),

    /// Concurrent writers changed the value each time, until the client's timeout had passed. Nothing was changed.
    #[error("gave up after repeated conflicting updates; retry, or reduce contention on the key")]
    Contended,

    /// A [`Cache`](super::Cache) was built with another [number of shards](super::CacheBuilder::shards) than the one
    /// that it has on the server. Nothing was changed, with one exception: the first calls of a cache with the default
    /// number do not wait for the check, and may have changed entries.
    #[error(
        "cache {name:?} has {recorded} shards on the server, but was built with {configured}; \
         build it with `CacheBuilder::shards({recorded})`, or use another name"
    )]
    ShardCount {
        /// The name of the cache.
        name: String,
        /// The number of shards on the server.
        recorded: u16,
        /// The number that the cache was built with.
        configured: u16,
    },

    /// The [`Cache`](super::Cache) was built without [events](super::CacheBuilder::events), so it cannot be subscribed
    /// to.
    #[error("the cache was built without events; enable them with `CacheBuilder::events`")]
    NoEvents,

    /// An item of a [lossless subscription](super::LosslessEvents): this many events were lost because their
    /// [retention](super::CacheBuilder::events) had passed before they were acknowledged.
    #[error("{0} events were lost because their retention had passed")]
    Missed(u64),

    /// The last item of a [lossless subscription](super::LosslessEvents) whose group was
    /// [removed](super::Cache::remove_group).
    #[error("the group of the subscription was removed; subscribe again to receive later events")]
    GroupRemoved,
}

impl Error {
    /// Returns whether the same call may succeed later without an operator. A server without memory (`OOM`) and a
    /// changed password, for example, usually need one.
    ///
    /// After [`Unanswered`](Error::Unanswered), a repeated call may be executed twice.
    ///
    /// ```no_run
    /// # use fleeting::redis::{Cache, Error};
    /// # async fn f(users: Cache<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// match users.get(&7).await {
    ///     Ok(user) => println!("{user:?}"),
    ///     Err(error) if error.is_temporary() => println!("ask the database: {error}"),
    ///     Err(error) => return Err(error), // someone has to look at it
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Connect(error) => !is_refusal(error),
            Self::Unanswered(_) | Self::Unavailable(_) | Self::Contended => true,
            Self::Limited(limited) => limited.ready_at().is_some(),
            _ => false,
        }
    }

    /// Classifies the error reply to `cmd`, or the failure of its connection.
    pub(super) fn of(error: RedisError, cmd: &Cmd) -> Self {
        match error.code() {
            Some("WRONGTYPE") => Self::WrongType { key: key_of(cmd) },
            // Refused before it was executed: a script runs for too long, or too few replicas are connected.
            Some("BUSY" | "NOREPLICAS") => Self::Unavailable(error),
            _ if is_refusal(&error) => Self::Connect(error),
            _ if server_kind(&error).is_some_and(is_temporary_state) => Self::Unavailable(error),
            _ if is_split(&error) => Self::Unavailable(error),
            _ if is_caused_by::<ReplyTooLarge>(&error) => Self::Server(error),
            // The reply was lost or is incomplete.
            _ if matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) => {
                Self::Unanswered(error)
            }
            _ => Self::Server(error),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tuple = |f: &mut fmt::Formatter<'_>, name, source: &dyn fmt::Debug| {
            f.debug_tuple(name).field(source).finish()
        };
        match self {
            Self::Address(source) => tuple(f, "Address", source),
            Self::Name(name) => tuple(f, "Name", name),
            Self::Connect(source) => tuple(f, "Connect", source),
            Self::Unanswered(source) => tuple(f, "Unanswered", source),
            Self::Unavailable(source) => tuple(f, "Unavailable", source),
            Self::WrongType { key } => {
                f.debug_struct("WrongType").field("key", &hide(key)).finish()
            }
            Self::Encode(source) => tuple(f, "Encode", source),
            Self::TooLarge { bytes, max } => {
                f.debug_struct("TooLarge").field("bytes", bytes).field("max", max).finish()
            }
            Self::Decode { key, source } => {
                let mut decode = f.debug_struct("Decode");
                decode.field("key", &hide(key)).field("source", source).finish()
            }
            Self::Server(source) => tuple(f, "Server", source),
            Self::Limited(limited) => tuple(f, "Limited", limited),
            Self::Contended => f.write_str("Contended"),
            Self::ShardCount { name, recorded, configured } => f
                .debug_struct("ShardCount")
                .field("name", name)
                .field("recorded", recorded)
                .field("configured", configured)
                .finish(),
            Self::NoEvents => f.write_str("NoEvents"),
            Self::Missed(events) => tuple(f, "Missed", events),
            Self::GroupRemoved => f.write_str("GroupRemoved"),
        }
    }
}

/// Returns a key of the server with a hash in place of the part that the program chose, for texts.
///
/// Keys of this crate are `prefix:type:{name:shard}`, a suffix, and possibly `:` and the program's key; those of
/// limiters are `prefix:type:name:{key}`. Any other key belongs to another program, or is one of a `compat` dictionary,
/// so all of it may be a secret.
pub(super) fn hide(key: &str) -> String {
    let hash = |part: &str| format!("#{:012x}", shown_hash(part.as_bytes()) >> 16);
    let shown = split_head(key).and_then(|(kind, head, rest)| {
        if kind == Kind::RateLimiter {
            let (name, subject) = rest.split_once('{')?;
            let (subject, end) = subject.rsplit_once('}')?;
            return Some(format!("{head}{name}{{{}}}{end}", hash(subject)));
        }
        let (name, rest) = rest.strip_prefix('{')?.split_once('}')?;
        Some(match rest.split_once(':') {
            Some((suffix, chosen)) => format!("{head}{{{name}}}{suffix}:{}", hash(chosen)),
            None => key.to_owned(),
        })
    });
    shown.unwrap_or_else(|| hash(key))
}

/// Returns the first key of a command or of a script call, for messages.
pub(super) fn key_of(cmd: &Cmd) -> String {
    String::from_utf8_lossy(key_bytes(cmd)).into_owned()
}

/// Returns the first key of a command or of a script call.
pub(super) fn key_bytes(cmd: &Cmd) -> &[u8] {
    let mut args = cmd.args_iter();
    let key = match args.next() {
        // After the script and the number of keys.
        Some(Arg::Simple(b"EVAL" | b"EVALSHA")) => args.nth(2),
        _ => args.next(),
    };
    match key {
        Some(Arg::Simple(key)) => key,
        _ => &[],
    }
}

/// Returns the keys of a script call, or the first key of a command.
pub(super) fn keys_of(cmd: &Cmd) -> impl Iterator<Item = &[u8]> {
    let mut args = cmd.args_iter();
    let count = match args.next() {
        Some(Arg::Simple(b"EVAL" | b"EVALSHA")) => match args.nth(1) {
            Some(Arg::Simple(count)) => str::from_utf8(count).ok().and_then(|n| n.parse().ok()),
            _ => None,
        },
        // Only scripts write to several keys.
        _ => Some(1),
    };
    args.take(count.unwrap_or(0)).filter_map(|arg| match arg {
        Arg::Simple(key) => Some(key),
        _ => None,
    })
}

/// Returns whether the server refused the login or the address of the client, which is permanent until the
/// configuration changes.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig)
        // `DENIED` is the reply of a server in protected mode.
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "DENIED"))
}

/// Source of the error of a call whose reply was too large. The connection has ended, since the rest of the reply may
/// be endless.
#[derive(Debug, thiserror::Error)]
#[error(
    "a reply is larger than the maximum of {max} bytes; raise `ClientBuilder::max_reply_bytes`"
)]
pub(super) struct ReplyTooLarge {
    pub(super) max: u64,
}

/// Returns whether the error is an I/O error that was made of a `T`.
pub(super) fn is_caused_by<T: StdError + 'static>(error: &RedisError) -> bool {
    // The client library wraps the I/O error.
    let shared =
        error.source().and_then(|source| source.downcast_ref::<Arc<dyn StdError + Send + Sync>>());
    let io = shared.and_then(|error| error.downcast_ref::<io::Error>());
    io.and_then(io::Error::get_ref).is_some_and(|error| error.is::<T>())
}

/// Returns the error of a call whose reply is not one of its command.
pub(super) fn unexpected_reply(cause: &'static str) -> Error {
    // Without the reply, which may contain secrets.
    Error::Server((ErrorKind::Parse, cause).into())
}

/// Returns whether the server refused a write because its memory is full.
pub(super) fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.code() == Some("OOM"))
}

/// Returns whether the reply is `TRYAGAIN`, or its equivalent for undeclared keys of scripts: the slot is being
/// migrated, and some of the keys are on another node.
pub(super) fn is_try_again(error: &RedisError) -> bool {
    server_kind(error) == Some(ServerErrorKind::TryAgain) || is_split(error)
}

/// Returns whether a script has found an undeclared key on another node. Scripts can be sent again, because they access
/// these keys before they change anything that another attempt would change differently.
fn is_split(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("to access a non local key"))
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

#[cfg(test)]
mod tests {
    use super::{super::keyspace::register_prefix, *};

    #[test]
    fn texts_of_errors_hide_the_part_of_a_key_that_the_program_chose() {
        register_prefix("shop").expect("the prefix is valid");
        for (key, shown) in [
            ("shop:cache1:{sessions:3}:token", "shop:cache1:{sessions:3}:#"),
            ("shop:cache1:{sessions:3}:token:limit1:token{token", "shop:cache1:{sessions:3}:#"),
            ("shop:set1:{online:limit1:x}:token{token}", "shop:set1:{online:limit1:x}:#"),
            ("shop:limit1:api:{token}:set1:{token}", "shop:limit1:api:{#"),
            ("token:limit1:token:{token}", "#"),
            ("token:cache1:{token}", "#"),
            ("shop:cache1:{sessions:3}.loads:token:}", "shop:cache1:{sessions:3}.loads:#"),
            ("shop:dict1:{jobs:11}.dead", "shop:dict1:{jobs:11}.dead"),
            ("shop:set1:{online}", "shop:set1:{online}"),
            ("shop:limit1:api:{token}", "shop:limit1:api:{#"),
            ("token", "#"),
        ] {
            let wrong_type = Error::WrongType { key: key.into() };
            let decode = Error::Decode { key: key.into(), source: "not a number".into() };
            for text in [
                wrong_type.to_string(),
                format!("{wrong_type:?}"),
                decode.to_string(),
                format!("{decode:?}"),
            ] {
                assert!(text.contains(shown) && !text.contains("token"), "{text}");
            }
        }
        assert_eq!(hide("token"), hide("token"));
        assert_ne!(hide("token"), hide("other"));
    }
}
