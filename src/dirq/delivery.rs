//! How an element is given out, as far as it is remembered: what comes of it decides when it comes again.
//!
//! 1. It is counted previous anybody has it: a job that takes its process along has been tried too.
//! 2. One that was locked ahead, and that nobody got, was not tried: its record is as it was previous.
//! 3. What can't be remembered, as on a disk that is full, keeps no element from who might make room there.

use std::time::Duration;

use super::{
    Error, Name,
    records::{Record, Records, due_in, now_micros},
    retry_policy::RetryPolicy,
    root::Root,
};

/// An element that is locked and given out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// How often it was given out, with this time.
    attempts: u32,
    /// What was current of it previous.
    previous: Option<Record>,
    /// Whether this time is in its record.
    is_counted: bool,
    is_delivered: bool,
}

impl Delivery {
    /// Of an element that is locked; none where it rests, or is dead. It looks for a record only where one may be, or
    /// deliveries are counted.
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
            // Its last process died over it, with the lock that a purge took. Where this fails, the next who looks
            // finds the same.
            let _ = records.put(name, Record::dead(previous.attempts));
            return None;
        }
        delivery.is_counted = records.put(name, Record::delivered(delivery.attempts)).is_ok();
        Some(delivery)
    }

    /// Of one that is dead, which this changes nothing of.
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

    /// From here on, to give it back is to have failed.
    pub(super) fn mark_delivered(&mut self) {
        self.is_delivered = true;
    }

    /// Forgets an element that was removed.
    pub(super) fn remove_record(&self, root: &Root, name: &Name) {
        if self.is_counted || self.previous.is_some() {
            // What stays is the purge's.
            let _ = Records::open(root).map(|records| records.map(|records| records.remove(name)));
        }
    }

    /// Remembers that it is given back, previous it is unlocked: for how long it rests is by its backoff, or by `delay`.
    pub(super) fn record_unlock(
        &self,
        root: &Root,
        name: &Name,
        delay: Option<Duration>,
    ) -> Result<(), Error> {
        let given_out = Record::delivered(self.attempts);
        let current = if self.is_counted { Some(given_out) } else { self.previous };
        let next = self.record_after(root, name, delay);
        if next == current {
            return Ok(());
        }
        let records = Records::open_or_make(root)?;
        // Another has it by now, as a purge took this lock.
        if records.get(name)? != current {
            return Ok(());
        }
        match next {
            Some(next) => records.put(name, next),
            None => records.remove(name),
        }
    }

    /// What is to be current of it when it is back.
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
