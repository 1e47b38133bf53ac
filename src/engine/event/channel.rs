//! A channel: the events of some causes, and the subscribers who read them, each at its own place.
//!
//! 1. The events are a run without gaps that ends with the last one; each has the next number.
//! 2. Each reader is counted where it stands: at the event that it reads next, or at the end. So nothing
//!    that happens here looks at all readers, but for what the sweeper asks of them.
//! 3. Somebody stands at the first event: what all have read is given away at once.
//! 4. This runs under the log's lock, and so never drops an event, nor clones, wakes or drops a waker.

use std::{mem, task::Waker};

use slab::Slab;
use smallvec::SmallVec;

use super::{Lagged, chunked_deque::ChunkedDeque, queued_event::QueuedEvent};
use crate::engine::clock::Clock;

/// The number of a channel's first event: so high that those of a reader who comes with events of its own
/// have numbers before it.
const FIRST: u64 = 1 << 62;

pub(super) type Wakers = SmallVec<[Waker; 2]>;

pub(super) struct Channel<K, V> {
    causes: u8,
    /// How many events are kept at most; `None` where each is kept until all have read it.
    ring: Option<u64>,
    events: ChunkedDeque<Slot<K, V>>,
    /// The number of the first of `events`.
    first: u64,
    /// How many readers have read all there is.
    at_end: usize,
    readers: Slab<Reader>,
    /// The wakers of those who wait.
    armed: Slab<Waker>,
    /// How often `armed` was emptied: a reader's place in it is of one round.
    round: u64,
    /// The reader with the least room and the number up to which it has; unknown where that has changed.
    fullest: Option<(usize, u64)>,
    /// How many events fell out of the ring before readers had them, for each of these.
    #[cfg(feature = "metrics")]
    missed: u64,
}

struct Slot<K, V> {
    event: QueuedEvent<K, V>,
    /// How many readers read it next.
    standing: usize,
}

struct Reader {
    /// The number of the event it reads next. In a ring that may be gone: it stands at the first then.
    next: u64,
    /// What it missed before it came into this channel.
    missed: u64,
    /// How many unread events it may have before it holds back the sweeper. Nothing to a ring.
    capacity: u64,
    /// A round and the place in `armed`.
    armed: Option<(u64, usize)>,
}

/// What a reader has found.
pub(super) struct Found<K, V> {
    pub(super) item: Result<QueuedEvent<K, V>, Lagged>,
    /// From now on this reader has half of its capacity free, and had not before.
    pub(super) half_free: bool,
}

