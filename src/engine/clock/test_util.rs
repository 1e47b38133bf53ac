//! Whether somebody compiled Tokio with its feature `test-util`: Cargo does not tell a crate of its
//! dependencies' features, so it is read off what Tokio exports.

/// Whether Tokio was compiled with `test-util`, so that its clock may be paused.
pub(super) const TEST_UTIL: bool = {
    // The glob shadows the `pause` below exactly where Tokio has one.
    #[allow(unused_imports)]
    use tokio::time::*;
    pause_is_tokios(pause)
};

struct NoPause;

trait Pause {
    const IS_TOKIOS: bool;
}

impl Pause for () {
    const IS_TOKIOS: bool = true;
}

impl Pause for NoPause {
    const IS_TOKIOS: bool = false;
}

const fn pause_is_tokios<P: Pause>(_: fn() -> P) -> bool {
    P::IS_TOKIOS
}

#[allow(dead_code)]
fn pause() -> NoPause {
    NoPause
}
