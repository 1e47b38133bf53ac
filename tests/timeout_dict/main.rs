//! The timeout dictionary in memory, through its public API.

#[path = "../common/sequences.rs"]
mod sequences;

mod claims;
mod due;
mod model;
mod stress;
mod user_types;
mod waiting;
