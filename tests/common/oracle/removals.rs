//! Removals: the expected events, and the entries that sweeps and bounds may remove.

use std::collections::BTreeSet;

use super::{Bound, Cause, Entry, HardDeadline, Key, Oracle, Record, RemovedTag, Value, weigh};

/// Keys that the last call may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    None,
    Key(Key),
    Many,
}

/// Removal of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) record: Record,
    pub(super) hard_deadline: HardDeadline,
}

impl Departure {
    /// Returns whether this is the removal that the cache has reported. Its deadline may be one that jitter shortened.
    fn matches(&self, reported: Record) -> bool {
        let has_deadline = reported.deadline == self.record.deadline
            || self.hard_deadline.earliest != self.hard_deadline.latest
                && self.hard_deadline.may_be(reported.deadline);
        has_deadline && Record { deadline: self.record.deadline, ..reported } == self.record
    }
}

impl Oracle {
    /// Takes the next expected event of the key of `record`. Returns false if there is none or it differs.
    ///
    /// If a call writes many keys, an entry may be evicted before it would have been replaced or,
    /// if it is too heavy, found to be expired.
    pub(crate) fn take_expected(&mut self, record: Record, written: Written) -> bool {
        let Some(next) =
            self.expected.iter().position(|expected| expected.record.key == record.key)
        else {
            return false;
        };
        let expected = self.expected[next];
        let is_evicted_first = written == Written::Many
            && self.is_bounded()
            && (expected.record.cause == Cause::Replaced || !self.fits(expected.record.value))
            && record.cause == Cause::Evicted
            && expected.matches(Record { cause: expected.record.cause, ..record });
        let matches = expected.matches(record) || is_evicted_first;
        if matches {
            self.expected.remove(next);
        }
        if is_evicted_first {
            let mut departures = self.departures.iter_mut();
            let departure = departures.find(|departure| departure.record == expected.record);
            departure.expect("it is expected").record.cause = Cause::Evicted;
        }
        matches
    }

    /// Returns the events that are expected and were not taken.
    pub(crate) fn expected(&self) -> Vec<Record> {
        self.expected.iter().map(|departure| departure.record).collect()
    }

    /// Returns whether `reported` is the first removal of its key by the call; `None` if the call did not remove it.
    pub(crate) fn has_removed(&self, key: Key, reported: Option<Record>) -> bool {
        let removed = self.departures.iter().find(|departure| departure.record.key == key);
        match (removed, reported) {
            (Some(departure), Some(record)) => departure.matches(record),
            (removed, reported) => removed.is_none() && reported.is_none(),
        }
    }

    /// Ends a call.
    pub(crate) fn end_call(&mut self) {
        self.departures.clear();
    }

    /// Returns whether a sweep that ran during a call may have removed this entry.
    pub(crate) fn may_be_swept(&self, record: Record) -> bool {
        self.is_due(record.key) && record.cause != Cause::Evicted
    }

    /// Removes an entry that a sweep has removed. Returns whether it had expired, else a tag of it was removed.
    pub(crate) fn accept_swept(&mut self, record: Record) -> bool {
        assert!(self.is_due(record.key), "the sweeper removed a live entry: {record:?}");
        let is_expired = !self.is_removed_by_tag(record.key);
        let cause = if is_expired { Cause::Expired } else { Cause::Removed };
        self.depart(record.key, cause);
        self.take_last(record);
        is_expired
    }

    /// Removes an entry that `written` has removed because of the bound. Returns the weight of a live entry.
    pub(crate) fn accept_evicted(&mut self, record: Record, written: Written) -> u64 {
        assert!(self.is_bounded(), "an unexpected event: {record:?}, expected {:?}", self.expected);
        let entry = self.entries.get(&record.key);
        let entry = *entry.unwrap_or_else(|| panic!("{record:?}: the entry is not resident"));
        let is_new = written == Written::Key(record.key);
        let is_too_heavy = (is_new || written == Written::Many) && !self.fits(entry.value);
        let cause = match (self.is_removed_by_tag(record.key), entry.is_expired(self.now)) {
            _ if is_too_heavy && record.cause == Cause::Evicted => Cause::Evicted,
            (true, _) => Cause::Removed,
            (_, true) => Cause::Expired,
            _ => Cause::Evicted,
        };
        self.depart(record.key, cause);
        self.take_last(record);
        if is_too_heavy || cause != Cause::Evicted {
            return 0;
        }
        assert!(!is_new, "a new entry that fits was evicted: {record:?}");
        self.weight_of(record.value)
    }

    /// Takes the event that was expected last.
    fn take_last(&mut self, record: Record) {
        let expected = self.expected.pop().expect("the removal is published");
        assert!(expected.matches(record), "{record:?} instead of {expected:?}");
    }

    /// Checks the bound after a write that evicted live entries of weight `evicted`. `finds_removed` is whether a write
    /// certainly finds the entries that were removed by tag.
    pub(crate) fn check_bound(&self, evicted: u64, written: Written, finds_removed: bool) {
        let (Bound::Entries(bound) | Bound::Weight(bound)) = self.settings.bound else { return };
        let weight = self.weight();
        assert!(weight <= bound, "{weight} of {bound}");
        if evicted > 0 && written != Written::Many {
            assert!(weight + evicted > bound, "{evicted} evicted below the bound");
            let is_unreadable = |entry: &Entry| match entry.removed_tag {
                RemovedTag::WhileLive => finds_removed,
                _ => entry.is_expired(self.now),
            };
            let unreadable = self.entries.values().filter(|entry| is_unreadable(entry));
            let mut unreadable = unreadable.filter(|entry| self.weight_of(entry.value) > 0);
            let first = unreadable.next();
            assert!(first.is_none(), "a live entry was evicted before {first:?}");
        }
    }

    /// Returns the keys that a sweep of all entries must remove.
    pub(crate) fn due(&self) -> BTreeSet<Key> {
        self.entries.keys().copied().filter(|key| self.is_due(*key)).collect()
    }

    pub(crate) fn is_bounded(&self) -> bool {
        !matches!(self.settings.bound, Bound::None)
    }

    pub(super) fn fits(&self, value: Value) -> bool {
        !matches!(self.settings.bound, Bound::Weight(bound) if u64::from(weigh(value)) > bound)
    }

    pub(super) fn weight_of(&self, value: Value) -> u64 {
        if let Bound::Weight(_) = self.settings.bound { weigh(value).into() } else { 1 }
    }
}
