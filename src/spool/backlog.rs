//! The events that were taken off a stream and are not in the queue yet, and the results of the attempts to write them,
//! for the log and the statistics.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    batch_size::{BATCH_BYTES, BatchSize},
    record::SpoolRecord,
    stats::SpoolStats,
};
use crate::dirq::Error;

/// Events that are held. The backlog is guarded by a lock, so its methods return records instead of dropping them.
pub(super) struct Backlog {
    /// Oldest first. Only the task that writes removes records, so its batch stays at the front until it is written,
    /// even if records are pushed in the meantime.
    records: VecDeque<Arc<SpoolRecord>>,
    batch_size: BatchSize,
    written: u64,
    unsynced: u64,
    unwritable: u64,
    skipped: u64,
    failures: u64,
    stalled_since: Option<Instant>,
    /// True if the last batch could not be synced.
    is_unsynced: bool,
}

impl Backlog {
    /// The backlog of a queue of up to `bound` elements; `None` if it is not bounded.
    pub(super) fn new(bound: Option<u64>) -> Self {
        Self {
            records: VecDeque::new(),
            batch_size: BatchSize::new(bound),
            written: 0,
            unsynced: 0,
            unwritable: 0,
            skipped: 0,
            failures: 0,
            stalled_since: None,
            is_unsynced: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn push(&mut self, record: SpoolRecord) {
        self.records.push_back(Arc::new(record));
    }

    /// Counts an event that cannot be serialized.
    pub(super) fn count_unwritable(&mut self) {
        self.unwritable += 1;
    }

    /// Returns the next records to write. They stay in the backlog until they are written.
    pub(super) fn batch(&self) -> Vec<Arc<SpoolRecord>> {
        let mut bytes = 0;
        let fits = |record: &&Arc<SpoolRecord>| {
            bytes += record.len();
            bytes <= BATCH_BYTES || bytes == record.len()
        };
        self.records.iter().take(self.batch_size.get()).take_while(fits).cloned().collect()
    }

    /// Removes the first record, which the queue will never accept. Drop it outside of the lock.
    pub(super) fn skip(&mut self) -> Option<Arc<SpoolRecord>> {
        self.skipped += 1;
        self.failures += 1;
        // The events behind it may be written now.
        self.stalled_since = None;
        self.records.pop_front()
    }

    /// Removes the first records, which are in the queue. Drop them outside of the lock.
    pub(super) fn remove_written(&mut self, written: usize) -> Vec<Arc<SpoolRecord>> {
        self.written += written as u64;
        self.records.drain(..written).collect()
    }

    /// Records the result of an attempt, after the written records were removed.
    pub(super) fn record_attempt(
        &mut self,
        batch: usize,
        written: usize,
        result: &Result<(), Error>,
    ) -> Option<Transition> {
        self.failures += u64::from(result.is_err());
        if result.is_err() && written < batch {
            self.batch_size.on_failure();
            let begins = self.stalled_since.is_none();
            self.stalled_since.get_or_insert_with(Instant::now);
            // Once per stall, and not at each attempt.
            return begins.then_some(Transition::Stalled);
        }
        self.batch_size.on_success();
        // All events are in the queue. Writing them again would duplicate them at each attempt.
        let was_unsynced = mem::replace(&mut self.is_unsynced, result.is_err());
        if self.is_unsynced {
            self.unsynced += written as u64;
            self.stalled_since = None;
            return (!was_unsynced).then_some(Transition::Unsynced);
        }
        // A single event that was accepted does not mean that the queue has recovered.
        if !self.batch_size.has_recovered() && !self.records.is_empty() {
            return None;
        }
        self.stalled_since.take().map(|since| Transition::Recovered(since.elapsed()))
    }

    pub(super) fn stats(&self) -> SpoolStats {
        SpoolStats {
            written: self.written,
            unsynced: self.unsynced,
            in_hand: self.records.len(),
            unwritable: self.unwritable,
            skipped: self.skipped,
            failures: self.failures,
            stalled: self.stalled_since.map(|since| since.elapsed()),
        }
    }
}

/// A change in whether the queue accepts events.
pub(super) enum Transition {
    Stalled,
    /// Events are accepted, but may not survive a crash of the machine.
    Unsynced,
    /// After a stall of this duration.
    Recovered(Duration),
}
