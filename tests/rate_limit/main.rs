//! The rate limiter in memory, through its public API.

#[path = "../common/borrowed.rs"]
mod borrowed;
#[path = "../common/fuse.rs"]
mod fuse;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/sequences.rs"]
mod sequences;
#[path = "../common/two_clocks.rs"]
mod two_clocks;

mod access_log;
mod changes;
mod checks;
mod everything;
mod foreign;
mod in_use;
mod keys;
mod limits;
mod lines;
mod model;
mod runtimes;
mod settle;
mod stress;
mod waiting;
