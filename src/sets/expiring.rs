//! Sets whose members die when their scores, which are times, have grown old: [`ExpiringSet`] is one,
//! [`ExpiringSets`] are one a key.
//!
//! 1. A change is made under one lock, with one reading of the clock, and begins with the dead: they leave
//!    before anybody sees them. Events are recorded under that lock, and sent after it.
//! 2. What is the user's runs under the lock only to look or to copy (`Eq`, `Clone`), and before anything is
//!    changed. What leaves, and what came in vain, is dropped after it.
//! 3. The sweeper holds a `Weak`, and sleeps until the next death. Who lets a member die sooner than the
//!    sweeper knows of wakes it; what it looks at then, and which shards it locks, follows from what is due
//!    (`schedule`).

mod builder;
mod change;
#[cfg(all(test, shuttle))]
mod interleavings;
mod keyed_members;
mod members;
#[cfg(feature = "metrics")]
mod metrics;
mod schedule;
mod set;
mod sets;
mod shard;
mod state;
mod sweeper;

pub use self::{builder::ExpiringSetBuilder, set::ExpiringSet, sets::ExpiringSets};
