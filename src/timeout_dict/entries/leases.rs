//! Leases: claiming entries, and the end of claims by their holders and of leases by time.

use std::time::Duration;

use rand::RngExt;

use super::{ClaimId, ClaimedEntry, Entries, QueuedIn, Slot, Timer};
use crate::engine::clock::{Deadline, Now, Tick};

/// Maximum number of leases that end under one lock, which takes about 0.2 ms.
const LEASES_PER_LOCK: usize = 256;

impl<K, V> Entries<K, V> {
    /// Moves entries whose lease has ended back to `deadlines`, or to `dead` if they have no attempts left. Their
    /// claims are not void yet. Returns whether other leases may have ended, too: then the caller must release the lock
    /// and call again.
    #[must_use]
    pub(in crate::timeout_dict) fn end_leases(&mut self, now: &impl Now) -> bool {
        for _ in 0..LEASES_PER_LOCK {
            let first = self.leases.first(|_| ());
            let Some(first) = first.filter(|first| now.is_expired(first.deadline)) else {
                return false;
            };
            self.leases.remove_first();
            self.leave_lease(first.slot);
        }
        true
    }

    /// Does the same for one entry, so that calls for one key need not end all other leases.
    pub(super) fn end_lease_of(&mut self, slot: Slot, now: &impl Now) {
        let entry = self.entry(slot);
        if matches!(entry.queued_in, QueuedIn::Leases) && now.is_expired(entry.lease_end) {
            self.leases.remove(entry.lease_end, entry.claim);
            self.leave_lease(slot);
        }
    }

    /// Moves an entry on, whose lease has ended and is no longer in `leases`.
    fn leave_lease(&mut self, slot: Slot) {
        self.counts.failed += 1;
        match self.has_exhausted_attempts(slot) {
            true => self.move_to_dead(slot, self.entry(slot).lease_end),
            false => self.enqueue(slot),
        }
    }

