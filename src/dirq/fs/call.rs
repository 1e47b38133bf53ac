//! The threshold of the door to the file system: each call to the kernel goes over it, so that a test can refuse it,
//! tell lies of it, or end all there.

use rustix::io::{Errno, Result};

/// Makes a call to the kernel, which `name` names to tests.
#[inline]
pub(super) fn call<T>(name: &'static str, make: impl FnOnce() -> Result<T>) -> Result<T> {
    #[cfg(test)]
    let made = super::faults::inject(name, make);
    #[cfg(not(test))]
    let made = {
        let _ = name;
        make()
    };
    made.map_err(|error| match error {
        // On a network: name was open here is gone there.
        Errno::STALE => Errno::NOENT,
        error => error,
    })
}
