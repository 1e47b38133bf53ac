//! Tests of the in-memory cache through its public API.

#[path = "../common/borrowed.rs"]
mod borrowed;
#[path = "../common/calls.rs"]
mod calls;
#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/comparison.rs"]
mod comparison;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/oracle.rs"]
mod oracle;
#[path = "../common/pairs.rs"]
mod pairs_table;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/sequences.rs"]
mod sequences;
#[path = "../common/wait_until.rs"]
mod wait_until;

mod bounds;
mod bounds_threads;
mod bulk_loads;
mod causes;
mod contract;
mod event_retention;
mod fairness;
mod freshness;
mod idle_caches;
mod idle_time;
mod iteration;
mod kept_errors;
mod large_evictions;
mod large_values;
mod load_deadlines;
mod load_waits;
mod loaded_tags;
mod loader_futures;
mod loaders;
mod logging;
mod many;
mod many_writes;
mod model;
mod pairs;
mod panicking_drops;
mod promises;
mod refresh_errors;
mod runtimes;
#[cfg(feature = "serde")]
mod serialized;
mod set_sweep;
#[cfg(feature = "serde")]
mod snapshot;
#[cfg(feature = "serde")]
mod snapshot_churn;
#[cfg(feature = "serde")]
mod snapshot_files;
mod snapshot_helpers;
mod streams;
mod streams_model;
mod stress;
mod sweeper;
mod sync_handle;
mod tag_backlog;
mod tags;
mod tags_threads;
mod undriven_runtimes;
mod user_types;
mod verbs;
mod waiting;
mod weak;
