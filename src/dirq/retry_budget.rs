//! A limit on the number of attempts of one call.

use std::path::PathBuf;

use super::Error;

/// The remaining attempts of one call. Other processes may take a name or remove a directory before each attempt, but
/// not forever.
pub(super) struct RetryBudget {
    operation: &'static str,
    left: u32,
}

impl RetryBudget {
    /// More than the number of processes that are likely to interfere, and few enough to end soon if something is
    /// wrong.
    const TRIES: u32 = 256;

    pub(super) fn of(operation: &'static str) -> Self {
        Self { operation, left: Self::TRIES }
    }

    /// Counts a failed attempt. Returns an error after the last.
    pub(super) fn spend(&mut self, path: impl FnOnce() -> PathBuf) -> Result<(), Error> {
        self.left -= 1;
        match self.left {
            0 => Err(Error::GaveUp { operation: self.operation, path: path(), tries: Self::TRIES }),
            _ => Ok(()),
        }
    }
}
