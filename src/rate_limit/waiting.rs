//! The lines of those who wait for a key: who asked first is let in first, unless it is not polled.
//!
//! 1. At the head of a line is who asked first of those who sit in it. It alone asks for room, and says when it will
//!    ask again; those behind it look now and then whether it has.
//! 2. Who is at the head and lets its time pass is woken once more, and then loses its seat: those behind it go first,
//!    until it is polled. Then it has its seat again, in the order of asking.
//! 3. A line is changed under the lock of all lines, and goes with the last seat in it. Under that lock nobody is woken,
//!    and no key dropped.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    mem,
    pin::{Pin, pin},
    sync::{Arc, PoisonError},
    task::Poll,
    time::Duration,
};

use equivalent::Equivalent;
use hashbrown::HashMap;
use rand::{RngExt, rngs::SmallRng};
use tokio::{sync::Notify, time::Instant};

use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// So many lines are not worth giving back.
const SMALL: usize = 64;

/// How long who is at the head may be silent before it is woken once more, and then before it loses its seat: a task of
/// a busy machine comes to it in time, and one that has its next turn in minutes holds up nobody.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long those behind the head sleep at most: it may leave long before it meant to ask again, and the next one may be
/// as silent.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How calls wait, whatever for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSettings {
    /// So many wait for a key, and who has an end to its patience and comes then is sent away.
    pub(crate) most: usize,
    /// By up to so much one that has to wait waits longer.
    pub(crate) jitter: Duration,
}

/// Only keys for which somebody waits have a line.
pub(crate) struct Waiting<K, S>(Mutex<WaitQueues<K, S>>);

struct WaitQueues<K, S> {
    by_key: HashMap<K, WaitQueue, S>,
    /// Of who comes next, whatever its key: who lost its seat may find that its line has ended, and another begun.
    next: u64,
}

#[derive(Default)]
struct WaitQueue {
    /// In the order of asking. At least one.
    slots: BTreeMap<u64, QueueSlot>,
    /// When the head asks for room. `None` where another has come to the head, and nobody has looked since.
    asks_at: Option<Instant>,
    /// Whether the head was silent then, and was woken once more.
    is_doubted: bool,
    /// What all have waited for who ever came.
    joined: u64,
    departed: Arc<AtomicU64>,
}

struct QueueSlot {
    told: Arc<Notify>,
    /// What it waits for, until it departs.
    cost: u32,
}

/// A place in the line of a key.
pub(crate) struct Waiter<'a, K: Hash + Eq, S: BuildHasher> {
    waiting: &'a Waiting<K, S>,
    key: K,
    number: u64,
    /// That it may be at the head now.
    told: Arc<Notify>,
    /// How many were there before it.
    behind: usize,
    /// What all waited for who came before.
    before: u64,
    /// What those of its line waited for who have been at the head, or gave up.
    departed: Arc<AtomicU64>,
}

impl WaitSettings {
    /// When to ask again where there is room from `at` on.
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
        Self { most: usize::MAX, jitter: Duration::ZERO }
    }
}

