//! What every type stands on: the clock, the store, the sweeper and the streams. It knows none of them.

pub(crate) mod clock;
pub(crate) mod coop;
pub(crate) mod event;
pub(crate) mod hasher;
#[cfg(all(test, shuttle))]
mod interleavings;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod panics;
#[cfg(feature = "serde")]
pub(crate) mod seconds;
pub(crate) mod shards;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod sweeper;
pub(crate) mod sync;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod to_key;
pub(crate) mod ttl;
