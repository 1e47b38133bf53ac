//! Entries of a timeout dictionary, without clock and lock; and what a new value or deadline does to a claim.
//!
//! 1. The slot of each entry is in `by_key`.
//! 2. An entry with a deadline is in `deadlines` or, while it is leased, in `leases`, except if the lease never ends.
//!    An entry that failed too often is in `dead`. All other entries are in no queue.
//! 3. Each sequence number is used once: for a deadline, a claim, or a place in `dead`. A claim is void unless its
//!    number is the one stored in its entry.
//! 4. The user's `Eq` and `Clone` run before anything is changed, and no key or value is dropped here. So a panic in
//!    user code leaves the entries unchanged.
//! 5. Adding to a queue sets `wake_requested` if the addition is due before the wake deadline of the first waiter.

mod dead;
mod leases;

#[cfg(feature = "metrics")]
use std::time::Duration;
use std::{
    collections::{BTreeMap, HashMap},
    hint::black_box,
    mem,
};

use equivalent::Equivalent;
use rand::rngs::SmallRng;
use slab::Slab;

use super::deadline_queue::{DeadlineQueue, Timer};
use crate::engine::{
    clock::{Deadline, Now, Tick},
    hasher::DefaultHasher,
    retries::Retries,
    slot_index::{Slot, SlotIndex},
};

/// Capacity up to which the memory is kept when the last entry is removed, so that a dictionary that is often empty
/// does not allocate each time.
const MIN_CAPACITY: usize = 1_024;

pub(super) struct Entries<K, V> {
    slots: Slab<DictEntry<K, V>>,
    by_key: SlotIndex,
    deadlines: DeadlineQueue,
    /// Ends of leases.
    leases: DeadlineQueue,
    /// By the times since when the entries are dead. A lease that ended may be noticed after a later failure.
    dead: DeadlineQueue,
    /// Numbers of the timers in `dead`, by slot. Dead entries keep the numbers of their deadlines: a late holder may
    /// still release one, and it then has its former place again. Not part of the entries, as few are dead. A tree, as
    /// a table of millions would hold the lock for long when it grows.
    dead_sequences: BTreeMap<u32, u64>,
    /// Number of entries in `deadlines` with failed attempts.
    resting_len: usize,
    /// Reasons of failed attempts by slot. Not part of the entries, as most dictionaries have none.
    reasons: HashMap<u32, Box<str>, DefaultHasher>,
    retries: Retries,
    /// Random numbers for the jitter.
    rng: SmallRng,
    last_sequence: u64,
    counts: TakenCounts,
    /// Time until which the first waiter sleeps, as [`Deadline::order`]. It may remain set after the wait, which costs
    /// one unnecessary notification.
    wake_deadline: Option<u64>,
    wake_requested: bool,
    /// The same for the task that watches the turns.
    watch_deadline: Option<u64>,
    watch_requested: bool,
}

/// Counters of taken and claimed entries.
#[derive(Clone, Copy, Default)]
pub(super) struct TakenCounts {
    pub(super) taken: u64,
    pub(super) claims: u64,
    pub(super) acked: u64,
    pub(super) failed: u64,
}

/// Numbers of due and leased entries.
#[cfg(feature = "metrics")]
pub(super) struct DueCounts {
    pub(super) due: usize,
    pub(super) leased: usize,
    /// Entries that failed and wait for another attempt.
    pub(super) resting: usize,
    /// Time for which the first due entry has been due.
    pub(super) oldest: Duration,
}

/// Key and value of a claimed entry.
pub(super) struct ClaimedEntry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) attempts: u32,
    pub(super) id: ClaimId,
}

/// Identity of a claim: its slot and number. The number is needed because the slot may hold another entry by now.
#[derive(Clone, Copy)]
pub(super) struct ClaimId {
    slot: Slot,
    sequence: u64,
}

struct DictEntry<K, V> {
    key: K,
    value: V,
    deadline: Deadline,
    /// Orders equal deadlines: the one that was set first has the lower number.
    sequence: u64,
    /// Number of the last claim, or 0 if that is void. It stays valid after the lease ends: the holder may still
    /// acknowledge the entry until another caller gets it.
    claim: u64,
    /// End of the lease if the entry is leased, and the time since when it is dead if it is dead.
    lease_end: Deadline,
    /// Number of claims since the entry was set or revived.
    attempts: u32,
    queued_in: QueuedIn,
}

