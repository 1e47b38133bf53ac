//! The log: what was told and not yet read by all, in a channel for each set of causes that somebody hears.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use slab::Slab;
use smallvec::SmallVec;

use super::{
    Event, Lagged,
    channel::{Channel, Found, Wakers},
};
use crate::engine::{
    clock::Clock,
    panics,
    store::{Cause, Departure, Journal},
};

/// For how many departures memory is kept from one flush to the next: about what a window of a sweep gives.
const SPARE: usize = 256;

pub(super) type Item<K, V> = Result<Arc<Event<K, V>>, Lagged>;

pub(super) struct Log<K, V> {
    /// A channel has at least one reader, and of two no causes are the same, or one is lossless and the other not.
    /// So there are few of them, however many subscribers.
    channels: Slab<Channel<K, V>>,
    /// How many events a subscriber that is not lossless may fall behind.
    ring: u64,
    /// Kept for its memory.
    taken: Vec<Departure<K, V>>,
    /// The sweeper waits for room.
    held_back: bool,
    closed: bool,
}

/// Where a subscriber is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    channel: usize,
    reader: usize,
}

/// What is to be done when the log is unlocked again: all of it may run somebody's code.
pub(super) struct Aftermath<K, V> {
    pub(super) wakers: Wakers,
    /// The waker of one who waits no more.
    unarmed: Option<Waker>,
    /// What nobody will read any more.
    read: SmallVec<[Arc<Event<K, V>>; 2]>,
    /// A channel that has no readers any more.
    left: Option<Channel<K, V>>,
    /// What nobody wants to hear of.
    unheard: Vec<Departure<K, V>>,
    /// The sweeper may go on.
    pub(super) lets_go: bool,
}

impl<K, V> Log<K, V> {
    pub(super) fn new(ring: u64) -> Self {
        Self { channels: Slab::new(), ring, taken: Vec::new(), held_back: false, closed: false }
    }

    /// Moves the journal into the channels.
    pub(super) fn append(
        &mut self,
        journal: &Journal<K, V>,
        clock: &Clock,
        after: &mut Aftermath<K, V>,
    ) {
        let mut taken = mem::take(&mut self.taken);
        // Taken while the log is locked: two threads that flush can't swap their departures.
        journal.take(&mut taken);
        for departure in taken.drain(..) {
            let cause = departure.cause.bit();
            let channels = self.channels.iter_mut().map(|(_, channel)| channel);
            let mut hear = channels.filter(|channel| channel.causes() & cause != 0);
            let Some(first) = hear.next().filter(|_| !self.closed) else {
                after.unheard.push(departure);
                continue;
            };
            let event = Arc::new(Event {
                key: departure.key,
                value: departure.value,
                cause: departure.cause,
                deadline: clock.instant_of(departure.deadline),
                at: clock.instant(departure.at),
            });
            for channel in hear {
                after.read.extend(channel.push(event.clone(), &mut after.wakers));
            }
            after.read.extend(first.push(event, &mut after.wakers));
        }
        if taken.capacity() <= SPARE {
            self.taken = taken;
        }
        if !after.wakers.is_empty() {
            let (heard, awaited) = self.wants();
            journal.want(heard, awaited);
        }
    }

    /// Takes in a subscriber of these causes; one without a capacity is not lossless.
    pub(super) fn join(&mut self, causes: u8, lossless: Option<usize>) -> Place {
        let channel = self.channel(causes, lossless.is_some());
        let reader = self.channels[channel].join(lossless.unwrap_or(0) as u64);
        Place { channel, reader }
    }

    /// Lets a subscriber hear no more than `causes`, as if it had heard no others since what it read last.
    pub(super) fn narrow(&mut self, place: &mut Place, causes: u8, after: &mut Aftermath<K, V>) {
        let wide = &self.channels[place.channel];
        let causes = wide.causes() & causes;
        if causes == wide.causes() {
            return;
        }
        let (luggage, lossless) = (wide.pack(place.reader, causes), wide.is_lossless());
        let channel = self.channel(causes, lossless);
        let reader = self.channels[channel].settle(luggage);
        // A task that waits may not know that it waits elsewhere now.
        if let Some(waker) = self.take_out(*place, after) {
            self.channels[channel].arm(reader, waker);
        }
        *place = Place { channel, reader };
        after.lets_go |= self.lets_go();
    }

