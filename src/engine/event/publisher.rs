//! The publisher: moves departures from the journal to the event log, and asks the log whether a sweep may continue.

use std::{sync::Arc, task::Waker, thread};

use tokio::sync::Notify;

use super::{
    Cause, Event, Lagged,
    journal::Journal,
    log::{AfterUnlock, EventLog, ReaderId},
};
#[cfg(feature = "metrics")]
use crate::engine::metrics::Histogram;
use crate::engine::{
    clock::Clock,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Shared by a cache and its streams. Streams hold it without keeping the cache alive.
pub(crate) struct Publisher<K, V> {
    journal: Arc<Journal<K, V>>,
    clock: Clock,
    /// Causes that a subscriber receives by default, as bits.
    causes: u8,
    /// True if a lossless subscriber may delay the sweeper. Read by the sweeper to avoid the log's lock. `Relaxed`,
    /// because a stale value only affects one window: the capacity itself is read under the lock.
    may_block_sweeper: AtomicBool,
    log: Mutex<EventLog<K, V>>,
    /// Notified when a sweeper that waits for capacity may continue.
    room_freed: Notify,
    /// Notified when a write expires before the wake deadline of a resting sweeper.
    wake_requested: Notify,
}

/// Result of reading: an event, or the number of missed events.
pub(super) type Item<K, V> = Result<Arc<Event<K, V>>, Lagged>;

/// Guard that publishes the departures of a call that panics.
pub(crate) struct FlushOnPanic<'a, K, V>(&'a Publisher<K, V>);

/// Result of one attempt to read the log.
pub(super) enum PollResult<K, V> {
    /// An item, or `None` if the stream has ended.
    Done(Option<Item<K, V>>),
    Pending,
    /// There is no event, and the registered waker, if any, does not wake this task.
    NeedsWaker,
}

impl<K, V> Publisher<K, V> {
    pub(crate) fn new(
        journal: Arc<Journal<K, V>>,
        clock: Clock,
        causes: u8,
        capacity: usize,
    ) -> Self {
        Self {
            journal,
            clock,
            causes,
            may_block_sweeper: AtomicBool::new(false),
            log: Mutex::new(EventLog::new(capacity as u64)),
            room_freed: Notify::new(),
            wake_requested: Notify::new(),
        }
    }

    /// Returns the published causes, as bits.
    pub(super) fn causes(&self) -> u8 {
        self.causes
    }

    /// Publishes the departures in the journal, if they are due. Called after each change, without any shard lock.
    #[inline]
    pub(crate) fn flush(&self) {
        if self.journal.is_due() {
            self.publish();
        }
        if self.journal.is_wake_requested() {
            self.wake_sweeper();
        }
    }

