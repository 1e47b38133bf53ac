//! Tests of the behaviour that embedded and Redis types share: run in memory with a paused clock, and on a real server.

mod cache;
mod dead_letters;
mod dicts;
mod expiring_set;
mod rate_limiter;
mod retries;
mod timeout_dict;
