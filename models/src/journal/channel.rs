//! A channel, as in `src/engine/event/channel.rs`: unread events, each with the number of readers that read it next.

use super::Bug;

/// A removal: its shard, and its number among those of the shard.
pub(super) type Removal = (u8, u8);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    /// Maximum number of unread events; `None` for lossless subscribers.
    pub(super) ring: Option<u8>,
    pub(super) events: Vec<(Removal, u8)>,
    /// Number of the first event.
    pub(super) first: u8,
    /// Number of readers that have read all events.
    pub(super) at_end: u8,
}

impl Channel {
    pub(super) fn end(&self) -> u8 {
        self.first + self.events.len() as u8
    }

    fn readers_at(&mut self, index: usize) -> &mut u8 {
        match self.events.get_mut(index) {
            Some((_, next_readers)) => next_readers,
            None => &mut self.at_end,
        }
    }

    fn pop(&mut self) -> (Removal, u8) {
        self.first += 1;
        self.events.remove(0)
    }

    /// Returns the number of the event that a new reader reads next.
    pub(super) fn join(&mut self) -> u8 {
        self.at_end += 1;
        self.end()
    }

    pub(super) fn leave(&mut self, next: u8, bug: Option<Bug>) {
        if bug != Some(Bug::LeaverIsCounted) {
            *self.readers_at(next.saturating_sub(self.first).into()) -= 1;
        }
        while self.events.first().is_some_and(|(_, next_readers)| *next_readers == 0) {
            self.pop();
        }
    }

    pub(super) fn push(&mut self, removal: Removal) {
        let is_full = self.ring.is_some_and(|ring| self.events.len() >= ring.into());
        let oldest = is_full.then(|| self.pop());
        let next_readers = std::mem::take(&mut self.at_end);
        self.events.push((removal, next_readers));
        *self.readers_at(0) += oldest.map_or(0, |(_, next_readers)| next_readers);
    }

    /// Returns the next event of the reader at `next`, or the number of events that it missed.
    pub(super) fn read(&mut self, next: &mut u8, bug: Option<Bug>) -> Option<Result<Removal, u8>> {
        let missed = self.first.saturating_sub(*next);
        if missed > 0 {
            *next = self.first;
            if bug != Some(Bug::MissedIsNotCounted) {
                return Some(Err(missed));
            }
        }
        let index = usize::from(*next - self.first);
        let (removal, next_readers) = self.events.get_mut(index)?;
        let removal = *removal;
        *next += 1;
        *next_readers -= 1;
        let was_last = index == 0 && *next_readers == 0;
        *self.readers_at(index + 1) += 1;
        if was_last {
            self.pop();
        }
        Some(Ok(removal))
    }
}
