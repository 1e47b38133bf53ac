//! The sweeper: a Tokio task that removes expired entries, and its settings.
//!
//! 1. A sweep is one or more passes. A pass examines a share of each shard, in windows, starting where the previous
//!    pass stopped. The shards come in random order.
//! 2. The first pass of a sweep is always completed, so that every resident entry is examined within `ceil(1 / sample)`
//!    sweeps. The budget only limits repeats.
//! 3. A locked shard is retried later. After some retries the sweeper closes the shard's gate to new readers, and spins
//!    for a time that its worker can spare.
//! 4. The task holds a `Weak`, upgrades it for each step, and keeps nothing of the cache across an await: otherwise the
//!    cache would outlive its last handle.

mod config;
mod report;
mod start;
mod sweep_run;
mod task;

pub use self::{config::Sweep, report::SweepReport};
pub(crate) use self::{
    start::{set_sweep, start},
    sweep_run::{Leftovers, Step, SweepRun, shrink},
};
