//! The timeout dictionary in memory, through its public API.

#[path = "../common/sequences.rs"]
mod sequences;

mod model;
mod promises;
mod stress;
