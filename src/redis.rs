//! The types of this crate on Redis, Valkey and their clusters, for programs that outgrow one machine.
//!
//! All types are built from a [`Client`], which is a cheap clone. Each has a name, and all processes that use the same
//! name on the same server share its data.
//!
//! - **Time is that of the server.** The clocks of clients do not matter.
//! - **One round trip per call**, unless noted otherwise, and every check-and-change is one script, which the server
//!   executes atomically.
//! - **One hash tag** per shard of a cache or dictionary, per set, and per key of a limiter, so that each script
//!   accesses keys of one slot.
//! - **No ambiguous call is repeated.** If a change may or may not have happened, because its reply was lost, the error
//!   is [`Error::Unanswered`]. Reads are repeated once, and so are the calls of loads and subscriptions.
//!
//! # Permissions
//!
//! The commands that a user of the server needs (`ACL SETUSER`), on the keys `prefix:*` (`~fleeting:*`; each type needs
//! only [a part of these](crate::guide::before_production)), or with `compat` on those of the other programs. Apart
//! from these, only the commands that make a connection are sent, `PING`, and to a cluster `CLUSTER SLOTS`.
//!
//! | for | commands |
//! | --- | --- |
//! | all | `EVAL EVALSHA TIME TYPE` |
//! | [`Cache`] | `GET GETDEL GETEX GETRANGE HDEL HLEN HMGET HSET MGET PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PTTL SCAN SET UNLINK` |
//! | its events | `DEL EXISTS HGET HINCRBY HSETNX INFO SADD SISMEMBER SMEMBERS SREM XACK XADD XCLAIM XGROUP XINFO XPENDING XRANGE XREADGROUP XTRIM ZADD ZCOUNT ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZSCORE` |
//! | its near cache | `CLIENT\|TRACKING` |
//! | [`RateLimiter`] | `APPEND DEL GET GETRANGE INFO PEXPIREAT SET SETRANGE` |
//! | [`ExpiringSet`] | `PERSIST PEXPIREAT UNLINK ZADD ZCOUNT ZPOPMIN ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGEBYSCORE ZSCORE` |
//! | [`TimeoutDict`] | `EXISTS GET HDEL HGET HINCRBY HLEN HMGET HSET INFO SET STRLEN UNLINK ZADD ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZSCORE` |
//! | its `compat` | `DEL HGETALL HSET` |
//!
//! Scripts declare the keys that they access, except those of the tags of a `Cache`, and those of entries that the
//! script itself finds to be due: in the events of a `Cache`, and when entries of a `TimeoutDict` are taken or cleared.
//! These are in the same slot as the declared keys. A server that refuses undeclared keys (Dragonfly without
//! `allow-undeclared-keys`) supports none of these.

mod cache;
mod client;
mod codec;
mod error;
mod expiring_set;
mod few_at_once;
#[cfg(fleeting_fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod keyspace;
mod rate_limiter;
mod script;
mod timeout_dict;

pub use cache::{Cache, CacheBuilder, CacheStats, Events, LosslessEvents};
pub use client::{Client, ClientBuilder, Urls};
pub use codec::Format;
pub use error::Error;
pub use expiring_set::{ExpiringSet, ExpiringSetBuilder};
#[cfg(feature = "axum")]
pub(crate) use rate_limiter::Remaining;
pub use rate_limiter::{Breaker, LimiterStats, OnError, Permit, RateLimiter, RateLimiterBuilder};
pub use timeout_dict::{Claim, DeadLetter, TimeoutDict, TimeoutDictBuilder};
