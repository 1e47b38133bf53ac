//! Verbs that a near cache answers: what is kept, or else what the server says.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::Error,
    Cache,
    near::{Near, kept},
};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// As [`get`](Cache::get), of a key as it is on the server.
    pub(super) async fn get_near_encoded(
        &self,
        near: &Arc<dyn Near<V>>,
        key: &[u8],
    ) -> Result<Option<V>, Error> {
        match kept(|cx, found| near.poll_kept(key, cx, found)).await? {
            Some(value) => Ok(value),
            None => self.read_near(near, key.to_vec()).await,
        }
    }

    pub(super) async fn get_many_near(
        &self,
        near: &Arc<dyn Near<V>>,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<V>>, Error> {
        let (mut values, mut places, mut not_kept) = (Vec::new(), Vec::new(), Vec::new());
        for (at, key) in keys.into_iter().enumerate() {
            values.push(match kept(|cx, found| near.poll_kept(&key, cx, found)).await? {
                Some(value) => value,
                None => {
                    places.push(at);
                    not_kept.push(key);
                    None
                }
            });
        }
        if not_kept.is_empty() {
            return Ok(values);
        }
        let answers = near.clone().read_many(not_kept).await;
        for (at, answer) in places.into_iter().zip(answers) {
            values[at] = match answer {
                // As of `MGET`.
                Err(Error::WrongType { .. }) => None,
                answer => answer?,
            };
            self.state.counters.read(&values[at]);
        }
        Ok(values)
    }

    /// Of one that is not kept.
    pub(super) async fn read_near(
        &self,
        near: &Arc<dyn Near<V>>,
        key: Vec<u8>,
    ) -> Result<Option<V>, Error> {
        let value = near.clone().read(key).await?;
        self.state.counters.read(&value);
        Ok(value)
    }
}
