//! The publisher: it moves departures from the journal to the log, and says when the sweeper must wait.

use std::sync::Arc;

use tokio::sync::Notify;

use super::log::{Aftermath, Log, Place};
use crate::engine::{
    clock::Clock,
    store::Journal,
    sync::{
        Mutex,
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
        }
    }

    /// The causes that are published, as bits.
    pub(super) fn causes(&self) -> u8 {
        self.causes
    }

    /// Sends what the journal holds. Called after each change, outside of the shard's lock.
    #[inline]
    pub(crate) fn flush(&self) {
        if self.journal.is_dirty() {
            self.publish();
        }
    }

    #[inline(never)]
    fn publish(&self) {
        self.change(|log, after| log.append(&self.journal, &self.clock, after));
    }

    /// How many departures the sweeper may cause: what is free in the fullest lossless subscription.
    pub(crate) fn room(&self) -> usize {
        if !self.may_be_held_back.load(Relaxed) {
            return usize::MAX;
        }
        // What is in the journal takes room too, of those who hear it.
        let room = self.change(|log, after| {
            log.append(&self.journal, &self.clock, after);
            log.room()
        });
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Waits until at least half of every lossless subscription is free, so that the sweeper then does a
    /// fair piece of work at once.
    pub(crate) async fn wait_for_room(&self) {
        // Asked and noted under one lock: else the last reader could make room between the two, and tell nobody.
        let may_go = self.change(|log, _| {
            log.held_back = !log.is_half_free();
            !log.held_back
        });
        if !may_go {
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

    /// Ends the streams, after what they hold.
    pub(crate) fn close(&self) {
        self.change(|log, after| {
            log.append(&self.journal, &self.clock, after);
            log.closed = true;
            self.note_causes(log);
            log.take_wakers(&mut after.wakers);
            after.lets_go = true;
        });
    }

    /// Takes in a subscriber of these causes; one without a capacity is not lossless.
    pub(super) fn subscribe(&self, causes: u8, lossless: Option<usize>) -> Place {
        self.change(|log, after| {
            // What happened before is not for this subscriber.
            log.append(&self.journal, &self.clock, after);
            let place = log.join(causes, lossless);
            self.note_causes(log);
            place
        })
    }

    /// Lets a subscriber hear no more than `causes`.
    pub(super) fn narrow(&self, place: &mut Place, causes: u8) {
        self.change(|log, after| {
            log.narrow(place, causes, after);
            self.note_causes(log);
        });
    }

    pub(super) fn unsubscribe(&self, place: Place) {
        self.change(|log, after| {
            log.leave(place, after);
            self.note_causes(log);
        });
    }

    /// Changes the log, and then does what that led to.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut Log<K, V>, &mut Aftermath<K, V>) -> R,
    ) -> R {
        let mut after = Aftermath::new();
        let changed = {
            let mut log = self.log.lock().expect("no user code runs under this lock");
            change(&mut log, &mut after)
        };
        if after.lets_go {
            self.room.notify_one();
        }
        after.settle();
        changed
    }

    /// Called in the lock after who hears what has changed, so that the last one to change it is right.
    fn note_causes(&self, log: &Log<K, V>) {
        // After the end nobody wants anything again.
        self.journal.want(if log.closed { 0 } else { log.causes() });
        self.may_be_held_back.store(log.may_hold_back(), Relaxed);
    }
}
