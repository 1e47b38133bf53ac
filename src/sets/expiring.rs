//! Sets whose members expire when their scores, which are times, are older than a TTL: [`ExpiringSet`] is a single set,
//! [`ExpiringSets`] holds one set per key.
//!
//! 1. Each change is made under one lock and with one reading of the clock. It first removes expired members, so that
//!    no call sees them. Events are recorded under that lock and sent after it is released.
//! 2. User code that runs under the lock only compares or clones (`Eq`, `Clone`), and runs before anything is changed.
//!    Removed and rejected members are dropped after the lock is released.
//! 3. The sweeper holds a `Weak` and sleeps until the next expiry. A push that expires sooner than that wakes it. It
//!    then locks only the shards with members that may have expired, which it finds without a lock (`schedule`).

mod builder;
mod change;
mod expiring_set;
mod expiring_sets;
mod expiring_state;
#[cfg(all(test, shuttle))]
mod interleavings;
mod members;
#[cfg(feature = "metrics")]
mod metrics;
mod schedule;
mod sets_by_key;
mod shard;
mod sweeper;

pub use self::{
    builder::ExpiringSetBuilder, expiring_set::ExpiringSet, expiring_sets::ExpiringSets,
};
