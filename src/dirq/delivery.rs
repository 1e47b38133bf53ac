//! How an element is given out, as far as it is remembered: what comes of it decides when it comes again.
//!
//! 1. It is counted before anybody has it: a job that takes its process along has been tried too.
//! 2. One that was locked ahead, and that nobody got, was not tried: its record is as it was before.
//! 3. What can't be remembered, as on a disk that is full, keeps no element from who might make room there.

use std::time::Duration;

use super::{
    Error, Name,
    records::{Record, Records, after, now},
    retry_policy::Retries,
    root::Root,
};

/// An element that is locked and given out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// How often it was given out, with this time.
    attempts: u32,
    /// What was known of it before.
    before: Option<Record>,
    /// Whether this time is in its record.
    is_counted: bool,
    is_handed_out: bool,
}

impl Delivery {
    /// Of an element that is locked; none where it rests, or is dead. It looks for a record only where one may be, or
    /// deliveries are counted.
    pub(super) fn begin(root: &Root, name: &Name, has_records: bool) -> Option<Self> {
        let Some(retries) = root.retries else {
            let records = has_records.then(|| Records::open(root).ok().flatten()).flatten();
            let before = records.and_then(|records| records.get(name).ok().flatten());
            return before.is_none_or(|before| before.is_due(now())).then(|| Self::after(before));
        };
        let Ok(records) = Records::open_or_make(root) else { return Some(Self::after(None)) };
        let before = records.get(name).ok().flatten();
        if before.is_some_and(|before| !before.is_due(now())) {
            return None;
        }
        let mut delivery = Self::after(before);
        if let Some(before) = before
            && retries.are_over(before.attempts)
        {
            // Its last process died over it, with the lock that a purge took. Where this fails, the next who looks
            // finds the same.
            let _ = records.put(name, Record::dead(before.attempts));
            return None;
        }
        delivery.is_counted = records.put(name, Record::given_out(delivery.attempts)).is_ok();
        Some(delivery)
    }

    /// Of one that is dead, which this changes nothing of.
    pub(super) fn of_dead(record: Record) -> Self {
        Self {
            attempts: record.attempts,
            before: Some(record),
            is_counted: false,
            is_handed_out: true,
        }
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// From here on, to give it back is to have failed.
    pub(super) fn hand_out(&mut self) {
        self.is_handed_out = true;
    }

    /// Forgets an element that was removed.
    pub(super) fn forget(&self, root: &Root, name: &Name) {
        if self.is_counted || self.before.is_some() {
            // What stays is the purge's.
            let _ = Records::open(root).map(|records| records.map(|records| records.remove(name)));
        }
    }

    /// Remembers that it is given back, before it is unlocked: for how long it rests is by its backoff, or by `delay`.
    pub(super) fn give_back(
        &self,
        root: &Root,
        name: &Name,
        delay: Option<Duration>,
    ) -> Result<(), Error> {
        let was_given_out = Record::given_out(self.attempts);
        let known = if self.is_counted { Some(was_given_out) } else { self.before };
        let next = self.next(root, name, delay);
        if next == known {
            return Ok(());
        }
        let records = Records::open_or_make(root)?;
        // Another has it by now, as a purge took this lock.
        if records.get(name)? != known {
            return Ok(());
        }
        match next {
            Some(next) => records.put(name, next),
            None => records.remove(name),
        }
    }

    /// What is to be known of it when it is back.
    fn next(&self, root: &Root, name: &Name, delay: Option<Duration>) -> Option<Record> {
        let is_remembered = root.retries.is_some() || delay.is_some();
        let is_dead = self.before.is_some_and(|before| before.is_dead());
        if !self.is_handed_out || !is_remembered || is_dead {
            return self.before;
        }
        let retries = root.retries.unwrap_or(Retries::DEFAULT);
        if retries.are_over(self.attempts) {
            return Some(Record::dead(self.attempts));
        }
        let delay = delay.unwrap_or_else(|| retries.backoff(self.attempts, name.element));
        Some(Record { attempts: self.attempts, due: Some(after(delay)) })
    }

    fn after(before: Option<Record>) -> Self {
        let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
        Self { attempts, before, is_counted: false, is_handed_out: false }
    }
}
