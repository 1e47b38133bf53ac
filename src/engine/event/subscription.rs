//! A subscription: a reader of the log, registered until it is dropped.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::task::coop;

use super::{
    log::ReaderId,
    publisher::{Item, PollResult, Publisher},
};
use crate::engine::panics;

/// A reader of the log.
pub(super) struct Subscription<K, V> {
    publisher: Arc<Publisher<K, V>>,
    reader_id: ReaderId,
}

impl<K, V> Subscription<K, V> {
    /// Subscribes to `causes`, published or not; without a capacity, the subscription is not lossless.
    pub(super) fn new(
        publisher: &Arc<Publisher<K, V>>,
        causes: u8,
        lossless: Option<usize>,
    ) -> Self {
        let reader_id = publisher.subscribe(causes, lossless);
        Self { publisher: publisher.clone(), reader_id }
    }

    pub(super) fn only(mut self, causes: u8) -> Self {
        self.publisher.narrow(&mut self.reader_id, causes);
        self
    }

    pub(super) fn unread(&self) -> u64 {
        self.publisher.with_log(|log, _| log.unread(self.reader_id))
    }

    /// Polls for the next event. If it is pending, no event was consumed; if the task's budget is used up, the log was
    /// not even locked.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<K, V>>> {
        let budget = ready!(coop::poll_proceed(cx));
        // Cloned only if the task must wait, and outside of the log's lock, like its drop: a waker is user code.
        let mut waker = None;
        loop {
            match self.publisher.poll_read(self.reader_id, cx.waker(), &mut waker) {
                PollResult::NeedsWaker => waker = Some(cx.waker().clone()),
                // `budget` is dropped without progress, which gives its unit back.
                PollResult::Pending => {
                    panics::drop_all(waker);
                    return Poll::Pending;
                }
                PollResult::Done(next) => {
                    // Caught, because a panic in the drop of the waker would lose the event that was just read.
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
        self.publisher.unsubscribe(self.reader_id);
    }
}
