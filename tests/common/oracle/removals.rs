//! Removals: the expected events, and the entries that sweeps and bounds may remove.

use std::collections::BTreeSet;

use super::{Bound, Cause, Key, Oracle, Record, Value, weigh};

/// Keys that the last call may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    None,
    Key(Key),
    Many,
}

impl Oracle {
    /// Takes the next expected event of the key of `record`. Returns false if there is none or it differs.
    ///
    /// If a call writes many keys, an entry may be evicted before it would have been replaced or,
    /// if it is too heavy, found to be expired.
    pub(crate) fn take_expected(&mut self, record: Record, written: Written) -> bool {
        let Some(next) = self.expected.iter().position(|expected| expected.key == record.key)
        else {
            return false;
        };
        let expected = self.expected[next];
        let is_evicted_first = written == Written::Many
            && self.is_bounded()
            && (expected.cause == Cause::Replaced || !self.fits(expected.value))
            && record == Record { cause: Cause::Evicted, ..expected };
        let matches = record == expected || is_evicted_first;
        if matches {
            self.expected.remove(next);
        }
        matches
    }

    /// Returns the events that are expected and were not taken.
    pub(crate) fn expected(&self) -> &[Record] {
        &self.expected
    }

    /// Removes an entry that a sweep has removed. Returns whether it had expired, else a tag of it was removed.
    pub(crate) fn accept_swept(&mut self, record: Record) -> bool {
        assert!(self.is_due(record.key), "the sweeper removed a live entry: {record:?}");
        let is_expired = !self.is_removed_by_tag(record.key);
        self.live(record.key);
        assert_eq!(self.expected.pop(), Some(record));
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
        assert_eq!(self.expected.pop(), Some(record));
        if is_too_heavy || cause != Cause::Evicted {
            return 0;
        }
        assert!(!is_new, "a new entry that fits was evicted: {record:?}");
        self.weight_of(record.value)
    }

    /// Checks the bound after a write that evicted live entries of weight `evicted`.
    pub(crate) fn check_bound(&self, evicted: u64, written: Written) {
        let (Bound::Entries(bound) | Bound::Weight(bound)) = self.bound else { return };
        let weight = self.weight();
        assert!(weight <= bound, "{weight} of {bound}");
        if evicted > 0 && written != Written::Many {
            assert!(weight + evicted > bound, "{evicted} evicted below the bound");
            let expired = self.entries.values().filter(|entry| !entry.is_live(self.now));
            let mut expired = expired.filter(|entry| self.weight_of(entry.value) > 0);
            assert!(expired.next().is_none(), "a live entry was evicted before an expired one");
        }
    }

    /// Returns the keys that a sweep of all entries must remove.
    pub(crate) fn due(&self) -> BTreeSet<Key> {
        self.entries.keys().copied().filter(|key| self.is_due(*key)).collect()
    }

    pub(crate) fn is_bounded(&self) -> bool {
        !matches!(self.bound, Bound::None)
    }

    pub(super) fn fits(&self, value: Value) -> bool {
        !matches!(self.bound, Bound::Weight(bound) if u64::from(weigh(value)) > bound)
    }

    pub(super) fn weight_of(&self, value: Value) -> u64 {
        if let Bound::Weight(_) = self.bound { weigh(value).into() } else { 1 }
    }
}
