//! Wait queue of one key: the order of its waiters, when the head checks its limits next, and when it loses its place
//! because it is not polled.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::super::Limit;
use crate::engine::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Time that a head may miss its announced check before it is woken once more, and again before it loses its slot. Long
/// enough for a task on a busy machine, and short enough for a head that is not polled for minutes. The two together
/// are the second that `until_ready` documents.
const SILENCE_LIMIT: Duration = Duration::from_millis(500);

/// Longest sleep of the waiters behind the head. The head may be dropped long before its announced check, and the next
/// one may be a waiter that is not polled.
const MAX_SLEEP: Duration = Duration::from_secs(5);

/// Number of waiters at the front of a queue that look at the clock. If all of them did, a long queue would take a
/// large part of a core.
const NEAR: usize = 4;

/// The waiters of one key.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// Slots by the number of their waiter, so in the order of joining. Not empty.
    slots: BTreeMap<u64, QueueSlot>,
    /// When the head checks the limits next. `None` if there is a new head and no waiter has looked since.
    pub(super) asks_at: Option<Instant>,
    /// Set when the head missed its check and was woken once more.
    was_rewoken: bool,
    /// Limits of the waiter that joined last, if it has others than the limiter's own.
    last_limits: Option<Box<[Limit]>>,
    /// Sum of the costs of the waiters that joined last, one after the other, by these limits.
    joined_units: u64,
    /// Sum of the costs of those of them that were charged or have left.
    departed_units: Arc<AtomicU64>,
    /// Number of slots that were removed.
    removed: u64,
}

struct QueueSlot {
    waiter: Arc<SharedWaiter>,
    /// Number of removed slots at which the waiter would be the head, if only those ahead of it were removed.
    head_at: u64,
}

/// Part of a waiter that its slot shares.
pub(super) struct SharedWaiter {
    /// Notified when the waiter may have become the head.
    pub(super) notify: Notify,
    pub(super) units: WaiterUnits,
}

/// Units that a waiter waits for. They are ahead of those of later waiters until they depart.
pub(crate) struct WaiterUnits {
    /// 0 after they have departed.
    pending: AtomicU64,
    /// Units that have departed, of all waiters that joined together with this one by the same limits.
    pub(super) departed: Arc<AtomicU64>,
}

/// Place of a waiter that has joined a queue.
pub(super) struct Place {
    pub(super) shared: Arc<SharedWaiter>,
    /// Number of waiters ahead.
    pub(super) waiters_ahead: usize,
    /// Sum of the costs of the waiters that joined right before, by the same limits.
    pub(super) units_before: u64,
}

/// Waiters to wake, after the lock is released.
#[derive(Default)]
#[must_use = "the waiters sleep until they are notified"]
pub(super) struct Wakes {
    head: Option<Arc<SharedWaiter>>,
    /// Waiter that has come near the head.
    near: Option<Arc<SharedWaiter>>,
}

impl Wakes {
    pub(super) fn notify(self) {
        for waiter in [self.head, self.near].into_iter().flatten() {
            // Not lost if the waiter does not wait yet: `notify_one` stores a permit.
            waiter.notify.notify_one();
        }
    }
}

impl WaiterUnits {
    /// Counts the units as charged, unless they have departed.
    ///
    /// `Relaxed`: a reader that finds the charge is ordered by the lock of the charge, under which this is called.
    pub(crate) fn depart(&self) {
        let units = self.pending.swap(0, Relaxed);
        self.departed.fetch_add(units, Relaxed);
    }

    /// Takes the departure of `cost` units back, since their check was denied.
    #[cfg(feature = "redis")]
    pub(crate) fn stay(&self, cost: u32) {
        self.pending.store(cost.into(), Relaxed);
        self.departed.fetch_sub(cost.into(), Relaxed);
    }
}

