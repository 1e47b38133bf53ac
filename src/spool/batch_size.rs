//! Number of events that a spool writes at once: one after a failure, then more with each success.

/// Maximum number of events that each run holds and writes at once.
pub(super) const MAX_BATCH: usize = 256;

/// Number of records to write at once.
pub(super) struct BatchSize(usize);

impl BatchSize {
    pub(super) fn new() -> Self {
        Self(MAX_BATCH)
    }

    pub(super) fn get(&self) -> usize {
        self.0
    }

    /// A disk without space for a batch may have space for one event.
    pub(super) fn on_failure(&mut self) {
        self.0 = 1;
    }

    /// Step by step: a queue that is nearly full may accept only a few events.
    pub(super) fn on_success(&mut self) {
        self.0 = MAX_BATCH.min(2 * self.0);
    }

    /// Returns whether batches are as large as before the last failure.
    pub(super) fn has_recovered(&self) -> bool {
        self.0 == MAX_BATCH
    }
}