    pub(super) fn leave(&mut self, place: Place, after: &mut Aftermath<K, V>) {
        after.unarmed = self.take_out(place, after);
        after.lets_go |= self.lets_go();
    }

    /// The next event of a subscriber, or how many it missed before that, or that there will be none; `None` where
    /// it has read all there is.
    pub(super) fn read(
        &mut self,
        place: Place,
        after: &mut Aftermath<K, V>,
    ) -> Option<Option<Item<K, V>>> {
        let channel = &mut self.channels[place.channel];
        let Some(Found { item, half_free }) = channel.read(place.reader) else {
            return self.closed.then_some(None);
        };
        // Whether all are half free is only asked where the answer may have become another.
        if half_free && self.held_back && holds_back(channel) {
            after.lets_go |= self.lets_go();
        }
        Some(Some(item))
    }

    pub(super) fn unread(&self, place: Place) -> u64 {
        self.channels[place.channel].unread(place.reader)
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
    pub(super) fn close(&mut self, after: &mut Aftermath<K, V>) {
        self.closed = true;
        self.channels.iter_mut().for_each(|(_, channel)| channel.take_wakers(&mut after.wakers));
        // Whether somebody was held back or will be.
        after.lets_go = true;
    }

    /// The causes that somebody hears, and those that somebody waits for.
    pub(super) fn wants(&self) -> (u8, u8) {
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
    pub(super) fn may_hold_back(&self) -> bool {
        self.channels.iter().any(|(_, channel)| holds_back(channel))
    }

    pub(super) fn room(&mut self) -> u64 {
        let channels = self.channels.iter_mut().map(|(_, channel)| channel);
        let room = channels.filter(|channel| holds_back(channel)).map(Channel::room).min();
        room.unwrap_or(u64::MAX)
    }

    pub(super) fn overflow(&mut self) -> u64 {
        let channels = self.channels.iter_mut().map(|(_, channel)| channel);
        let lossless = channels.filter(|channel| channel.is_lossless());
        lossless.map(Channel::overflow).max().unwrap_or(0)
    }

    /// Whether the sweeper may go on; else it is told when it may.
    pub(super) fn may_go(&mut self) -> bool {
        self.held_back = !self.is_half_free();
        !self.held_back
    }

    fn is_half_free(&self) -> bool {
        let mut channels = self.channels.iter().map(|(_, channel)| channel);
        self.closed || channels.all(|channel| !holds_back(channel) || channel.is_half_free())
    }

    /// Whether a sweeper that was held back may go on; it is told once.
    fn lets_go(&mut self) -> bool {
        let lets_go = self.held_back && self.is_half_free();
        self.held_back &= !lets_go;
        lets_go
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

    fn take_out(&mut self, place: Place, after: &mut Aftermath<K, V>) -> Option<Waker> {
        let channel = &mut self.channels[place.channel];
        if channel.readers() > 1 {
            let (waker, read) = channel.leave(place.reader);
            after.read.extend(read);
            return waker;
        }
        // Whole, and not event by event: there may be many.
        let mut channel = self.channels.remove(place.channel);
        let mut waker = Wakers::new();
        channel.take_wakers(&mut waker);
        after.left = Some(channel);
        waker.pop()
    }
}

impl<K, V> Aftermath<K, V> {
    pub(super) fn new() -> Self {
        Self {
            wakers: Wakers::new(),
            unarmed: None,
            read: SmallVec::new(),
            left: None,
            unheard: Vec::new(),
            lets_go: false,
        }
    }

    /// Wakes who waited, and drops what nobody will read. A panic in one keeps nothing from the others, and
    /// goes no further: whoever came along here has no part in it.
    pub(super) fn settle(self) {
        for waker in self.wakers {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        panics::drop_all(self.unarmed);
        panics::drop_all(self.unheard);
        panics::drop_all(self.read);
        panics::drop_all(self.left.into_iter().flat_map(Channel::into_events));
    }
}

/// Whether a reader without room holds back the sweeper, which sends nothing but [`Cause::Expired`].
fn holds_back<K, V>(channel: &Channel<K, V>) -> bool {
    channel.is_lossless() && channel.causes() & Cause::Expired.bit() != 0
}
