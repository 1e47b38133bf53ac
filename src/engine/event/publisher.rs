//! The publisher: it moves departures from the journal to the log, and says when the sweeper must wait.

use std::{sync::Arc, task::Waker};

use tokio::sync::Notify;

use super::{
    Event, Lagged,
    log::{AfterUnlock, Log, Place},
};
#[cfg(feature = "metrics")]
use crate::engine::metrics::Histogram;
use crate::engine::{
    clock::Clock,
    store::Journal,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// What the cache and its streams share.
pub(crate) struct Publisher<K, V> {
    journal: Arc<Journal<K, V>>,
    clock: Clock,
    /// What a subscriber hears that asks for nothing else, as bits.
    causes: u8,
    /// Whether a lossless subscriber hears what the sweeper sends: it need not lock to learn that none does.
    may_be_held_back: AtomicBool,
    log: Mutex<Log<K, V>>,
    /// Told when there is room again for a sweeper that was held back.
    room: Notify,
    /// Told when something dies before a sweeper that rests would look again.
    wake_requested: Notify,
}

/// What a reader gets: an event, or how many it missed.
pub(super) type Item<K, V> = Result<Arc<Event<K, V>>, Lagged>;

/// What a look into the log has found.
pub(super) enum PollResult<K, V> {
    /// `None` where the stream has ended.
    Done(Option<Item<K, V>>),
    Waits,
    /// There is nothing, and nobody would wake this task.
    Unarmed,
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
            may_be_held_back: AtomicBool::new(false),
            log: Mutex::new(Log::new(capacity as u64)),
            room: Notify::new(),
            wake_requested: Notify::new(),
        }
    }

    /// The causes that are published, as bits.
    pub(super) fn causes(&self) -> u8 {
        self.causes
    }

    /// Sends what the journal holds and is due. Called after each change, outside of the shard's lock.
    #[inline]
    pub(crate) fn flush(&self) {
        if self.journal.is_due() {
            self.publish();
        }
        if self.journal.is_wake_requested() {
            self.wake_sweeper();
        }
    }

    /// Waits until something dies before the time that [`Store::arm_wake_deadline`](crate::engine::store::Store::set_alarm)
    /// was told.
    pub(crate) async fn wake_requested(&self) {
        self.wake_requested.notified().await;
    }

    #[cold]
    fn wake_sweeper(&self) {
        if self.journal.take_wake_request() {
            self.wake_requested.notify_one();
        }
    }

    #[inline(never)]
    fn publish(&self) {
        if !self.journal.claim() {
            return;
        }
        let log = match self.log.try_lock() {
            Ok(log) => log,
            // What has gathered is told by its stamps.
            Err(_) if !self.clock.may_pause() && self.journal.note_contention() => return,
            Err(_) => self.lock(),
        };
        self.change_locked(log, |log, after| self.catch_up(log, after));
    }

    /// How many departures the sweeper may cause: what is free in the fullest lossless subscription.
    pub(crate) fn room(&self) -> usize {
        if !self.may_be_held_back.load(Relaxed) {
            return usize::MAX;
        }
        let room = self.change(|log, _| log.room());
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Waits until at least half of every lossless subscription is free, so that the sweeper then does a
    /// fair piece of work at once.
    pub(crate) async fn wait_for_room(&self) {
        // Asked and noted under one lock: else the last reader could make room between the two, and tell nobody.
        if !self.change(|log, _| log.may_sweep()) {
            self.room.notified().await;
        }
    }

    /// Events that wait beyond the capacity of the fullest lossless subscription.
    pub(crate) fn overflow(&self) -> usize {
        self.change(|log, _| log.overflow()) as usize
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.change(|log, _| log.subscribers())
    }

    /// How late events were, how many the slow ones of their subscribers missed, how many subscribers there are, and how
    /// far the slowest lossless one is behind: in one look, as writers meet who looks.
    #[cfg(feature = "metrics")]
    pub(crate) fn figures(&self) -> (Histogram, u64, usize, usize) {
        self.change(|log, _| {
            (log.lag().clone(), log.missed(), log.subscribers(), log.overflow() as usize)
        })
    }

    /// Ends the streams, after what they hold.
    pub(crate) fn close(&self) {
        self.change(|log, after| {
            log.close(after);
            self.note_wants(log, 0, after);
        });
    }

    /// Takes in a subscriber of these causes; one without a capacity is not lossless.
    pub(super) fn subscribe(&self, causes: u8, lossless: Option<usize>) -> Place {
        self.change(|log, after| {
            // What happened before is not for this subscriber.
            let place = log.join(causes, lossless);
            self.note_wants(log, 0, after);
            place
        })
    }

    /// Lets a subscriber hear no more than `causes`.
    pub(super) fn narrow(&self, place: &mut Place, causes: u8) {
        self.change(|log, after| {
            log.narrow(place, causes, &self.clock, after);
            self.note_wants(log, 0, after);
        });
    }

    pub(super) fn unsubscribe(&self, place: Place) {
        self.change(|log, after| {
            log.leave(place, after);
            self.note_wants(log, 0, after);
        });
    }

    /// Looks for the next event of a subscriber. Where there is none, `waker` takes the place of the one that it
    /// had.
    pub(super) fn look(
        &self,
        place: Place,
        present: &Waker,
        waker: &mut Option<Waker>,
    ) -> PollResult<K, V> {
        let looked = self.change_locked(self.lock(), |log, after| {
            let found = log.read(place, &self.clock, after);
            // What is in the journal comes behind what waits here, and is not asked for before that is read.
            let found = found.or_else(|| {
                self.catch_up(log, after);
                log.read(place, &self.clock, after)
            });
            if let Some(next) = found {
                return Ok(next);
            }
            let Some(new) = waker.take() else {
                let will_wake = log.will_wake(place, present);
                return Err(if will_wake { PollResult::Waits } else { PollResult::Unarmed });
            };
            // What came before anybody could know that it is waited for.
            self.note_wants(log, log.causes_at(place), after);
            if let Some(next) = log.read(place, &self.clock, after) {
                *waker = Some(new);
                return Ok(next);
            }
            *waker = log.arm(place, new);
            Err(PollResult::Waits)
        });
        match looked {
            Ok(next) => {
                PollResult::Done(next.map(|item| item.map(|event| event.into_event(&self.clock))))
            }
            Err(look) => look,
        }
    }

    /// Changes the log, which is whole by then, and does what that led to.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut Log<K, V>, &mut AfterUnlock<K, V>) -> R,
    ) -> R {
        self.change_locked(self.lock(), |log, after| {
            self.catch_up(log, after);
            change(log, after)
        })
    }

    fn change_locked<R>(
        &self,
        mut log: MutexGuard<'_, Log<K, V>>,
        change: impl FnOnce(&mut Log<K, V>, &mut AfterUnlock<K, V>) -> R,
    ) -> R {
        let mut after = AfterUnlock::new();
        let changed = change(&mut log, &mut after);
        drop(log);
        if after.resumes_sweeper {
            self.room.notify_one();
        }
        after.settle();
        changed
    }

    /// Moves what is in the journal to the log.
    fn catch_up(&self, log: &mut Log<K, V>, after: &mut AfterUnlock<K, V>) {
        if self.journal.is_dirty() {
            log.append(&self.journal, &self.clock, after);
            // Who was woken waits no more.
            if !after.wakers.is_empty() {
                let (heard, awaited) = log.subscribed_causes();
                self.journal.set_subscribed(heard, awaited);
            }
        }
    }

    /// Called in the lock when other causes are heard than before, or where somebody is about to wait for `more`.
    fn note_wants(&self, log: &mut Log<K, V>, more: u8, after: &mut AfterUnlock<K, V>) {
        let (heard, awaited) = log.subscribed_causes();
        self.journal.set_subscribed(heard, awaited | more);
        self.may_be_held_back.store(log.may_block_sweeper(), Relaxed);
        // After that, dirty or not: who recorded before they could see it may have left it here.
        log.append(&self.journal, &self.clock, after);
    }

    fn lock(&self) -> MutexGuard<'_, Log<K, V>> {
        self.log.lock().expect("no user code runs under this lock")
    }
}
