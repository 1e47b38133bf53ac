//! The entries of a timeout dictionary: plain data that knows neither clock nor lock.
//!
//! 1. The location of each entry is in `by_key`.
//! 2. An entry with a deadline is in `deadlines`, unless it is on lease; then it is in `leases`, unless the
//!    lease is never over. One that failed too often is in `dead`. All others are in none.
//! 3. No sequence number is given twice, neither to a deadline nor to a claim. So a claim is void unless its
//!    number is the one that its entry has.
//! 4. The user's `Eq` and `Clone` run before anything is changed, and nothing of the user's is dropped. So
//!    a panic of theirs leaves all this as it was.
//! 5. Whatever is put into one of the queues and comes before what the first waiter sleeps for, sets
//!    `must_wake`.

mod claims;
mod dead;

use std::{hint::black_box, mem};

use equivalent::Equivalent;
use rand::rngs::SmallRng;
use slab::Slab;

use super::{
    deadline_queue::{DeadlineQueue, Timer},
    key_index::{KeyIndex, Location},
    retries::Retries,
};
use crate::engine::clock::{Deadline, Now};

/// As many entries' memory stays when none is left: a dictionary that is often empty does not begin anew each
/// time.
const MIN_CAPACITY: usize = 1_024;

pub(super) struct Entries<K, V> {
    slots: Slab<Entry<K, V>>,
    by_key: KeyIndex,
    deadlines: DeadlineQueue,
    /// The ends of leases.
    leases: DeadlineQueue,
    /// In the order of their deaths, by their sequence numbers alone.
    dead: DeadlineQueue,
    dead_len: usize,
    retries: Retries,
    /// For the jitter.
    random: SmallRng,
    last_sequence: u64,
    counts: Counts,
    /// What the first waiter sleeps for, as [`Deadline::order`]. It may outlive the wait, at the cost of a
    /// needless notice.
    sleeps_until: Option<u64>,
    must_wake: bool,
}

/// What has become of entries that were due.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) taken: u64,
    pub(super) claims: u64,
    pub(super) acked: u64,
    pub(super) failed: u64,
}

/// A key and a value that somebody may work on, until the end of a lease.
pub(super) struct ClaimedEntry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) attempts: u32,
    pub(super) id: ClaimId,
}

/// Which claim it is, and on what. By its number, as another entry may be at the location by now.
#[derive(Clone, Copy)]
pub(super) struct ClaimId {
    location: Location,
    sequence: u64,
}

struct Entry<K, V> {
    key: K,
    value: V,
    deadline: Deadline,
    /// Tells equal deadlines apart: the one that was set first is less.
    sequence: u64,
    /// The number of the last claim, unless that is void; else 0. It outlives the lease: who is late may still
    /// ack, as long as nobody else got the entry.
    claim: u64,
    /// Of the lease, where the entry is on one.
    lease_end: Deadline,
    /// How often it was lent since it was set.
    attempts: u32,
    queued_in: QueuedIn,
}

/// In which queue an entry has its timer.
#[derive(Clone, Copy)]
enum QueuedIn {
    None,
    Deadlines,
    Leases,
    Dead,
}

impl<K, V> Entries<K, V> {
    pub(super) fn new(retries: Retries, random: SmallRng) -> Self {
        Self {
            slots: Slab::new(),
            by_key: KeyIndex::new(),
            deadlines: DeadlineQueue::new(),
            leases: DeadlineQueue::new(),
            dead: DeadlineQueue::new(),
            dead_len: 0,
            retries,
            random,
            last_sequence: 0,
            counts: Counts::default(),
            sleeps_until: None,
            must_wake: false,
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Puts `new` in, and leaves in its place what it replaced: a key that is equal, and the old value.
    pub(super) fn set(&mut self, hash: u64, new: &mut Option<(K, V)>, deadline: Deadline)
    where
        K: Eq,
    {
        let hash = Location::fold(hash);
        let Some((key, value)) = new else { return };
        match self.find(hash, key) {
            Some(location) => {
                self.reschedule(location, deadline);
                self.entry_mut(location).attempts = 0;
                mem::swap(&mut self.entry_mut(location).value, value);
            }
            None => {
                if let Some((key, value)) = new.take() {
                    self.insert_new(hash, key, value, deadline);
                }
            }
        }
    }

    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<&V>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.find(Location::fold(hash), key).map(|location| &self.entry(location).value)
    }

    pub(super) fn deadline<Q>(&self, hash: u64, key: &Q) -> Option<Deadline>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.find(Location::fold(hash), key).map(|location| match self.is_dead(location) {
            true => Deadline::PERSISTENT,
            false => self.entry(location).deadline,
        })
    }

