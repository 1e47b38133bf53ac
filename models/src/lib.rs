//! Models of the protocols of `fleeting`, explored exhaustively by a model checker, and a simulator of a fleet.

#[cfg(test)]
mod check;
pub mod claims;
pub mod fleet;
pub mod fleet_loads;
pub mod journal;
pub mod near_cache;
pub mod queue_locks;
