//! The publisher: one log of events, and the subscribers who read it, each at its own place.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::sync::Notify;

use super::{Event, Lagged};
use crate::engine::{
    clock::Clock,
    panics,
    store::{Departure, Journal},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// One log of events and the subscribers who read it, each at its own place.
pub(crate) struct Publisher<K, V> {
    journal: Arc<Journal<K, V>>,
    clock: Clock,
    /// The causes that are sent, as bits.
    causes: u8,
    /// Lossless subscribers, so that the sweeper need not lock to learn that there are none.
    lossless: AtomicUsize,
    log: Mutex<Log<K, V>>,
    /// Told when there is room again for a sweeper that was held back.
    room: Notify,
}

struct Log<K, V> {
    events: VecDeque<Arc<Event<K, V>>>,
    /// The number of the first of `events`; each has the next one.
    first: u64,
    /// How many events a subscriber that is not lossless may fall behind.
    capacity: u64,
    readers: BTreeMap<u64, Reader>,
    next_id: u64,
    /// The sweeper waits for room.
    held_back: bool,
    closed: bool,
}

struct Reader {
    /// The number of the event it reads next.
    next: u64,
    /// How many unread events it may have before it holds back the sweeper; `None` where it lags instead.
    lossless: Option<usize>,
    waker: Option<Waker>,
}

pub(crate) struct Subscription<K, V> {
    publisher: Arc<Publisher<K, V>>,
    id: u64,
}

impl<K, V> Publisher<K, V> {
    pub(crate) fn new(
        journal: Arc<Journal<K, V>>,
        clock: Clock,
        causes: u8,
        capacity: usize,
    ) -> Self {
        let log = Log {
            events: VecDeque::new(),
            first: 0,
            capacity: capacity as u64,
            readers: BTreeMap::new(),
            next_id: 0,
            held_back: false,
            closed: false,
        };
        Self {
            journal,
            clock,
            causes,
            lossless: AtomicUsize::new(0),
            log: Mutex::new(log),
            room: Notify::new(),
        }
    }

    /// Sends what the journal holds. Called after each change, outside of the shard's lock.
    #[inline]
    pub(crate) fn flush(&self) {
        if self.journal.is_dirty() {
            self.publish();
        }
    }

    #[cold]
    fn publish(&self) {
        let mut log = self.lock();
        let unread = self.append(&mut log);
        let read = log.trim();
        let wakers = log.take_wakers();
        drop(log);
        // A waker may run the reader at once, on this thread: only after the lock.
        wakers.into_iter().for_each(Waker::wake);
        panics::drop_all(unread);
        panics::drop_all(read);
    }

    /// How many departures the sweeper may cause: what is free in the fullest lossless subscription.
    pub(crate) fn room(&self) -> usize {
        if self.lossless.load(Relaxed) == 0 {
            return usize::MAX;
        }
        self.lock().room().saturating_sub(self.journal.len())
    }

    /// Waits until at least half of every lossless subscription is free, so that the sweeper then does a
    /// fair piece of work at once.
    pub(crate) async fn wait_for_room(&self) {
        // Asked and noted under one lock: else the last reader could make room between the two, and tell nobody.
        let may_go = {
            let mut log = self.lock();
            log.held_back = !log.is_half_free();
            !log.held_back
        };
        if !may_go {
            self.room.notified().await;
        }
    }

    /// Events that wait beyond the capacity of the fullest lossless subscription.
    pub(crate) fn overflow(&self) -> usize {
        let log = self.lock();
        let beyond = |reader: &Reader| {
            reader.lossless.map_or(0, |capacity| log.unread(reader).saturating_sub(capacity))
        };
        log.readers.values().map(beyond).max().unwrap_or(0)
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.lock().readers.len()
    }

    /// Ends the streams, after what they hold.
    pub(crate) fn close(&self) {
        let mut log = self.lock();
        let unread = self.append(&mut log);
        log.closed = true;
        // In the lock, so that a subscriber that comes later does not want anything again.
        self.journal.want(0);
        let wakers = log.take_wakers();
        drop(log);
        wakers.into_iter().for_each(Waker::wake);
        panics::drop_all(unread);
        self.room.notify_one();
    }

    /// Moves the journal to the log. Gives back what nobody will read.
    fn append(&self, log: &mut Log<K, V>) -> Vec<Departure<K, V>> {
        // Taken while the log is locked: two threads that flush can't swap their departures.
        let departures = self.journal.take();
        if log.closed || log.readers.is_empty() {
            return departures;
        }
        let event = |departure: Departure<K, V>| {
            Arc::new(Event {
                key: departure.key,
                value: departure.value,
                cause: departure.cause,
                deadline: self.clock.instant_of(departure.deadline),
                at: self.clock.instant(departure.at),
            })
        };
        log.events.extend(departures.into_iter().map(event));
        Vec::new()
    }

    fn lock(&self) -> MutexGuard<'_, Log<K, V>> {
        self.log.lock().expect("no user code runs under this lock")
    }
}