    /// Returns the deadline it had; none where there is no entry, or a dead one.
    pub(super) fn set_deadline<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        deadline: Deadline,
    ) -> Option<Deadline>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let location = self.find(Location::fold(hash), key)?;
        let &Entry { deadline: old, queued_in, .. } = self.entry(location);
        if matches!(queued_in, QueuedIn::Dead) {
            return None;
        }
        if self.has_failed_for_good(location) {
            // Its last claim is still out, and void by this.
            self.dequeue(location);
            self.bury(location);
            self.entry_mut(location).claim = 0;
            return None;
        }
        self.reschedule(location, deadline);
        Some(old)
    }

    pub(super) fn remove<Q>(&mut self, hash: u64, key: &Q) -> Option<(K, V)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let location = self.find(Location::fold(hash), key)?;
        self.dequeue(location);
        Some(self.remove_at(location))
    }

    /// Returns all that there was. Numbers go on, so that old claims are void.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        let fresh = Self {
            last_sequence: self.last_sequence,
            counts: self.counts,
            sleeps_until: self.sleeps_until,
            must_wake: self.must_wake,
            ..Self::new(self.retries, self.random.clone())
        };
        let old = mem::replace(self, fresh);
        old.slots.into_iter().map(|(_, entry)| (entry.key, entry.value))
    }

    /// Takes the first entry out that is due.
    pub(super) fn take_first(&mut self, now: &impl Now) -> Option<(K, V)> {
        let first = self.first_due(now)?;
        self.deadlines.remove_first();
        self.counts.taken += 1;
        Some(self.remove_at(first.location))
    }

    /// When something may be due at the earliest. Whatever comes sooner sets `must_wake`.
    pub(super) fn sleep_until_first(&mut self) -> Deadline {
        let firsts = [self.deadlines.first(|_| ()), self.leases.first(|_| ())];
        let deadlines = firsts.into_iter().flatten().map(|first| first.deadline);
        let first = deadlines.min_by_key(|deadline| deadline.order());
        let first = first.unwrap_or(Deadline::PERSISTENT);
        self.sleeps_until = Some(first.order());
        first
    }

    /// Whether the first waiter is to be woken; once.
    pub(super) fn take_wake(&mut self) -> bool {
        mem::take(&mut self.must_wake)
    }

    fn find<Q>(&self, hash: u32, key: &Q) -> Option<Location>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.by_key.find(hash, |location| key.equivalent(&self.entry(location).key))
    }

    /// The first timer of what is due.
    fn first_due(&mut self, now: &impl Now) -> Option<Timer> {
        let (slots, by_key) = (&self.slots, &self.by_key);
        // Entries that are due one after the other are anywhere in memory: fetched together, they are
        // waited for once.
        let fetch = |timer: &Timer| {
            let entry = slots.get(timer.location.slot as usize);
            black_box(entry.map(|e| (e.deadline, e.sequence, e.claim, e.lease_end)));
            by_key.fetch(timer.location);
        };
        self.deadlines.first(fetch).filter(|first| now.is_dead(first.deadline))
    }

    /// Puts in an entry whose key is not there.
    fn insert_new(&mut self, hash: u32, key: K, value: V, deadline: Deadline) {
        let entry = Entry {
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
        // 32 bits, so that a location is one word of the index.
        let slot = u32::try_from(vacant.key()).expect("there are fewer than 2^32 entries");
        vacant.insert(entry);
        let location = Location { slot, hash };
        self.by_key.insert(location);
        self.enqueue(location);
    }

    /// Gives an entry a new deadline. A claim on it is void.
    fn reschedule(&mut self, location: Location, deadline: Deadline) {
        self.dequeue(location);
        let sequence = self.next_sequence();
        let entry = self.entry_mut(location);
        entry.deadline = deadline;
        entry.sequence = sequence;
        entry.claim = 0;
        self.enqueue(location);
    }

    /// From no queue into `deadlines`, where it has a deadline.
    fn enqueue(&mut self, location: Location) {
        let entry = self.entry_mut(location);
        if entry.deadline.is_persistent() {
            entry.queued_in = QueuedIn::None;
            return;
        }
        entry.queued_in = QueuedIn::Deadlines;
        let timer = Timer { deadline: entry.deadline, sequence: entry.sequence, location };
        self.deadlines.insert(timer);
        self.wake_for(timer.deadline);
    }

    /// Out of the queue in which it is, if any.
    fn dequeue(&mut self, location: Location) {
        let entry = &mut self.slots[location.slot as usize];
        match mem::replace(&mut entry.queued_in, QueuedIn::None) {
            QueuedIn::None => {}
            QueuedIn::Deadlines => self.deadlines.remove(entry.deadline, entry.sequence),
            QueuedIn::Leases => self.leases.remove(entry.lease_end, entry.claim),
            QueuedIn::Dead => {
                self.dead.remove(Deadline::PERSISTENT, entry.sequence);
                self.dead_len -= 1;
            }
        }
    }

    /// Takes out an entry that is in no queue any more.
    fn remove_at(&mut self, location: Location) -> (K, V) {
        // Before the search in the index, beyond which the processor does not guess.
        let entry = self.slots.remove(location.slot as usize);
        self.by_key.remove(location);
        if self.slots.is_empty() && self.slots.capacity() > MIN_CAPACITY {
            self.slots = Slab::new();
            self.by_key = KeyIndex::new();
        }
        (entry.key, entry.value)
    }

    fn wake_for(&mut self, deadline: Deadline) {
        if self.sleeps_until.is_some_and(|until| deadline.order() < until) {
            self.sleeps_until = None;
            self.must_wake = true;
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }

    /// Of a location that is in the index or in a queue, and so is occupied.
    fn entry(&self, location: Location) -> &Entry<K, V> {
        &self.slots[location.slot as usize]
    }

    fn entry_mut(&mut self, location: Location) -> &mut Entry<K, V> {
        &mut self.slots[location.slot as usize]
    }
}
