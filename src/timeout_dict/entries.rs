//! The entries of a timeout dictionary: plain data that knows neither clock nor lock.
//!
//! 1. Each entry has a slot, and its slot is in `by_key`.
//! 2. An entry with a deadline is in `due`, unless it is on lease; then it is in `leases`, unless the lease is
//!    never over. All others are in neither.
//! 3. No number is given twice, neither to a deadline nor to a claim. So a claim is void unless its number is
//!    the one that its entry has.
//! 4. The user's `Eq` and `Clone` run before anything is changed, and nothing of the user's is dropped. So
//!    a panic of theirs leaves all this as it was.
//! 5. Whatever is put into `due` or `leases` and comes before what the head of the line sleeps for, sets
//!    `wake`.

use std::{borrow::Borrow, hint::black_box, mem, time::Duration};

use super::{
    deadline_queue::{Item, Piles},
    index::{At, Index},
    slots::Slots,
};
use crate::engine::clock::{Deadline, Now, Tick};

/// As many entries' memory is kept when none is left.
const KEPT: usize = 1_024;

pub(super) struct Entries<K, V> {
    slots: Slots<Entry<K, V>>,
    by_key: Index,
    due: Piles,
    leases: Piles,
    last_number: u64,
    /// What the head of the line sleeps for, as [`Deadline::order`]. It may outlive the wait, at the cost of
    /// a needless notice.
    awaited: Option<u64>,
    wake: bool,
}

/// A key and a value that somebody may work on, until the end of a lease.
pub(super) struct Claimed<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) place: ClaimPlace,
}

/// What a claim is on.
#[derive(Clone, Copy)]
pub(super) struct ClaimPlace {
    at: At,
    number: u64,
}

struct Entry<K, V> {
    key: K,
    value: V,
    deadline: Deadline,
    /// Tells equal deadlines apart: the one that was set first is less.
    number: u64,
    /// The number of the last claim, unless that is void; else 0.
    claim: u64,
    /// Of the lease, where the entry is on one.
    lease_end: Deadline,
    place: Place,
}

/// Where an entry stands.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    Due,
    Leased,
}

