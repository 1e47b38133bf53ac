//! The layer below all public types: clock, store, sweeper, event streams, metrics. Nothing in here depends on `cache`,
//! `rate_limit` or any other module above it.

pub(crate) mod background;
pub(crate) mod block_on;
pub(crate) mod bound;
pub(crate) mod clock;
pub(crate) mod coop;
pub(crate) mod counters;
#[cfg(any(feature = "redis", feature = "serde", all(feature = "dirq", unix)))]
pub(crate) mod encodable;
pub(crate) mod event;
pub(crate) mod failed_loads;
pub(crate) mod hasher;
#[cfg(all(test, shuttle))]
mod interleavings;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(any(feature = "redis", feature = "serde", all(feature = "dirq", unix)))]
pub(crate) mod nesting;
pub(crate) mod panics;
pub(crate) mod retries;
pub(crate) mod runtime_thread;
#[cfg(feature = "serde")]
pub(crate) mod seconds;
pub(crate) mod shard;
pub(crate) mod shards;
pub(crate) mod shared_state;
#[cfg(any(feature = "dashboard", feature = "redis"))]
pub(crate) mod shown_hash;
pub(crate) mod slot_index;
pub(crate) mod split_mix;
pub(crate) mod store;
pub(crate) mod sweeper;
pub(crate) mod sync;
pub(crate) mod tasks;
pub(crate) mod text;
pub(crate) mod threads;
pub(crate) mod to_key;
pub(crate) mod ttl;
pub(crate) mod victims;
pub(crate) mod waiters;
