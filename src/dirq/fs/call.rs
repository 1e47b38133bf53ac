//! The threshold of the door to the file system: each call to the kernel goes over it, so that a test can refuse it,
//! tell lies of it, or end all there.

use rustix::io::{Errno, Result};

/// Makes a call to the kernel, which `what` names to tests.
#[inline]
pub(super) fn call<T>(what: &'static str, make: impl FnOnce() -> Result<T>) -> Result<T> {
    #[cfg(test)]
    let made = super::faults::meet(what, make);
    #[cfg(not(test))]
    let made = {
        let _ = what;
        make()
    };
    made.map_err(|error| match error {
        // On a network: what was open here is gone there.
        Errno::STALE => Errno::NOENT,
        error => error,
    })
}
