//! The guide: a page for each main type and feature, with tested examples.
//!
//! # Cache
//!
//! | page | subject |
//! | --- | --- |
//! | [`streams`] | event streams, and their behavior with slow subscribers |
//! | [`loaders`] | loading missing values: single flight, errors, stale values, refreshes |
//! | [`crossings`] | methods called during a load, or for a key with an error, a stale value or a tag: which of the two wins |
//! | [`many_keys`] | batches, keys of several parts, read-modify-write, tags, waiting for a key |
//! | [`bounds`] | limiting a cache by entries or by weight, and how it evicts |
//! | [`handles`] | lifetime of a cache, weak handles, runtimes |
//! | [`not_async`] | libraries, `static` caches, functions that are not async, programs without a runtime |
//! | [`snapshots`] | saving a cache to a file and restoring it (feature `serde`) |
//!
//! # Rate limits, sets and deadlines
//!
//! | page | subject |
//! | --- | --- |
//! | [`rate_limits`] | limits per user, windows, several limits, waiting, the layer for axum, tower and tonic |
//! | [`costs_known_afterwards`] | charging tokens, bytes or rows once they are known |
//! | [`sets`] | sets whose members expire |
//! | [`timeout_dict`] | due entries for workers, with leases, retries and dead letters |
//!
//! # Several processes
//!
//! | page | subject |
//! | --- | --- |
//! | [`redis`] | `Cache`, `RateLimiter`, `ExpiringSet` and `TimeoutDict` on Redis and Valkey, and their behavior during failures (feature `redis`) |
//! | [`before_production`] | a checklist for Redis: rights, memory, persistence, sizes, upgrades (feature `redis`) |
//! | [`directory_queues`] | queues in files, shared with programs in other languages (feature `dirq`) |
//! | [`dirq_tool`] | the command `dirq`: directory queues from a shell, and workers in any language |
//!
//! # Operation
//!
//! | page | subject |
//! | --- | --- |
//! | [`metrics`] | metrics for Prometheus, OpenTelemetry and others (feature `metrics`) |
//! | [`dashboard`] | a live page of all caches, limiters, sets, dictionaries, queues and spools (feature `dashboard`) |
//! | [`graceful_shutdown`] | the order of a shutdown, tested in an axum service; losses in a crash |
//! | [`cancel_safety`] | every async call: its effects if it is cancelled |
//! | [`feature_flags`] | additions, dependencies and costs of each feature |
//! | [`log_messages`] | every log message, with its cause and remedy |
//! | [`errors`] | every error type, with causes and remedies |
//! | [`measured`] | measurements of all types, compared with other crates |
//!
//! # Recipes and migration
//!
//! | page | subject |
//! | --- | --- |
//! | [`recipes`] | small programs: tokens, one-time codes, idempotency, debounce, jobs with retries, flags, sessions |
//! | [`ports`] | five programs that were ported, and what that took |
//! | [`from_moka`] | from moka |
//! | [`from_others`] | from quick_cache, retainer, Redis, TimedDict, pyttl and Python's dirq |
//! | [`from_governor`] | from governor and tower-governor |
//!
//! # Examples
//!
//! Programs in the repository. Run one with `cargo run --release --example NAME`:
//!
//! | name | shows |
//! | --- | --- |
//! | `service` | the main example: sessions and rate limits in axum, Server-Sent Events of expirations, the [dashboard], and `/metrics` for Prometheus. `--spool DIR` writes expired sessions to a directory queue, `--snapshot FILE` keeps live sessions over a restart. If built with `--features redis`, `--redis URL` shares all of it between processes |
//! | `limit` | rate limits in a handler, as a layer, per plan, and by actual cost |
//! | `limit_by_user` | a rate limit per authenticated user, and one per address for failed logins |
//! | `graceful_shutdown` | the program of [`graceful_shutdown`]: SIGTERM ends requests, waiters, streams and a spool |
//! | `on_redis` | a cache, a limiter and jobs that processes share, with `--features redis` |
//! | `worker` | a worker with retries, dead letters and their reasons, and a shutdown during its work |
//! | `replay` | a real access log, replayed on the paused clock: sessions, their lengths, and clients with too many requests |
//! | `loader` | pages loaded over HTTP from a server that hangs, fails and disappears, and the requests that a cache saves |
//! | `server_stats` | load and page faults of this machine over the last two minutes, in an `ExpiringSet` |
//! | `login_timeout` | two workers on a `TimeoutDict`, one of which is killed during its work |
//! | `dirq` | directory queues from a shell: add, drain, watch, purge, convert; JSON lines |
//! | `spool_worker.py` | a Python worker, with the package `dirq`, for the output of `service --spool DIR` |
//! | `tower_sessions` | a session store for tower-sessions whose sessions end on time |
//! | `opentelemetry` | metrics sent to OpenTelemetry |
//! | `first_steps`, `events`, `custom_sweep` | short programs for first use, event streams, and settings of the sweeper |
//! | `migrate_moka_before`, `migrate_moka_after` | a program with moka, and after its migration. The same for `governor` and `tower_governor` in place of `moka` |
//! | `migrate_timed_dict`, `migrate_ttl_dict` | migration from two Python libraries, call by call |

#[doc = include_str!("guide/streams.md")]
pub mod streams {}

#[doc = include_str!("guide/handles.md")]
pub mod handles {}

#[doc = include_str!("guide/not_async.md")]
#[doc(alias = "sync")]
#[doc(alias = "block_on")]
#[doc(alias = "blocking")]
pub mod not_async {}

#[doc = include_str!("guide/loaders.md")]
pub mod loaders {}

#[doc = include_str!("../docs/crossings.md")]
pub mod crossings {}

