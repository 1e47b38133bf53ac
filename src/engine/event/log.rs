//! The log: what was told and not yet read by all, in a channel for each set of causes that somebody hears.

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
    channel::{Channel, Found, Wakers},
    queued_event::QueuedEvent,
};
#[cfg(feature = "metrics")]
use crate::engine::metrics::Histogram;
use crate::engine::{
    clock::Clock,
    panics,
    store::{Cause, DepartureWaiters, Event, Journal, Taken},
};

pub(super) struct Log<K, V> {
    /// A channel has at least one reader, and of two no causes are the same, or one is lossless and the other not.
    /// So there are few of them, however many subscribers.
    channels: Slab<Channel<K, V>>,
    /// How many events a subscriber that is not lossless may fall behind.
    ring: u64,
    /// Kept for its memory.
    taken: Taken<K, V>,
    /// The sweeper waits for room.
    held_back: bool,
    closed: bool,
    /// How long after their deadlines values were seen to leave, of those of which somebody heard.
    #[cfg(feature = "metrics")]
    lag: Histogram,
    /// How many events were missed in channels that are gone.
    #[cfg(feature = "metrics")]
    missed: u64,
}

/// Where a subscriber is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    channel: usize,
    reader: usize,
}

/// What is to be done when the log is unlocked again: all of it may run somebody's code.
pub(super) struct AfterUnlock<K, V> {
    pub(super) wakers: Wakers,
    /// The waker of one who waits no more.
    unarmed: Option<Waker>,
    /// What nobody will read any more.
    gone: SmallVec<[QueuedEvent<K, V>; 1]>,
    /// Those who waited for a value to leave.
    notifications: Vec<PendingNotification<K, V>>,
    /// A channel that has no readers any more.
    left: Option<Channel<K, V>>,
    /// The sweeper may go on.
    pub(super) resumes_sweeper: bool,
}

/// Who waited for a value to leave, the key by which they were found, and what they waited for.
type PendingNotification<K, V> = (Arc<DepartureWaiters<K, V>>, K, Arc<Event<K, V>>);

