//! What is due: taken at most once, or claimed at least once; at once, or as soon as there is something.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{
    TimeoutDict,
    claim::Claim,
    collect::CollectMode,
    delivery::{Delivery, run_to_end},
};
use crate::redis::Error;

/// An entry as the caller's types, which goes back until it is the caller's.
type Entry<K, V> = (K, V, Delivery);

impl<K, V> TimeoutDict<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Takes out at most `max` entries that are due, the [oldest first](#order): at most once, as they are
    /// lost where the caller is.
    ///
    /// What it takes it is first lent for a moment, twice the client's timeout and ten seconds at most, and says then
    /// that it has it. So what an answer held that was lost or too slow comes again by itself after that, and the
    /// entries that come with an error of the server are none. Only where the very last answer is lost, for as long,
    /// nobody knows.
    ///
    /// # Cancel safety
    ///
    /// What a call that is dropped has taken goes back by itself, in a moment, with the deadline that it had.
    /// It is lost where the process or the runtime ends first.
    #[doc(alias = "ZPOPMIN")]
    pub async fn take_expired(&self, max: usize) -> Result<Vec<(K, V)>, Error> {
        self.take(CollectMode::Take, max).await
    }

    /// Lends at most `max` entries that are due for `lease`, the [oldest first](#order): at least once, as what
    /// is not acked by then comes again.
    ///
    /// Each entry comes as a [`Claim`], which is ended by [`Claim::ack`] when the work is done. A claim that
    /// is dropped, because of an error, a panic or the end of its task, has failed: its entry is due again after a
    /// [backoff](super::TimeoutDictBuilder::backoff). That of a process that was killed comes again when the lease is
    /// over, at once. A lease of more than 35 years is over after those; one of zero is at once.
    ///
    /// # Cancel safety
    ///
    /// What a call that is dropped has claimed goes back by itself, in a moment, or when the lease is over.
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
    /// // In one round trip or two, not in a hundred.
    /// try_join_all(claims.into_iter().map(|claim| claim.ack())).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn claim_expired(
        &self,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claim<K, V>>, Error> {
        let (entries, _) = self.collect(CollectMode::Claim { lease }, max).await?;
        Ok(entries.into_iter().map(into_claim).collect())
    }

    /// Waits until an entry is due, and takes it out: at most once, as [`take_expired`](Self::take_expired).
    ///
    /// It asks the server, sleeps until the first deadline or end of a lease that there is, and asks again; it
    /// never sleeps longer than [`ask_every`](super::TimeoutDictBuilder::ask_every), since others may set something
    /// sooner. Who waits on this handle or a clone of it, here or in [`next_claim`](Self::next_claim), is
    /// served in the order of asking, and only the first of them asks the server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`take_expired`](Self::take_expired); those behind move up. A future that has waited, and is
    /// kept without being polled, holds them up.
    pub async fn next_expired(&self) -> Result<(K, V), Error> {
        self.next(CollectMode::Take).await.map(into_taken)
    }

    /// Waits until an entry is due, and lends it for `lease`: at least once, as
    /// [`claim_expired`](Self::claim_expired). Otherwise as [`next_expired`](Self::next_expired).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`claim_expired`](Self::claim_expired); those behind move up. A future that has waited, and is
    /// kept without being polled, holds them up.
    pub async fn next_claim(&self, lease: Duration) -> Result<Claim<K, V>, Error> {
        self.next(CollectMode::Claim { lease }).await.map(into_claim)
    }

    pub(super) async fn take(&self, how: CollectMode, max: usize) -> Result<Vec<(K, V)>, Error> {
        let (entries, _) = self.collect(how, max).await?;
        Ok(entries.into_iter().map(into_taken).collect())
    }

    async fn next(&self, how: CollectMode) -> Result<Entry<K, V>, Error> {
        let _turn = self.state.turn.lock().await;
        loop {
            let (mut entries, wait) = self.collect(how, 1).await?;
            if let Some(first) = entries.pop() {
                return Ok(first);
            }
            let longest = self.state.ask_every;
            sleep(wait.map_or(longest, |wait| wait.min(longest))).await;
        }
    }

    /// At most `max` of what is due and can be read, the oldest first; and in how long the next is due.
    ///
    /// Round after round: each is carried to its end, also where the caller gives up, and what it gave goes back then.
    async fn collect(
        &self,
        how: CollectMode,
        max: usize,
    ) -> Result<(Vec<Entry<K, V>>, Option<Duration>), Error> {
        let mut horizon = self.state.horizon();
        let mut entries = Vec::new();
        let mut failure = None;
        let mut next = None;
        while entries.len() < max {
            let collect = self.state.clone().collect(how, max - entries.len(), horizon);
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
            let (good, mut unreadable, error) = self.decode_all(round.entries);
            failure = failure.or(error).or(round.failure);
            if let CollectMode::Claim { .. } = how {
                // They stay lent until the lease is over.
                unreadable.iter_mut().for_each(Delivery::disarm);
                entries.extend(good);
            } else {
                let until = begin + self.state.take_lease();
                let (confirmed, error) = self.confirm(good, unreadable, until).await;
                entries.extend(confirmed);
                failure = failure.or(error);
            }
            next = round.wait;
            if round.is_last {
                break;
            }
        }
        // Shards and rounds give each what is oldest in them.
        entries.sort_by(|one, other| f64::total_cmp(&one.2.due, &other.2.due));
        match failure {
            Some(error) if entries.is_empty() => Err(error),
            // What was had is the caller's: an error would send it back.
            Some(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "some of what is due could not be had");
                Ok((entries, next))
            }
            None => Ok((entries, next)),
        }
    }

    /// Those of a take that are out now.
    async fn confirm(
        &self,
        entries: Vec<Entry<K, V>>,
        unreadable: Vec<Delivery>,
        until: Instant,
    ) -> (Vec<Entry<K, V>>, Option<Error>) {
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
        match run_to_end(async { Ok(confirm.await) }).await {
            Ok((confirmed, failure)) => {
                let read = read.into_iter().zip(confirmed);
                let confirmed = read.filter_map(|((key, value), out)| Some((key, value, out?)));
                (confirmed.collect(), failure)
            }
            Err(error) => (Vec::new(), Some(error)),
        }
    }

    /// What can be read, what can't, and why not the first of these.
    fn decode_all(&self, batch: Vec<Delivery>) -> (Vec<Entry<K, V>>, Vec<Delivery>, Option<Error>) {
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

    fn decode_one(&self, delivery: &Delivery) -> Result<(K, V), Error> {
        let Delivery { key, value, .. } = delivery;
        Ok((self.state.layout.decode_key(key)?, self.decode(key, value)?))
    }
}

fn into_taken<K, V>((key, value, mut delivery): Entry<K, V>) -> (K, V) {
    delivery.disarm();
    (key, value)
}

fn into_claim<K, V>((key, value, delivery): Entry<K, V>) -> Claim<K, V> {
    Claim::new(key, value, delivery)
}
