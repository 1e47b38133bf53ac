//! The delivery of an element, as far as it is recorded: its outcome determines when the element is delivered again.
//!
//! 1. A delivery is recorded before the user has the element, so that a job that crashes its process counts.
//! 2. A prefetched element that the user never received has not failed: its record is restored.
//! 3. If the record cannot be written, for instance on a full disk, the element is delivered nevertheless: its worker
//!    may free space.

use std::time::Duration;

use super::{
    Error, Name,
    records::{Record, Records, due_in, now_micros},
    retry_policy::RetryPolicy,
    root::Root,
};

/// The delivery of a locked element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Number of deliveries, including this one.
    attempts: u32,
    /// The record before this delivery.
    previous: Option<Record>,
    /// True if this delivery has been recorded.
    is_counted: bool,
    is_delivered: bool,
}

impl Delivery {
    /// Begins the delivery of a locked element. Returns `None` if it waits for its backoff or is dead. Reads a record
    /// only if one may exist, or if deliveries are counted.
    pub(super) fn begin(root: &Root, name: &Name, has_records: bool) -> Option<Self> {
        let Some(retries) = root.retries else {
            let records = has_records.then(|| Records::open(root).ok().flatten()).flatten();
            let previous = records.and_then(|records| records.get(name).ok().flatten());
            return previous
                .is_none_or(|previous| previous.is_due(now_micros()))
                .then(|| Self::new(previous));
        };
        let Ok(records) = Records::open_or_make(root) else { return Some(Self::new(None)) };
        let previous = records.get(name).ok().flatten();
        if previous.is_some_and(|previous| !previous.is_due(now_micros())) {
            return None;
        }
        let mut delivery = Self::new(previous);
        if let Some(previous) = previous
            && retries.is_exhausted(previous.attempts)
        {
            // Its last worker crashed, and a purge removed the lock. If this write fails, the next process finds the
            // same record.
            let _ = records.put(name, Record::dead(previous.attempts));
            return None;
        }
        delivery.is_counted = records.put(name, Record::delivered(delivery.attempts)).is_ok();
        Some(delivery)
    }

    /// Returns the delivery of a dead letter, which changes nothing in its record.
    pub(super) fn for_dead_letter(record: Record) -> Self {
        Self {
            attempts: record.attempts,
            previous: Some(record),
            is_counted: false,
            is_delivered: true,
        }
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Marks the element as handed to the user. From now on, unlocking it counts as a failure.
    pub(super) fn mark_delivered(&mut self) {
        self.is_delivered = true;
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Removes the record of an element that was removed.
    pub(super) fn remove_record(&self, root: &Root, name: &Name) {
        if self.is_counted || self.previous.is_some() {
            // On failure the purge removes the record later.
            let _ = Records::open(root).map(|records| records.map(|records| records.remove(name)));
        }
    }

    /// Records the outcome before the element is unlocked. A failed element waits for its backoff, or for `delay`.
    /// Returns the time at which that ends, in microseconds since 1970.
    pub(super) fn record_unlock(
        &self,
        root: &Root,
        name: &Name,
        delay: Option<Duration>,
    ) -> Result<Option<u64>, Error> {
        let given_out = Record::delivered(self.attempts);
        let current = if self.is_counted { Some(given_out) } else { self.previous };
        let next = self.record_after(root, name, delay);
        if next == current {
            return Ok(None);
        }
        let records = Records::open_or_make(root)?;
        // If the record has changed, another process has the lock, because a purge removed ours.
        if records.get(name)? != current {
            return Ok(None);
        }
        match next {
            Some(next) => records.put(name, next)?,
            None => records.remove(name)?,
        }
        Ok(next.and_then(|next| next.due))
    }

    /// Returns the record of the element after it is unlocked.
    fn record_after(&self, root: &Root, name: &Name, delay: Option<Duration>) -> Option<Record> {
        let is_recorded = root.retries.is_some() || delay.is_some();
        let is_dead = self.previous.is_some_and(|previous| previous.is_dead());
        if !self.is_delivered || !is_recorded || is_dead {
            return self.previous;
        }
        let retries = root.retries.unwrap_or(RetryPolicy::DEFAULT);
        if retries.is_exhausted(self.attempts) {
            return Some(Record::dead(self.attempts));
        }
        let delay = delay.unwrap_or_else(|| retries.backoff(self.attempts, name.element));
        Some(Record { attempts: self.attempts, due: Some(due_in(delay)) })
    }

    fn new(previous: Option<Record>) -> Self {
        let attempts = previous.map_or(0, |previous| previous.attempts).saturating_add(1);
        Self { attempts, previous, is_counted: false, is_delivered: false }
    }
}
