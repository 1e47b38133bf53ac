//! A subscription: one reader's place in the log, and how it waits there.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::task::coop;

use super::{
    log::Place,
    publisher::{Item, PollResult, Publisher},
};
use crate::engine::panics;

pub(super) struct Subscription<K, V> {
    publisher: Arc<Publisher<K, V>>,
    place: Place,
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
        self.publisher.change(|log, _| log.unread(self.place))
    }

    /// The next event. What is pending has taken nothing, and where the budget of the task is spent it has
    /// not even looked.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<K, V>>> {
        let budget = ready!(coop::poll_proceed(cx));
        // Cloned only where it must wait, and outside of the lock, as it is dropped: a waker is somebody's code.
        let mut waker = None;
        loop {
            match self.publisher.look(self.place, cx.waker(), &mut waker) {
                PollResult::Unarmed => waker = Some(cx.waker().clone()),
                PollResult::Waits => {
                    panics::drop_all(waker);
                    return Poll::Pending;
                }
                PollResult::Done(next) => {
                    // A panic in it must not take along what was just read.
                    panics::drop_all(waker);
                    budget.made_progress();
                    return Poll::Ready(next);
                }
            }
        }
    }
}

impl<K, V> Drop for Subscription<K, V> {
    fn drop(&mut self) {
        self.publisher.unsubscribe(self.place);
    }
}
