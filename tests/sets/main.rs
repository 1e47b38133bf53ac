//! Expiring and sorted sets in memory, through their public API.

#[path = "../common/fuse.rs"]
mod fuse;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/sequences.rs"]
mod sequences;

mod departures;
mod expiring;
mod expiring_model;
mod sorted;
mod threads;
mod user_types;