impl<K, V> Log<K, V> {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn unread(&self, reader: &Reader) -> usize {
        (self.end() - reader.next) as usize
    }

    /// The oldest event that `reader` may still read.
    fn oldest_for(&self, reader: &Reader) -> u64 {
        match reader.lossless {
            Some(_) => reader.next,
            None => reader.next.max(self.end().saturating_sub(self.capacity)),
        }
    }

    /// Takes out what nobody will read any more, to be dropped after unlocking.
    fn trim(&mut self) -> Vec<Arc<Event<K, V>>> {
        let end = self.end();
        let oldest =
            self.readers.values().map(|reader| self.oldest_for(reader)).min().unwrap_or(end);
        let read = oldest.saturating_sub(self.first) as usize;
        self.first += read as u64;
        if read < self.events.len() {
            return self.events.drain(..read).collect();
        }
        let spare = VecDeque::with_capacity(self.events.capacity().min(1_024));
        mem::replace(&mut self.events, spare).into()
    }

    fn take_wakers(&mut self) -> Vec<Waker> {
        self.readers.values_mut().filter_map(|reader| reader.waker.take()).collect()
    }

    fn room(&self) -> usize {
        let free = |reader: &Reader| Some(reader.lossless?.saturating_sub(self.unread(reader)));
        self.readers.values().filter_map(free).min().unwrap_or(usize::MAX)
    }

    fn is_half_free(&self) -> bool {
        self.closed
            || self.readers.values().all(|reader| {
                reader.lossless.is_none_or(|capacity| self.unread(reader) <= capacity / 2)
            })
    }

    /// Whether a sweeper that was held back may go on; it is told once.
    fn lets_go(&mut self) -> bool {
        let lets_go = self.held_back && self.is_half_free();
        if lets_go {
            self.held_back = false;
        }
        lets_go
    }
}

impl<K, V> Subscription<K, V> {
    pub(crate) fn new(publisher: &Arc<Publisher<K, V>>, lossless: Option<usize>) -> Self {
        let mut log = publisher.lock();
        // What happened before is not for this subscriber.
        let unread = publisher.append(&mut log);
        let id = log.next_id;
        log.next_id += 1;
        // It begins behind the last event, whatever others have not read yet.
        let next = log.end();
        log.readers.insert(id, Reader { next, lossless, waker: None });
        if !log.closed {
            publisher.journal.want(publisher.causes);
        }
        if lossless.is_some() {
            publisher.lossless.fetch_add(1, Relaxed);
        }
        let wakers = log.take_wakers();
        drop(log);
        wakers.into_iter().for_each(Waker::wake);
        panics::drop_all(unread);
        Self { publisher: publisher.clone(), id }
    }

    pub(crate) fn unread(&self) -> usize {
        let log = self.publisher.lock();
        log.unread(&log.readers[&self.id])
    }

    #[allow(clippy::type_complexity)]
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Arc<Event<K, V>>, Lagged>>> {
        // Cloned before and dropped after the lock: a waker is somebody's code.
        let mut waker = Some(cx.waker().clone());
        let mut log = self.publisher.lock();
        let reader = &log.readers[&self.id];
        let (next, lossless, oldest) = (reader.next, reader.lossless, log.oldest_for(reader));
        let (after, item) = if next < oldest {
            (oldest, Some(Err(Lagged(oldest - next))))
        } else if next < log.end() {
            (next + 1, Some(Ok(log.events[(next - log.first) as usize].clone())))
        } else {
            (next, None)
        };
        let closed = log.closed;
        let reader = log.readers.get_mut(&self.id).expect("a reader stays until it is dropped");
        reader.next = after;
        if item.is_none() {
            if closed {
                return Poll::Ready(None);
            }
            mem::swap(&mut reader.waker, &mut waker);
            drop(log);
            return Poll::Pending;
        }
        // The others leave their events to the next publisher: to look at every reader at each read
        // would cost the square of their number.
        let read = if lossless.is_some() && next == log.first { log.trim() } else { Vec::new() };
        let lets_go = lossless.is_some() && log.lets_go();
        drop(log);
        panics::drop_all(read);
        if lets_go {
            self.publisher.room.notify_one();
        }
        Poll::Ready(item)
    }
}

impl<K, V> Drop for Subscription<K, V> {
    fn drop(&mut self) {
        let mut log = self.publisher.lock();
        let reader = log.readers.remove(&self.id);
        if reader.as_ref().is_some_and(|reader| reader.lossless.is_some()) {
            self.publisher.lossless.fetch_sub(1, Relaxed);
        }
        if log.readers.is_empty() {
            self.publisher.journal.want(0);
        }
        let read = log.trim();
        let lets_go = log.lets_go();
        drop(log);
        drop(reader);
        panics::drop_all(read);
        if lets_go {
            self.publisher.room.notify_one();
        }
    }
}
