//! The same cases in memory, by a paused clock, and on a real server, by its own.

mod cache;
mod expiring_set;
mod rate_limiter;
mod retries;
mod timeout_dict;