#[doc = include_str!("guide/many_keys.md")]
pub mod many_keys {}

#[doc = include_str!("guide/bounds.md")]
pub mod bounds {}

#[cfg_attr(feature = "axum", doc = include_str!("guide/rate_limits.md"))]
#[cfg_attr(
    not(feature = "axum"),
    doc = "This page needs feature `axum`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/rate_limits/)."
)]
pub mod rate_limits {}

#[cfg_attr(feature = "axum", doc = include_str!("guide/costs_known_afterwards.md"))]
#[cfg_attr(
    not(feature = "axum"),
    doc = "This page needs feature `axum`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/costs_known_afterwards/)."
)]
pub mod costs_known_afterwards {}

#[doc = include_str!("guide/recipes.md")]
pub mod recipes {}

#[doc = include_str!("guide/ports.md")]
pub mod ports {}

#[doc = include_str!("guide/from_moka.md")]
pub mod from_moka {}

#[doc = include_str!("guide/from_others.md")]
pub mod from_others {}

#[cfg_attr(feature = "axum", doc = include_str!("guide/from_governor.md"))]
#[cfg_attr(
    not(feature = "axum"),
    doc = "This page needs feature `axum`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/from_governor/)."
)]
pub mod from_governor {}

#[doc = include_str!("guide/sets.md")]
pub mod sets {}

#[doc = include_str!("guide/timeout_dict.md")]
pub mod timeout_dict {}

#[cfg_attr(feature = "serde", doc = include_str!("guide/snapshots.md"))]
#[cfg_attr(
    not(feature = "serde"),
    doc = "This page needs feature `serde`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/snapshots/)."
)]
pub mod snapshots {}

#[cfg_attr(feature = "metrics", doc = include_str!("guide/metrics.md"))]
#[cfg_attr(
    not(feature = "metrics"),
    doc = "This page needs feature `metrics`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/metrics/)."
)]
pub mod metrics {}

#[doc = include_str!("guide/log_messages.md")]
pub mod log_messages {}

#[doc = include_str!("guide/errors.md")]
pub mod errors {}

#[cfg_attr(all(feature = "dashboard", feature = "axum"), doc = include_str!("guide/dashboard.md"))]
#[cfg_attr(
    not(all(feature = "dashboard", feature = "axum")),
    doc = "This page needs features `axum` and `dashboard`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/dashboard/)."
)]
pub mod dashboard {}

#[cfg_attr(
    all(feature = "axum", feature = "dashboard", feature = "dirq", unix),
    doc = include_str!("guide/graceful_shutdown.md")
)]
#[cfg_attr(
    not(all(feature = "axum", feature = "dashboard", feature = "dirq", unix)),
    doc = "This page needs Unix, and features `axum`, `dashboard` and `dirq`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/graceful_shutdown/)."
)]
pub mod graceful_shutdown {}

#[doc = include_str!("guide/cancel_safety.md")]
pub mod cancel_safety {}

#[doc = include_str!("guide/feature_flags.md")]
pub mod feature_flags {}

#[cfg_attr(feature = "redis", doc = include_str!("guide/redis.md"))]
#[cfg_attr(
    not(feature = "redis"),
    doc = "This page needs feature `redis`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/redis/)."
)]
pub mod redis {}

#[cfg_attr(feature = "redis", doc = include_str!("guide/before_production.md"))]
#[cfg_attr(
    not(feature = "redis"),
    doc = "This page needs feature `redis`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/before_production/)."
)]
pub mod before_production {}

#[cfg_attr(all(feature = "dirq", unix), doc = include_str!("guide/directory_queues.md"))]
#[cfg_attr(
    not(all(feature = "dirq", unix)),
    doc = "This page needs Unix and feature `dirq`. Read it on \
        [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/directory_queues/)."
)]
pub mod directory_queues {}

#[doc = include_str!("guide/dirq_tool.md")]
pub mod dirq_tool {}

/// Measurements: tables written by the benchmarks, each with the command that produced it.
///
/// All of them come from one shared, noisy machine with two cores. Within a run, the candidates take turns. Compare the
/// ratios rather than the absolute times. Ratios may also differ on other machines.
pub mod measured {
    #[doc = include_str!("../docs/peers.md")]
    pub mod peers {}

    #[doc = include_str!("../docs/hit-ratio.md")]
    pub mod hit_ratio {}

    #[doc = include_str!("../docs/loaders.md")]
    pub mod loaders {}

    #[doc = include_str!("../docs/sweep.md")]
    pub mod sweep {}

    #[doc = include_str!("../docs/fairness.md")]
    pub mod fairness {}

    #[doc = include_str!("../docs/memory.md")]
    pub mod memory {}

    #[doc = include_str!("../docs/bytes.md")]
    pub mod bytes {}

    #[doc = include_str!("../docs/events.md")]
    pub mod events {}

    #[doc = include_str!("../docs/rate-limit.md")]
    pub mod rate_limit {}

    #[doc = include_str!("../docs/sets.md")]
    pub mod sets {}

    #[doc = include_str!("../docs/timeout-dict.md")]
    pub mod timeout_dict {}

    #[doc = include_str!("../docs/snapshot.md")]
    pub mod snapshot {}

    #[doc = include_str!("../docs/dashboard.md")]
    pub mod dashboard {}

    #[doc = include_str!("../docs/redis.md")]
    pub mod redis {}

    // The definitions of the pictures first: those of the page name files, which rustdoc does not copy.
    #[doc = include_str!("../docs/scale-pictures.md")]
    #[doc = include_str!("../docs/scale.md")]
    pub mod scale {}

    #[doc = include_str!("../docs/dirq.md")]
    pub mod dirq {}
}
