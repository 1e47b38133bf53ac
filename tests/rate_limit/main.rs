//! Tests of the rate limiter in memory, through its public API.

#[path = "../common/borrowed.rs"]
mod borrowed;
#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/crossings.rs"]
mod crossings_table;
#[path = "../common/fuse.rs"]
mod fuse;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/several_limits.rs"]
mod oracle;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/sequences.rs"]
mod sequences;
#[path = "../common/two_clocks.rs"]
mod two_clocks;

mod access_log;
mod changes;
mod checks;
mod crossings;
mod everything;
mod exact_remaining;
mod foreign;
mod keys;
mod limit_texts;
mod limits;
mod long_logs;
mod max_wait;
mod model;
mod peek_refund_reset;
mod runtimes;
mod settle;
mod several_limits;
mod stress;
mod sync_handle;
mod wait_queue;
mod waiting;