/// What a reader takes along into another channel.
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
            armed: Slab::new(),
            round: 0,
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
        !self.armed.is_empty()
    }

    pub(super) fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Takes in a reader who begins behind the last event, whatever others have not read yet.
    pub(super) fn join(&mut self, capacity: u64) -> usize {
        self.attach(ReaderTransfer { unread: Vec::new(), missed: 0, capacity })
    }

    /// Takes in a reader from a channel of more causes, with what it has not read there.
    pub(super) fn attach(&mut self, transfer: ReaderTransfer<K, V>) -> usize {
        let ReaderTransfer { mut unread, missed, capacity } = transfer;
        let behind = unread.len();
        // Both are runs without gaps of the same events, up to the last: what is only in the longer comes before
        // the shorter. All that are here too are also where they come from, so none is dropped.
        unread.truncate(behind.saturating_sub(self.events.len()));
        self.first -= unread.len() as u64;
        for event in unread.into_iter().rev() {
            self.events.push_front(Slot { event, standing: 0 });
        }
        let index = self.events.len() - behind;
        *self.standing(index) += 1;
        self.fullest = None;
        let next = self.first + index as u64;
        self.readers.insert(Reader { next, missed, capacity, armed: None })
    }

    /// What a reader who goes into a channel of fewer `causes` takes along.
    pub(super) fn detach(
        &mut self,
        reader: usize,
        causes: u8,
        clock: &Clock,
    ) -> ReaderTransfer<K, V> {
        let Reader { next, missed, capacity, .. } = self.readers[reader];
        let mut unread = Vec::new();
        for index in next.saturating_sub(self.first) as usize..self.events.len() {
            let event = &mut self.events.get_mut(index).expect("it is within").event;
            if event.cause().bit() & causes != 0 {
                unread.push(QueuedEvent::Event(event.share(clock)));
            }
        }
        ReaderTransfer { unread, missed: missed + self.first.saturating_sub(next), capacity }
    }

    /// Lets a reader go; gives back its waker, and to `gone` what nobody will read any more.
    pub(super) fn leave(
        &mut self,
        reader: usize,
        gone: &mut impl Extend<QueuedEvent<K, V>>,
    ) -> Option<Waker> {
        let reader = self.readers.remove(reader);
        *self.standing(self.index(&reader)) -= 1;
        self.fullest = None;
        while self.events.get_mut(0).is_some_and(|slot| slot.standing == 0) {
            gone.extend(self.pop().map(|slot| slot.event));
        }
        self.place_in_armed(&reader).map(|place| self.armed.remove(place))
    }

    /// Adds what is told, and takes the wakers of those who wait for it; gives back what falls out of the ring.
    pub(super) fn push(
        &mut self,
        event: QueuedEvent<K, V>,
        wakers: &mut Wakers,
    ) -> Option<QueuedEvent<K, V>> {
        self.take_wakers(wakers);
        let is_full = self.ring.is_some_and(|ring| self.events.len() as u64 >= ring);
        let oldest = if is_full { self.pop() } else { None };
        let standing = mem::take(&mut self.at_end);
        self.events.push_back(Slot { event, standing });
        let oldest = oldest?;
        // Who stood there missed it, and goes on with what is the first now.
        *self.standing(0) += oldest.standing;
        #[cfg(feature = "metrics")]
        {
            self.missed += oldest.standing as u64;
        }
        Some(oldest.event)
    }

    pub(super) fn into_events(self) -> impl Iterator<Item = QueuedEvent<K, V>> {
        self.events.into_items().map(|slot| slot.event)
    }

    pub(super) fn take_wakers(&mut self, wakers: &mut Wakers) {
        if !self.armed.is_empty() {
            self.round += 1;
            wakers.extend(self.armed.drain());
        }
    }

    /// The next event of a reader, or how many it missed before that; `None` where it has read all.
    pub(super) fn read(&mut self, id: usize, clock: &Clock) -> Option<Found<K, V>> {
        let reader = &mut self.readers[id];
        let missed = mem::take(&mut reader.missed) + self.first.saturating_sub(reader.next);
        if missed > 0 {
            reader.next = reader.next.max(self.first);
            return Some(Found { item: Err(Lagged(missed)), half_free: false });
        }
        let index = (reader.next - self.first) as usize;
        let unread = self.events.len() - index;
        let slot = self.events.get_mut(index)?;
        reader.next += 1;
        let half_free = unread as u64 - 1 == reader.capacity / 2;
        slot.standing -= 1;
        let was_last = index == 0 && slot.standing == 0;
        *self.standing(index + 1) += 1;
        let event = match was_last {
            true => self.pop()?.event,
            false => QueuedEvent::Event(self.events.get_mut(index)?.event.share(clock)),
        };
        self.fullest.take_if(|(fullest, _)| *fullest == id);
        Some(Found { item: Ok(event), half_free })
    }

    /// Whether this waker is the one that will wake the reader.
    pub(super) fn will_wake(&self, reader: usize, waker: &Waker) -> bool {
        let place = self.place_in_armed(&self.readers[reader]);
        place.is_some_and(|place| self.armed[place].will_wake(waker))
    }

    /// Has the reader woken when there is something to read; gives back the waker it had before.
    pub(super) fn arm(&mut self, reader: usize, waker: Waker) -> Option<Waker> {
        if let Some(place) = self.place_in_armed(&self.readers[reader]) {
            return Some(mem::replace(&mut self.armed[place], waker));
        }
        self.readers[reader].armed = Some((self.round, self.armed.insert(waker)));
        None
    }

    pub(super) fn unread(&self, reader: usize) -> u64 {
        let reader = &self.readers[reader];
        reader.missed + self.end() - reader.next
    }

    /// How many events the fullest reader has room for.
    pub(super) fn room(&mut self) -> u64 {
        self.limit().saturating_sub(self.end())
    }

    /// How many events the fullest reader has beyond its capacity.
    pub(super) fn overflow(&mut self) -> u64 {
        self.end().saturating_sub(self.limit())
    }

    pub(super) fn is_half_free(&self) -> bool {
        let end = self.end();
        self.readers.iter().all(|(_, reader)| end - reader.next <= reader.capacity / 2)
    }

    /// The number up to which all have room.
    fn limit(&mut self) -> u64 {
        // Of all the others the limit only grows: it stays that of the fullest until that one reads.
        let (_, limit) = *self.fullest.get_or_insert_with(|| {
            let limit =
                |(id, reader): (usize, &Reader)| (id, reader.next.saturating_add(reader.capacity));
            let fullest = self.readers.iter().map(limit).min_by_key(|(_, limit)| *limit);
            fullest.unwrap_or((0, u64::MAX))
        });
        limit
    }

    /// The number of the next event to come.
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Where a reader stands.
    fn index(&self, reader: &Reader) -> usize {
        reader.next.saturating_sub(self.first) as usize
    }

    /// How many readers stand there.
    fn standing(&mut self, index: usize) -> &mut usize {
        match self.events.get_mut(index) {
            Some(slot) => &mut slot.standing,
            None => &mut self.at_end,
        }
    }

    fn place_in_armed(&self, reader: &Reader) -> Option<usize> {
        reader.armed.filter(|(round, _)| *round == self.round).map(|(_, place)| place)
    }

    /// Takes the first event out. What stood there has to stand elsewhere.
    fn pop(&mut self) -> Option<Slot<K, V>> {
        let slot = self.events.pop_front()?;
        self.first += 1;
        Some(slot)
    }
}
