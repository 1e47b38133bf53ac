//! How an entry is lent, and what becomes of it when the claim ends.

use std::time::Duration;

use super::{ClaimId, ClaimedEntry, Entries, Location, QueuedIn, Timer};
use crate::engine::clock::{Deadline, Now, Tick};

impl<K, V> Entries<K, V> {
    /// Puts back in `deadlines` what was on leases that are over, or in `dead`. Their claims are not void yet.
    pub(in crate::timeout_dict) fn end_leases(&mut self, now: &impl Now) {
        while let Some(first) = self.leases.first(|_| ())
            && now.is_dead(first.deadline)
        {
            self.leases.remove_first();
            self.counts.failed += 1;
            match self.has_failed_for_good(first.location) {
                true => self.bury(first.location),
                false => self.enqueue(first.location),
            }
        }
    }

    /// Lends the first entry that is due.
    pub(in crate::timeout_dict) fn claim_first(
        &mut self,
        now: Tick,
        lease: Duration,
    ) -> Option<ClaimedEntry<K, V>>
    where
        K: Clone,
        V: Clone,
    {
        let first = self.first_due(&now)?;
        let entry = self.entry(first.location);
        let (key, value) = (entry.key.clone(), entry.value.clone());
        self.deadlines.remove_first();
        let id = ClaimId { location: first.location, sequence: self.next_sequence() };
        let entry = self.entry_mut(first.location);
        entry.claim = id.sequence;
        entry.attempts = entry.attempts.saturating_add(1);
        let attempts = entry.attempts;
        self.counts.claims += 1;
        self.enqueue_lease(id, now.after(lease));
        Some(ClaimedEntry { key, value, attempts, id })
    }

    /// Takes out what the claim is on, unless that is void.
    pub(in crate::timeout_dict) fn ack(&mut self, claim: ClaimId) -> Option<(K, V)> {
        if self.is_void(claim) {
            return None;
        }
        self.counts.acked += 1;
        self.dequeue(claim.location);
        Some(self.remove_at(claim.location))
    }

    /// Lets the lease be over at `end`; tells whether the claim is not void.
    pub(in crate::timeout_dict) fn extend(
        &mut self,
        claim: ClaimId,
        end: Deadline,
        now: Tick,
    ) -> bool {
        self.end_leases(&now);
        if self.is_void(claim) {
            return false;
        }
        self.dequeue(claim.location);
        self.enqueue_lease(claim, end);
        true
    }

    /// Ends the claim; tells whether it was not void. The entry comes again in `delay`, or after its backoff; where the
    /// lease is over it does already.
    pub(in crate::timeout_dict) fn give_back(
        &mut self,
        claim: ClaimId,
        delay: Option<Duration>,
        now: Tick,
    ) -> bool {
        // So that it makes no difference whether somebody looked at a lease that is over.
        self.end_leases(&now);
        if self.is_void(claim) {
            return false;
        }
        let location = claim.location;
        // Else the end of its lease was.
        self.counts.failed += u64::from(!self.is_dead(location) && !self.is_back(location));
        if self.is_dead(location) || delay.is_none() && self.is_back(location) {
            // It is where it is to be.
        } else if self.has_failed_for_good(location) {
            self.dequeue(location);
            self.bury(location);
        } else {
            let attempts = self.entry(location).attempts;
            let delay = delay.unwrap_or_else(|| self.retries.backoff(attempts, &mut self.random));
            self.reschedule(location, now.after(delay));
        }
        // Last, as a lease is found by it.
        self.entry_mut(location).claim = 0;
        true
    }

    /// Of an entry that is not dead: whether the claim that is out is the last there may be.
    pub(super) fn has_failed_for_good(&self, location: Location) -> bool {
        self.retries.are_over(self.entry(location).attempts)
    }

    /// Whether it waits for somebody already, as its lease is over.
    fn is_back(&self, location: Location) -> bool {
        matches!(self.entry(location).queued_in, QueuedIn::Deadlines)
    }

    /// From no queue into `leases`, where the lease has an end.
    fn enqueue_lease(&mut self, claim: ClaimId, end: Deadline) {
        let entry = self.entry_mut(claim.location);
        if end.is_persistent() {
            entry.queued_in = QueuedIn::None;
            return;
        }
        entry.queued_in = QueuedIn::Leases;
        entry.lease_end = end;
        let timer = Timer { deadline: end, sequence: claim.sequence, location: claim.location };
        self.leases.insert(timer);
        self.wake_for(end);
    }

    fn is_void(&self, claim: ClaimId) -> bool {
        let entry = self.slots.get(claim.location.slot as usize);
        entry.is_none_or(|entry| entry.claim != claim.sequence)
    }
}
