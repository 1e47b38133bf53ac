//! Optimistic updates: read a value, change it in the client, and write it if it has not changed since.

use std::borrow::Borrow;

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    super::{Error, codec::encode_key},
    Cache,
    stored_value::stored_with_tags_of,
};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Changes the live value of `key` atomically and keeps its TTL. Returns the result of `change`, or `None` if there
    /// is no live value.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, Vec<String>>) -> Result<(), fleeting::redis::Error> {
    /// // Two servers may add goods to the same cart; neither is lost.
    /// let goods = carts.update("ada", |cart| {
    ///     cart.push("book".to_owned());
    ///     cart.len()
    /// }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The value is read, changed in this process, and written if it is still the same: two round trips. If another
    /// client changed it in the meantime, `change` is called again with the new value, at the cost of one more round
    /// trip. So your `change` should have no effect other than on the value.
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors), and [`Error::Contended`] if other clients changed the value before
    /// each attempt to write it, until the client's timeout had passed.
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
        // Bounded: under contention, each round can lose again.
        let deadline = self.client().deadline(None);
        let mut current = self.commands().get_live(&key).await?;
        while let Some(old) = current {
            let mut value = self.state.decode(&key, &old)?;
            let result = change(&mut value);
            let new = stored_with_tags_of(&old, self.state.format.encode(&value)?);
            let call = self.commands().compare_and_swap(&key, &old, &new);
            // Not before: without a value, nothing is written, and the error of the last load still counts.
            let _discards_failure = self.state.discard_failure(&key);
            // The script returns the current value if it differs, which saves a read in the next round.
            let (is_swapped, now): (bool, _) = call.send_once(self.client()).await?;
            if is_swapped {
                return Ok(Some(result));
            }
            current = now;
            if Instant::now() >= deadline {
                return Err(Error::Contended);
            }
        }
        Ok(None)
    }
}
