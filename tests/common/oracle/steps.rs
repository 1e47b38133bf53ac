//! Steps of the methods.

use std::time::Duration;

use super::{
    Cause, Deadline, Departure, Entry, HardDeadline, Key, Oracle, Record, RemovedTag, Value,
    deadline_at,
};

impl Oracle {
    pub(super) fn keys(&self) -> Vec<Key> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn entry(&mut self, key: Key) -> &mut Entry {
        self.entries.get_mut(&key).expect("the key is resident")
    }

    /// Gives the value that was just put these tags, unless it has expired at once.
    pub(super) fn tag(&mut self, key: Key, tags: Option<[u8; 2]>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.tags = tags;
        }
    }

    pub(super) fn touch(&mut self, key: Key) {
        if let Some(idle) = self.settings.time_to_idle {
            self.entry(key).idle_deadline = deadline_at(self.now.saturating_add(idle));
        }
    }

    pub(super) fn is_removed_by_tag(&self, key: Key) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.removed_tag == RemovedTag::WhileLive)
    }

    /// Returns for how long an expired entry is kept for the loader methods.
    pub(super) fn stale_window(&self) -> Duration {
        self.settings.stale_while_revalidate.max(self.settings.stale_if_error)
    }

    /// Returns whether a sweep removes the entry: it is past its stale window, or one of its tags was removed.
    pub(super) fn is_due(&self, key: Key) -> bool {
        let Some(entry) = self.entries.get(&key) else { return false };
        entry.removed_tag != RemovedTag::None || self.is_past_stale_window(*entry)
    }

    fn is_past_stale_window(&self, entry: Entry) -> bool {
        let end = entry.deadline().map(|deadline| deadline.saturating_add(self.stale_window()));
        end.is_some_and(|end| self.now >= end)
    }

    /// First step of each method: removes an expired entry, unless it is within its stale window.
    pub(super) fn live(&mut self, key: Key) -> Option<Entry> {
        let entry = *self.entries.get(&key)?;
        if self.is_removed_by_tag(key) {
            self.depart(key, Cause::Removed);
        } else if !entry.is_expired(self.now) {
            return Some(entry);
        } else if self.is_past_stale_window(entry) {
            self.depart(key, Cause::Expired);
        }
        None
    }

    /// First step of each write: removes an expired entry, even within its stale window.
    pub(super) fn live_or_remove(&mut self, key: Key) -> Option<Entry> {
        let live = self.live(key);
        if live.is_none() {
            self.depart(key, Cause::Expired);
        }
        live
    }

    pub(super) fn put(
        &mut self,
        key: Key,
        value: Value,
        hard_deadline: HardDeadline,
    ) -> Option<Value> {
        self.failures.discard(key);
        self.live_or_remove(key);
        let replaced = self.depart(key, Cause::Replaced);
        let (idle_deadline, tags, removed_tag) = (None, None, RemovedTag::None);
        let entry = Entry { value, hard_deadline, idle_deadline, tags, removed_tag };
        self.entries.insert(key, entry);
        self.touch(key);
        // It is not kept for loaders. One that is too heavy departs as evicted, which is not predicted here.
        let is_kept = self.stale_window().is_zero() || !self.fits(value);
        if !is_kept && self.entries[&key].is_expired(self.now) {
            self.depart(key, Cause::Expired);
        }
        replaced
    }

    pub(super) fn set_deadline(&mut self, key: Key, deadline: Deadline) {
        self.entry(key).hard_deadline = HardDeadline::at(deadline);
        self.touch(key);
    }

    /// Gives a live entry the deadline that `new` returns, if any. Returns whether it was changed.
    pub(super) fn change_deadline(
        &mut self,
        key: Key,
        new: impl FnOnce(Deadline) -> Option<Deadline>,
    ) -> bool {
        let new = self.live(key).and_then(|entry| new(entry.hard_deadline.latest));
        new.is_some_and(|deadline| {
            self.set_deadline(key, deadline);
            true
        })
    }

    /// Removes an entry, if it is resident, and returns its value.
    pub(super) fn depart(&mut self, key: Key, cause: Cause) -> Option<Value> {
        let entry = self.entries.remove(&key)?;
        let Entry { value, hard_deadline, .. } = entry;
        let record = Record { key, value, cause, deadline: entry.deadline() };
        let departure = Departure { record, hard_deadline };
        self.departures.push(departure);
        if self.causes.contains(&cause) {
            self.expected.push(departure);
        }
        Some(value)
    }
}