impl WaitQueue {
    /// Returns whether no waiter has a slot.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds a waiter for `cost` units at the end. Numbers increase from waiter to waiter.
    pub(super) fn join(&mut self, number: u64, cost: u32, limits: Option<&[Limit]>) -> Place {
        // Units that wait for other limits take another time, and may even be charged above the quota of these.
        if self.last_limits.as_deref() != limits {
            self.last_limits = limits.map(Into::into);
            (self.joined_units, self.departed_units) = (0, Arc::default());
        }
        let (waiters_ahead, units_before) = (self.slots.len(), self.joined_units);
        self.joined_units = self.joined_units.saturating_add(cost.into());
        let departed = self.departed_units.clone();
        let units = WaiterUnits { pending: AtomicU64::new(cost.into()), departed };
        let shared = Arc::new(SharedWaiter { notify: Notify::new(), units });
        let head_at = self.removed + waiters_ahead as u64;
        self.slots.insert(number, QueueSlot { waiter: shared.clone(), head_at });
        Place { shared, waiters_ahead, units_before }
    }

    /// Implements [`Waiter::turn`](super::Waiter::turn); also returns the waiter to wake.
    pub(super) fn turn(
        &mut self,
        number: u64,
        waiter: &Arc<SharedWaiter>,
        now: Instant,
    ) -> (Result<(), Instant>, Wakes) {
        // A waiter that lost its slot gets it back. Its units departed with the slot.
        let head_at = self.removed;
        let new = || QueueSlot { waiter: waiter.clone(), head_at };
        let head_at = self.slots.entry(number).or_insert_with(new).head_at;
        if self.is_head(number) {
            self.mark_polled();
            return (Ok(()), Wakes::default());
        }
        let asks_at = *self.asks_at.get_or_insert(now);
        // Overflows only if the head never checks again; then `asks_at` is never reached either.
        let silent_at = asks_at.checked_add(SILENCE_LIMIT).unwrap_or(asks_at);
        if now < silent_at {
            if self.slots.range(..number).take(NEAR).count() < NEAR {
                return (Err(silent_at.min(now + MAX_SLEEP)), Wakes::default());
            }
            // It is woken when it comes near. In case all that are near are not polled, it looks too, the more rarely
            // the farther back it is: so the looks of a whole queue are few.
            let times = (head_at.saturating_sub(self.removed) / NEAR as u64).clamp(1, 1_000);
            return (Err(now + MAX_SLEEP * times as u32), Wakes::default());
        }
        // The time starts again: if the clock jumped, the head has not had a chance to be polled either.
        self.asks_at = Some(now);
        if !self.was_rewoken {
            self.was_rewoken = true;
            (Err(now + SILENCE_LIMIT), self.wakes(false))
        } else {
            let (_, silent) = self.slots.pop_first().expect("another waiter is the head");
            self.removed += 1;
            silent.waiter.units.depart();
            self.was_rewoken = false;
            if self.is_head(number) {
                self.mark_polled();
                return (Ok(()), self.wakes(true));
            }
            (Err(now + SILENCE_LIMIT), self.wakes(true))
        }
    }

    /// Returns the head, and also the last of those that are near if `is_shifted`.
    pub(super) fn wakes(&self, is_shifted: bool) -> Wakes {
        let waiter = |slot: &QueueSlot| slot.waiter.clone();
        Wakes {
            head: self.head().map(waiter),
            near: self.slots.values().nth(NEAR - 1).filter(|_| is_shifted).map(waiter),
        }
    }

    /// Records that the head was polled and checks the limits.
    fn mark_polled(&mut self) {
        (self.asks_at, self.was_rewoken) = (None, false);
    }

    /// Removes a waiter; returns the new head to wake if the old one left, and the waiter that has come near.
    pub(super) fn remove_waiter(&mut self, number: u64) -> Wakes {
        let was_head = self.is_head(number);
        let was_near = self.slots.range(..number).take(NEAR).count() < NEAR;
        if self.slots.remove(&number).is_none() {
            return Wakes::default();
        }
        self.removed += 1;
        let mut wakes = self.wakes(was_near);
        if was_head {
            (self.asks_at, self.was_rewoken) = (None, false);
        } else {
            wakes.head = None;
        }
        wakes
    }

    pub(super) fn is_head(&self, number: u64) -> bool {
        self.slots.first_key_value().is_some_and(|(first, _)| *first == number)
    }

    /// Returns the number of the head if the time of its check has come: it may pass now, and those behind it as well.
    pub(super) fn due_head(&self, now: Instant) -> Option<u64> {
        let (number, _) = self.slots.first_key_value()?;
        self.asks_at.is_none_or(|asks_at| asks_at <= now).then_some(*number)
    }

    fn head(&self) -> Option<&QueueSlot> {
        self.slots.first_key_value().map(|(_, head)| head)
    }
}