    /// Claims the first due entry for `lease`.
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
        let entry = self.entry(first.slot);
        // User code, which may panic: before anything is changed.
        let (key, value) = (entry.key.clone(), entry.value.clone());
        self.remove_first_deadline(first.slot);
        let id = ClaimId { slot: first.slot, sequence: self.next_sequence() };
        let entry = self.entry_mut(first.slot);
        entry.claim = id.sequence;
        entry.attempts = entry.attempts.saturating_add(1);
        let attempts = entry.attempts;
        self.counts.claims += 1;
        self.enqueue_lease(id, now.after(lease));
        Some(ClaimedEntry { key, value, attempts, id })
    }

    /// Removes and returns the entry of a claim, unless the claim is void.
    pub(in crate::timeout_dict) fn ack(&mut self, claim: ClaimId) -> Option<(K, V)> {
        if self.is_void(claim) {
            return None;
        }
        self.counts.acked += 1;
        self.dequeue(claim.slot);
        Some(self.remove_at(claim.slot))
    }

    /// Sets the end of the lease. Returns `false` if the claim is void.
    pub(in crate::timeout_dict) fn extend(
        &mut self,
        claim: ClaimId,
        end: Deadline,
        now: Tick,
    ) -> bool {
        if self.is_void(claim) {
            return false;
        }
        self.end_lease_of(claim.slot, &now);
        self.dequeue(claim.slot);
        self.enqueue_lease(claim, end);
        true
    }

    /// Ends a claim as a failed attempt with a reason, as [`return_entry`](Self::return_entry) does without. Returns
    /// `false` if the attempt has ended already, with the claim or its lease.
    pub(in crate::timeout_dict) fn fail(
        &mut self,
        claim: ClaimId,
        reason: Box<str>,
        now: Tick,
    ) -> bool {
        if self.is_void(claim) {
            return false;
        }
        self.end_lease_of(claim.slot, &now);
        if self.is_dead(claim.slot) || self.has_lease_ended(claim.slot) {
            return false;
        }
        self.return_entry(claim, None, now);
        self.reasons.insert(claim.slot.number, reason);
        true
    }

    /// Ends a claim as if the entry had not been delivered. Returns `false` if the claim is void.
    pub(in crate::timeout_dict) fn release(&mut self, claim: ClaimId) -> bool {
        if self.is_void(claim) {
            return false;
        }
        // A dead entry returns from `dead`, like one whose late holder extends its lease.
        self.dequeue(claim.slot);
        let entry = self.entry_mut(claim.slot);
        entry.claim = 0;
        entry.attempts -= 1;
        // The deadline has passed, as the entry was claimed.
        self.enqueue(claim.slot);
        true
    }

    /// Ends a claim, as a failed attempt. Returns `false` if the claim is void. The entry is due again after `delay`.
    /// Without a `delay` it is due after its backoff, or already if its lease has ended.
    pub(in crate::timeout_dict) fn return_entry(
        &mut self,
        claim: ClaimId,
        delay: Option<Duration>,
        now: Tick,
    ) -> bool {
        if self.is_void(claim) {
            return false;
        }
        let slot = claim.slot;
        // So that the result does not depend on whether an earlier call noticed the end of the lease.
        self.end_lease_of(slot, &now);
        // Otherwise the end of its lease was already counted as the failure.
        self.counts.failed += u64::from(!self.is_dead(slot) && !self.has_lease_ended(slot));
        if self.is_dead(slot) || delay.is_none() && self.has_lease_ended(slot) {
            // The end of the lease already moved it to its queue.
        } else if self.has_exhausted_attempts(slot) {
            self.dequeue(slot);
            self.move_to_dead(slot, now.into());
        } else {
            let attempts = self.entry(slot).attempts;
            let delay = delay.unwrap_or_else(|| self.retries.backoff(attempts, self.rng.random()));
            self.reschedule(slot, now.after(delay));
        }
        // Last, as removing the lease from its queue needs the number.
        self.entry_mut(slot).claim = 0;
        true
    }

    /// Returns whether the current claim of an entry is its last allowed attempt. The entry must not be dead.
    pub(super) fn has_exhausted_attempts(&self, slot: Slot) -> bool {
        self.retries.is_exhausted(self.entry(slot).attempts)
    }

    /// Returns whether the entry is back in `deadlines`, because its lease has ended.
    fn has_lease_ended(&self, slot: Slot) -> bool {
        matches!(self.entry(slot).queued_in, QueuedIn::Deadlines)
    }

    /// Adds an entry that is in no queue to `leases`, if the lease has an end.
    fn enqueue_lease(&mut self, claim: ClaimId, end: Deadline) {
        let entry = self.entry_mut(claim.slot);
        if end.is_persistent() {
            entry.queued_in = QueuedIn::None;
            return;
        }
        entry.queued_in = QueuedIn::Leases;
        entry.lease_end = end;
        let timer = Timer { deadline: end, sequence: claim.sequence, slot: claim.slot };
        self.leases.insert(timer);
        self.request_wake_before(end);
    }

    fn is_void(&self, claim: ClaimId) -> bool {
        let entry = self.slots.get(claim.slot.number as usize);
        entry.is_none_or(|entry| entry.claim != claim.sequence)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;
    use crate::engine::{clock::Clock, retries::Retries};

    #[test]
    fn claim_that_a_new_deadline_voids_is_counted_as_failed_once() {
        let [second, forever] = [Duration::from_secs(1), Duration::MAX];
        for (lease, passed, attempts) in
            [(second, 0, 2), (forever, 0, 2), (second, 2, 2), (second, 0, 1), (second, 2, 1)]
        {
            let retries = Retries { max_attempts: attempts, ..Retries::DEFAULT };
            let mut entries = Entries::new(retries, SmallRng::seed_from_u64(7));
            let now = Clock::new().now();
            entries.set(7, &mut Some((7, ())), now.into());
            let claim = entries.claim_first(now, lease).expect("it is due").id;
            let now = now.later(passed * 1_000_000_000);
            for _ in 0..2 {
                entries.set_deadline(7, &7, now.after(second), now);
            }
            assert!(!entries.return_entry(claim, None, now) || passed > 0 && attempts == 1);
            assert_eq!(entries.counts.failed, 1, "{lease:?}, {passed}, {attempts}");
        }
    }

    /// More leases than end under one lock.
    const MANY: u64 = 4 * LEASES_PER_LOCK as u64;

    /// A call for the entry whose key and hash are 7.
    type Call = fn(&mut Entries<u64, ()>, ClaimId, Tick);

    /// Otherwise a call for one of a million entries would hold the lock for as long as all of them take.
    #[test]
    fn call_for_one_entry_ends_no_other_lease() {
        let calls: [(&str, Call); 7] = [
            ("ttl", |entries, _, now| assert!(entries.deadline(7, &7, &now).is_some())),
            ("set_timeout", |entries, _, now| {
                assert!(entries.set_deadline(7, &7, now.into(), now).is_some())
            }),
            ("drop", |entries, claim, now| assert!(entries.return_entry(claim, None, now))),
            ("fail", |entries, claim, now| assert!(!entries.fail(claim, "why".into(), now))),
            ("extend", |entries, claim, now| assert!(entries.extend(claim, now.into(), now))),
            ("release", |entries, claim, _| assert!(entries.release(claim))),
            ("ack", |entries, claim, _| assert!(entries.ack(claim).is_some())),
        ];
        for (name, call) in calls {
            let mut entries = Entries::new(Retries::DEFAULT, SmallRng::seed_from_u64(7));
            let now = Clock::new().now();
            for key in 0..MANY {
                entries.set(key, &mut Some((key, ())), now.into());
            }
            let claimed: Vec<_> = (0..MANY)
                .filter_map(|_| entries.claim_first(now, Duration::from_nanos(1)))
                .collect();
            let (claim, later) = (claimed[7].id, now.later(1_000));
            assert_eq!((claimed[7].key, entries.leases.iter().count() as u64), (7, MANY));
            call(&mut entries, claim, later);
            let others = |timer: &Timer| timer.slot.hash != Slot::fold(7);
            let left = |entries: &Entries<u64, ()>| entries.leases.iter().filter(others).count();
            assert_eq!(left(&entries) as u64, MANY - 1, "{name}");
            assert!(entries.end_leases(&later), "{name}: more have ended");
            assert!(left(&entries) >= MANY as usize - 1 - LEASES_PER_LOCK, "{name}");
        }
    }
}
