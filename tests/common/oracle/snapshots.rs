//! Snapshots.

use std::time::Duration;

use super::{HardDeadline, Key, Oracle, Value};

/// Live entries at the time of a snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    at: Duration,
    entries: Vec<Saved>,
}

#[derive(Debug)]
struct Saved {
    key: Key,
    value: Value,
    /// Time until the sooner of the hard and the idle deadline.
    remaining: Option<Duration>,
    hard_remaining: Option<Duration>,
    tags: Option<[u8; 2]>,
}

impl Snapshot {
    pub(crate) fn at(&self) -> Duration {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Oracle {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let live = self.entries.iter().filter(|(_, entry)| entry.is_live(self.now));
        let entries = live.map(|(key, entry)| Saved {
            key: *key,
            value: entry.value,
            remaining: entry.deadline().map(|deadline| deadline - self.now),
            hard_remaining: entry.hard_deadline.latest.map(|deadline| deadline - self.now),
            tags: entry.tags,
        });
        Snapshot { at: self.now, entries: entries.collect() }
    }

    /// Returns the number of restored entries.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) -> u64 {
        let elapsed = self.now - snapshot.at;
        let mut count = 0;
        for saved in &snapshot.entries {
            if saved.remaining.is_some_and(|remaining| remaining <= elapsed) {
                continue;
            }
            count += 1;
            let ttl = saved.hard_remaining.map(|remaining| remaining - elapsed);
            let deadline = ttl.and_then(|ttl| self.after(ttl));
            self.put(saved.key, saved.value, HardDeadline::at(deadline));
            self.entry(saved.key).tags = saved.tags;
        }
        count
    }
}
