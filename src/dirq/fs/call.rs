//! The wrapper of all system calls, where tests inject faults: an error before or after the call, or a crash of the
//! process.

use rustix::io::{Errno, Result};

/// Makes a system call, which tests identify by `name`.
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
        // On a network file system, an open file was removed by another client.
        Errno::STALE => Errno::NOENT,
        error => error,
    })
}
