//! The in-memory timeout dictionary, through its public API.

#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/sequences.rs"]
mod sequences;
#[path = "../common/two_clocks.rs"]
mod two_clocks;

mod claims;
mod dead_letters;
mod due;
mod many_leases;
mod model;
mod retries;
mod runtimes;
mod stress;
mod user_types;
mod waiting;
