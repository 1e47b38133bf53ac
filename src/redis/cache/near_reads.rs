//! Verbs that a near cache answers: what is kept, or else what the server says.

use std::{future::poll_fn, sync::Arc};

use futures_util::future::join_all;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{Error, codec::encode_key},
    Cache,
    near::{Near, kept},
};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    #[inline]
    pub(super) async fn get_near<Q>(
        &self,
        near: &Arc<dyn Near<V>>,
        key: &Q,
    ) -> Result<Option<V>, Error>
    where
        Q: Serialize + ?Sized,
    {
        match kept(near, key).await? {
            Some(value) => Ok(value),
            None => self.read_near(near, encode_key(key)?).await,
        }
    }

    /// As [`get_near`](Cache::get_near), of a key as it is on the server.
    pub(super) async fn get_near_encoded(
        &self,
        near: &Arc<dyn Near<V>>,
        key: &[u8],
    ) -> Result<Option<V>, Error> {
        match poll_fn(|cx| near.poll_kept(key, cx)).await {
            Some(value) => Ok(value),
            None => self.read_near(near, key.to_vec()).await,
        }
    }

    pub(super) async fn get_many_near(
        &self,
        near: &Arc<dyn Near<V>>,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<V>>, Error> {
        let reads = keys.iter().map(async |key| match self.get_near_encoded(near, key).await {
            // As of `MGET`.
            Err(Error::WrongType { .. }) => Ok(None),
            answer => answer,
        });
        join_all(reads).await.into_iter().collect()
    }

    async fn read_near(&self, near: &Arc<dyn Near<V>>, key: Vec<u8>) -> Result<Option<V>, Error> {
        let value = near.clone().read(key).await?;
        self.state.counters.read(&value);
        Ok(value)
    }
}
