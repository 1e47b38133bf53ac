//! What feature `redis` adds, on real servers; and what it shares with the types in memory, on both.

#[path = "../common/clock.rs"]
mod clock;
#[cfg(feature = "axum")]
#[path = "../common/http.rs"]
mod http;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/redis.rs"]
mod servers;

mod answers;
mod cache_events;
mod cache_faults;
mod client;
mod conformance;
#[cfg(feature = "dashboard")]
mod dashboard;
mod expiring_set;
mod failover;
mod fleet;
#[cfg(feature = "axum")]
mod layer;
mod layouts;
mod loaders;
mod many;
mod moving;
mod names;
mod near;
mod near_connections;
mod near_history;
mod near_many;
mod network;
mod rate_limiter;
mod rate_limiter_changes;
mod rate_limiter_everything;
mod rate_limiter_eviction;
mod rate_limiter_faults;
mod rate_limiter_lines;
mod rate_limiter_model;
mod rights;
mod runtimes;
mod timeout_dict;
mod timeout_dict_faults;
mod timeout_dict_model;
