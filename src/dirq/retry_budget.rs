//! How often a call begins anew before it gives up.

use std::path::PathBuf;

use super::Error;

/// The tries of one call: others may take a name or remove a directory under it each time, but not for ever.
pub(super) struct RetryBudget {
    operation: &'static str,
    left: u32,
}

impl RetryBudget {
    /// More than any number of processes that happen to meet, and few enough to end soon where something is wrong.
    const TRIES: u32 = 256;

    pub(super) fn of(operation: &'static str) -> Self {
        Self { operation, left: Self::TRIES }
    }

    /// QueueMetrics a try that failed; an error after the last.
    pub(super) fn spend(&mut self, path: impl FnOnce() -> PathBuf) -> Result<(), Error> {
        self.left -= 1;
        match self.left {
            0 => Err(Error::GaveUp { operation: self.operation, path: path(), tries: Self::TRIES }),
            _ => Ok(()),
        }
    }
}
