//! Second half of a take. The entries were only leased for a short time, and are removed when the client confirms that
//! it received them. So the entries of a lost reply become due again by themselves.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    delivery::{OnDrop, TakenEntry},
    dict_state::{DictState, micros},
};
use crate::redis::Error;

/// Results of `confirm.lua` for an entry that it removed, and for one that was missing already.
const REMOVED_NOW: u32 = 1;
const REMOVED_EARLIER: u32 = 2;

/// Maximum timeout that counts for the lease of a take. A take that is slower than its lease gets nothing. In return,
/// its entries are due again soon if its process crashes, even if the client's timeout is long.
const MAX_TAKE_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_TAKE_LEASE: Duration = Duration::from_millis(100);

/// Time for which a take hides an entry of another type, or one that cannot be decoded.
const UNREADABLE_DELAY: Duration = Duration::from_secs(60);

impl DictState {
    /// Returns the lease of a take: as long as it may take to receive and confirm the entries.
    pub(super) fn take_lease(&self) -> Duration {
        let timeout = self.client.deadline(None).saturating_duration_since(Instant::now());
        // Twice: for the request that leases the entries, and for the one that confirms them.
        (2 * timeout.min(MAX_TAKE_TIMEOUT)).max(MIN_TAKE_LEASE)
    }

    /// Removes entries that were leased for a take until `until` at the latest, and hides `unreadable` entries for a
    /// while. Returns each of `taken` if it was removed for this caller, and the last of the errors, if any.
    pub(super) async fn confirm(
        self: Arc<Self>,
        taken: Vec<TakenEntry>,
        unreadable: Vec<TakenEntry>,
        until: Instant,
    ) -> (Vec<Option<TakenEntry>>, Option<Error>) {
        let shards = self.layout.shards().len();
        let mut by_shard: Vec<_> = (0..shards).map(|_| (Vec::new(), Vec::new())).collect();
        for (at, entry) in taken.into_iter().enumerate() {
            by_shard[self.layout.shard_index(&entry.key)].0.push((at, entry));
        }
        for entry in unreadable {
            by_shard[self.layout.shard_index(&entry.key)].1.push(entry);
        }
        let count = by_shard.iter().map(|(taken, _)| taken.len()).sum();
        let mut confirmed: Vec<_> = (0..count).map(|_| None).collect();
        let mut failure = None;
        let shards = by_shard.into_iter().enumerate();
        let shards =
            shards.filter(|(_, (taken, unreadable))| !taken.is_empty() || !unreadable.is_empty());
        let outcomes = shards.map(async |(shard, (mut taken, mut unreadable))| {
            // Disarmed below whatever the outcome: if the reply is lost, it is unknown whether they were removed, and
            // if they were not, their leases expire.
            let outcome = self.confirm_in(shard, &taken, &unreadable, until).await;
            unreadable.iter_mut().for_each(TakenEntry::disarm);
            match &outcome {
                Ok(outcome) => {
                    for ((_, entry), is_out) in taken.iter_mut().zip(outcome) {
                        if *is_out { entry.mark_removed() } else { entry.disarm() }
                    }
                }
                Err(_) => taken.iter_mut().for_each(|(_, entry)| entry.disarm()),
            }
            (taken, outcome.err())
        });
        for (taken, error) in join_all(outcomes).await {
            failure = error.or(failure);
            for (at, entry) in taken {
                confirmed[at] = matches!(entry.on_drop, OnDrop::PutBack { .. }).then_some(entry);
            }
        }
        (confirmed, failure)
    }

    async fn confirm_in(
        &self,
        shard: usize,
        taken: &[(usize, TakenEntry)],
        unreadable: &[TakenEntry],
        until: Instant,
    ) -> Result<Vec<bool>, Error> {
        let shard = &self.layout.shards()[shard];
        let mut is_first = true;
        loop {
            let call = self.shard_call(shard, |scripts| &scripts.confirm);
            let call = call.arg(micros(UNREADABLE_DELAY)).arg(taken.len());
            let entries = taken.iter().map(|(_, entry)| entry).chain(unreadable);
            let call = entries.fold(call, |call, entry| {
                // 0 is the end of no lease: the script refuses it.
                call.arg(&entry.key).arg(entry.lease_end().unwrap_or_default())
            });
            match call.send_once::<Vec<u32>>(&self.client).await {
                // In the first attempt, a missing entry was removed by another client. In a retry, the lost attempt may
                // have removed it: its lease is still valid, so no other client could take it.
                Ok(outcome) => {
                    let is_out =
                        |was: u32| was == REMOVED_NOW || was == REMOVED_EARLIER && !is_first;
                    return Ok(outcome.into_iter().map(is_out).collect());
                }
                // Retried until the lease ends, after which the script would refuse.
                Err(Error::Unanswered(_)) if Instant::now() < until => is_first = false,
                Err(error) => return Err(self.name_wrong_type(error, shard, None).await),
            }
        }
    }
}