impl<K, V> Log<K, V> {
    pub(super) fn new(ring: u64) -> Self {
        Self {
            channels: Slab::new(),
            ring,
            taken: Taken::new(),
            held_back: false,
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
        // Taken while the log is locked: two threads that flush can't swap their departures.
        journal.take(taken);
        taken.drain(|mut departure| {
            let waiters = departure.waiters.take();
            let cause = departure.cause.bit();
            let channels = channels.iter_mut().map(|(_, channel)| channel);
            let mut hear = channels.filter(|channel| channel.causes() & cause != 0);
            #[cfg(feature = "metrics")]
            let lag = departure.lag();
            let mut event = QueuedEvent::Departure(departure);
            if let Some(waiters) = waiters {
                let (waiters, key) = *waiters;
                after.notifications.push((waiters, key, event.share(clock)));
            }
            let Some(first) = hear.next().filter(|_| !*closed) else {
                return after.gone.push(event);
            };
            #[cfg(feature = "metrics")]
            lag.into_iter().for_each(|lag| lags.record(lag));
            for channel in hear {
                let same = QueuedEvent::Event(event.share(clock));
                after.push(channel, same);
            }
            after.push(first, event);
        });
    }

    /// Takes in a subscriber of these causes; one without a capacity is not lossless.
    pub(super) fn join(&mut self, causes: u8, lossless: Option<usize>) -> Place {
        let channel = self.channel(causes, lossless.is_some());
        let reader = self.channels[channel].join(lossless.unwrap_or(0) as u64);
        Place { channel, reader }
    }

    /// Lets a subscriber hear no more than `causes`, as if it had heard no others since what it read last.
    pub(super) fn narrow(
        &mut self,
        place: &mut Place,
        causes: u8,
        clock: &Clock,
        after: &mut AfterUnlock<K, V>,
    ) {
        let wide = &mut self.channels[place.channel];
        let causes = wide.causes() & causes;
        if causes == wide.causes() {
            return;
        }
        let (transfer, lossless) = (wide.detach(place.reader, causes, clock), wide.is_lossless());
        let channel = self.channel(causes, lossless);
        let reader = self.channels[channel].attach(transfer);
        // A task that waits may not know that it waits elsewhere now.
        if let Some(waker) = self.take_out(*place, after) {
            self.channels[channel].arm(reader, waker);
        }
        *place = Place { channel, reader };
        after.resumes_sweeper |= self.resumes_sweeper();
    }

    pub(super) fn leave(&mut self, place: Place, after: &mut AfterUnlock<K, V>) {
        after.unarmed = self.take_out(place, after);
        after.resumes_sweeper |= self.resumes_sweeper();
    }

    /// The next event of a subscriber, or how many it missed before that, or that there will be none; `None` where
    /// it has read all there is.
    pub(super) fn read(
        &mut self,
        place: Place,
        clock: &Clock,
        after: &mut AfterUnlock<K, V>,
    ) -> Option<Option<Result<QueuedEvent<K, V>, Lagged>>> {
        let channel = &mut self.channels[place.channel];
        let Some(Found { item, half_free }) = channel.read(place.reader, clock) else {
            return self.closed.then_some(None);
        };
        // Whether all are half free is only asked where the answer may have become another.
        if half_free && self.held_back && blocks_sweeper(channel) {
            after.resumes_sweeper |= self.resumes_sweeper();
        }
        Some(Some(item))
    }

    pub(super) fn unread(&self, place: Place) -> u64 {
        self.channels[place.channel].unread(place.reader)
    }

    pub(super) fn causes_at(&self, place: Place) -> u8 {
        self.channels[place.channel].causes()
    }

    /// Whether this waker is the one that will wake the subscriber.
    pub(super) fn will_wake(&self, place: Place, waker: &Waker) -> bool {
        self.channels[place.channel].will_wake(place.reader, waker)
    }

    /// Has the subscriber woken when there is something to read; gives back the waker it had before.
    pub(super) fn arm(&mut self, place: Place, waker: Waker) -> Option<Waker> {
        self.channels[place.channel].arm(place.reader, waker)
    }

    /// Ends the streams, after what they hold.
    pub(super) fn close(&mut self, after: &mut AfterUnlock<K, V>) {
        self.closed = true;
        self.channels.iter_mut().for_each(|(_, channel)| channel.take_wakers(&mut after.wakers));
        // Whether somebody was held back or will be.
        after.resumes_sweeper = true;
    }

    /// The causes that somebody hears, and those that somebody waits for.
    pub(super) fn subscribed_causes(&self) -> (u8, u8) {
        if self.closed {
            return (0, 0);
        }
        self.channels.iter().fold((0, 0), |(heard, awaited), (_, channel)| {
            let causes = channel.causes();
            (heard | causes, awaited | if channel.is_awaited() { causes } else { 0 })
        })
    }

    pub(super) fn subscribers(&self) -> usize {
        self.channels.iter().map(|(_, channel)| channel.readers()).sum()
    }

    /// Whether there is a subscriber who may hold back the sweeper.
    pub(super) fn may_block_sweeper(&self) -> bool {
        self.channels.iter().any(|(_, channel)| blocks_sweeper(channel))
    }

    #[cfg(feature = "metrics")]
    pub(super) fn lag(&self) -> &Histogram {
        &self.lag
    }

    /// How many events readers have missed.
    #[cfg(feature = "metrics")]
    pub(super) fn missed(&self) -> u64 {
        self.missed + self.channels.iter().map(|(_, channel)| channel.missed()).sum::<u64>()
    }

    pub(super) fn room(&mut self) -> u64 {
        let channels = self.channels.iter_mut().map(|(_, channel)| channel);
        let room = channels.filter(|channel| blocks_sweeper(channel)).map(Channel::room).min();
        room.unwrap_or(u64::MAX)
    }

    pub(super) fn overflow(&mut self) -> u64 {
        let channels = self.channels.iter_mut().map(|(_, channel)| channel);
        let lossless = channels.filter(|channel| channel.is_lossless());
        lossless.map(Channel::overflow).max().unwrap_or(0)
    }

    /// Whether the sweeper may go on; else it is told when it may.
    pub(super) fn may_sweep(&mut self) -> bool {
        self.held_back = !self.is_half_free();
        !self.held_back
    }

    fn is_half_free(&self) -> bool {
        let mut channels = self.channels.iter().map(|(_, channel)| channel);
        self.closed || channels.all(|channel| !blocks_sweeper(channel) || channel.is_half_free())
    }

    /// Whether a sweeper that was held back may go on; it is told once.
    fn resumes_sweeper(&mut self) -> bool {
        let resumes_sweeper = self.held_back && self.is_half_free();
        self.held_back &= !resumes_sweeper;
        resumes_sweeper
    }

    /// The channel of these causes, which may be a new one.
    fn channel(&mut self, causes: u8, lossless: bool) -> usize {
        let mut channels = self.channels.iter();
        let it = channels.find(|(_, it)| it.causes() == causes && it.is_lossless() == lossless);
        match it {
            Some((channel, _)) => channel,
            None => self.channels.insert(Channel::new(causes, (!lossless).then_some(self.ring))),
        }
    }

    fn take_out(&mut self, place: Place, after: &mut AfterUnlock<K, V>) -> Option<Waker> {
        let channel = &mut self.channels[place.channel];
        if channel.readers() > 1 {
            return channel.leave(place.reader, &mut after.gone);
        }
        // Whole, and not event by event: there may be many.
        let mut channel = self.channels.remove(place.channel);
        #[cfg(feature = "metrics")]
        {
            self.missed += channel.missed();
        }
        let mut waker = Wakers::new();
        channel.take_wakers(&mut waker);
        after.left = Some(channel);
        waker.pop()
    }
}

impl<K, V> AfterUnlock<K, V> {
    pub(super) fn new() -> Self {
        Self {
            wakers: Wakers::new(),
            unarmed: None,
            gone: SmallVec::new(),
            notifications: Vec::new(),
            left: None,
            resumes_sweeper: false,
        }
    }

    fn push(&mut self, channel: &mut Channel<K, V>, event: QueuedEvent<K, V>) {
        let oldest = channel.push(event, &mut self.wakers);
        // What has no code of the user's may go here.
        if needs_drop::<(K, V)>() {
            self.gone.extend(oldest);
        }
    }

    /// Wakes who waited, and drops what nobody will read. A panic in one keeps nothing from the others, and
    /// goes no further: whoever came along here has no part in it.
    pub(super) fn settle(self) {
        for waker in self.wakers {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        for (waiters, key, event) in self.notifications {
            let _ = catch_unwind(AssertUnwindSafe(|| waiters.tell(event)));
            panics::drop_all([key]);
        }
        panics::drop_all(self.unarmed);
        if needs_drop::<(K, V)>() {
            panics::drop_all(self.gone);
            panics::drop_all(self.left.into_iter().flat_map(Channel::into_events));
        }
    }
}

/// Whether a reader without room holds back the sweeper, which sends nothing but [`Cause::Expired`].
fn blocks_sweeper<K, V>(channel: &Channel<K, V>) -> bool {
    channel.is_lossless() && channel.causes() & Cause::Expired.bit() != 0
}
