//! Wait queues of all keys: a waiter joins the queue of its key, becomes its head, and passes its turn on.
//!
//! 1. The head of a queue is the first waiter that has a slot. Only the head checks the limits, and announces when it
//!    will check again. The waiters right behind it verify that it did; those farther back only do so rarely.
//! 2. A head that misses its time is woken once more, and then loses its slot. The waiters behind it go first until it
//!    is polled again; then it gets its slot back, in the order of joining.
//! 3. All queues are changed under one lock, and a queue is removed with its last slot. No task is woken and no key is
//!    dropped under that lock: both run code of others.

mod wait_queue;

use std::{
    future::poll_fn,
    hash::{BuildHasher, Hash},
    mem,
    pin::{Pin, pin},
    ptr,
    sync::{Arc, PoisonError},
    task::Poll,
    time::Duration,
};

use equivalent::Equivalent;
use hashbrown::{HashMap, hash_map::RawEntryMut};
use rand::{RngExt, rngs::SmallRng};
use tokio::time::Instant;

pub(crate) use self::wait_queue::WaiterUnits;
use self::wait_queue::{Place, SharedWaiter, WaitQueue, Wakes};
use super::Limit;
use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

/// Capacity of the map of queues below which memory is not given back.
const SMALL_CAPACITY: usize = 64;

/// Settings of all waits of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSettings {
    /// Maximum number of waiters per key; a further call with a maximum wait is denied.
    pub(crate) max_waiting: usize,
    /// Maximum random delay that is added to a wait.
    pub(crate) jitter: Duration,
}

/// Wait queues of all keys with waiters.
pub(crate) struct Waiting<K, S> {
    queues: Mutex<WaitQueues<K, S>>,
    /// Number of queues, for refunds, which take no lock if there are none.
    len: AtomicU64,
    /// Number of times that usage was released.
    releases: AtomicU64,
}

struct WaitQueues<K, S> {
    by_key: HashMap<K, WaitQueue, S>,
    /// Number of the next waiter. One counter for all keys: a waiter without a slot may outlast its queue, and its
    /// number has to order it in the next queue of the key.
    next_number: u64,
}

/// Place in the wait queue of a key; leaves it on drop.
pub(crate) struct Waiter<'a, K: Hash + Eq, S: BuildHasher> {
    waiting: &'a Waiting<K, S>,
    key: K,
    number: u64,
    shared: Arc<SharedWaiter>,
    /// Number of waiters ahead when it joined.
    waiters_ahead: usize,
    /// Sum of the costs of the waiters that joined right before it, by the same limits.
    units_before: u64,
}

impl WaitSettings {
    /// Returns when to check again if the limits admit the call at `at`.
    pub(crate) fn jittered(&self, at: Instant, random: &mut SmallRng) -> Instant {
        if self.jitter.is_zero() {
            return at;
        }
        let late = self.jitter.mul_f64(random.random());
        at.checked_add(late).unwrap_or(at)
    }
}

impl Default for WaitSettings {
    fn default() -> Self {
        Self { max_waiting: usize::MAX, jitter: Duration::ZERO }
    }
}

