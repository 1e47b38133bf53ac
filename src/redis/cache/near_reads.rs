//! Reads through a near cache: the cached answer, or else the server's.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::Error,
    Cache,
    in_flight_reads::LiveReply,
    near::{DynNearCache, cached},
};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Reads an encoded key like [`get`](Cache::get). Also returns the time at which the value expires.
    pub(super) async fn get_near_encoded(
        &self,
        near: &Arc<dyn DynNearCache<V>>,
        key: &[u8],
    ) -> Result<LiveReply<V>, Error> {
        match cached(|cx, found| near.poll_found(key, cx, found)).await? {
            Some(found) => Ok(found),
            None => self.read_near(near, key.to_vec()).await,
        }
    }

    pub(super) async fn get_many_near(
        &self,
        near: &Arc<dyn DynNearCache<V>>,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<V>>, Error> {
        let (mut values, mut positions, mut uncached) = (Vec::new(), Vec::new(), Vec::new());
        for (at, key) in keys.into_iter().enumerate() {
            values.push(match cached(|cx, found| near.poll_cached(&key, cx, found)).await? {
                Some(value) => value,
                None => {
                    positions.push(at);
                    uncached.push(key);
                    None
                }
            });
        }
        if uncached.is_empty() {
            return Ok(values);
        }
        let answers = near.clone().read_many(uncached).await;
        for (at, answer) in positions.into_iter().zip(answers) {
            values[at] = match answer {
                // As in `MGET`.
                Err(Error::WrongType { .. }) => None,
                answer => answer?,
            };
            self.state.counters.read(&values[at]);
        }
        Ok(values)
    }

    /// Reads an uncached key.
    pub(super) async fn read_near(
        &self,
        near: &Arc<dyn DynNearCache<V>>,
        key: Vec<u8>,
    ) -> Result<LiveReply<V>, Error> {
        let found = near.clone().read(key).await?;
        self.state.counters.read(&found.value);
        Ok(found)
    }
}
