//! A channel: the unread events of one set of causes, the position of each subscriber, and from when on a full one has
//! room again.
//!
//! 1. The events are numbered consecutively, without gaps up to the newest.
//! 2. Each reader is counted at its position: at the event that it reads next, or at the end. So no operation visits
//!    all readers, except those that look for the reader with the least free capacity.
//! 3. At least one reader is at the first event: an event that all readers have read is removed immediately.
//! 4. All of this runs under the log's lock. It therefore never drops an event, and never clones, wakes or drops a
//!    waker: each of these may run user code.

use std::{mem, task::Waker};

use slab::Slab;
use smallvec::SmallVec;

use super::{Lagged, chunked_deque::ChunkedDeque, queued_event::QueuedEvent};
use crate::engine::clock::Clock;

/// Number of the first event of a channel. It is large because a reader that moves in from another channel may bring
/// earlier events, which get smaller numbers.
const FIRST: u64 = 1 << 62;

pub(super) type Wakers = SmallVec<[Waker; 2]>;

/// Events of one set of causes, and their readers.
pub(super) struct Channel<K, V> {
    causes: u8,
    /// Maximum number of unread events; `None` for lossless subscribers, whose events are kept until all of them have
    /// read them.
    ring: Option<u64>,
    events: ChunkedDeque<UnreadEvent<K, V>>,
    /// Number of the first event in `events`.
    first: u64,
    /// Number of readers that have read all events.
    at_end: usize,
    readers: Slab<Reader>,
    /// Wakers of the readers that wait for an event.
    wakers: Slab<Waker>,
    /// Number of times that `wakers` was emptied. A reader's index into `wakers` is valid for one round only.
    waker_round: u64,
    /// The reader with the least free capacity, and the event number up to which it has capacity; `None` if unknown.
    fullest: Option<(usize, u64)>,
    /// Events pushed out of the ring before a reader had read them, counted once per reader.
    #[cfg(feature = "metrics")]
    missed: u64,
}

/// An unread event.
struct UnreadEvent<K, V> {
    event: QueuedEvent<K, V>,
    /// Number of readers that read this event next.
    next_readers: usize,
}

struct Reader {
    /// Number of the event that it reads next. In a ring that event may be gone; the reader then counts at the first
    /// one.
    next: u64,
    /// Events missed before the reader moved into this channel.
    missed: u64,
    /// Number of unread events from which on the reader delays the sweeper. Unused in a ring.
    capacity: u64,
    /// Round and index of its waker in `wakers`.
    waker_key: Option<(u64, usize)>,
}

/// Result of reading: an event, or the number of missed events.
pub(super) struct NextEvent<K, V> {
    pub(super) item: Result<QueuedEvent<K, V>, Lagged>,
    /// True if exactly this read freed half of the reader's capacity.
    pub(super) half_free: bool,
}

/// State of a reader that moves to another channel.
pub(super) struct ReaderTransfer<K, V> {
    unread: Vec<QueuedEvent<K, V>>,
    missed: u64,
    capacity: u64,
}

