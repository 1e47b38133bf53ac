//! The events that were taken off a stream and are not yet in the queue, and how the tries to write them went.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{record::Record, stats::SpoolStats};
use crate::dirq::Error;

/// How many events are in hand at most, of each run, and written at once.
pub(super) const BATCH: usize = 256;
/// The same in bytes; beyond the first, which may be longer.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// What is in hand. It is under a lock, and so never drops a record itself.
pub(super) struct Backlog {
    /// The oldest first. Only the task that writes takes them out, and so those of its batch are the first until it
    /// has written them, whatever comes behind meanwhile.
    records: VecDeque<Arc<Record>>,
    /// How many to write at once: fewer after a try that failed.
    batch_size: usize,
    written: u64,
    unsynced: u64,
    unwritable: u64,
    skipped: u64,
    failures: u64,
    stalled_since: Option<Instant>,
    /// Whether the last batch was not synced.
    is_unsynced: bool,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self {
            records: VecDeque::new(),
            batch_size: BATCH,
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

    pub(super) fn push(&mut self, record: Record) {
        self.records.push_back(Arc::new(record));
    }

    /// Counts an event that can't be written.
    pub(super) fn count_unwritable(&mut self) {
        self.unwritable += 1;
    }

    /// The next to write, which stay in the backlog until they are written.
    pub(super) fn batch(&self) -> Vec<Arc<Record>> {
        let mut bytes = 0;
        let fits = |record: &&Arc<Record>| {
            bytes += record.len();
            bytes <= BATCH_BYTES || bytes == record.len()
        };
        self.records.iter().take(self.batch_size).take_while(fits).cloned().collect()
    }

    /// Takes out the first, which the queue will never take. To be dropped outside of the lock.
    pub(super) fn skip(&mut self) -> Option<Arc<Record>> {
        self.skipped += 1;
        self.failures += 1;
        // What it held up may be written as before.
        self.stalled_since = None;
        self.records.pop_front()
    }

    /// Takes out the first, which are in the queue. To be dropped outside of the lock.
    pub(super) fn remove_written(&mut self, written: usize) -> Vec<Arc<Record>> {
        self.written += written as u64;
        self.records.drain(..written).collect()
    }

    /// Counts a try to write, after what was written is taken out.
    pub(super) fn record_attempt(
        &mut self,
        batch: usize,
        written: usize,
        result: &Result<(), Error>,
    ) -> Option<Transition> {
        self.failures += u64::from(result.is_err());
        if result.is_err() && written < batch {
            // A disk that has no room for a batch may have some for one.
            self.batch_size = 1;
            let begins = self.stalled_since.is_none();
            self.stalled_since.get_or_insert_with(Instant::now);
            return begins.then_some(Transition::Stalled);
        }
        self.batch_size = BATCH.min(2 * self.batch_size);
        // All is in the queue. To write it again would double it, at each try.
        let was_unsynced = mem::replace(&mut self.is_unsynced, result.is_err());
        if self.is_unsynced {
            self.unsynced += written as u64;
            self.stalled_since = None;
            return (!was_unsynced).then_some(Transition::Unsynced);
        }
        // Where one goes in now and then, it has not come to take them all.
        if self.batch_size < BATCH && !self.records.is_empty() {
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

/// That the queue begins to refuse what it is given, or takes it again.
pub(super) enum Transition {
    Stalled,
    /// It takes what it is given, but can't promise that a crash of the machine leaves it.
    Unsynced,
    /// After it had stalled for so long.
    Recovered(Duration),
}