impl<K, S> Waiting<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self(Mutex::new(WaitQueues { by_key: HashMap::with_hasher(hasher), next: 0 }))
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().by_key.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, WaitQueues<K, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiting<K, S> {
    /// Whether somebody waits for `key`.
    pub(crate) fn has_line<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let by_key = &self.lock().by_key;
        let is_it = |k: &K| key.equivalent(k);
        let of_hash = |hash| by_key.raw_entry().from_hash(hash, is_it);
        !by_key.is_empty() && of_hash(by_key.hasher().hash_one(key)).is_some()
    }

    /// The last place in the line of `key`, for who waits for `cost` units.
    pub(crate) fn join(&self, key: K, cost: u32) -> Waiter<'_, K, S> {
        let told = Arc::new(Notify::new());
        let (number, behind, before, departed) = self.in_line(&key, |wait_queue, next| {
            let number = mem::replace(next, *next + 1);
            let (behind, before) = (wait_queue.slots.len(), wait_queue.joined);
            wait_queue.joined = wait_queue.joined.saturating_add(cost.into());
            wait_queue.slots.insert(number, QueueSlot { told: told.clone(), cost });
            (number, behind, before, wait_queue.departed.clone())
        });
        Waiter { waiting: self, key, number, told, behind, before, departed }
    }

    /// Changes the line of `key`, which begins where there is none; it must have a seat then.
    fn in_line<R>(&self, key: &K, change: impl FnOnce(&mut WaitQueue, &mut u64) -> R) -> R {
        // Cloned before the lock, and where it is not needed dropped after it: both are the user's code.
        let copy = key.clone();
        let mut wait_queues = self.lock();
        let WaitQueues { by_key, next } = &mut *wait_queues;
        match by_key.get_mut(key) {
            Some(wait_queue) => change(wait_queue, next),
            None => {
                let mut wait_queue = WaitQueue::default();
                let changed = change(&mut wait_queue, next);
                by_key.insert(copy, wait_queue);
                changed
            }
        }
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiter<'_, K, S> {
    /// How many were there before it when it came.
    pub(crate) fn behind(&self) -> usize {
        self.behind
    }

    /// How many units those wait for, at the least, who came before it and were not at the head yet. Who was at the head
    /// may be charged: so this is to be asked after what is in use was looked at, under the same lock.
    pub(crate) fn ahead(&self) -> u64 {
        self.before.saturating_sub(self.departed.load(Relaxed))
    }

    /// Whether it is its turn to ask for room; else when to look again.
    pub(crate) fn turn(&self, now: Instant) -> Result<(), Instant> {
        let look = |wait_queue: &mut WaitQueue| wait_queue.turn(self.number, &self.told, now);
        let mut wait_queues = self.waiting.lock();
        let (turn, woken) = match wait_queues.by_key.get_mut(&self.key) {
            Some(wait_queue) => look(wait_queue),
            // It had lost its seat, and the others are gone.
            None => {
                drop(wait_queues);
                self.waiting.in_line(&self.key, |wait_queue, _| look(wait_queue))
            }
        };
        if let Some(head) = woken {
            head.notify_one();
        }
        turn
    }

    /// It is its turn, and it asks for room, or will have been answered, at this time.
    pub(crate) fn asks_at(&self, at: Instant) {
        self.change(|wait_queue| {
            if wait_queue.is_head(self.number) {
                wait_queue.asks_at = Some(at);
            }
        });
    }

    /// Waits until it is told that it may be its turn, or until `change`: then the head may ask at once, whenever it
    /// meant to.
    pub(crate) async fn told_or(&self, mut change: Pin<&mut impl Future>) {
        let mut told = pin!(self.told.notified());
        let has_changed = poll_fn(|cx| match told.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => change.as_mut().poll(cx).map(|_| true),
        });
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

impl WaitQueue {
    /// As of [`Waiter::turn`]; and who is to be woken.
    fn turn(
        &mut self,
        number: u64,
        told: &Arc<Notify>,
        now: Instant,
    ) -> (Result<(), Instant>, Option<Arc<Notify>>) {
        // Who lost its seat has it again. It departed long ago.
        self.slots.entry(number).or_insert_with(|| QueueSlot { told: told.clone(), cost: 0 });
        if self.is_head(number) {
            self.lead();
            return (Ok(()), None);
        }
        let asks_at = *self.asks_at.get_or_insert(now);
        // Beyond the end of time it never asks, and need not.
        let silent_at = asks_at.checked_add(PATIENCE).unwrap_or(asks_at);
        if now < silent_at {
            return (Err(silent_at.min(now + LOOK_EVERY)), None);
        }
        // Counted anew: where the clock has jumped, the head was not polled yet, either.
        self.asks_at = Some(now);
        if !self.is_doubted {
            self.is_doubted = true;
        } else {
            let (_, silent) = self.slots.pop_first().expect("the head is another's");
            self.depart(silent.cost);
            self.is_doubted = false;
            if self.is_head(number) {
                self.lead();
                return (Ok(()), None);
            }
        }
        (Err(now + PATIENCE), self.head().map(|head| head.told.clone()))
    }

    /// Its head is there, and asks for room.
    fn lead(&mut self) {
        (self.asks_at, self.is_doubted) = (None, false);
        if let Some(mut head) = self.slots.first_entry() {
            // Its charge comes after this, under a lock: who sees that sees this.
            let cost = mem::take(&mut head.get_mut().cost);
            self.depart(cost);
        }
    }

    /// One leaves; returns who comes to the head by that.
    fn leave(&mut self, number: u64) -> Option<Arc<Notify>> {
        let was_head = self.is_head(number);
        let slot = self.slots.remove(&number)?;
        self.depart(slot.cost);
        if !was_head {
            return None;
        }
        (self.asks_at, self.is_doubted) = (None, false);
        self.head().map(|head| head.told.clone())
    }

    fn depart(&self, cost: u32) {
        self.departed.fetch_add(cost.into(), Relaxed);
    }

    fn is_head(&self, number: u64) -> bool {
        self.slots.first_key_value().is_some_and(|(first, _)| *first == number)
    }

    fn head(&self) -> Option<&QueueSlot> {
        self.slots.first_key_value().map(|(_, head)| head)
    }
}

impl<K: Hash + Eq, S: BuildHasher> Drop for Waiter<'_, K, S> {
    fn drop(&mut self) {
        let mut wait_queues = self.waiting.lock();
        let by_key = &mut wait_queues.by_key;
        let Some(wait_queue) = by_key.get_mut(&self.key) else { return };
        let next = wait_queue.leave(self.number);
        let last = if wait_queue.slots.is_empty() { by_key.remove_entry(&self.key) } else { None };
        if by_key.capacity() > SMALL && by_key.len() < by_key.capacity() / 8 {
            let most = 2 * by_key.len();
            by_key.shrink_to(most);
        }
        // A key's drop is the user's code, which must not find the map locked.
        drop(wait_queues);
        if let Some(next) = next {
            next.notify_one();
        }
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU32, thread};

    use super::*;
    use crate::engine::hasher::DefaultHasher;

    #[test]
    fn of_two_who_give_up_at_once_the_last_takes_the_line_along() {
        let waiting = Waiting::new(DefaultHasher::default());
        let met = AtomicU32::new(0);
        let join_and_leave = || {
            for round in 1..=2_000 {
                let waiter = waiting.join(round, 1);
                // Both are awake when they go on.
                met.fetch_add(1, Relaxed);
                while met.load(Relaxed) < 2 * round {
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
    fn who_lost_its_seat_has_its_place_in_whatever_line_there_is_then() {
        let waiting = Waiting::new(DefaultHasher::default());
        let start = Instant::now();
        let silent = waiting.join("ada", 1);
        assert!(silent.turn(start).is_ok());
        let other = waiting.join("ada", 1);
        let doubted_at = other.turn(start).expect_err("the head has time yet");
        let lost_at = other.turn(doubted_at).expect_err("it is woken once more");
        assert!(other.turn(lost_at).is_ok());
        // The line ends with the last one that sits in it, and another one begins.
        drop(other);
        let third = waiting.join("ada", 1);
        assert!(silent.turn(lost_at).is_ok(), "it came first");
        assert!(third.turn(lost_at).is_err());
        drop(silent);
        assert!(third.turn(lost_at).is_ok());
        drop(third);
        assert!(waiting.is_empty());
    }
}
