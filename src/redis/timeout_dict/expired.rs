//! Methods that take or claim due entries, immediately or by waiting for the next one.

use std::{collections::VecDeque, time::Duration};

use futures_util::future::join_all;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout};

use super::{
    TimeoutDict,
    claim::Claim,
    collect::CollectMode,
    delivery::{TakenEntry, run_to_end},
    dict_state::DictState,
    read_ahead::{READ_AHEAD, ReadAhead},
};
use crate::redis::{Error, script::Call};

/// A decoded entry, whose delivery returns it to the server unless the caller gets it.
type DecodedEntry<K, V> = (K, V, TakenEntry);

impl<K, V> TimeoutDict<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Removes and returns at most `max` due entries, the [oldest first](#order). Entries are delivered at most once:
    /// they are lost if the caller crashes.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(sessions: TimeoutDict<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// for (token, user) in sessions.take_expired(100).await? {
    ///     println!("the session {token} of user {user} has ended");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The call first leases the entries, for twice the client's timeout but at most ten seconds, and then confirms
    /// that it received them. So the entries of a lost or late reply become due again after the lease, and a call that
    /// returns an error has removed nothing. There is one exception: if the reply to the confirmation is lost, and the
    /// lease ends or the entry is set or removed before the call can confirm again, the outcome is unknown: the entry
    /// may be lost, or a caller of [`remove`](Self::remove) may have it, too.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a task returns the entries that it has taken, with their deadlines, as soon as the
    /// server can be reached. They are lost if the process or the runtime ends before that. The outcome is unknown if
    /// the connection is lost, or the client's timeout passes, after the task has sent an entry: it is not sent twice,
    /// as another caller may have taken it in the meantime.
    #[doc(alias = "ZPOPMIN")]
    pub async fn take_expired(&self, max: usize) -> Result<Vec<(K, V)>, Error> {
        self.take(CollectMode::Take, max).await
    }

    /// Claims at most `max` due entries for `lease`, the [oldest first](#order). Entries are delivered at least once:
    /// an entry that is not acked within the lease is delivered again.
    ///
    /// ```no_run
    /// # async fn f(logins: fleeting::redis::TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// use std::time::Duration;
    /// use futures_util::future::try_join_all;
    ///
    /// let claims = logins.claim_expired(100, Duration::from_secs(60)).await?;
    /// for claim in &claims {
    ///     println!("{} failed {} times", claim.key(), claim.value());
    /// }
    /// // Sent together: one round trip or two instead of a hundred.
    /// try_join_all(claims.into_iter().map(|claim| claim.ack())).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each entry is returned as a [`Claim`]; call [`Claim::ack`] when the work is done. If a claim is dropped, for
    /// example because of an error or a panic, its entry is due again after a
    /// [backoff](super::TimeoutDictBuilder::backoff). If the process crashes, the entry is due again as soon as the
    /// lease expires. A lease is at most 35 years long; a lease of zero expires immediately.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a task returns the entries that it has claimed. If that fails, they are due again when
    /// the lease expires.
    pub async fn claim_expired(
        &self,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claim<K, V>>, Error> {
        let entries = self.collect(CollectMode::Claim { lease }, max).await?;
        Ok(entries.into_iter().map(into_claim).collect())
    }

    /// Waits until an entry is due, then removes and returns it. The entry is delivered at most once, as by
    /// [`take_expired`](Self::take_expired).
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(sessions: TimeoutDict<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// loop {
    ///     let (token, user) = sessions.next_expired().await?;
    ///     println!("the session {token} of user {user} has ended");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The call sleeps until the earliest deadline or end of a lease. It knows the next few deadlines of each shard,
    /// for at most [`ask_every`](super::TimeoutDictBuilder::ask_every), because other processes may set entries with
    /// earlier deadlines. So a call that finds an entry takes two scripts and rarely a command more; while there is a
    /// backlog, an entry that another process returned with its former deadline may come some entries late. Waiters on
    /// this handle or its clones, here or in [`next_claim`](Self::next_claim), are served in FIFO
    /// order, and only the first one asks the server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`take_expired`](Self::take_expired); the next waiter takes its place. A future that has begun
    /// to wait but is no longer polled blocks the waiters behind it.
    pub async fn next_expired(&self) -> Result<(K, V), Error> {
        self.next(CollectMode::Take).await.map(into_taken)
    }

    /// Waits until an entry is due, then leases it for `lease`. The entry is delivered at least once, as by
    /// [`claim_expired`](Self::claim_expired). In all other respects the method works like
    /// [`next_expired`](Self::next_expired).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(orders: TimeoutDict<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// loop {
    ///     let order = orders.next_claim(Duration::from_secs(60)).await?;
    ///     println!("order {} was not paid", order.key());
    ///     order.ack().await?; // else it is delivered again
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`claim_expired`](Self::claim_expired); the next waiter takes its place. A future that has begun
    /// to wait but is no longer polled blocks the waiters behind it.
    pub async fn next_claim(&self, lease: Duration) -> Result<Claim<K, V>, Error> {
        self.next(CollectMode::Claim { lease }).await.map(into_claim)
    }

    pub(super) async fn take(&self, mode: CollectMode, max: usize) -> Result<Vec<(K, V)>, Error> {
        let entries = self.collect(mode, max).await?;
        Ok(entries.into_iter().map(into_taken).collect())
    }

    async fn next(&self, mode: CollectMode) -> Result<DecodedEntry<K, V>, Error> {
        self.state.on_use();
        // Dropped with the future: a cancelled waiter passes its turn to the next.
        let mut ahead = self.state.turn.lock().await;
        loop {
            ahead.forget(self.state.take_changed_shards());
            let failure = self.read_shards(&mut ahead).await;
            let wait = match ahead.first() {
                Some((shard, wait)) if wait.is_zero() => {
                    match self.next_from(shard, mode, &mut ahead).await? {
                        Some(entry) => {
                            self.log_failure(failure.as_ref());
                            return Ok(entry);
                        }
                        None => continue,
                    }
                }
                Some((_, wait)) => wait,
                None => Duration::MAX,
            };
            if let Some(error) = failure {
                return Err(error);
            }
            let wait = wait.min(ahead.next_read(self.state.ask_every));
            // Ends earlier if this handle changes a deadline.
            let _ = timeout(wait, self.state.changed.notified()).await;
        }
    }

    /// Reads the shards whose next deadlines are not known. Returns the last of the errors, if any.
    async fn read_shards(&self, ahead: &mut ReadAhead) -> Option<Error> {
        let DictState { layout, client, ask_every, .. } = &*self.state;
        let reads = ahead.to_read(*ask_every).into_iter().map(async |at| {
            let index = &layout.shards()[at].index;
            let call = Call::command("ZRANGE", index).arg(0).arg(READ_AHEAD - 1).arg("WITHSCORES");
            let first: Result<Vec<(Vec<u8>, f64)>, _> = call.send_idempotent(client).await;
            (at, first)
        });
        let mut failure = None;
        for (at, first) in join_all(reads).await {
            match first {
                Ok(first) => {
                    // Entries without a deadline have an infinite score and come last.
                    let scores = first.iter().map(|(_, score)| *score);
                    let finite = scores.take_while(|score| score.is_finite());
                    let deadlines: VecDeque<_> = finite.map(|score| layout.micros(score)).collect();
                    let has_more = deadlines.len() == READ_AHEAD;
                    ahead.was_read(at, deadlines, has_more);
                }
                Err(error) => {
                    failure = Some(error);
                    ahead.forget(1 << at);
                }
            }
        }
        failure
    }

    /// Takes or claims the first due entry of a shard. Returns `None` if another caller has it, or if it is not due.
    async fn next_from(
        &self,
        shard: usize,
        mode: CollectMode,
        ahead: &mut ReadAhead,
    ) -> Result<Option<DecodedEntry<K, V>>, Error> {
        let begin = Instant::now();
        // To its end, as in `collect`.
        let batch = match run_to_end(self.state.clone().lease_one(shard, mode)).await {
            Ok(batch) => batch,
            Err(error) => {
                ahead.forget(1 << shard);
                return Err(error);
            }
        };
        ahead.set_clock(shard, batch.now);
        if !batch.found_any {
            ahead.found_nothing(shard, batch.now);
            return Ok(None);
        }
        let leased = batch.entries.first().and_then(|entry| Some((entry.due, entry.lease_end()?)));
        match leased {
            Some((due, end)) => ahead.took(shard, self.state.layout.micros(due), end),
            // It was no entry: see `lease.lua`.
            None => ahead.forget(1 << shard),
        }
        let (mut entries, failure) = self.receive(mode, batch.entries, begin).await;
        match (entries.pop(), failure) {
            (None, Some(error)) => Err(error),
            (entry, _) => Ok(entry),
        }
    }

    /// Returns at most `max` due entries that can be decoded, oldest first.
    ///
    /// Each round runs to completion even if the caller is dropped, and then returns its entries.
    async fn collect(
        &self,
        mode: CollectMode,
        max: usize,
    ) -> Result<Vec<DecodedEntry<K, V>>, Error> {
        self.state.on_use();
        let mut horizon = self.state.horizon();
        let mut entries = Vec::new();
        let mut failure = None;
        while entries.len() < max {
            // Run to its end even if this call is dropped: the entries that it leases are then given back at once, and
            // not only when their lease expires.
            let collect = self.state.clone().collect(mode, max - entries.len(), horizon);
            let begin = Instant::now();
            let round = match run_to_end(collect).await {
                Ok((round, latest)) => {
                    horizon = latest;
                    round
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            let (received, error) = self.receive(mode, round.entries, begin).await;
            entries.extend(received);
            failure = failure.or(error).or(round.failure);
            if round.is_last {
                break;
            }
        }
        // Shards and rounds each return their oldest entries first: merge them.
        entries.sort_by(|one, other| f64::total_cmp(&one.2.due, &other.2.due));
        match failure {
            Some(error) if entries.is_empty() => Err(error),
            // The collected entries go to the caller. Returning the error would send them back.
            failure => {
                self.log_failure(failure.as_ref());
                Ok(entries)
            }
        }
    }

    fn log_failure(&self, failure: Option<&Error>) {
        if let Some(error) = failure {
            let error: &dyn std::error::Error = error;
            tracing::warn!(
                dict = self.state.name,
                error,
                "failed to collect some of the due entries"
            );
        }
    }

    /// Decodes leased entries, and confirms them if they are taken. Returns those that the caller gets, and the first
    /// error.
    async fn receive(
        &self,
        mode: CollectMode,
        batch: Vec<TakenEntry>,
        begin: Instant,
    ) -> (Vec<DecodedEntry<K, V>>, Option<Error>) {
        let (good, mut unreadable, failure) = self.decode_all(batch);
        if let CollectMode::Claim { .. } = mode {
            // They stay leased, which hides them from other calls until the lease expires.
            unreadable.iter_mut().for_each(TakenEntry::disarm);
            return (good, failure);
        }
        let until = begin + self.state.take_lease();
        let (confirmed, error) = self.confirm(good, unreadable, until).await;
        (confirmed, failure.or(error))
    }

    /// Confirms a take, and returns the entries that were removed for this caller.
    async fn confirm(
        &self,
        entries: Vec<DecodedEntry<K, V>>,
        unreadable: Vec<TakenEntry>,
        until: Instant,
    ) -> (Vec<DecodedEntry<K, V>>, Option<Error>) {
        let mut read = Vec::with_capacity(entries.len());
        let mut deliveries = Vec::with_capacity(entries.len());
        for (key, value, delivery) in entries {
            read.push((key, value));
            deliveries.push(delivery);
        }
        if deliveries.is_empty() && unreadable.is_empty() {
            return (Vec::new(), None);
        }
        let confirm = self.state.clone().confirm(deliveries, unreadable, until);
        // To its end, too: if this call is dropped, the removed entries are put back.
        match run_to_end(async { Ok(confirm.await) }).await {
            Ok((confirmed, failure)) => {
                let read = read.into_iter().zip(confirmed);
                let confirmed = read.filter_map(|((key, value), out)| Some((key, value, out?)));
                (confirmed.collect(), failure)
            }
            Err(error) => (Vec::new(), Some(error)),
        }
    }

    /// Decodes a batch. Returns the entries, the deliveries that cannot be decoded, and the first error.
    fn decode_all(
        &self,
        batch: Vec<TakenEntry>,
    ) -> (Vec<DecodedEntry<K, V>>, Vec<TakenEntry>, Option<Error>) {
        let mut entries = Vec::with_capacity(batch.len());
        let (mut unreadable, mut why) = (Vec::new(), None);
        for delivery in batch {
            match self.decode_one(&delivery) {
                Ok((key, value)) => entries.push((key, value, delivery)),
                Err(error) => {
                    unreadable.push(delivery);
                    why = why.or(Some(error));
                }
            }
        }
        (entries, unreadable, why)
    }

    fn decode_one(&self, delivery: &TakenEntry) -> Result<(K, V), Error> {
        let TakenEntry { key, value, .. } = delivery;
        Ok((self.state.layout.decode_key(key)?, self.decode(key, value)?))
    }
}

fn into_taken<K, V>((key, value, mut delivery): DecodedEntry<K, V>) -> (K, V) {
    delivery.disarm();
    if !delivery.is_dead {
        delivery.state.counters.taken();
    }
    (key, value)
}

fn into_claim<K, V>((key, value, delivery): DecodedEntry<K, V>) -> Claim<K, V> {
    Claim::new(key, value, delivery)
}