impl<K, S> Waiting<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        let queues = WaitQueues { by_key: HashMap::with_hasher(hasher), next_number: 0 };
        Self { queues: Mutex::new(queues), len: AtomicU64::new(0), releases: AtomicU64::new(0) }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().by_key.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, WaitQueues<K, S>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiting<K, S> {
    /// Returns `true` if there are waiters for `key`.
    pub(crate) fn has_queue<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let by_key = &self.lock().by_key;
        let is_it = |k: &K| key.equivalent(k);
        let of_hash = |hash| by_key.raw_entry().from_hash(hash, is_it);
        // Without any queue, which is the usual case, the key is not hashed.
        !by_key.is_empty() && of_hash(by_key.hasher().hash_one(key)).is_some()
    }

    /// Returns the number of releases. If it is the same before a check and after joining, no release was missed.
    pub(crate) fn releases(&self) -> u64 {
        // See `wake`.
        self.releases.load(SeqCst)
    }

    /// Wakes the head of the queue of the key with this hash, after usage of the key was released.
    pub(crate) fn wake(&self, hash: u64) {
        // `SeqCst` here, in `releases` and in `with_queue` orders the two pairs: a waiter that reads the old number has
        // been counted in `len` before.
        self.releases.fetch_add(1, SeqCst);
        if self.len.load(SeqCst) == 0 {
            return;
        }
        let mut wait_queues = self.lock();
        let by_key = &mut wait_queues.by_key;
        // The map compares only seven bits of the hash before it asks whether a key is the one.
        let has_hash = |key: &K| by_key.hasher().hash_one(key) == hash;
        let found = by_key.raw_entry().from_hash(hash, has_hash).map(|(key, _)| ptr::from_ref(key));
        let head = match by_key.raw_entry_mut().from_hash(hash, |key| found == Some(key)) {
            RawEntryMut::Occupied(mut found) => {
                // The announced time may be far away; the waiters behind a silent head would wait until then.
                let wait_queue = found.get_mut();
                wait_queue.asks_at = None;
                wait_queue.wakes(false)
            }
            RawEntryMut::Vacant(_) => return,
        };
        drop(wait_queues);
        head.notify();
    }

    /// Wakes the heads of all queues, after usage was released that any of their keys may share.
    pub(crate) fn wake_all(&self) {
        // As in `wake`.
        self.releases.fetch_add(1, SeqCst);
        if self.len.load(SeqCst) == 0 {
            return;
        }
        let mut wait_queues = self.lock();
        let heads = wait_queues.by_key.values_mut().map(|wait_queue| {
            wait_queue.asks_at = None;
            wait_queue.wakes(false)
        });
        let heads: Vec<_> = heads.collect();
        drop(wait_queues);
        heads.into_iter().for_each(Wakes::notify);
    }

    /// Wakes the head of the queue of `key`, after usage of the key was released.
    #[cfg(feature = "redis")]
    pub(crate) fn wake_key<Q>(&self, key: &Q)
    where
        Q: Hash + ?Sized,
    {
        let hash = self.lock().by_key.hasher().hash_one(key);
        self.wake(hash);
    }

    /// Joins the wait queue of `key` at its end, for a call of `cost` units by the limiter's own limits or by others.
    pub(crate) fn join(&self, key: K, cost: u32, limits: Option<&[Limit]>) -> Waiter<'_, K, S> {
        let (number, place) = self.with_queue(&key, |wait_queue, next| {
            let number = mem::replace(next, *next + 1);
            (number, wait_queue.join(number, cost, limits))
        });
        let Place { shared, waiters_ahead, units_before } = place;
        Waiter { waiting: self, key, number, shared, waiters_ahead, units_before }
    }

    /// Changes the wait queue of `key`, creating it if there is none. `change` must leave a slot in it.
    fn with_queue<R>(&self, key: &K, change: impl FnOnce(&mut WaitQueue, &mut u64) -> R) -> R {
        // Cloned before the lock is taken; dropped after it is released if it is not needed. Both are user code.
        let copy = key.clone();
        let mut wait_queues = self.lock();
        let WaitQueues { by_key, next_number } = &mut *wait_queues;
        match by_key.get_mut(key) {
            Some(wait_queue) => change(wait_queue, next_number),
            None => {
                let mut wait_queue = WaitQueue::default();
                let changed = change(&mut wait_queue, next_number);
                by_key.insert(copy, wait_queue);
                self.len.fetch_add(1, SeqCst);
                changed
            }
        }
    }
}