impl<K, V> Entries<K, V> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slots::new(),
            by_key: Index::new(),
            due: Piles::new(),
            leases: Piles::new(),
            last_number: 0,
            awaited: None,
            wake: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Puts `new` in, and leaves in its place what it replaced: a key that is equal, and the old value.
    pub(super) fn set(&mut self, hash: u64, new: &mut Option<(K, V)>, deadline: Deadline)
    where
        K: Eq,
    {
        let hash = At::fold(hash);
        let Some((key, value)) = new else { return };
        match self.find(hash, key) {
            Some(at) => {
                self.schedule(at, deadline);
                mem::swap(&mut self.entry_mut(at).value, value);
            }
            None => {
                if let Some((key, value)) = new.take() {
                    self.join(hash, key, value, deadline);
                }
            }
        }
    }

    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(At::fold(hash), key).map(|at| &self.entry(at).value)
    }

    pub(super) fn deadline<Q>(&self, hash: u64, key: &Q) -> Option<Deadline>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(At::fold(hash), key).map(|at| self.entry(at).deadline)
    }

    /// Returns the deadline it had.
    pub(super) fn set_deadline<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        deadline: Deadline,
    ) -> Option<Deadline>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let at = self.find(At::fold(hash), key)?;
        let old = self.entry(at).deadline;
        self.schedule(at, deadline);
        Some(old)
    }

    pub(super) fn remove<Q>(&mut self, hash: u64, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let at = self.find(At::fold(hash), key)?;
        self.step_out(at);
        Some(self.leave(at))
    }

    /// Returns all that there was. Numbers go on, so that old claims are void.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        let fresh = Self {
            last_number: self.last_number,
            awaited: self.awaited,
            wake: self.wake,
            ..Self::new()
        };
        let old = mem::replace(self, fresh);
        old.slots.into_items().map(|entry| (entry.key, entry.value))
    }

    /// Puts back in `due` what was on leases that are over. Their claims are not void yet.
    pub(super) fn end_leases(&mut self, now: &impl Now) {
        while let Some(first) = self.leases.first(|_| ())
            && now.is_dead(first.deadline)
        {
            self.leases.remove_first();
            self.line_up(first.at);
        }
    }

    /// Takes the first entry out that is due.
    pub(super) fn take_first(&mut self, now: &impl Now) -> Option<(K, V)> {
        let first = self.first_due(now)?;
        self.due.remove_first();
        Some(self.leave(first.at))
    }

    /// Lends the first entry that is due.
    pub(super) fn claim_first(&mut self, now: Tick, lease: Duration) -> Option<Claimed<K, V>>
    where
        K: Clone,
        V: Clone,
    {
        let first = self.first_due(&now)?;
        let entry = self.entry(first.at);
        let (key, value) = (entry.key.clone(), entry.value.clone());
        self.due.remove_first();
        let place = ClaimPlace { at: first.at, number: self.next_number() };
        self.entry_mut(first.at).claim = place.number;
        self.lend(place, now.after(lease));
        Some(Claimed { key, value, place })
    }

    /// Takes out what the claim is on, unless that is void.
    pub(super) fn ack(&mut self, claim: ClaimPlace) -> Option<(K, V)> {
        if self.is_void(claim) {
            return None;
        }
        self.step_out(claim.at);
        Some(self.leave(claim.at))
    }

    /// Lets the lease be over at `end`; tells whether the claim is not void.
    pub(super) fn extend(&mut self, claim: ClaimPlace, end: Deadline) -> bool {
        if self.is_void(claim) {
            return false;
        }
        self.step_out(claim.at);
        self.lend(claim, end);
        true
    }

    /// Ends the lease and the claim.
    pub(super) fn give_back(&mut self, claim: ClaimPlace) {
        if self.is_void(claim) {
            return;
        }
        self.step_out(claim.at);
        self.entry_mut(claim.at).claim = 0;
        self.line_up(claim.at);
    }

    /// When something may be due at the earliest. Whatever comes sooner sets `wake`.
    pub(super) fn await_first(&mut self) -> Deadline {
        let firsts = [self.due.first(|_| ()), self.leases.first(|_| ())];
        let deadlines = firsts.into_iter().flatten().map(|first| first.deadline);
        let first = deadlines.min_by_key(|deadline| deadline.order());
        let first = first.unwrap_or(Deadline::PERSISTENT);
        self.awaited = Some(first.order());
        first
    }

    /// Whether the head of the line is to be woken; once.
    pub(super) fn take_wake(&mut self) -> bool {
        mem::take(&mut self.wake)
    }

    fn find<Q>(&self, hash: u32, key: &Q) -> Option<At>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.by_key.find(hash, |at| self.entry(at).key.borrow() == key)
    }

    /// The first item of what is due.
    fn first_due(&mut self, now: &impl Now) -> Option<Item> {
        let (slots, by_key) = (&self.slots, &self.by_key);
        // Entries that are due one after the other are anywhere in memory: fetched together, they are
        // waited for once.
        let fetch = |item: &Item| {
            let entry = slots.get(item.at.slot);
            black_box(entry.map(|e| (e.deadline, e.number, e.claim, e.lease_end)));
            by_key.fetch(item.at);
        };
        self.due.first(fetch).filter(|first| now.is_dead(first.deadline))
    }

    /// Puts in an entry whose key is not there.
    fn join(&mut self, hash: u32, key: K, value: V, deadline: Deadline) {
        let entry = Entry {
            key,
            value,
            deadline,
            number: self.next_number(),
            claim: 0,
            lease_end: Deadline::PERSISTENT,
            place: Place::Nowhere,
        };
        let at = At { slot: self.slots.insert(entry), hash };
        self.by_key.insert(at);
        self.line_up(at);
    }

    /// Gives an entry a new deadline. A claim on it is void.
    fn schedule(&mut self, at: At, deadline: Deadline) {
        self.step_out(at);
        let number = self.next_number();
        let entry = self.entry_mut(at);
        entry.deadline = deadline;
        entry.number = number;
        entry.claim = 0;
        self.line_up(at);
    }

    /// From nowhere into `due`, where it has a deadline.
    fn line_up(&mut self, at: At) {
        let entry = self.entry_mut(at);
        if entry.deadline.is_persistent() {
            entry.place = Place::Nowhere;
            return;
        }
        entry.place = Place::Due;
        let item = Item { deadline: entry.deadline, number: entry.number, at };
        self.due.insert(item);
        self.heed(item.deadline);
    }

    /// From nowhere into `leases`, where the lease has an end.
    fn lend(&mut self, claim: ClaimPlace, end: Deadline) {
        let entry = self.entry_mut(claim.at);
        if end.is_persistent() {
            entry.place = Place::Nowhere;
            return;
        }
        entry.place = Place::Leased;
        entry.lease_end = end;
        self.leases.insert(Item { deadline: end, number: claim.number, at: claim.at });
        self.heed(end);
    }

    /// From wherever it is to nowhere.
    fn step_out(&mut self, at: At) {
        let entry = self.slots.get_mut(at.slot).expect(TAKEN);
        match mem::replace(&mut entry.place, Place::Nowhere) {
            Place::Nowhere => {}
            Place::Due => self.due.remove(entry.deadline, entry.number),
            Place::Leased => self.leases.remove(entry.lease_end, entry.claim),
        }
    }

    /// Takes out an entry that stands nowhere, or whose item is gone.
    fn leave(&mut self, at: At) -> (K, V) {
        // First, as the processor does not guess beyond a search.
        let entry = self.slots.remove(at.slot).expect(TAKEN);
        self.by_key.remove(at);
        if self.slots.len() == 0 && self.slots.capacity() > KEPT {
            self.slots = Slots::new();
            self.by_key = Index::new();
        }
        (entry.key, entry.value)
    }

    fn heed(&mut self, deadline: Deadline) {
        if self.awaited.is_some_and(|awaited| deadline.order() < awaited) {
            self.awaited = None;
            self.wake = true;
        }
    }

    fn is_void(&self, claim: ClaimPlace) -> bool {
        self.slots.get(claim.at.slot).is_none_or(|entry| entry.claim != claim.number)
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn entry(&self, at: At) -> &Entry<K, V> {
        self.slots.get(at.slot).expect(TAKEN)
    }

    fn entry_mut(&mut self, at: At) -> &mut Entry<K, V> {
        self.slots.get_mut(at.slot).expect(TAKEN)
    }
}

const TAKEN: &str = "a slot that is known is taken";
