//! Methods on dead letters: entries that failed too often.

use std::{borrow::Borrow, time::Duration};

use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

use super::{TimeoutDict, collect::CollectMode, dict_state::micros};
use crate::redis::Error;

impl<K, V> TimeoutDict<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Removes and returns at most `max` dead letters, oldest first. Each is delivered at most once, as by
    /// [`take_expired`](Self::take_expired).
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// for (user, _) in mails.take_dead(100).await? {
    ///     println!("{user} has no working address");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An entry becomes a dead letter when [`max_attempts`](super::TimeoutDictBuilder::max_attempts) claims on it have
    /// ended without [`Claim::ack`]. If the lease of the last attempt has expired, the entry is a dead letter, but the
    /// holder of that claim may still ack it, which removes the entry. A dictionary shared with the
    /// [original](Self::compat) has no dead letters.
    ///
    /// [`Claim::ack`]: super::Claim::ack
    ///
    /// # Cancel safety
    ///
    /// The same as for [`take_expired`](Self::take_expired).
    pub async fn take_dead(&self, max: usize) -> Result<Vec<(K, V)>, Error> {
        match self.state.layout.has_dead() {
            true => self.take(CollectMode::TakeDead, max).await,
            false => Ok(Vec::new()),
        }
    }

    /// Revives a dead letter: the entry of `key` becomes due in `ttl`, and its number of failed attempts is reset to
    /// zero. Returns false if there is no entry, or if it is not a dead letter.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // The mail server works again.
    /// mails.revive("ada", Duration::ZERO).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revive<Q>(&self, key: &Q, ttl: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.state.layout.encode_key(key)?;
        let call = self.state.key_call(&key, |scripts| &scripts.revive);
        self.state.send_change(&key, call.arg(micros(ttl))).await
    }
}

impl<K, V> TimeoutDict<K, V> {
    /// Returns the number of dead letters. It takes 16 scripts in one round trip.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// if mails.dead_len().await? > 0 {
    ///     println!("some mails could not be sent");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dead_len(&self) -> Result<usize, Error> {
        if !self.state.layout.has_dead() {
            return Ok(0);
        }
        let counts = self.state.layout.shards().iter().map(async |shard| {
            let call = self.state.shard_call(shard, |scripts| &scripts.dead_len);
            match call.send_idempotent::<usize>(&self.state.client).await {
                Ok(count) => Ok(count),
                Err(error) => Err(self.state.name_wrong_type(error, shard, None).await),
            }
        });
        Ok(try_join_all(counts).await?.into_iter().fold(0, usize::saturating_add))
    }
}