impl<K, V> Channel<K, V> {
    pub(super) fn new(causes: u8, ring: Option<u64>) -> Self {
        Self {
            causes,
            ring,
            events: ChunkedDeque::new(),
            first: FIRST,
            at_end: 0,
            readers: Slab::new(),
            wakers: Slab::new(),
            waker_round: 0,
            fullest: None,
            #[cfg(feature = "metrics")]
            missed: 0,
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    pub(super) fn causes(&self) -> u8 {
        self.causes
    }

    pub(super) fn is_lossless(&self) -> bool {
        self.ring.is_none()
    }

    pub(super) fn is_awaited(&self) -> bool {
        !self.wakers.is_empty()
    }

    pub(super) fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Adds a reader positioned after the last event, regardless of unread events of others.
    pub(super) fn join(&mut self, capacity: u64) -> usize {
        self.attach(ReaderTransfer { unread: Vec::new(), missed: 0, capacity })
    }

    /// Adds a reader that comes from a channel of more causes, with its unread events.
    pub(super) fn attach(&mut self, transfer: ReaderTransfer<K, V>) -> usize {
        let ReaderTransfer { mut unread, missed, capacity } = transfer;
        let behind = unread.len();
        // Both sequences end with the same event and have no gaps, so the longer one only adds events before the
        // shorter one. The truncated events are shared with the source channel, so no event is dropped here, under the
        // log's lock.
        unread.truncate(behind.saturating_sub(self.events.len()));
        self.first -= unread.len() as u64;
        for event in unread.into_iter().rev() {
            self.events.push_front(UnreadEvent { event, next_readers: 0 });
        }
        let index = self.events.len() - behind;
        *self.readers_at(index) += 1;
        // The new reader may have less free capacity than the one recorded.
        self.fullest = None;
        let next = self.first + index as u64;
        self.readers.insert(Reader { next, missed, capacity, waker_key: None })
    }

    /// Copies the state of a reader that moves to a channel of fewer `causes`.
    pub(super) fn detach(
        &mut self,
        reader: usize,
        causes: u8,
        clock: &Clock,
    ) -> ReaderTransfer<K, V> {
        let Reader { next, missed, capacity, .. } = self.readers[reader];
        let mut unread = Vec::new();
        for index in next.saturating_sub(self.first) as usize..self.events.len() {
            let event =
                &mut self.events.get_mut(index).expect("the index is below the length").event;
            if event.cause().bit() & causes != 0 {
                unread.push(QueuedEvent::Event(event.share(clock)));
            }
        }
        // A ring may have pushed out events before `first` that the reader never saw. They are counted here, because
        // the new channel has other event numbers.
        ReaderTransfer { unread, missed: missed + self.first.saturating_sub(next), capacity }
    }

    /// Removes a reader and returns its waker. Events without a remaining reader go to `discarded`, to be dropped after
    /// unlock.
    pub(super) fn leave(
        &mut self,
        reader: usize,
        discarded: &mut impl Extend<QueuedEvent<K, V>>,
    ) -> Option<Waker> {
        let reader = self.readers.remove(reader);
        *self.readers_at(self.index(&reader)) -= 1;
        // It may have been this reader.
        self.fullest = None;
        while self.events.get_mut(0).is_some_and(|slot| slot.next_readers == 0) {
            discarded.extend(self.pop().map(|slot| slot.event));
        }
        self.waker_index(&reader).map(|index| self.wakers.remove(index))
    }

    /// Appends an event and takes the wakers of all waiting readers. Returns the event pushed out of the ring, if any.
    pub(super) fn push(
        &mut self,
        event: QueuedEvent<K, V>,
        wakers: &mut Wakers,
    ) -> Option<QueuedEvent<K, V>> {
        self.take_wakers(wakers);
        // Before the new event is appended, so that a ring never holds more than its maximum.
        let is_full = self.ring.is_some_and(|ring| self.events.len() as u64 >= ring);
        let oldest = if is_full { self.pop() } else { None };
        let next_readers = mem::take(&mut self.at_end);
        self.events.push_back(UnreadEvent { event, next_readers });
        let oldest = oldest?;
        // Readers of the event pushed out have missed it, and continue with the new first event. After the append: in a
        // ring of one event, that is the new event.
        *self.readers_at(0) += oldest.next_readers;
        #[cfg(feature = "metrics")]
        {
            self.missed += oldest.next_readers as u64;
        }
        Some(oldest.event)
    }

    pub(super) fn into_events(self) -> impl Iterator<Item = QueuedEvent<K, V>> {
        self.events.into_items().map(|slot| slot.event)
    }

    pub(super) fn take_wakers(&mut self, wakers: &mut Wakers) {
        if !self.wakers.is_empty() {
            self.waker_round += 1;
            wakers.extend(self.wakers.drain());
        }
    }

    /// Returns the next event of a reader, or the number of events missed before it; `None` if it has read all.
    pub(super) fn read(&mut self, id: usize, clock: &Clock) -> Option<NextEvent<K, V>> {
        let reader = &mut self.readers[id];
        let missed = mem::take(&mut reader.missed) + self.first.saturating_sub(reader.next);
        if missed > 0 {
            // Its position is already counted there: `push` moved the count when it pushed out the event.
            reader.next = reader.next.max(self.first);
            return Some(NextEvent { item: Err(Lagged(missed)), half_free: false });
        }
        let index = (reader.next - self.first) as usize;
        let unread = self.events.len() - index;
        let slot = self.events.get_mut(index)?;
        reader.next += 1;
        let half_free = unread as u64 - 1 == reader.capacity / 2;
        slot.next_readers -= 1;
        // If this was its last reader, one removal is enough: the reader is counted at the event after it.
        let was_last = index == 0 && slot.next_readers == 0;
        // Before the removal, which shifts the indices.
        *self.readers_at(index + 1) += 1;
        let event = match was_last {
            true => self.pop()?.event,
            false => QueuedEvent::Event(self.events.get_mut(index)?.event.share(clock)),
        };
        // The reader's limit has grown, so another reader may now have the least capacity.
        self.fullest.take_if(|(fullest, _)| *fullest == id);
        Some(NextEvent { item: Ok(event), half_free })
    }

    /// Returns whether `waker` wakes the same task as the registered waker of the reader.
    pub(super) fn will_wake(&self, reader: usize, waker: &Waker) -> bool {
        let index = self.waker_index(&self.readers[reader]);
        index.is_some_and(|index| self.wakers[index].will_wake(waker))
    }

    /// Registers the waker of a reader for the next event; returns the previous waker.
    pub(super) fn arm(&mut self, reader: usize, waker: Waker) -> Option<Waker> {
        if let Some(index) = self.waker_index(&self.readers[reader]) {
            return Some(mem::replace(&mut self.wakers[index], waker));
        }
        self.readers[reader].waker_key = Some((self.waker_round, self.wakers.insert(waker)));
        None
    }

    pub(super) fn unread(&self, reader: usize) -> u64 {
        let reader = &self.readers[reader];
        reader.missed + self.end() - reader.next
    }

    /// Returns the free capacity of the reader with the least of it.
    pub(super) fn room(&mut self) -> u64 {
        self.limit().saturating_sub(self.end())
    }

    /// Returns the number of unread events beyond the capacity of the reader with the most of them.
    pub(super) fn overflow(&mut self) -> u64 {
        self.end().saturating_sub(self.limit())
    }

    pub(super) fn is_half_free(&self) -> bool {
        let end = self.end();
        self.readers.iter().all(|(_, reader)| end - reader.next <= reader.capacity / 2)
    }

    /// Returns the event number up to which all readers have capacity.
    fn limit(&mut self) -> u64 {
        // The limits of readers only grow. So the minimum stays valid until the reader that it belongs to reads.
        let (_, limit) = *self.fullest.get_or_insert_with(|| {
            let limit =
                |(id, reader): (usize, &Reader)| (id, reader.next.saturating_add(reader.capacity));
            let fullest = self.readers.iter().map(limit).min_by_key(|(_, limit)| *limit);
            fullest.unwrap_or((0, u64::MAX))
        });
        limit
    }

    /// Returns the number of the next event to be appended.
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Returns the index of a reader's position in `events`.
    fn index(&self, reader: &Reader) -> usize {
        reader.next.saturating_sub(self.first) as usize
    }

    /// Returns the number of readers at a position.
    fn readers_at(&mut self, index: usize) -> &mut usize {
        match self.events.get_mut(index) {
            Some(slot) => &mut slot.next_readers,
            None => &mut self.at_end,
        }
    }

    fn waker_index(&self, reader: &Reader) -> Option<usize> {
        reader.waker_key.filter(|(round, _)| *round == self.waker_round).map(|(_, index)| index)
    }

    /// Removes the first event. The caller must count its readers at another position.
    fn pop(&mut self) -> Option<UnreadEvent<K, V>> {
        let slot = self.events.pop_front()?;
        self.first += 1;
        Some(slot)
    }
}
