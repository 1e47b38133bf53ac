//! The delivery of an element, as far as it is recorded: its outcome determines when the element is delivered again.
//!
//! 1. A delivery is recorded before the user has the element, so that a job that crashes its process counts.
//! 2. A prefetched element that the user never received has not failed: its record is restored.
//! 3. If the record cannot be written, for instance on a full disk, the element is delivered nevertheless: its worker
//!    may free space. If it cannot be read, the element is not delivered: it may be a dead letter.
//! 4. The record is also a fence: if it is that of another delivery, a purge has removed the lock of this one, and
//!    another process has locked the element since. Its lock must not be released or renewed.

use std::time::Duration;

use super::{
    Error, Name,
    record::{Record, due_in, now_micros},
    records::Records,
    retry_policy::backoff,
    root::Root,
};
use crate::engine::retries::Retries;

/// The end of a delivery whose element stays in the queue.
#[derive(Debug)]
pub(super) enum DeliveryEnd {
    /// A failure: the element waits for its backoff if deliveries are counted.
    Dropped,
    /// A failure after which the element waits for the given time.
    RetryIn(Duration),
    /// A failure with its reason, after which the element waits for its backoff.
    Failed(String),
    /// The element could not be read: a failure with its reason if deliveries are counted.
    Unreadable(String),
    /// No attempt: the element is as it was before the delivery.
    Released,
}

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
    /// only if one may exist, or if deliveries are counted. If it cannot be read, there is no delivery: it may be that
    /// of a dead letter.
    pub(super) fn begin(
        root: &Root,
        name: &Name,
        may_have_records: bool,
    ) -> Result<Option<Self>, Error> {
        let Some(retries) = root.retries else {
            let records = if may_have_records { open_unless_foreign(root)? } else { None };
            let previous = records.map_or(Ok(None), |records| records.get(name))?;
            let is_due = previous.is_none_or(|previous| previous.is_due(now_micros()));
            return Ok(is_due.then(|| Self::new(previous)));
        };
        let records = match Records::open_or_make(root) {
            Ok(records) => records,
            // The directory of the queue is away, and with it the record.
            Err(error) if error.is_missing() => return Err(error),
            Err(error) => match open_unless_foreign(root)? {
                Some(_) => return Err(error),
                None => {
                    root.note_recorded(Err(error));
                    return Ok(Some(Self::new(None)));
                }
            },
        };
        let previous = records.get(name)?;
        if previous.is_some_and(|previous| !previous.is_due(now_micros())) {
            return Ok(None);
        }
        let mut delivery = Self::new(previous);
        if let Some(previous) = previous
            && retries.is_exhausted(previous.attempts)
        {
            // Its last worker crashed, and a purge removed the lock. If this write fails, the next process finds the
            // same record.
            let _ = records.put(name, Record::dead(previous.attempts));
            return Ok(None);
        }
        let recorded = records.put(name, Record::delivered(delivery.attempts));
        delivery.is_counted = recorded.is_ok();
        root.note_recorded(recorded);
        Ok(Some(delivery))
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
        if !self.is_counted && self.previous.is_none() {
            return;
        }
        let Ok(Some(records)) = Records::open(root) else { return };
        // On failure the purge removes them later.
        let _ = records.remove(name);
        // The first delivery has no earlier failure.
        if self.previous.is_some() {
            let _ = records.remove_reason(name);
        }
    }

    /// Returns [`Error::NotLocked`] if another process has locked the element since this delivery, as far as records
    /// show it.
    pub(super) fn check(&self, root: &Root, name: &Name) -> Result<(), Error> {
        if root.retries.is_none() && self.previous.is_none() {
            return Ok(());
        }
        match Records::open(root)? {
            Some(records) => self.has_record(root, &records, name).map(drop),
            None => Ok(()),
        }
    }

    /// Records the outcome before the element is unlocked, and returns the time at which it is delivered again, in
    /// microseconds since 1970. Returns [`Error::NotLocked`] as [`check`](Self::check) does.
    pub(super) fn record_unlock(
        &self,
        root: &Root,
        name: &Name,
        outcome: &DeliveryEnd,
    ) -> Result<Option<u64>, Error> {
        let next = self.record_after(root, name, outcome);
        let reason = match outcome {
            DeliveryEnd::Failed(reason) if self.is_delivered => Some(reason),
            // A dead letter keeps the reason for which it is one.
            DeliveryEnd::Unreadable(reason) if root.retries.is_some() && !self.is_dead() => {
                Some(reason)
            }
            _ => None,
        };
        if next == self.record() && reason.is_none() {
            return self.check(root, name).map(|()| None);
        }
        // If the element is missing, unlocking it reports that.
        let Some(records) = Records::open_or_make_for(root, name)? else { return Ok(None) };
        if !self.has_record(root, &records, name)? {
            // All records were deleted, in order to forget them.
            return Ok(None);
        }
        // Before the record: a dead letter has its reason as soon as it is listed.
        let explained = reason.map_or(Ok(()), |reason| records.put_reason(name, reason));
        let recorded = match next {
            next if next == self.record() => Ok(()),
            Some(next) => records.put(name, next),
            None => records.remove(name),
        };
        recorded.and(explained)?;
        Ok(next.and_then(|next| next.due))
    }

    /// Returns whether the record is still that of this delivery, or false if it was deleted or revived;
    /// [`Error::NotLocked`] if it is another.
    fn has_record(&self, root: &Root, records: &Records, name: &Name) -> Result<bool, Error> {
        match records.get(name)? {
            found if found == self.record() => Ok(true),
            None => Ok(false),
            // It was revived under its lock. A later delivery would have been counted.
            Some(found) if found.attempts == 0 => Ok(false),
            Some(_) => Err(Error::NotLocked { path: root.path_of(name) }),
        }
    }

    /// Returns the record during this delivery.
    fn record(&self) -> Option<Record> {
        match self.is_counted {
            true => Some(Record::delivered(self.attempts)),
            false => self.previous,
        }
    }

    /// Returns the record of the element after it is unlocked.
    fn record_after(&self, root: &Root, name: &Name, outcome: &DeliveryEnd) -> Option<Record> {
        if !self.is_delivered || self.is_dead() {
            return self.previous;
        }
        let retries = match (root.retries, outcome) {
            (_, DeliveryEnd::Released)
            | (None, DeliveryEnd::Dropped | DeliveryEnd::Unreadable(_)) => {
                return self.previous;
            }
            (retries, _) => retries.unwrap_or(Retries::DEFAULT),
        };
        if retries.is_exhausted(self.attempts) {
            return Some(Record::dead(self.attempts));
        }
        let delay = match outcome {
            DeliveryEnd::RetryIn(delay) => *delay,
            _ => backoff(&retries, self.attempts, name),
        };
        Some(Record { attempts: self.attempts, due: Some(due_in(delay)) })
    }

    /// Returns whether this is the delivery of a dead letter.
    fn is_dead(&self) -> bool {
        self.previous.is_some_and(|previous| previous.is_dead())
    }

    fn new(previous: Option<Record>) -> Self {
        let attempts = previous.map_or(0, |previous| previous.attempts).saturating_add(1);
        Self { attempts, previous, is_counted: false, is_delivered: false }
    }
}

/// Opens the records. Returns `None` if the queue has none, or something else has the name of their directory.
fn open_unless_foreign(root: &Root) -> Result<Option<Records>, Error> {
    match Records::open(root) {
        Err(Error::Foreign { .. }) => Ok(None),
        opened => opened,
    }
}