impl<K: Hash + Eq, S: BuildHasher> Waiter<'_, K, S> {
    /// Returns the units that the waiter waits for.
    pub(crate) fn units(&self) -> &WaiterUnits {
        &self.shared.units
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiter<'_, K, S> {
    /// Returns the number of waiters that were ahead when it joined.
    pub(crate) fn behind(&self) -> usize {
        self.waiters_ahead
    }

    /// Returns a lower bound on the units that earlier waiters wait for by the same limits. To be called under the lock
    /// of the usage: the units of a head depart under that lock, together with their charge.
    pub(crate) fn ahead(&self) -> u64 {
        self.units_before.saturating_sub(self.units().departed.load(Relaxed))
    }

    /// Returns `Ok` if the waiter is the head and may check the limits, else the time to look again.
    pub(crate) fn turn(&self, now: Instant) -> Result<(), Instant> {
        let take_turn =
            |wait_queue: &mut WaitQueue| wait_queue.turn(self.number, &self.shared, now);
        // The lock ends with this statement: waking runs code of the waiter's runtime, which may call the limiter.
        let found = self.waiting.lock().by_key.get_mut(&self.key).map(take_turn);
        // `None` if the waiter had lost its slot and all others have left since. `with_queue` locks again, after it has
        // cloned the key.
        let (turn, woken) = found.unwrap_or_else(|| {
            self.waiting.with_queue(&self.key, |wait_queue, _| take_turn(wait_queue))
        });
        woken.notify();
        turn
    }

    /// Returns the number of the head if the time of its check has come, so that the turn of this waiter may come, too.
    pub(crate) fn due_head(&self, now: Instant) -> Option<u64> {
        self.waiting.lock().by_key.get(&self.key).and_then(|wait_queue| wait_queue.due_head(now))
    }

    /// Announces the time of the head's next check, or the end of the one in progress.
    pub(crate) fn asks_at(&self, at: Instant) {
        self.change(|wait_queue| {
            if wait_queue.is_head(self.number) {
                wait_queue.asks_at = Some(at);
            }
        });
    }

    /// Waits until the waiter is notified, or until `change` completes. After a change the head may check immediately,
    /// even before the announced time.
    pub(crate) async fn notified_or(&self, mut change: Pin<&mut impl Future>) {
        // A notification between `turn` and this line is not lost: `notify_one` stores a permit.
        let mut notified = pin!(self.shared.notify.notified());
        let has_changed = poll_fn(|cx| match notified.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => change.as_mut().poll(cx).map(|_| true),
        });
        // The announced time was computed by the old limits, and may be far away. If it stayed, the waiters behind a
        // silent head would wait until then.
        if has_changed.await {
            self.change(|wait_queue| wait_queue.asks_at = None);
        }
    }

    fn change(&self, change: impl FnOnce(&mut WaitQueue)) {
        if let Some(wait_queue) = self.waiting.lock().by_key.get_mut(&self.key) {
            change(wait_queue);
        }
    }
}

impl<K: Hash + Eq, S: BuildHasher> Drop for Waiter<'_, K, S> {
    fn drop(&mut self) {
        self.units().depart();
        let mut wait_queues = self.waiting.lock();
        let by_key = &mut wait_queues.by_key;
        let Some(wait_queue) = by_key.get_mut(&self.key) else { return };
        let next = wait_queue.remove_waiter(self.number);
        let last = if wait_queue.is_empty() { by_key.remove_entry(&self.key) } else { None };
        if last.is_some() {
            self.waiting.len.fetch_sub(1, SeqCst);
        }
        // Below an eighth, and down to twice the length: far apart, so that few drops shrink the map.
        if by_key.capacity() > SMALL_CAPACITY && by_key.len() < by_key.capacity() / 8 {
            let most = 2 * by_key.len();
            by_key.shrink_to(most);
        }
        // Released before the waker runs and the key is dropped: both are code of others.
        drop(wait_queues);
        next.notify();
        drop(last);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{sync::atomic::AtomicU32, thread};

    use super::*;
    use crate::engine::hasher::DefaultHasher;

    #[test]
    fn queue_is_removed_when_its_last_waiters_give_up_concurrently() {
        let waiting = Waiting::new(DefaultHasher::default());
        let arrivals = AtomicU32::new(0);
        let join_and_leave = || {
            for round in 1..=2_000 {
                let waiter = waiting.join(round, 1, None);
                // Both threads are awake before they continue.
                arrivals.fetch_add(1, Relaxed);
                while arrivals.load(Relaxed) < 2 * round {
                    thread::yield_now();
                }
                drop(waiter);
            }
        };
        thread::scope(|scope| {
            scope.spawn(join_and_leave);
            scope.spawn(join_and_leave);
        });
        assert!(waiting.is_empty());
    }

    #[test]
    fn silent_waiter_keeps_its_place_in_the_next_queue_of_its_key() {
        let waiting = Waiting::new(DefaultHasher::default());
        let start = Instant::now();
        let silent = waiting.join("ada", 1, None);
        assert!(silent.turn(start).is_ok());
        let other = waiting.join("ada", 1, None);
        let rewoken_at = other.turn(start).expect_err("the head has not missed its check yet");
        let lost_at = other.turn(rewoken_at).expect_err("the head is woken once more first");
        assert!(other.turn(lost_at).is_ok());
        // The queue is removed with its last slot, and a new one begins.
        drop(other);
        let third = waiting.join("ada", 1, None);
        assert!(silent.turn(lost_at).is_ok(), "the silent waiter joined first");
        assert!(third.turn(lost_at).is_err());
        drop(silent);
        assert!(third.turn(lost_at).is_ok());
        drop(third);
        assert!(waiting.is_empty());
    }
}
