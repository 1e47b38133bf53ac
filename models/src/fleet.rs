//! Deterministic simulation of a fleet: up to a thousand processes that share up to 64 Redis servers.
//!
//! Time is virtual, and all randomness comes from one seed, so a run with the same seed returns the same numbers. The
//! [engine] models connections and the event loop of a server. The scenarios model the protocols of `fleeting`: plain
//! [`requests`], the [`near`] cache, [`limits`] and [`loads`]. The [`costs`] of the server are measured on a real one.
//!
//! `docs/scale.md` is the result; `cargo run --release -p fleeting-models --bin fleet` lists the commands.

mod calibration;
pub mod capacity;
mod client;
pub mod costs;
pub mod engine;
pub mod limits;
pub mod loads;
pub mod near;
pub mod page;
mod picture;
pub mod random;
pub mod requests;
pub mod reservations;
pub mod samples;
mod tables;
#[cfg(test)]
mod tests;
pub mod windows;

/// Seed of the numbers in `docs/scale.md`.
pub const SEED: u64 = 31;
