//! What a claim may do, and what becomes of its entry when it is dropped.

use std::{fmt, sync::Arc, time::Duration};

use super::{entries::ClaimedEntry, state::SharedState};
use crate::engine::{
    clock::{Deadline, Tick},
    coop,
};

/// An entry that is due, lent until the end of a lease. Made by
/// [`TimeoutDict::claim_expired`](crate::TimeoutDict::claim_expired) and
/// [`next_claim`](crate::TimeoutDict::next_claim).
///
/// The entry itself stays in the dictionary, readable, until the claim is [acked](Claim::ack). A claim that is
/// dropped without it, because of an error, a panic or the end of its task, has failed: the entry is due again after a
/// [backoff](crate::TimeoutDictBuilder::backoff), which doubles with each failure, or when
/// [`retry_in`](Claim::retry_in) says, and until then others come first. Where a claim is leaked or its holder hangs,
/// the entry comes again when the lease is over, at once and with the deadline that it had. After so many
/// failures as there may be ([`max_attempts`](crate::TimeoutDictBuilder::max_attempts)), it is dead.
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

    /// How often the entry was lent since it was set or revived, with this claim: 1 at the first.
    pub fn attempts(&self) -> u32 {
        self.claimed.attempts
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

    /// Gives the entry back, so that it comes again in `delay`; false where the claim is void. It counts as a failure:
    /// the last that there may be leaves the entry dead, whatever `delay`. One that overflows is never over.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before its end drops the claim: the entry is given back, for its backoff.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("report", 1, Duration::ZERO).await;
    /// let job = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert!(job.retry_in(Duration::from_secs(3600)).await);
    ///
    /// tokio::time::advance(Duration::from_secs(3600)).await;
    /// assert_eq!(jobs.take_expired(9).await, [("report", 1)]);
    /// # }
    /// ```
    pub async fn retry_in(mut self, delay: Duration) -> bool {
        coop::proceed().await;
        self.give_back(Some(delay), self.shared.clock.now())
    }

    /// Lets the lease be over in `lease` from now, sooner or later than it was; false where the claim is
    /// void.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before its end extended nothing.
    pub async fn extend(&self, lease: Duration) -> bool {
        coop::proceed().await;
        let now = self.shared.clock.now();
        self.extend_to(now.after(lease), now)
    }

    pub(super) fn extend_to(&self, end: Deadline, now: Tick) -> bool {
        self.shared.with(|entries| entries.extend(self.claimed.id, end, now))
    }

    pub(super) fn give_back(&mut self, delay: Option<Duration>, now: Tick) -> bool {
        self.is_done = true;
        self.shared.with(|entries| entries.give_back(self.claimed.id, delay, now))
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
            self.give_back(None, self.shared.clock.now());
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
