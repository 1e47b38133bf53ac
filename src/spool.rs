//! The spool.

/// An event stream written to a queue.
#[derive(Debug)]
pub struct Spool;
