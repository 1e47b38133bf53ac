//! Models of the protocols of `fleeting`, explored exhaustively by a model checker.
pub mod fleet;