/// Queue that holds the timer of an entry.
#[derive(Clone, Copy)]
enum QueuedIn {
    None,
    Deadlines,
    Leases,
    Dead,
}

impl<K, V> Entries<K, V> {
    pub(super) fn new(retries: Retries, rng: SmallRng) -> Self {
        Self {
            slots: Slab::new(),
            by_key: SlotIndex::default(),
            deadlines: DeadlineQueue::new(),
            leases: DeadlineQueue::new(),
            dead: DeadlineQueue::new(),
            dead_sequences: BTreeMap::new(),
            resting_len: 0,
            reasons: HashMap::default(),
            retries,
            rng,
            last_sequence: 0,
            counts: TakenCounts::default(),
            wake_deadline: None,
            wake_requested: false,
            watch_deadline: None,
            watch_requested: false,
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn counts(&self) -> TakenCounts {
        self.counts
    }

    /// Counts the due and the leased entries, in a time that grows with a hundredth of their number. A lease without
    /// end is not counted. An ended lease that no call has noticed counts as due, even if its entry has no attempts
    /// left: to tell them apart, each entry would have to be read.
    #[cfg(feature = "metrics")]
    pub(super) fn due(&mut self, now: Tick) -> DueCounts {
        let ended = self.leases.count_until(now);
        let first_ended = self.leases.first(|_| ()).filter(|first| first.deadline.is_expired(now));
        let first_ended = first_ended.map(|first| self.entry(first.slot).deadline);
        let first_due = self.first_due(&now).map(|first| first.deadline);
        let first = [first_due, first_ended].into_iter().flatten().filter_map(Deadline::tick);
        DueCounts {
            due: self.deadlines.count_until(now) + ended,
            leased: self.leases.len() - ended,
            resting: self.resting_len,
            oldest: first.map(|deadline| now.since(deadline)).max().unwrap_or_default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Sets an entry, and leaves in `new` what it replaced: an equal key and the old value.
    pub(super) fn set(&mut self, hash: u64, new: &mut Option<(K, V)>, deadline: Deadline)
    where
        K: Eq,
    {
        let hash = Slot::fold(hash);
        let Some((key, value)) = new else { return };
        match self.find(hash, key) {
            Some(slot) => {
                self.reschedule(slot, deadline);
                self.forget_attempts(slot);
                mem::swap(&mut self.entry_mut(slot).value, value);
            }
            None => {
                if let Some((key, value)) = new.take() {
                    self.insert_new(hash, key, value, deadline);
                }
            }
        }
    }

    /// Sets an entry if its key has none, and otherwise leaves it in `new`.
    pub(super) fn set_nx(&mut self, hash: u64, new: &mut Option<(K, V)>, deadline: Deadline)
    where
        K: Eq,
    {
        let hash = Slot::fold(hash);
        if let Some((key, value)) = new.take_if(|(key, _)| self.find(hash, key).is_none()) {
            self.insert_new(hash, key, value, deadline);
        }
    }

    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<&V>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.find(Slot::fold(hash), key).map(|slot| &self.entry(slot).value)
    }

    pub(super) fn deadline<Q>(&mut self, hash: u64, key: &Q, now: &impl Now) -> Option<Deadline>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let slot = self.find(Slot::fold(hash), key)?;
        self.end_lease_of(slot, now);
        Some(match self.is_dead(slot) {
            true => Deadline::PERSISTENT,
            false => self.entry(slot).deadline,
        })
    }

    /// Returns the previous deadline, or `None` if there is no entry or it is dead.
    pub(super) fn set_deadline<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        deadline: Deadline,
        now: Tick,
    ) -> Option<Deadline>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let slot = self.find(Slot::fold(hash), key)?;
        // A lease that has ended may leave its entry dead. This must not depend on whether an earlier call noticed its
        // end.
        self.end_lease_of(slot, &now);
        let &DictEntry { deadline: old, queued_in, claim, .. } = self.entry(slot);
        if matches!(queued_in, QueuedIn::Dead) {
            return None;
        }
        // The claim becomes void, which is a failed attempt. If its lease has ended, that was counted.
        self.counts.failed += u64::from(claim != 0 && !matches!(queued_in, QueuedIn::Deadlines));
        if self.has_exhausted_attempts(slot) {
            // Its last allowed claim is still held, and becomes void here, which is its failure.
            self.dequeue(slot);
            self.move_to_dead(slot, now.into());
            self.entry_mut(slot).claim = 0;
            return None;
        }
        self.reschedule(slot, deadline);
        Some(old)
    }

