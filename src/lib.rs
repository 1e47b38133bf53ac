//! An async, Tokio-native cache whose values know when to leave, and tell you when they do.
//!
//! [`Cache`] is a sharded map with Redis' verbs and a deadline for each value. A Tokio task sweeps the dead
//! out of memory within a hard bound ([`Sweep`]), and each departure is an [`Event`] on a stream:
//! [`Events`] never slows the cache, [`LosslessEvents`] never loses one.
//!
//! ```
//! use std::time::Duration;
//! use fleeting::Cache;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! let sessions: Cache<String, u64> = Cache::new();
//! let mut expirations = sessions.events();
//!
//! sessions.set_ex("ada".into(), 42, Duration::from_secs(30)).await;
//! assert_eq!(sessions.get("ada").await, Some(42));
//!
//! let gone = expirations.recv().await.unwrap().unwrap();
//! assert_eq!(gone.key, "ada");
//! assert_eq!(sessions.get("ada").await, None);
//! # }
//! ```
//!
//! The [guide] has a page for each of the other types: rate limits, sets, the timeout dictionary, the same verbs on
//! Redis, and directory queues.
//!
//! Small programs for common jobs:
//! [tokens with their own expiry](guide::recipes#tokens-with-their-own-expiry),
//! [one-time codes](guide::recipes#one-time-codes),
//! [idempotency keys](guide::recipes#idempotency-keys),
//! [deduplication](guide::recipes#deduplication),
//! [debounce](guide::recipes#debounce),
//! [a job scheduler with retries](guide::recipes#a-job-scheduler-with-retries),
//! [feature flags](guide::recipes#feature-flags),
//! [sessions with an audit log](guide::recipes#sessions-with-an-audit-log),
//! [a store for tower-sessions](guide#examples),
//! [limits by user and address](guide::rate_limits#behind-authentication),
//! [limits of gRPC](guide::rate_limits#grpc-with-tonic),
//! [a static cache, also in tests](guide::handles#a-static-cache),
//! [calls from code that is not async](guide::recipes#from-code-that-is-not-async),
//! [values too large to clone](guide::recipes#values-too-large-to-clone).
//!
//! Each call beside ours, for who comes from
//! [moka](guide::from_moka), [quick_cache](guide::from_others#quick_cache), [retainer](guide::from_others#retainer),
//! [governor, tower-governor](guide::from_governor), [Redis](guide::from_others#redis),
//! [TimedDict](guide::from_others#timeddict-python), [pyttl](guide::from_others#ttldict-pyttl) or
//! [dirq](guide::from_others#dirq-python).
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | TTL | a duration: how long a value may live |
//! | deadline | an instant: when it dies. Dead when `now >= deadline`, everywhere |
//! | persistent | having no deadline |
//! | live | present and not dead. Nothing here ever returns a dead value |
//! | resident | held in memory: live, or dead and not yet swept |
//! | expire | leave because the TTL ran out |
//! | evict | leave to make room |
//! | remove | leave because the caller said so |
//! | replace | leave because a new value took the key |
//! | sweep | one tick of the background task: one or more passes |
//! | pass | one look at a sample of the entries |
//! | lag | from a value's deadline to the moment its event is sent |
//!
//! # Time
//!
//! All time is [`tokio::time::Instant`]. Under `tokio::time::pause` and `advance` every behaviour follows
//! the paused clock. A deadline that overflows means persistent; a TTL of zero means dead at once.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
mod axum;
mod cache;
#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(all(feature = "dirq", unix))]
#[cfg_attr(docsrs, doc(cfg(feature = "dirq")))]
pub mod dirq;
mod engine;
pub mod guide;
mod rate_limit;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub mod redis;
mod sets;
#[cfg(all(feature = "dirq", unix))]
mod spool;
mod timeout_dict;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use self::axum::{
    BadNetwork, ClientIp, ClientIpRejection, Headers, LayerLimiter, RateLimit, RateLimitBody,
    RateLimitDecision, RateLimitFuture, RateLimitLayer, TrustedProxies,
};
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
pub use cache::SnapshotError;
pub use cache::{Builder, Cache, Freshness, Iter, Keys, Op, Stats, TimeToLive, Values, WeakCache};
#[cfg(feature = "dashboard")]
#[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
pub use dashboard::dashboard;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub use engine::metrics::publish_metrics;
pub use engine::{
    event::{Cause, Event, Events, Lagged, LosslessEvents},
    hasher::DefaultHasher,
    sweeper::{Sweep, SweepReport},
    to_key::ToKey,
    ttl::{Ttl, When},
};
#[doc(no_inline)]
pub use equivalent::Equivalent;
pub use rate_limit::{
    Limit, Limited, LimiterStats, Permit, RateLimiter, RateLimiterBuilder, Standing, State, Window,
};
pub use sets::{ExpiringSet, ExpiringSetBuilder, ExpiringSets, SortedSet};
#[cfg(all(feature = "dirq", unix))]
#[cfg_attr(docsrs, doc(cfg(feature = "dirq")))]
pub use spool::{Spool, SpoolStats};
pub use timeout_dict::{Claim, TimeoutDict, TimeoutDictBuilder};

/// The examples of the README are tests.
#[cfg(all(doctest, unix, feature = "axum", feature = "dirq", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
