//! What is due: taken at most once, or claimed at least once; at once, or as soon as there is something.

use std::time::Duration;

use futures_util::future::join_all;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::sleep;

use super::{
    TimeoutDict,
    claim::Claim,
    collect::Collect,
    delivery::{Delivery, OnDrop, run_to_end},
};
use crate::redis::{Error, codec::decode_key};

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
    /// # Cancel safety
    ///
    /// What a call that is dropped has taken goes back by itself, in a moment, with the deadline that it had.
    /// It is lost where the process or the runtime ends first.
    #[doc(alias = "ZPOPMIN")]
    pub async fn take_expired(&self, max: usize) -> Result<Vec<(K, V)>, Error> {
        let (batch, _) = self.collect(Collect::Take, max).await?;
        Ok(self.decode_all(batch).await?.into_iter().map(taken).collect())
    }

    /// Lends at most `max` entries that are due for `lease`, the [oldest first](#order): at least once, as what
    /// is not acked by then comes again.
    ///
    /// Each entry comes as a [`Claim`], which is ended by [`Claim::ack`] when the work is done. A claim that
    /// is dropped, because of an error, a panic or the end of its task, gives its entry back in a moment. That
    /// of a process that was killed comes again when the lease is over. A lease of more than 35 years is over
    /// after those; one of zero is at once.
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
        let (batch, _) = self.collect(Collect::Claim { lease }, max).await?;
        Ok(self.decode_all(batch).await?.into_iter().map(claimed).collect())
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
    /// Cancel safe, as [`take_expired`](Self::take_expired); those behind move up.
    pub async fn next_expired(&self) -> Result<(K, V), Error> {
        self.next(Collect::Take).await.map(taken)
    }

    /// Waits until an entry is due, and lends it for `lease`: at least once, as
    /// [`claim_expired`](Self::claim_expired). Otherwise as [`next_expired`](Self::next_expired).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`claim_expired`](Self::claim_expired); those behind move up.
    pub async fn next_claim(&self, lease: Duration) -> Result<Claim<K, V>, Error> {
        self.next(Collect::Claim { lease }).await.map(claimed)
    }

    async fn next(&self, how: Collect) -> Result<Entry<K, V>, Error> {
        let _first = self.state.waiting.lock().await;
        loop {
            let (batch, wait) = self.collect(how, 1).await?;
            if let Some(first) = self.decode_all(batch).await?.pop() {
                return Ok(first);
            }
            let longest = self.state.ask_every;
            sleep(wait.map_or(longest, |wait| wait.min(longest))).await;
        }
    }

    /// What is due, and in how long the next is.
    async fn collect(
        &self,
        how: Collect,
        max: usize,
    ) -> Result<(Vec<Delivery>, Option<Duration>), Error> {
        if max == 0 {
            return Ok((Vec::new(), None));
        }
        run_to_end(self.state.clone().collect(how, max)).await
    }

    /// Waits for nothing, unless something is wrong with the entries: then all go back, the good ones too,
    /// since an error can't hold them.
    async fn decode_all(&self, batch: Vec<Delivery>) -> Result<Vec<Entry<K, V>>, Error> {
        let mut entries = Vec::with_capacity(batch.len());
        let mut rest = batch.into_iter();
        while let Some(mut delivery) = rest.next() {
            match self.decode_one(&delivery) {
                Ok((key, value)) => entries.push((key, value, delivery)),
                Err(error) => {
                    match &mut delivery.on_drop {
                        // It stays lent, until the lease is over.
                        OnDrop::EndLease { .. } | OnDrop::Nothing => delivery.disarm(),
                        // So it is due in a while.
                        OnDrop::PutBack { score } => score.clear(),
                    }
                    let others = entries.into_iter().map(|(.., delivery)| delivery).chain(rest);
                    join_all(others.chain([delivery]).map(Delivery::send_back)).await;
                    return Err(error);
                }
            }
        }
        Ok(entries)
    }

    fn decode_one(&self, delivery: &Delivery) -> Result<(K, V), Error> {
        Ok((decode_key(&delivery.key)?, self.decode(&delivery.key, &delivery.value)?))
    }
}

fn taken<K, V>((key, value, mut delivery): Entry<K, V>) -> (K, V) {
    delivery.disarm();
    (key, value)
}

fn claimed<K, V>((key, value, delivery): Entry<K, V>) -> Claim<K, V> {
    Claim::new(key, value, delivery)
}