    pub(super) fn remove<Q>(&mut self, hash: u64, key: &Q) -> Option<(K, V)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let slot = self.find(Slot::fold(hash), key)?;
        self.dequeue(slot);
        Some(self.remove_at(slot))
    }

    /// Removes and returns all entries. Sequence numbers continue, so that old claims are void.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        let fresh = Self {
            // Numbers continue, so that claims from before stay void. The first waiter still sleeps until its wake
            // deadline.
            last_sequence: self.last_sequence,
            counts: self.counts,
            wake_deadline: self.wake_deadline,
            wake_requested: self.wake_requested,
            watch_deadline: self.watch_deadline,
            watch_requested: self.watch_requested,
            ..Self::new(self.retries, self.rng.clone())
        };
        let Self { slots, reasons, .. } = mem::replace(self, fresh);
        slots.into_iter().map(move |(_, entry)| {
            // Moved into the closure, so that they are dropped after the lock is released.
            let _ = &reasons;
            (entry.key, entry.value)
        })
    }

    /// Removes and returns the first due entry.
    pub(super) fn take_first(&mut self, now: &impl Now) -> Option<(K, V)> {
        let first = self.first_due(now)?;
        self.remove_first_deadline(first.slot);
        self.counts.taken += 1;
        Some(self.remove_at(first.slot))
    }

    /// Returns the earliest time at which an entry may be due, and sets it as wake deadline: an addition that is due
    /// earlier sets `wake_requested`.
    pub(super) fn arm_wake_deadline(&mut self) -> Deadline {
        let first = self.first_deadline();
        self.wake_deadline = Some(first.order());
        first
    }

    /// Does the same for the task that watches the turns.
    pub(super) fn arm_watch_deadline(&mut self) -> Deadline {
        let first = self.first_deadline();
        self.watch_deadline = Some(first.order());
        first
    }

    /// Returns whether the first waiter must be woken, and resets the request.
    pub(super) fn take_wake_request(&mut self) -> bool {
        mem::take(&mut self.wake_requested)
    }

    /// Returns whether the task that watches the turns must be woken, and resets the request.
    pub(super) fn take_watch_request(&mut self) -> bool {
        mem::take(&mut self.watch_requested)
    }

    fn first_deadline(&mut self) -> Deadline {
        let firsts = [self.deadlines.first(|_| ()), self.leases.first(|_| ())];
        let deadlines = firsts.into_iter().flatten().map(|first| first.deadline);
        let first = deadlines.min_by_key(|deadline| deadline.order());
        first.unwrap_or(Deadline::PERSISTENT)
    }

    fn find<Q>(&self, hash: u32, key: &Q) -> Option<Slot>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.by_key.find(hash, |slot| key.equivalent(&self.entry(slot).key))
    }

    /// Returns the first timer if it is due.
    fn first_due(&mut self, now: &impl Now) -> Option<Timer> {
        let (slots, by_key) = (&self.slots, &self.by_key);
        // Entries with successive deadlines are scattered in memory. Loading them together makes the waits for memory
        // overlap.
        let prefetch = |timer: &Timer| {
            let entry = slots.get(timer.slot.number as usize);
            black_box(entry.map(|e| (e.deadline, e.sequence, e.claim, e.lease_end)));
            by_key.prefetch(timer.slot);
        };
        self.deadlines.first(prefetch).filter(|first| now.is_expired(first.deadline))
    }

    /// Inserts an entry whose key is not present.
    fn insert_new(&mut self, hash: u32, key: K, value: V, deadline: Deadline) {
        let entry = DictEntry {
            key,
            value,
            deadline,
            sequence: self.next_sequence(),
            claim: 0,
            lease_end: Deadline::PERSISTENT,
            attempts: 0,
            queued_in: QueuedIn::None,
        };
        let vacant = self.slots.vacant_entry();
        // 32 bits, so that a slot fits into one word of the index.
        let number = u32::try_from(vacant.key()).expect("there are fewer than 2^32 entries");
        vacant.insert(entry);
        let slot = Slot { number, hash };
        self.by_key.insert(slot);
        self.enqueue(slot);
    }

    /// Sets a new deadline. A claim on the entry becomes void.
    fn reschedule(&mut self, slot: Slot, deadline: Deadline) {
        self.dequeue(slot);
        let sequence = self.next_sequence();
        let entry = self.entry_mut(slot);
        entry.deadline = deadline;
        entry.sequence = sequence;
        entry.claim = 0;
        self.enqueue(slot);
    }

    /// Makes the next delivery of an entry its first.
    fn forget_attempts(&mut self, slot: Slot) {
        if matches!(self.entry(slot).queued_in, QueuedIn::Deadlines) {
            self.resting_len -= self.is_retry(slot);
        }
        self.entry_mut(slot).attempts = 0;
        self.clear_reason(slot);
    }

    fn clear_reason(&mut self, slot: Slot) {
        if !self.reasons.is_empty() {
            self.reasons.remove(&slot.number);
        }
    }

    /// Adds an entry that is in no queue to `deadlines`, if it has a deadline.
    fn enqueue(&mut self, slot: Slot) {
        let entry = self.entry_mut(slot);
        if entry.deadline.is_persistent() {
            entry.queued_in = QueuedIn::None;
            return;
        }
        entry.queued_in = QueuedIn::Deadlines;
        let timer = Timer { deadline: entry.deadline, sequence: entry.sequence, slot };
        self.deadlines.insert(timer);
        self.resting_len += self.is_retry(slot);
        self.request_wake_before(timer.deadline);
    }

    /// Removes the entry of the first timer from `deadlines`.
    fn remove_first_deadline(&mut self, slot: Slot) {
        self.deadlines.remove_first();
        self.resting_len -= self.is_retry(slot);
    }

    /// Returns 1 if an attempt to process the entry has failed, and otherwise 0.
    fn is_retry(&self, slot: Slot) -> usize {
        usize::from(self.entry(slot).attempts > 0)
    }

    /// Removes an entry from its queue, if it is in one.
    fn dequeue(&mut self, slot: Slot) {
        let is_retry = self.is_retry(slot);
        let entry = &mut self.slots[slot.number as usize];
        match mem::replace(&mut entry.queued_in, QueuedIn::None) {
            QueuedIn::None => {}
            QueuedIn::Deadlines => {
                self.deadlines.remove(entry.deadline, entry.sequence);
                self.resting_len -= is_retry;
            }
            QueuedIn::Leases => self.leases.remove(entry.lease_end, entry.claim),
            QueuedIn::Dead => {
                if let Some(sequence) = self.dead_sequences.remove(&slot.number) {
                    self.dead.remove(entry.lease_end, sequence);
                }
            }
        }
    }

    /// Removes an entry that is in no queue.
    fn remove_at(&mut self, slot: Slot) -> (K, V) {
        // Before the search in the index: its branches are hard to predict, so the processor would not start this
        // memory access early after it.
        let entry = self.slots.remove(slot.number as usize);
        self.by_key.remove(slot);
        self.clear_reason(slot);
        if self.slots.is_empty() && self.slots.capacity() > MIN_CAPACITY {
            self.slots = Slab::new();
            self.by_key = SlotIndex::default();
            self.reasons = HashMap::default();
        }
        (entry.key, entry.value)
    }

    fn request_wake_before(&mut self, deadline: Deadline) {
        if self.wake_deadline.is_some_and(|until| deadline.order() < until) {
            // One notification suffices: the woken waiter tries again and sets the next wake deadline.
            self.wake_deadline = None;
            self.wake_requested = true;
        }
        if self.watch_deadline.is_some_and(|until| deadline.order() < until) {
            self.watch_deadline = None;
            self.watch_requested = true;
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }

    /// Returns the entry of a slot that is in the index or in a queue, and therefore occupied.
    fn entry(&self, slot: Slot) -> &DictEntry<K, V> {
        &self.slots[slot.number as usize]
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut DictEntry<K, V> {
        &mut self.slots[slot.number as usize]
    }
}
