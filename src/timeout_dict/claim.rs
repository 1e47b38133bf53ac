//! What a claim may do, and what becomes of its entry when it is dropped.

use std::{fmt, sync::Arc, time::Duration};

use super::{entries::ClaimedEntry, state::SharedState};
use crate::engine::{clock::Deadline, coop};

/// An entry that is due, lent until the end of a lease. Made by
/// [`TimeoutDict::claim_expired`](crate::TimeoutDict::claim_expired) and
/// [`next_claim`](crate::TimeoutDict::next_claim).
///
/// The entry itself stays in the dictionary, readable, until the claim is [acked](Claim::ack). A claim that is
/// dropped without it gives the entry back at once, with the deadline that it had: so it comes before all
/// that became due later. Where a claim is leaked or its holder hangs, the entry comes again when the lease
/// is over.
///
/// A claim is void once its entry was given to another, after the end of the lease, or was set, removed,
/// cleared, or given another deadline or none. Whatever is done with a void claim changes nothing. The end of
/// the lease alone does not make it void: as long as nobody else got the entry, it can be acked and extended.
pub struct Claim<K, V> {
    shared: Arc<SharedState<K, V>>,
    claimed: ClaimedEntry<K, V>,
    /// Whether nothing is left to give back.
    is_done: bool,
}

impl<K, V> Claim<K, V> {
    pub(super) fn new(shared: Arc<SharedState<K, V>>, claimed: ClaimedEntry<K, V>) -> Self {
        Self { shared, claimed, is_done: false }
    }

    /// The key of the entry.
    pub fn key(&self) -> &K {
        &self.claimed.key
    }

    /// The value, as it was when the entry was claimed.
    pub fn value(&self) -> &V {
        &self.claimed.value
    }

    /// Takes the entry out, as it is done with; false where the claim is void. Of all claims that were ever
    /// made on an entry, one at most is acked with true.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before its end drops the claim: the entry is given back.
    pub async fn ack(mut self) -> bool {
        coop::proceed().await;
        self.ack_now()
    }

    /// Lets the lease be over in `lease` from now, sooner or later than it was; false where the claim is
    /// void.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before its end extended nothing.
    pub async fn extend(&self, lease: Duration) -> bool {
        coop::proceed().await;
        self.extend_to(self.shared.clock.now().after(lease))
    }

    pub(super) fn extend_to(&self, end: Deadline) -> bool {
        self.shared.with(|entries| entries.extend(self.claimed.id, end))
    }

    pub(super) fn ack_now(&mut self) -> bool {
        // First: whatever the ack finds, the drop has nothing to give back.
        self.is_done = true;
        let entry = self.shared.with(|entries| entries.ack(self.claimed.id));
        entry.is_some()
    }
}

impl<K, V> Drop for Claim<K, V> {
    fn drop(&mut self) {
        if !self.is_done {
            self.shared.with(|entries| entries.give_back(self.claimed.id));
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Claim<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", self.key())
            .field("value", self.value())
            .finish_non_exhaustive()
    }
}
