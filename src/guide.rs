//! The guide: a page for each main type and feature, with tested examples.
//!
//! Look for your subject in the tables, or search for a word: the search of this documentation also finds pages by the
//! names that other libraries use, such as `block_on`, `dead letter`, `hit rate`, `save`, `quota` or `subscribe`.
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

/// Declares pages of the guide: words by which the search finds them, their files, and what they need for their
/// examples to compile.
macro_rules! pages {
    ($($(#[$alias:meta])* $page:ident $(needs $needs:literal if $condition:meta)?),* $(,)?) => {
        $(page!($(#[$alias])* $page, concat!("guide/", stringify!($page), ".md") $(, $needs, $condition)?);)*
    };
}

macro_rules! page {
    ($(#[$alias:meta])* $page:ident, $file:expr) => {
        $(#[$alias])*
        #[doc = include_str!($file)]
        pub mod $page {}
    };
    ($(#[$alias:meta])* $page:ident, $file:expr, $needs:literal, $condition:meta) => {
        $(#[$alias])*
        #[cfg_attr($condition, doc = include_str!($file))]
        #[cfg_attr(not($condition), doc = concat!(
            "This page needs ", $needs, ". Read it on \
             [docs.rs](https://docs.rs/fleeting/latest/fleeting/guide/", stringify!($page), "/)."
        ))]
        pub mod $page {}
    };
}

page!(crossings, "../docs/crossings.md");

pages! {
    #[doc(alias = "subscribe")]
    #[doc(alias = "listener")]
    #[doc(alias = "notification")]
    streams,
    handles,
    #[doc(alias = "block_on")]
    #[doc(alias = "blocking")]
    #[doc(alias = "synchronous")]
    not_async,
    loaders,
    many_keys,
    #[doc(alias = "hit rate")]
    #[doc(alias = "eviction")]
    #[doc(alias = "capacity")]
    bounds,
    #[doc(alias = "quota")]
    #[doc(alias = "throttle")]
    rate_limits needs "feature `axum`" if feature = "axum",
    costs_known_afterwards needs "feature `axum`" if feature = "axum",
    recipes,
    ports,
    from_moka,
    from_others,
    from_governor needs "feature `axum`" if feature = "axum",
    sets,
    #[doc(alias = "dead letter")]
    #[doc(alias = "delay queue")]
    #[doc(alias = "retry")]
    timeout_dict,
    #[doc(alias = "save")]
    #[doc(alias = "persistence")]
    snapshots needs "feature `serde`" if feature = "serde",
    metrics needs "feature `metrics`" if feature = "metrics",
    log_messages,
    errors,
    dashboard needs "features `axum` and `dashboard`" if all(feature = "dashboard", feature = "axum"),
    graceful_shutdown needs "Unix, and features `axum`, `dashboard` and `dirq`"
        if all(feature = "axum", feature = "dashboard", feature = "dirq", unix),
    cancel_safety,
    feature_flags,
    redis needs "feature `redis`" if feature = "redis",
    before_production needs "feature `redis`" if feature = "redis",
    #[doc(alias = "dead letter")]
    directory_queues needs "Unix and feature `dirq`" if all(feature = "dirq", unix),
    dirq_tool,
}

/// Measurements: tables written by the benchmarks, each with the command that produced it.
///
/// All of them come from one shared, noisy machine with two cores. Within a run, the candidates take turns. Compare the
/// ratios rather than the absolute times. Ratios may also differ on other machines.
pub mod measured {
    page!(peers, "../docs/peers.md");
    page!(cores, "../docs/cores.md");
    page!(
        #[doc(alias = "hit rate")]
        hit_ratio,
        "../docs/hit-ratio.md"
    );
    page!(loaders, "../docs/loaders.md");
    page!(sweep, "../docs/sweep.md");
    page!(fairness, "../docs/fairness.md");
    page!(memory, "../docs/memory.md");
    page!(bytes, "../docs/bytes.md");
    page!(events, "../docs/events.md");
    page!(rate_limit, "../docs/rate-limit.md");
    page!(sets, "../docs/sets.md");
    page!(timeout_dict, "../docs/timeout-dict.md");
    page!(snapshot, "../docs/snapshot.md");
    page!(dashboard, "../docs/dashboard.md");
    page!(redis, "../docs/redis.md");
    // The definitions of the pictures first: those of the page name files, which rustdoc does not copy.
    #[doc = include_str!("../docs/scale-pictures.md")]
    #[doc = include_str!("../docs/scale.md")]
    pub mod scale {}
    page!(dirq, "../docs/dirq.md");
}
