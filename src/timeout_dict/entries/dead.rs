//! Dead entries: they stay readable and are removed only by `take_dead`.

use equivalent::Equivalent;

use super::{Entries, QueuedIn, Slot, Timer};
use crate::{
    engine::clock::{Deadline, Now},
    timeout_dict::DeadLetter,
};

impl<K, V> Entries<K, V> {
    /// Removes and returns the entry that has been dead for longest.
    pub(in crate::timeout_dict) fn take_dead(&mut self) -> Option<(K, V)> {
        let first = self.dead.first(|_| ())?;
        self.dequeue(first.slot);
        Some(self.remove_at(first.slot))
    }

    /// Returns dead letters in the order in which the entries became dead.
    pub(in crate::timeout_dict) fn dead_letters(&self) -> impl Iterator<Item = DeadLetter<K, V>>
    where
        K: Clone,
        V: Clone,
    {
        self.dead.iter().map(|timer| {
            let entry = self.entry(timer.slot);
            DeadLetter {
                key: entry.key.clone(),
                value: entry.value.clone(),
                attempts: entry.attempts,
                reason: self.reasons.get(&timer.slot.number).map(|reason| reason.to_string()),
            }
        })
    }

    pub(in crate::timeout_dict) fn dead_len(&self) -> usize {
        self.dead_sequences.len()
    }

    /// Makes a dead entry due at `deadline`, without failed attempts. Returns `false` if there is no dead entry of this
    /// key.
    pub(in crate::timeout_dict) fn revive<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        deadline: Deadline,
        now: &impl Now,
    ) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        let Some(slot) = self.find(Slot::fold(hash), key) else { return false };
        self.end_lease_of(slot, now);
        if !self.is_dead(slot) {
            return false;
        }
        self.reschedule(slot, deadline);
        self.forget_attempts(slot);
        true
    }

    pub(super) fn is_dead(&self, slot: Slot) -> bool {
        matches!(self.entry(slot).queued_in, QueuedIn::Dead)
    }

    /// Adds an entry that is in no queue to `dead`, as dead since `at`. A claim on it is not void yet: a late holder
    /// may still acknowledge it.
    pub(super) fn move_to_dead(&mut self, slot: Slot, at: Deadline) {
        let sequence = self.next_sequence();
        let entry = self.entry_mut(slot);
        // It keeps its deadline and the number of that, since a late holder may also extend its lease or release it:
        // then it is no longer dead, `ttl` reports that deadline again, and it has its place among equal ones.
        entry.lease_end = at;
        entry.queued_in = QueuedIn::Dead;
        self.dead.insert(Timer { deadline: at, sequence, slot });
        self.dead_sequences.insert(slot.number, sequence);
    }
}
