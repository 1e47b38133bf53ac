//! The event log: unread events, in one channel per set of subscribed causes, and which of the channels hold up which
//! removals by the sweeper.

use std::{
    mem::needs_drop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use slab::Slab;
use smallvec::SmallVec;

use super::{
    Lagged,
    channel::{Channel, NextEvent, Wakers},
    departure::{Cause, Event},
    journal::{Journal, TakenDepartures},
    queued_event::QueuedEvent,
};
#[cfg(feature = "metrics")]
use crate::engine::metrics::Histogram;
use crate::engine::{clock::Clock, panics, waiters::DepartureWaiters};

/// The event log: published events that some subscriber has not read.
pub(super) struct EventLog<K, V> {
    /// Each channel has at least one reader. Two channels differ in their causes or in being lossless, so there are few
    /// channels, however many subscribers.
    channels: Slab<Channel<K, V>>,
    /// Number of events that a subscriber may fall behind, if it is not lossless.
    ring: u64,
    /// Buffer for departures taken from the journal; kept for its allocation.
    taken: TakenDepartures<K, V>,
    /// Cause of the removals for which the sweeper waits for capacity; `None` if it does not wait.
    held_back: Option<Cause>,
    closed: bool,
    /// Lag of the published events: the time from an entry's deadline to the detection of its expiry.
    #[cfg(feature = "metrics")]
    lag: Histogram,
    /// Number of events missed in channels that were removed.
    #[cfg(feature = "metrics")]
    missed: u64,
}

/// Identifies a subscriber: its channel, and the reader in it.
#[derive(Clone, Copy)]
pub(super) struct ReaderId {
    channel: usize,
    reader: usize,
}

/// Work to do after the log is unlocked, because each part of it may run user code.
pub(super) struct AfterUnlock<K, V> {
    pub(super) wakers: Wakers,
    /// Waker of a subscriber that was removed while it waited.
    removed_waker: Option<Waker>,
    /// Events that no subscriber will read.
    discarded: SmallVec<[QueuedEvent<K, V>; 1]>,
    /// Departure waiters to notify.
    notifications: Vec<PendingNotification<K, V>>,
    /// A channel whose last reader was removed.
    removed_channel: Option<Channel<K, V>>,
    /// True to wake the sweeper, which waits for capacity.
    pub(super) resumes_sweeper: bool,
}

/// Waiters of a departure, the key by which they are registered, and the event that they wait for.
type PendingNotification<K, V> = (Arc<DepartureWaiters<K, V>>, K, Arc<Event<K, V>>);

impl<K, V> EventLog<K, V> {
    pub(super) fn new(ring: u64) -> Self {
        Self {
            channels: Slab::new(),
            ring,
            taken: TakenDepartures::new(),
            held_back: None,
            closed: false,
            #[cfg(feature = "metrics")]
            lag: Histogram::new(),
            #[cfg(feature = "metrics")]
            missed: 0,
        }
    }

    /// Moves the journal into the channels.
    pub(super) fn append(
        &mut self,
        journal: &Journal<K, V>,
        clock: &Clock,
        after: &mut AfterUnlock<K, V>,
    ) {
        let Self { channels, taken, closed, .. } = self;
        #[cfg(feature = "metrics")]
        let lags = &mut self.lag;
        // Under the log's lock, so that two flushing threads cannot swap the departures that they take.
        journal.take(taken);
        taken.drain(|mut departure| {
            let waiters = departure.waiters.take();
            let cause = departure.cause.bit();
            let channels = channels.iter_mut().map(|(_, channel)| channel);
            let mut subscribed = channels.filter(|channel| channel.causes() & cause != 0);
            #[cfg(feature = "metrics")]
            let lag = departure.lag();
            let mut event = QueuedEvent::Departure(departure);
            if let Some(waiters) = waiters {
                let (waiters, key) = *waiters;
                after.notifications.push((waiters, key, event.share(clock)));
            }
            let Some(first) = subscribed.next().filter(|_| !*closed) else {
                // Not dropped here: key and value are user types, and the log is locked.
                return after.discarded.push(event);
            };
            #[cfg(feature = "metrics")]
            lag.into_iter().for_each(|lag| lags.record(lag));
            for channel in subscribed {
                let same = QueuedEvent::Event(event.share(clock));
                after.push(channel, same);
            }
            // The departure itself goes to one channel. With a single channel, no `Arc` is allocated under the lock.
            after.push(first, event);
        });
    }

    /// Adds a subscriber of these causes; without a capacity, it is not lossless.
    pub(super) fn join(&mut self, causes: u8, lossless: Option<usize>) -> ReaderId {
        let channel = self.channel(causes, lossless.is_some());
        let reader = self.channels[channel].join(lossless.unwrap_or(0) as u64);
        ReaderId { channel, reader }
    }

    /// Limits a subscriber to `causes`, as if it had not subscribed to any others since its last read.
    pub(super) fn narrow(
        &mut self,
        reader_id: &mut ReaderId,
        causes: u8,
        clock: &Clock,
        after: &mut AfterUnlock<K, V>,
    ) {
        let wide = &mut self.channels[reader_id.channel];
        let causes = wide.causes() & causes;
        if causes == wide.causes() {
            return;
        }
        let (transfer, lossless) =
            (wide.detach(reader_id.reader, causes, clock), wide.is_lossless());
        let channel = self.channel(causes, lossless);
        let reader = self.channels[channel].attach(transfer);
        // The waker moves along: a waiting task is not polled, and would miss the events of its new channel.
        if let Some(waker) = self.remove_reader(*reader_id, after) {
            self.channels[channel].arm(reader, waker);
        }
        *reader_id = ReaderId { channel, reader };
        // Discarded events free capacity, and a stream without `Expired` no longer delays the sweeper.
        after.resumes_sweeper |= self.resumes_sweeper();
    }

    pub(super) fn leave(&mut self, reader_id: ReaderId, after: &mut AfterUnlock<K, V>) {
        after.removed_waker = self.remove_reader(reader_id, after);
        // The subscriber may have been the one without capacity.
        after.resumes_sweeper |= self.resumes_sweeper();
    }

    /// Returns the next event of a subscriber or the number of events missed before it; `Some(None)` if the stream has
    /// ended, and `None` if there is no unread event.
    pub(super) fn read(
        &mut self,
        reader_id: ReaderId,
        clock: &Clock,
        after: &mut AfterUnlock<K, V>,
    ) -> Option<Option<Result<QueuedEvent<K, V>, Lagged>>> {
        let channel = &mut self.channels[reader_id.channel];
        let Some(NextEvent { item, half_free }) = channel.read(reader_id.reader, clock) else {
            return self.closed.then_some(None);
        };
        // `is_half_free` visits all readers, so it is only called if this read may have changed its result.
        if half_free && self.held_back.is_some_and(|cause| blocks_sweeper(channel, cause)) {
            after.resumes_sweeper |= self.resumes_sweeper();
        }
        Some(Some(item))
    }

    pub(super) fn unread(&self, reader_id: ReaderId) -> u64 {
        self.channels[reader_id.channel].unread(reader_id.reader)
    }

    pub(super) fn causes_of(&self, reader_id: ReaderId) -> u8 {
        self.channels[reader_id.channel].causes()
    }

    /// Returns whether `waker` wakes the same task as the registered waker of the subscriber.
    pub(super) fn will_wake(&self, reader_id: ReaderId, waker: &Waker) -> bool {
        self.channels[reader_id.channel].will_wake(reader_id.reader, waker)
    }

    /// Registers the waker of a subscriber for the next event; returns the previous waker.
    pub(super) fn arm(&mut self, reader_id: ReaderId, waker: Waker) -> Option<Waker> {
        self.channels[reader_id.channel].arm(reader_id.reader, waker)
    }

    /// Ends the streams; events already in them can still be read.
    pub(super) fn close(&mut self, after: &mut AfterUnlock<K, V>) {
        self.closed = true;
        self.channels.iter_mut().for_each(|(_, channel)| channel.take_wakers(&mut after.wakers));
        // Unconditionally: the sweeper may be about to wait.
        after.resumes_sweeper = true;
    }

    /// Returns all subscribed causes, and those that some subscriber waits for.
    pub(super) fn subscribed_causes(&self) -> (u8, u8) {
        if self.closed {
            // No event is published any more, so writers need not record any.
            return (0, 0);
        }
        self.channels.iter().fold((0, 0), |(subscribed, awaited), (_, channel)| {
            let causes = channel.causes();
            (subscribed | causes, awaited | if channel.is_awaited() { causes } else { 0 })
        })
    }

    pub(super) fn subscribers(&self) -> usize {
        self.channels.iter().map(|(_, channel)| channel.readers()).sum()
    }

    /// Returns whether any subscriber may delay the sweeper.
    pub(super) fn may_block_sweeper(&self) -> bool {
        let blocks = |channel| SWEEPER_CAUSES.iter().any(|cause| blocks_sweeper(channel, *cause));
        !self.closed && self.channels.iter().any(|(_, channel)| blocks(channel))
    }

    #[cfg(feature = "metrics")]
    pub(super) fn lag(&self) -> &Histogram {
        &self.lag
    }

    /// Returns the number of events missed by readers.
    #[cfg(feature = "metrics")]
    pub(super) fn missed(&self) -> u64 {
        self.missed + self.channels.iter().map(|(_, channel)| channel.missed()).sum::<u64>()
    }

    pub(super) fn room(&mut self, cause: Cause) -> u64 {
        if self.closed {
            return u64::MAX;
        }
        let channels = self.channels.iter_mut().map(|(_, channel)| channel);
        let room =
            channels.filter(|channel| blocks_sweeper(channel, cause)).map(Channel::room).min();
        room.unwrap_or(u64::MAX)
    }

    pub(super) fn overflow(&mut self) -> u64 {
        let channels = self.channels.iter_mut().map(|(_, channel)| channel);
        let lossless = channels.filter(|channel| channel.is_lossless());
        lossless.map(Channel::overflow).max().unwrap_or(0)
    }

    /// Returns whether the sweeper may continue; otherwise it is notified later.
    pub(super) fn may_sweep(&mut self, cause: Cause) -> bool {
        let may_sweep = self.is_half_free(cause);
        self.held_back = (!may_sweep).then_some(cause);
        may_sweep
    }

    fn is_half_free(&self, cause: Cause) -> bool {
        let mut channels = self.channels.iter().map(|(_, channel)| channel);
        self.closed
            || channels.all(|channel| !blocks_sweeper(channel, cause) || channel.is_half_free())
    }

    /// Returns whether to notify a sweeper that waits for capacity; true once per wait.
    fn resumes_sweeper(&mut self) -> bool {
        let resumes_sweeper = self.held_back.is_some_and(|cause| self.is_half_free(cause));
        if resumes_sweeper {
            self.held_back = None;
        }
        resumes_sweeper
    }

    /// Returns the channel of these causes, creating it if needed.
    fn channel(&mut self, causes: u8, lossless: bool) -> usize {
        let mut channels = self.channels.iter();
        // Shared, so that an event costs the same with 1,000 idle subscribers as with one (docs/architecture.md).
        let found = channels.find(|(_, it)| it.causes() == causes && it.is_lossless() == lossless);
        match found {
            Some((channel, _)) => channel,
            None => self.channels.insert(Channel::new(causes, (!lossless).then_some(self.ring))),
        }
    }

    fn remove_reader(
        &mut self,
        reader_id: ReaderId,
        after: &mut AfterUnlock<K, V>,
    ) -> Option<Waker> {
        let channel = &mut self.channels[reader_id.channel];
        if channel.readers() > 1 {
            return channel.leave(reader_id.reader, &mut after.discarded);
        }
        // The last reader: the whole channel is dropped after unlock, and not event by event here, under the lock.
        let mut channel = self.channels.remove(reader_id.channel);
        #[cfg(feature = "metrics")]
        {
            self.missed += channel.missed();
        }
        let mut waker = Wakers::new();
        channel.take_wakers(&mut waker);
        after.removed_channel = Some(channel);
        waker.pop()
    }
}

impl<K, V> AfterUnlock<K, V> {
    pub(super) fn new() -> Self {
        Self {
            wakers: Wakers::new(),
            removed_waker: None,
            discarded: SmallVec::new(),
            notifications: Vec::new(),
            removed_channel: None,
            resumes_sweeper: false,
        }
    }

    fn push(&mut self, channel: &mut Channel<K, V>, event: QueuedEvent<K, V>) {
        let oldest = channel.push(event, &mut self.wakers);
        // Under the lock, so only if dropping an event runs no user code.
        if needs_drop::<(K, V)>() {
            self.discarded.extend(oldest);
        }
    }

    /// Wakes tasks, notifies waiters and drops events. A panic in one of them affects no other, and is not propagated:
    /// the calling thread may have published the events of other callers.
    pub(super) fn settle(self) {
        for waker in self.wakers {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        for (waiters, key, event) in self.notifications {
            let _ = catch_unwind(AssertUnwindSafe(|| waiters.notify(event)));
            panics::drop_all([key]);
        }
        panics::drop_all(self.removed_waker);
        if needs_drop::<(K, V)>() {
            panics::drop_all(self.discarded);
            panics::drop_all(self.removed_channel.into_iter().flat_map(Channel::into_events));
        }
    }
}

/// Causes of the sweeper's removals: expiry, and the removal of a tag.
const SWEEPER_CAUSES: [Cause; 2] = [Cause::Expired, Cause::Removed];

/// Returns whether a full reader of the channel delays the removals of the sweeper that have this cause.
fn blocks_sweeper<K, V>(channel: &Channel<K, V>, cause: Cause) -> bool {
    channel.is_lossless() && channel.causes() & cause.bit() != 0
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn causes_of_a_waiting_subscriber_are_awaited() {
        let mut log = EventLog::<u8, u8>::new(100);
        let waiting = log.join(Cause::Removed.bit(), None);
        log.join(Cause::Expired.bit(), None);
        let subscribed = Cause::bits([Cause::Removed, Cause::Expired]);
        assert_eq!(log.subscribed_causes(), (subscribed, 0));
        assert!(log.arm(waiting, Waker::noop().clone()).is_none());
        assert_eq!(log.subscribed_causes(), (subscribed, Cause::Removed.bit()));
    }
}
