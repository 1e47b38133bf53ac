//! Number of events that a spool writes at once: one after a failure, then more with each success.

/// Maximum number of events that each run holds and writes at once.
pub(super) const MAX_BATCH: usize = 256;

/// Maximum size of a batch in bytes, except that the first event may be longer.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// Number of records to write at once.
pub(super) struct BatchSize {
    size: usize,
    max: usize,
}

impl BatchSize {
    /// Part of a queue's bound that a batch may need. A queue of limited length rejects a batch for which it has no
    /// capacity, even if it has capacity for most of it.
    const PART_OF_BOUND: u64 = 4;

    /// Batches for a queue of up to `bound` elements; `None` if it is not bounded.
    pub(super) fn new(bound: Option<u64>) -> Self {
        let part = bound.map(|bound| bound / Self::PART_OF_BOUND);
        let max = part.map_or(MAX_BATCH, |part| part.clamp(1, MAX_BATCH as u64) as usize);
        Self { size: max, max }
    }

    pub(super) fn get(&self) -> usize {
        self.size
    }

    /// A disk without space for a batch may have space for one event.
    pub(super) fn on_failure(&mut self) {
        self.size = 1;
    }

    /// Step by step: a queue that is nearly full may accept only a few events.
    pub(super) fn on_success(&mut self) {
        self.size = self.max.min(2 * self.size);
    }

    /// Returns whether batches are as large as before the last failure.
    pub(super) fn has_recovered(&self) -> bool {
        self.size == self.max
    }
}
