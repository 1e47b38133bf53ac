//! The second half of a take. What it got it was only lent, for a moment: here it says that it has it. So what a lost
//! answer held comes back by itself, and only what is confirmed is out.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    delivery::{Delivery, OnDrop},
    state::{DictState, UNREADABLE_DELAY, micros},
};
use crate::redis::Error;

/// What `confirm.lua` says of an entry that it takes out, and of one that it finds gone.
const REMOVED_NOW: u32 = 1;
const REMOVED_EARLIER: u32 = 2;

impl DictState {
    /// Takes out what a take was lent until `until` at the latest, and hides `unreadable` for a while. For each of
    /// `taken` it returns it where it is out, and nobody else's; and one of the errors, if there are some.
    pub(super) async fn confirm(
        self: Arc<Self>,
        taken: Vec<Delivery>,
        unreadable: Vec<Delivery>,
        until: Instant,
    ) -> (Vec<Option<Delivery>>, Option<Error>) {
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
            // Whatever happens: where the answer is lost, nobody knows whether they are out.
            let outcome = self.confirm_in(shard, &taken, &unreadable, until).await;
            unreadable.iter_mut().for_each(Delivery::disarm);
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
        taken: &[(usize, Delivery)],
        unreadable: &[Delivery],
        until: Instant,
    ) -> Result<Vec<bool>, Error> {
        let shard = &self.layout.shards()[shard];
        let mut is_first = true;
        loop {
            let call = self.shard_call(shard, |scripts| &scripts.confirm);
            let call = call.arg(micros(UNREADABLE_DELAY)).arg(taken.len());
            let entries = taken.iter().map(|(_, entry)| entry).chain(unreadable);
            let call = entries.fold(call, |call, entry| {
                call.arg(&entry.key).arg(entry.lease_end().unwrap_or_default())
            });
            match call.send_once::<Vec<u32>>(&self.client).await {
                // What was gone before the first time somebody else has removed; later, it was this call's doing.
                Ok(outcome) => {
                    let is_out =
                        |was: u32| was == REMOVED_NOW || was == REMOVED_EARLIER && !is_first;
                    return Ok(outcome.into_iter().map(is_out).collect());
                }
                // Once the lease is over, the server would refuse.
                Err(Error::Unanswered(_)) if Instant::now() < until => is_first = false,
                Err(error) => return Err(self.name_wrong_type(error, shard, None).await),
            }
        }
    }
}
