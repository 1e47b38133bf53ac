//! Models of the protocols of `fleeting`, explored exhaustively by a model checker.

#[cfg(test)]
mod check;
pub mod fleet_loads;
pub mod near_cache;
