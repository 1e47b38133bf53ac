//! Models of the protocols of `fleeting`, explored exhaustively by a model checker.

#[cfg(test)]
mod check;
pub mod claims;
pub mod queue_locks;
