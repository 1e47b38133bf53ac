//! A subscription: one reader's place in the log, and how it waits there.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use tokio::task::coop;

use super::{Event, Lagged, log::Place, publisher::Publisher};
use crate::engine::panics;

pub(super) type Item<K, V> = Result<Arc<Event<K, V>>, Lagged>;

pub(super) struct Subscription<K, V> {
    publisher: Arc<Publisher<K, V>>,
    place: Place,
}

/// What a look into the log has found.
enum Look<K, V> {
    Done(Option<Item<K, V>>),
    Waits,
    /// There is nothing, and nobody would wake this task.
    Unarmed,
}

impl<K, V> Subscription<K, V> {
    /// Of these causes, published or not; one without a capacity is not lossless.
    pub(super) fn new(
        publisher: &Arc<Publisher<K, V>>,
        causes: u8,
        lossless: Option<usize>,
    ) -> Self {
        let place = publisher.subscribe(causes, lossless);
        Self { publisher: publisher.clone(), place }
    }

    pub(super) fn only(mut self, causes: u8) -> Self {
        self.publisher.narrow(&mut self.place, causes);
        self
    }

    pub(super) fn unread(&self) -> u64 {
        self.publisher.change(|log, _| {
            let (channel, reader) = log.at(self.place);
            channel.unread(reader)
        })
    }

    /// The next event. What is pending has taken nothing, and where the budget of the task is spent it has
    /// not even looked.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<K, V>>> {
        let budget = ready!(coop::poll_proceed(cx));
        // Cloned only where it must wait, and outside of the lock, as it is dropped: a waker is somebody's code.
        let mut waker = None;
        loop {
            match self.look(cx.waker(), &mut waker) {
                Look::Unarmed => waker = Some(cx.waker().clone()),
                Look::Waits => {
                    panics::drop_all(waker);
                    return Poll::Pending;
                }
                Look::Done(next) => {
                    // A panic in it must not take along what was just read.
                    panics::drop_all(waker);
                    budget.made_progress();
                    return Poll::Ready(next);
                }
            }
        }
    }

    /// Looks for an event; where there is none, puts `waker` in the place of the one that was there.
    fn look(&self, present: &Waker, waker: &mut Option<Waker>) -> Look<K, V> {
        self.publisher.change(|log, after| {
            if let Some(item) = log.read(self.place, after) {
                return Look::Done(Some(item));
            }
            if log.closed {
                return Look::Done(None);
            }
            let (channel, reader) = log.at(self.place);
            if let Some(new) = waker.take() {
                *waker = channel.arm(reader, new);
                return Look::Waits;
            }
            if channel.will_wake(reader, present) { Look::Waits } else { Look::Unarmed }
        })
    }
}

impl<K, V> Drop for Subscription<K, V> {
    fn drop(&mut self) {
        self.publisher.unsubscribe(self.place);
    }
}
