//! The same names on Redis, Valkey and their clusters: for those who outgrow one machine.
//!
//! Everything starts from one [`Client`], a cheap clone. Each type has a name, and all processes that use a
//! name on the same server share what is under it.
//!
//! - **Time is the server's.** No clock of a client decides anything.
//! - **One round trip a verb**, and every check-and-change is one script: atomic on the server.
//! - **One hash tag** for all keys of a subject, so a cluster's slot holds them together.
//! - **Nothing ambiguous is repeated.** Where a change may or may not have happened, since the answer was
//!   lost, the error is [`Error::Unanswered`]. Reads are repeated once.
//!
//! # Rights
//!
//! What a user of the server (`ACL SETUSER`) needs, on the keys `prefix:*` (`~fleeting:*`), or for `compat` on those of the
//! other programs. Nothing else is sent but what makes a connection; to a cluster, `CLUSTER SLOTS`.
//!
//! | for | commands |
//! | --- | --- |
//! | all | `EVAL EVALSHA TIME TYPE` |
//! | [`Cache`] | `GET GETDEL GETEX HDEL HMGET HSET PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PTTL SCAN SET UNLINK` |
//! | its events | `DEL EXISTS MGET SADD SMEMBERS XACK XADD XAUTOCLAIM XCLAIM XGROUP XINFO XPENDING XRANGE XREADGROUP XTRIM ZADD ZRANGE ZRANGEBYSCORE ZREM ZSCORE` |
//! | its near | `CLIENT\|TRACKING` |
//! | [`RateLimiter`] | `APPEND DEL GET GETRANGE INFO PEXPIREAT SET SETRANGE` |
//! | [`ExpiringSet`] | `PERSIST PEXPIREAT UNLINK ZADD ZCOUNT ZPOPMIN ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGEBYSCORE ZSCORE` |
//! | [`TimeoutDict`] | `EXISTS GET HDEL HINCRBY HMGET SET STRLEN UNLINK ZADD ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZSCORE` |
//! | its `compat` | `DEL HGETALL HLEN HSET` |
//!
//! Scripts declare the keys that they touch, but for those of entries that are found to be due, whose names nobody knows
//! beforehand: by the events of a `Cache`, and by what takes or clears of a `TimeoutDict`. All of these are in one slot.
//! A server that refuses such keys (Dragonfly without `allow-undeclared-keys`) has neither.

mod cache;
mod client;
mod codec;
mod error;
mod expiring_set;
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
pub use timeout_dict::{Claim, TimeoutDict, TimeoutDictBuilder};
