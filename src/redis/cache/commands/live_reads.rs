//! Reads of live values: a value with tags is live while none of them was removed.

use futures_util::future::try_join_all;

use super::{Commands, Expiry, KEEP_TAGS};
use crate::redis::{
    Error,
    cache::stored_value::{tags_of, versions},
    script::Call,
};

impl Commands {
    /// Returns `value`, which a plain command has returned and removed, if none of its tags was removed. Most values
    /// have none.
    pub(in crate::redis::cache) async fn live(
        &self,
        key: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(tags) = value.as_deref().and_then(tags_of) else { return Ok(value) };
        let keys: Vec<_> =
            versions(tags).map(|(tag, _)| self.version_key(self.shard(key), tag)).collect();
        let call =
            keys[1..].iter().fold(Call::command("MGET", &keys[0]), |call, key| call.arg(key));
        let current: Vec<Option<Vec<u8>>> = match call.send_multi_key(&self.client).await? {
            Some(current) => current,
            None => {
                let each = keys.iter().map(|key| Call::command("GET", key));
                try_join_all(each.map(|call| call.send_idempotent(&self.client))).await?
            }
        };
        let is_live = versions(tags)
            .map(|(_, version)| Some(version))
            .eq(current.iter().map(Option::as_deref));
        Ok(value.filter(|_| is_live))
    }

    /// Reads the live value of a key.
    pub(in crate::redis::cache) async fn get_live(
        &self,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        let value = self.get(key).send_idempotent(&self.client).await?;
        self.live_or_current(key, value).await
    }

    /// Returns the live value of a key at which `GET` has read `value`.
    pub(in crate::redis::cache) async fn live_or_current(
        &self,
        key: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let had_value = value.is_some();
        let live = self.live(key, value).await?;
        if live.is_some() || !had_value {
            return Ok(live);
        }
        // It may have been replaced before its tag was removed: the key then had a live value all the time.
        let current = self.get_many(&[key]).send_multi_key::<[_; 1]>(&self.client).await?;
        match current {
            Some([current]) => Ok(current),
            None => self.live(key, self.get(key).send_idempotent(&self.client).await?).await,
        }
    }

    /// Returns `value`, which a plain command has read and given this expiry, if it is live.
    pub(in crate::redis::cache) async fn live_until(
        &self,
        key: &[u8],
        value: Option<Vec<u8>>,
        expiry: Expiry,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(tags) = value.as_deref().and_then(tags_of) else { return Ok(value) };
        let call = KEEP_TAGS.call(&[self.keyspace.record(key)]).arg(self.retention_arg());
        let is_live: bool = call.arg(tags).arg(expiry.arg()).send_once(&self.client).await?;
        Ok(value.filter(|_| is_live))
    }
}
