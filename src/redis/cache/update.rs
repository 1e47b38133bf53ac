//! What reads a value, changes it here, and puts it where it still is the same.

use std::borrow::Borrow;

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    super::{Error, codec::encode_key},
    Cache,
};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Changes the live value of `key`, atomically; its TTL stays. Returns what `change` does, or `None`
    /// where no live value is.
    ///
    /// The value is read, changed here, and put where it still is the same: two round trips. Where another
    /// changed it meanwhile, `change` is called again with what is there then, for which each time costs one
    /// more. So it should do nothing but change the value.
    ///
    /// # Errors
    ///
    /// Those of every verb, and [`Error::Contended`] where others were faster for as long as the client's
    /// timeout.
    pub async fn update<Q, R>(
        &self,
        key: &Q,
        mut change: impl FnMut(&mut V) -> R,
    ) -> Result<Option<R>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        // Not for ever: each round gives the others as much time to be faster.
        let deadline = self.client().deadline(None);
        let mut there: Option<Vec<u8>> =
            self.commands().get(&key).send_idempotent(self.client()).await?;
        while let Some(old) = there {
            let mut value = self.state.decode(&key, &old)?;
            let result = change(&mut value);
            let new = self.encode(&value)?;
            let call = self.commands().compare_and_swap(&key, &old, &new);
            // The script answers what is there instead, which saves a read for the next round.
            let (is_swapped, now): (bool, _) = call.send_once(self.client()).await?;
            if is_swapped {
                return Ok(Some(result));
            }
            there = now;
            if Instant::now() >= deadline {
                return Err(Error::Contended);
            }
        }
        Ok(None)
    }
}
