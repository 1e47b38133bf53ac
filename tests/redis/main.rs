//! Tests of feature `redis` on real servers, and tests of the behaviour shared with the types in memory, on both.

#[path = "../common/arguments.rs"]
mod arguments;
#[path = "../common/cancel.rs"]
mod cancel;
#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/crossings.rs"]
mod crossings_table;
#[cfg(feature = "axum")]
#[path = "../common/http.rs"]
mod http;
#[cfg(feature = "axum")]
#[path = "../common/layer_crossings.rs"]
mod layer_crossings;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/several_limits.rs"]
mod oracle;
#[path = "../common/pairs.rs"]
mod pairs_table;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/redis.rs"]
mod servers;

#[cfg(feature = "axum")]
mod behind_proxy;
mod cache_event_clock;
mod cache_event_index;
mod cache_event_loss;
mod cache_event_retries;
mod cache_events;
mod cache_eviction;
mod cache_faults;
mod cache_groups;
mod cancellation;
mod claims_history;
mod client;
mod compat;
mod conformance;
mod crossings;
#[cfg(feature = "dashboard")]
mod dashboard;
mod differential;
mod events_history;
mod expiring_set;
mod failover;
mod fleet;
mod freshness;
mod history;
mod hostile_server;
mod key_collisions;
#[cfg(feature = "axum")]
mod late_requests;
mod layer;
#[cfg(feature = "axum")]
mod layer_failures;
mod loaders;
mod loads_history;
mod many;
mod near;
mod near_connections;
mod near_history;
mod near_many;
mod network;
mod outages;
mod outdated_sentinels;
mod pairs;
mod permissions;
mod rate_limiter;
mod rate_limiter_eviction;
mod rate_limiter_faults;
mod rate_limiter_model;
mod rate_limiter_plans;
mod rate_limiter_set_limits;
mod rate_limiter_several_limits;
mod rate_limiter_stress;
mod rate_limiter_waiting;
mod reservations;
mod runtimes;
mod script_arguments;
mod server_replies;
mod shard_counts;
mod sizes;
mod slot_migration;
mod stored_data;
mod tags;
mod timeout_dict;
mod timeout_dict_batches;
mod timeout_dict_commands;
mod timeout_dict_eviction;
mod timeout_dict_faults;
mod timeout_dict_model;
