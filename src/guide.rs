//! The guide: what each part is for, and how it is used.
//!
//! | page | |
//! | --- | --- |
//! | [`streams`] | hearing of what leaves, and what a slow reader loses |
//! | [`handles`] | how long a cache lives, weak handles, a `static` cache and its runtime |
//! | [`loaders`] | values that come from elsewhere: one load for all, errors, old values meanwhile |
//! | [`many_keys`] | many keys in one call, keys of several parts, a value that depends on the one before, tags, futures on keys |
//! | [`bounds`] | how much a cache holds, and who leaves when it is full |
//! | [`snapshots`] | a restart that forgets nothing (feature `serde`) |
//! | [`metrics`] | figures for Prometheus and the like, with the names of all (feature `metrics`) |
//! | [`dashboard`] | a page of all caches and limiters, live, behind your login (feature `dashboard`) |
//! | [`rate_limits`] | windows, several limits, waiting, the layer for axum: behind authentication, for tonic |
//! | [`costs_known_afterwards`] | tokens of a model, bytes, rows: charged when they are known |
//! | [`recipes`] | tokens, codes, idempotency, debounce, jobs with retries, flags, sessions: small programs |
//! | [`from_moka`] | the calls of moka beside these |
//! | [`from_others`] | the calls of quick_cache, retainer, Redis, TimedDict, pyttl and dirq beside these |
//! | [`from_governor`] | the calls of governor and tower-governor beside these |
//! | [`sets`] | members that die when their score is old |
//! | [`timeout_dict`] | deadlines that workers pull |
//! | `redis` | the same names where one machine is not enough (feature `redis`) |
//! | `directory_queues` | queues that other programs read (feature `dirq`) |
//! | [`measured`] | what all this costs, and how that was measured |
//!
//! # Examples
//!
//! In the repository, each with `cargo run --release --example NAME`:
//!
//! | name | |
//! | --- | --- |
//! | `service` | the main job: sessions in axum, rate limits, Server-Sent Events of what expires, the [dashboard] and sessions to put and read on one page; `--spool DIR` keeps what expired, `--snapshot FILE` what lives; `/metrics` for Prometheus; built with `--features redis`, `--redis URL` shares it all |
//! | `limit` | rate limits in a handler, as a layer, by plan, by what a call turns out to cost |
//! | `replay` | a real access log through the paused clock: sessions, their lengths, who asks too often |
//! | `loader` | pages over HTTP, from a server that hangs, fails and goes; what a cache spares it |
//! | `server_stats` | load and page faults of this machine over the last two minutes, in an `ExpiringSet` |
//! | `login_timeout` | two workers on a `TimeoutDict`, one of which dies in mid-work |
//! | `dirq` | directory queues from a shell: add, drain, watch, purge, convert; JSON lines |
//! | `spool_worker.py` | takes what `service --spool DIR` wrote, with the Python package `dirq` |
//! | `tower_sessions` | a store for tower-sessions, whose sessions end on time |
//! | `opentelemetry` | what all this tells of itself, handed to OpenTelemetry |
//! | `first_steps`, `events`, `custom_sweep` | one idea each |
//! | `migrate_timed_dict`, `migrate_ttl_dict` | the calls of two Python libraries beside these |

#[doc = include_str!("guide/streams.md")]
pub mod streams {}

#[doc = include_str!("guide/handles.md")]
pub mod handles {}

#[doc = include_str!("guide/loaders.md")]
pub mod loaders {}

#[doc = include_str!("guide/many_keys.md")]
pub mod many_keys {}

#[doc = include_str!("guide/bounds.md")]
pub mod bounds {}

#[cfg_attr(feature = "axum", doc = include_str!("guide/rate_limits.md"))]
#[cfg_attr(not(feature = "axum"), doc = "This page is built with feature `axum`.")]
pub mod rate_limits {}

#[cfg_attr(feature = "axum", doc = include_str!("guide/costs_known_afterwards.md"))]
#[cfg_attr(not(feature = "axum"), doc = "This page is built with feature `axum`.")]
pub mod costs_known_afterwards {}

#[doc = include_str!("guide/recipes.md")]
pub mod recipes {}

#[doc = include_str!("guide/from_moka.md")]
pub mod from_moka {}

#[doc = include_str!("guide/from_others.md")]
pub mod from_others {}

#[cfg_attr(feature = "axum", doc = include_str!("guide/from_governor.md"))]
#[cfg_attr(not(feature = "axum"), doc = "This page is built with feature `axum`.")]
pub mod from_governor {}

#[doc = include_str!("guide/sets.md")]
pub mod sets {}

#[doc = include_str!("guide/timeout_dict.md")]
pub mod timeout_dict {}

#[cfg_attr(feature = "serde", doc = include_str!("guide/snapshots.md"))]
#[cfg_attr(not(feature = "serde"), doc = "This page is built with feature `serde`.")]
pub mod snapshots {}

#[cfg_attr(feature = "metrics", doc = include_str!("guide/metrics.md"))]
#[cfg_attr(not(feature = "metrics"), doc = "This page is built with feature `metrics`.")]
pub mod metrics {}

#[cfg_attr(all(feature = "dashboard", feature = "axum"), doc = include_str!("guide/dashboard.md"))]
#[cfg_attr(
    not(all(feature = "dashboard", feature = "axum")),
    doc = "This page is built with features `axum` and `dashboard`."
)]
pub mod dashboard {}

#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
#[doc = include_str!("guide/redis.md")]
pub mod redis {}

#[cfg(all(feature = "dirq", unix))]
#[cfg_attr(docsrs, doc(cfg(feature = "dirq")))]
#[doc = include_str!("guide/directory_queues.md")]
pub mod directory_queues {}

/// What was measured: tables that the benches write, each with the command that made it.
///
/// All on one machine of two cores, shared and noisy, with all subjects in turns in one run. What counts is the
/// ratio; other machines have others.
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

    #[doc = include_str!("../docs/dirq.md")]
    pub mod dirq {}
}