    /// Returns a guard that flushes if user code panics while it exists. Created before user code that may run after a
    /// departure was recorded, since waiters of that departure must not wait for the next call.
    #[inline]
    pub(crate) fn flush_on_panic(&self) -> FlushOnPanic<'_, K, V> {
        FlushOnPanic(self)
    }

    /// Waits until an entry is written that expires before the wake deadline armed by
    /// [`Store::arm_wake_deadline`](crate::engine::store::Store::arm_wake_deadline).
    pub(crate) async fn wake_requested(&self) {
        self.wake_requested.notified().await;
    }

    #[cold]
    fn wake_sweeper(&self) {
        // Of several writers that saw the request, one notifies. A second permit would wake the sweeper once more.
        if self.journal.take_wake_request() {
            self.wake_requested.notify_one();
        }
    }

    #[inline(never)]
    fn publish(&self) {
        // Of several threads that saw the flag, one publishes; the others need not wait for the lock.
        if !self.journal.claim() {
            return;
        }
        let log = match self.log.try_lock() {
            Ok(log) => log,
            // Contention: leave the departures in the journal, to be published in batches. Batches are ordered by
            // their time stamps, which a paused clock makes equal; so with such a clock, wait for the lock.
            Err(_) if !self.clock.may_pause() && self.journal.note_contention() => return,
            Err(_) => self.lock(),
        };
        self.with_locked_log(log, |log, after| self.catch_up(log, after));
    }

    /// Returns how many entries the sweeper may remove with this cause: the least free capacity of all lossless
    /// subscribers of it.
    pub(crate) fn room(&self, cause: Cause) -> usize {
        if !self.may_block_sweeper.load(Relaxed) {
            return usize::MAX;
        }
        let room = self.with_log(|log, _| log.room(cause));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Waits until at least half of the capacity of every lossless subscriber of `cause` is free, so that the sweeper
    /// can then remove many entries at once.
    pub(crate) async fn wait_for_room(&self, cause: Cause) {
        // Checked and recorded under one lock: otherwise the last reader could free capacity in between without a
        // notification. `notify_one` stores a permit, so it may come before `notified`.
        if !self.with_log(|log, _| log.may_sweep(cause)) {
            self.room_freed.notified().await;
        }
    }

    /// Returns the number of events beyond the capacity of the lossless subscriber with the most of them.
    pub(crate) fn overflow(&self) -> usize {
        self.with_log(|log, _| log.overflow()) as usize
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.with_log(|log, _| log.subscribers())
    }

    /// Publishes the whole journal, even if it is not due.
    #[cfg(feature = "metrics")]
    pub(crate) fn publish_all(&self) {
        self.with_log(|_, _| ());
    }

    /// Returns the lag of events, the number of missed events, the number of subscribers and the overflow, under one
    /// lock: each acquisition contends with writers. Runs no user code, so it does not publish the journal: an export
    /// reads under a lock of its own, and [publishes](Self::publish_all) before.
    #[cfg(feature = "metrics")]
    pub(crate) fn metrics(&self) -> (Histogram, u64, usize, usize) {
        self.with_locked_log(self.lock(), |log, _| {
            (log.lag().clone(), log.missed(), log.subscribers(), log.overflow() as usize)
        })
    }

    /// Ends the streams; events already in them can still be read.
    pub(crate) fn close(&self) {
        self.with_log(|log, after| {
            log.close(after);
            self.update_subscriptions(log, 0, after);
        });
    }

    /// Adds a subscriber of these causes; without a capacity, it is not lossless.
    pub(super) fn subscribe(&self, causes: u8, lossless: Option<usize>) -> ReaderId {
        self.with_log(|log, after| {
            // `with_log` has published the journal: departures before the call are not for this subscriber.
            let reader_id = log.join(causes, lossless);
            self.update_subscriptions(log, 0, after);
            reader_id
        })
    }

    /// Limits a subscriber to `causes`.
    pub(super) fn narrow(&self, reader_id: &mut ReaderId, causes: u8) {
        self.with_log(|log, after| {
            log.narrow(reader_id, causes, &self.clock, after);
            self.update_subscriptions(log, 0, after);
        });
    }

    pub(super) fn unsubscribe(&self, reader_id: ReaderId) {
        self.with_log(|log, after| {
            log.leave(reader_id, after);
            self.update_subscriptions(log, 0, after);
        });
    }

    /// Reads the next event of a subscriber. If there is none, registers `waker`, and returns the previous waker in it.
    pub(super) fn poll_read(
        &self,
        reader_id: ReaderId,
        present: &Waker,
        waker: &mut Option<Waker>,
    ) -> PollResult<K, V> {
        let result = self.with_locked_log(self.lock(), |log, after| {
            let found = log.read(reader_id, &self.clock, after);
            // Departures in the journal are newer than all events of the log, so it is only needed if none is unread.
            let found = found.or_else(|| {
                self.catch_up(log, after);
                log.read(reader_id, &self.clock, after)
            });
            if let Some(next) = found {
                return Ok(next);
            }
            let Some(new) = waker.take() else {
                let will_wake = log.will_wake(reader_id, present);
                return Err(if will_wake { PollResult::Pending } else { PollResult::NeedsWaker });
            };
            // Publishes departures that were left in the journal before this subscriber was recorded as waiting.
            self.update_subscriptions(log, log.causes_of(reader_id), after);
            if let Some(next) = log.read(reader_id, &self.clock, after) {
                // Not needed after all; the caller drops it after unlock.
                *waker = Some(new);
                return Ok(next);
            }
            *waker = log.arm(reader_id, new);
            Err(PollResult::Pending)
        });
        match result {
            Ok(next) => {
                PollResult::Done(next.map(|item| item.map(|event| event.into_event(&self.clock))))
            }
            Err(pending) => pending,
        }
    }

    /// Publishes the journal, changes the log, and does the resulting work after unlock.
    pub(super) fn with_log<R>(
        &self,
        change: impl FnOnce(&mut EventLog<K, V>, &mut AfterUnlock<K, V>) -> R,
    ) -> R {
        self.with_locked_log(self.lock(), |log, after| {
            self.catch_up(log, after);
            change(log, after)
        })
    }

    fn with_locked_log<R>(
        &self,
        mut log: MutexGuard<'_, EventLog<K, V>>,
        change: impl FnOnce(&mut EventLog<K, V>, &mut AfterUnlock<K, V>) -> R,
    ) -> R {
        let mut after = AfterUnlock::new();
        let changed = change(&mut log, &mut after);
        // Before the notifications: woken tasks lock the log, and `settle` runs user code.
        drop(log);
        if after.resumes_sweeper {
            self.room_freed.notify_one();
        }
        after.settle();
        changed
    }

    /// Moves the journal to the log.
    fn catch_up(&self, log: &mut EventLog<K, V>, after: &mut AfterUnlock<K, V>) {
        if self.journal.is_dirty() {
            log.append(&self.journal, &self.clock, after);
            // The woken subscribers do not wait any more, so writers need not publish immediately for them.
            if !after.wakers.is_empty() {
                let (subscribed, awaited) = log.subscribed_causes();
                self.journal.set_subscribed(subscribed, awaited);
            }
        }
    }

    /// Updates the subscribed and awaited causes in the journal. Called under the log's lock after a change of
    /// subscribers, or with `more` before a subscriber waits for these causes.
    fn update_subscriptions(
        &self,
        log: &mut EventLog<K, V>,
        more: u8,
        after: &mut AfterUnlock<K, V>,
    ) {
        let (subscribed, awaited) = log.subscribed_causes();
        self.journal.set_subscribed(subscribed, awaited | more);
        self.may_block_sweeper.store(log.may_block_sweeper(), Relaxed);
        // After the update, and even if the journal is not marked dirty: a thread that recorded before it saw the
        // update may have left departures there.
        log.append(&self.journal, &self.clock, after);
    }

    fn lock(&self) -> MutexGuard<'_, EventLog<K, V>> {
        self.log.lock().expect("no user code runs under this lock")
    }
}

impl<K, V> Drop for FlushOnPanic<'_, K, V> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.flush();
        }
    }
}
