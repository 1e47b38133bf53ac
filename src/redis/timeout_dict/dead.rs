//! What users do with entries that failed too often.

use std::{borrow::Borrow, time::Duration};

use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

use super::{TimeoutDict, collect::CollectMode, state::micros};
use crate::redis::Error;

impl<K, V> TimeoutDict<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Takes out at most `max` entries that are dead, the one first that died first: at most once, as
    /// [`take_expired`](Self::take_expired).
    ///
    /// An entry is dead when claims on it failed as often as
    /// [`max_attempts`](super::TimeoutDictBuilder::max_attempts) says, by whatever end but [`Claim::ack`]. A claim
    /// whose lease is over is not void yet: who is late may still ack a dead entry, and so takes it out. Nothing is
    /// ever dead where the dictionary is shared with the [original](Self::compat).
    ///
    /// [`Claim::ack`]: super::Claim::ack
    ///
    /// # Cancel safety
    ///
    /// As [`take_expired`](Self::take_expired).
    pub async fn take_dead(&self, max: usize) -> Result<Vec<(K, V)>, Error> {
        match self.state.layout.has_dead() {
            true => self.take(CollectMode::TakeDead, max).await,
            false => Ok(Vec::new()),
        }
    }

    /// Lets the entry of `key`, which is dead, be due in `ttl`, as if it had never failed; false where there is none,
    /// or it is not dead.
    pub async fn revive<Q>(&self, key: &Q, ttl: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.state.layout.encode_key(key)?;
        let call = self.state.key_call(&key, |scripts| &scripts.revive);
        self.send_once(&key, call.arg(micros(ttl))).await
    }
}

impl<K, V> TimeoutDict<K, V> {
    /// How many entries are dead. As [`len`](Self::len), sixteen scripts in one round trip.
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
        Ok(try_join_all(counts).await?.into_iter().sum())
    }
}
