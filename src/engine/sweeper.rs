//! The Tokio task that lets dead values leave, and how it is set.
//!
//! 1. A sweep is one or more passes; a pass looks at a share of each shard, in windows, from where the
//!    last pass stopped. The shards come in random order.
//! 2. The first pass of a sweep is always whole, so that every resident entry is looked at within
//!    `ceil(1 / sample)` sweeps. Only repeats are cut by the budget.
//! 3. A locked shard is come back to; after some times the sweeper keeps those out who come to read it, for so long
//!    as its worker may wait.
//! 4. The task holds a `Weak`, upgrades it for each step, and keeps nothing across an await.

mod config;
mod report;
mod start;
mod task;

pub use self::{config::Sweep, report::SweepReport};
pub(crate) use self::{
    start::{set_sweep, start},
    task::{Step, SweepRun, shrink},
};
