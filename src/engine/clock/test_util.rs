//! Detects whether Tokio was compiled with its feature `test-util`. Cargo does not expose the features of a dependency,
//! so this is derived from Tokio's exports.

/// True if Tokio was compiled with `test-util`, so that its clock may be paused.
pub(super) const TEST_UTIL: bool = {
    // The glob import shadows the `pause` below if and only if Tokio exports one.
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
