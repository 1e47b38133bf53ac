//! An async in-memory cache for Tokio, with a TTL per entry, prompt expiration and a stream of expiry events.
//!
//! Use it to keep sessions, tokens and answers for as long as they are valid, to learn when they expire, to load each
//! value once for all your requests, and to limit what each client may do.
//!
//! # Quick start
//!
//! ```sh
//! cargo add fleeting
//! cargo add tokio --features macros,rt-multi-thread
//! ```
//!
//! ```
//! use std::time::Duration;
//! use fleeting::Cache;
//!
//! #[tokio::main]
//! async fn main() {
//!     // `Cache::new()` is unbounded. For a bound, use `Cache::builder().max_entries(10_000).build()`.
//!     let sessions: Cache<String, u64> = Cache::new();
//!     let mut events = sessions.events();
//!
//!     sessions.set_ex("ada".into(), 42, Duration::from_millis(300)).await;
//!     println!("{:?}", sessions.get("ada").await); // Some(42)
//!
//!     // Waits until the entry expires. No read of the key is needed.
//!     let event = events.recv().await.unwrap().unwrap();
//!     assert_eq!((event.key.as_str(), event.value), ("ada", 42));
//!     assert_eq!(sessions.get("ada").await, None);
//! }
//! ```
//!
//! [`Cache`] is a sharded concurrent map whose methods are named after Redis commands: `get`, `set_ex`, `expire`,
//! `persist` and so on. A background task removes expired entries within a delay that you configure ([`Sweep`], 100 ms
//! by default, plus the duration of the sweep). You can observe each removal as an [`Event`]. The stream [`Events`]
//! drops events if you read them too slowly; [`LosslessEvents`] drops none and delays the sweeper instead.
//!
//! You also get rate limits, sets whose members expire, a dictionary of deadlines that hands out due entries to your
//! workers, most of these types on Redis, and directory queues.
//!
//! # Which type do I need?
//!
//! | To ... | in one process | in several, over [Redis or Valkey](guide::redis) |
//! | --- | --- | --- |
//! | keep values for a limited time | [`Cache`] | [`redis::Cache`][rcache] |
//! | load a missing value once, for any number of callers | [`Cache::get_or_set`] and other [loaders](guide::loaders) | [`redis::Cache`][rcache] |
//! | react when a value expires or is removed | [`Cache::events`], [`Cache::on_expired`] | [`redis::Cache`][rcache], expirations only |
//! | limit the requests of each user, address or API key | [`RateLimiter`]; [`RateLimitLayer`][layer] for axum, tower and tonic | [`redis::RateLimiter`][rlimiter], in the same layer |
//! | keep recently seen items in order of time, such as the visitors of the last five minutes | [`ExpiringSet`]; [`ExpiringSets`] for one set per key | [`redis::ExpiringSet`][rset] |
//! | rank members by any score, without expiration | [`SortedSet`] | |
//! | run jobs later, with retries and dead letters | [`TimeoutDict`] | [`redis::TimeoutDict`][rdict] |
//! | queue jobs in files, also for Python, Perl, C and Java programs | [`dirq::QueueSimple`][dirq] | the same: processes share the directory |
//! | write expired entries to a directory queue | [`Spool`][spool] | |
//!
//! # Common questions
//!
//! | question | answer |
//! | --- | --- |
//! | How do I bound a cache? | with [`Builder::max_entries`] or [`Builder::max_weight`]. A bound is hard: see [bounds and eviction](guide::bounds) |
//! | How do I load a value only once? | with [`Cache::get_or_set`]: one load runs per key. See [loaders](guide::loaders) |
//! | How am I notified of expirations? | by [`Cache::events`] or [`Cache::on_expired`]: see [event streams](guide::streams) |
//! | How do I use it without async, or without a runtime? | with [`Cache::sync`] and [`Builder::background_thread`]: see [code that is not async](guide::not_async) |
//! | How many nanoseconds does a `get` take? | For one task, in nanoseconds: 61 with 10,000 entries and 561 with a million, at random keys. A bare `DashMap` takes 34 and 369. See [all costs](guide::measured::peers) |
//! | How much memory does an entry take? | 104 to 142 bytes with a 20-byte `String` key and an `Arc<u64>`, both included. For other types, add the sizes of the key, the value and their heap memory to [these parts](guide::bounds#bound-by-weight); a bound adds about 8 to 10 bytes, `time_to_idle` 8, and tags about 30. See [bytes per entry](guide::measured::bytes) |
//! | How do I limit each user? | see [rate limits per user](guide::rate_limits#per-user) |
//! | How do I limit each client behind a proxy? | with [`RateLimitLayer`][layer] and `TrustedProxies`: see [settings for common proxies](guide::rate_limits#behind-a-proxy) |
//! | How do I share a cache or a limit between processes? | see [sharing over Redis](guide::redis) |
//! | Which calls are cancel safe? | see the [table of all async calls](guide::cancel_safety) |
//! | How do I shut down? | see [graceful shutdown](guide::graceful_shutdown) of an axum service |
//! | What is lost in a crash? | see [the table by type](guide::graceful_shutdown#losses-in-a-crash) |
//!
//! # Feature flags
//!
//! No feature is enabled by default, and a feature only adds items. The guide lists their
//! [dependencies and costs](guide::feature_flags).
//!
//! | feature | adds |
//! | --- | --- |
//! | `axum` | [`RateLimitLayer`][layer], [`ClientIp`][client_ip], and [`Limited`] as a response with status 429 |
//! | `dashboard` | [`dashboard()`][dashboard]: a live page of all caches, limiters, sets, dictionaries, queues and spools, as an axum router; enables `metrics` |
//! | `dirq` | [`dirq`][dirq] and [`Spool`][spool]: directory queues (Unix only) |
//! | `metrics` | counters, gauges and histograms for the [`metrics`](https://docs.rs/metrics) facade |
//! | `redis` | [`redis`][redis]: `Cache`, `RateLimiter`, `ExpiringSet` and `TimeoutDict` on Redis 7, Valkey 8, newer versions and their clusters |
//! | `serde` | [snapshots](guide::snapshots); `Serialize` for statistics, events and sweep reports; `Serialize` and `Deserialize` for [`Limit`] |
//!
//! # Guide
//!
//! The [guide] has a page for each main type and feature, [example programs](guide#examples), migration tables, lists
//! of all [log messages](guide::log_messages) and [errors](guide::errors), and [measurements](guide::measured).
//!
//! Recipes for common tasks:
//!
//! - [tokens with their own expiry](guide::recipes#tokens-with-their-own-expiry),
//!   [one-time codes](guide::recipes#one-time-codes),
//!   [sessions with an audit log](guide::recipes#sessions-with-an-audit-log),
//!   [a store for tower-sessions](guide#examples)
//! - [idempotency keys](guide::recipes#idempotency-keys), [deduplication](guide::recipes#deduplication),
//!   [debounce](guide::recipes#debounce), [a job scheduler with retries](guide::recipes#a-job-scheduler-with-retries)
//! - [rate limits per user](guide::rate_limits#per-user) and [address](guide::rate_limits#behind-authentication),
//!   [rate limits for gRPC](guide::rate_limits#grpc-with-tonic)
//! - [feature flags of your application](guide::recipes#flags-of-a-service),
//!   [a static cache, also in tests](guide::not_async#a-static-cache),
//!   [calls from synchronous code](guide::not_async),
//!   [values that are too large to clone](guide::recipes#values-too-large-to-clone)
//!
//! Migration guides for users of
//! [moka](guide::from_moka), [quick_cache](guide::from_others#quick_cache), [retainer](guide::from_others#retainer),
//! [governor and tower-governor](guide::from_governor), [Redis](guide::from_others#redis),
//! [TimedDict](guide::from_others#timeddict-python), [pyttl](guide::from_others#ttldict-pyttl) and
//! [Python's dirq](guide::from_others#dirq-python).
//!
//! # Glossary
//!
//! | term | meaning |
//! | --- | --- |
//! | TTL | a duration: the time from a write until the deadline |
//! | deadline | the instant at which a value expires. A value is expired when `now >= deadline`, everywhere |
//! | persistent | without a deadline |
//! | live | present and not expired. No method returns an expired value; [`Cache`] names its two exceptions. (A [`TimeoutDict`] is for values that are due.) |
//! | stale window | the time after the deadline during which loader methods may still return the value |
//! | resident | held in memory: live, or expired and not yet removed |
//! | expire | reach the deadline. A sweep, or a call that finds the expired entry, then removes it with [`Cause::Expired`] |
//! | evict | remove to free space for other entries ([`Cause::Evicted`]) |
//! | remove | remove at the caller's request ([`Cause::Removed`]) |
//! | replace | overwrite a live value with a new one ([`Cause::Replaced`]) |
//! | sweep | one run of the background task, or of [`Cache::sweep`]: one or more passes |
//! | pass | one examination of a sample of the entries |
//! | lag | the time from an entry's deadline until its removal ([`Event::lag`]) |
//!
//! In this documentation, "removal" means removal for any of these four causes, unless a cause is named.
//!
//! # Time
//!
//! All types except those in `redis` and `dirq` use Tokio's clock ([`tokio::time::Instant`]). On a `current_thread`
//! runtime, tests can control it with `tokio::time::pause` and `advance`. The types in `redis` use the server's clock;
//! `dirq`, and the times that a `Spool` writes, use the wall clock.
//!
//! An entry whose deadline would overflow is persistent. A value with a TTL of zero expires immediately.
//!
//! # Requirements
//!
//! Rust 1.88 and Tokio 1.47, or newer. You build a cache within a Tokio runtime, or anywhere with
//! [`Builder::background_thread`]. The time driver of that runtime must be enabled, unless the cache uses
//! [`Sweep::manual`].
//!
#![cfg_attr(
    feature = "axum",
    doc = "[layer]: crate::RateLimitLayer\n\
        [client_ip]: crate::ClientIp"
)]
#![cfg_attr(
    not(feature = "axum"),
    doc = "[layer]: https://docs.rs/fleeting/latest/fleeting/struct.RateLimitLayer.html\n\
        [client_ip]: https://docs.rs/fleeting/latest/fleeting/struct.ClientIp.html"
)]
#![cfg_attr(feature = "dashboard", doc = "[dashboard]: crate::dashboard()")]
#![cfg_attr(
    not(feature = "dashboard"),
    doc = "[dashboard]: https://docs.rs/fleeting/latest/fleeting/fn.dashboard.html"
)]
#![cfg_attr(
    all(feature = "dirq", unix),
    doc = "[dirq]: mod@crate::dirq\n\
        [spool]: crate::Spool"
)]
#![cfg_attr(
    not(all(feature = "dirq", unix)),
    doc = "[dirq]: https://docs.rs/fleeting/latest/fleeting/dirq/index.html\n\
        [spool]: https://docs.rs/fleeting/latest/fleeting/struct.Spool.html"
)]
#![cfg_attr(
    feature = "redis",
    doc = "[redis]: mod@crate::redis\n\
        [rcache]: crate::redis::Cache\n\
        [rlimiter]: crate::redis::RateLimiter\n\
        [rset]: crate::redis::ExpiringSet\n\
        [rdict]: crate::redis::TimeoutDict"
)]
#![cfg_attr(
    not(feature = "redis"),
    doc = "[redis]: https://docs.rs/fleeting/latest/fleeting/redis/index.html\n\
        [rcache]: https://docs.rs/fleeting/latest/fleeting/redis/struct.Cache.html\n\
        [rlimiter]: https://docs.rs/fleeting/latest/fleeting/redis/struct.RateLimiter.html\n\
        [rset]: https://docs.rs/fleeting/latest/fleeting/redis/struct.ExpiringSet.html\n\
        [rdict]: https://docs.rs/fleeting/latest/fleeting/redis/struct.TimeoutDict.html"
)]
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
pub use cache::{
    Builder, Cache, Freshness, Iter, Keys, Op, Stats, SyncCache, Tagged, TimeToLive, Values,
    WeakCache,
};
#[cfg(feature = "dashboard")]
#[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
pub use dashboard::{Dashboard, dashboard};
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
    InvalidLimit, Limit, Limited, LimiterStats, Permit, RateLimiter, RateLimiterBuilder, Standing,
    State, SyncRateLimiter, Window,
};
pub use sets::{
    ExpiringSet, ExpiringSetBuilder, ExpiringSets, InsertIf, NotANumber, Score, SortedSet,
};
#[cfg(all(feature = "dirq", unix))]
#[cfg_attr(docsrs, doc(cfg(feature = "dirq")))]
pub use spool::{Spool, SpoolStats};
pub use timeout_dict::{Claim, DeadLetter, TimeoutDict, TimeoutDictBuilder};

/// The examples of the README are tests.
#[cfg(all(doctest, unix, feature = "axum", feature = "dirq", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
