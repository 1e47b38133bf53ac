//! Tags: labels by which any number of values are removed in one call. `tags.lua` describes how they are stored.

use std::time::Duration;

use ::redis::Value;
use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{Error, codec::encode_key},
    Cache,
    stored_value::stored,
};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Sets the value of `key` with the given TTL and tags, and returns the live value it replaced.
    /// [`remove_tag`](Cache::remove_tag) with any of the tags removes the value.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::Cache;
    ///
    /// # async fn f(pages: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// let hour = Duration::from_secs(3_600);
    /// pages.set_tagged("/ada".into(), "...".into(), hour, ["user:ada", "layout"]).await?;
    /// pages.set_tagged("/bob".into(), "...".into(), hour, ["user:bob", "layout"]).await?;
    ///
    /// pages.remove_tag("user:ada").await?;
    /// assert_eq!(pages.get("/ada").await?, None);
    /// assert!(pages.get("/bob").await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Tags belong to the value. A new value has only the tags it is written with, so [`set`](Cache::set) and the like
    /// leave it without tags. [`update`](Cache::update) and methods that change the TTL keep the tags, and so does a
    /// refresh. [`Tagged`](crate::Tagged) gives tags to loaded values.
    ///
    /// # Cost
    ///
    /// One script. A method that reads a value with tags by a plain command, such as [`get`](Cache::get), takes another
    /// round trip, in which the tags are checked; the [guide](crate::guide::redis#methods-and-their-costs) lists these
    /// methods. Such values are not cached [near](super::CacheBuilder::near). On the server, a value takes 20 more
    /// bytes for each tag, and the tag itself. A tag takes a small key in each shard with such values, until the last
    /// of them expires (if one of them was persistent, until the tag is removed). If the server evicts that key, the
    /// values are removed.
    ///
    /// While a cluster moves a slot, the value and the keys of its tags may be on two nodes. [`get`](Cache::get) asks
    /// both, but the other methods wait, or count the value as missing.
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors). [`Error::Unanswered`] if the value was written, but the tags of the
    /// replaced value could not be checked.
    pub fn set_tagged(
        &self,
        key: K,
        value: V,
        ttl: Duration,
        tags: impl IntoIterator<Item = impl Into<String>>,
    ) -> impl Future<Output = Result<Option<V>, Error>> {
        // Collected before the first await, so that the future does not hold the caller's iterator.
        let tags: Vec<String> = tags.into_iter().map(Into::into).collect();
        let encoded = encode_key(&key).and_then(|key| Ok((key, self.state.format.encode(&value)?)));
        async move {
            let (key, value) = encoded?;
            let expiry = self.expiry_of(Some(ttl));
            let _discards_failure = self.state.discard_failure(&key);
            let call = match tags.is_empty() {
                true => self.commands().set(&key, &stored(value), expiry),
                false => self.commands().set_tagged(&key, &value, expiry, &tags),
            };
            // A retry after a lost reply would return the new value as the old one.
            let old = call.send_once(self.client()).await?;
            self.decode_replaced(&key, old).await
        }
    }

    /// Removes all values that have the tag `tag`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(pages: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// let hour = Duration::from_secs(3_600);
    /// pages.set_tagged("/ada".into(), "Ada".into(), hour, ["user:7"]).await?;
    ///
    /// // User 7 changes her name: all servers render her pages again.
    /// pages.remove_tag("user:7").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// When this method returns, no method of any process returns one of these values any more, and they expire without
    /// an event. A value that had expired before, but whose event was not published yet, has no event either. The
    /// server frees the memory of a value when it expires or is overwritten. A value that is being loaded is not cached
    /// if it is to have the tag ([`Tagged`](crate::Tagged)), or if the value that it replaces has it.
    ///
    /// Takes two round trips of one small command per shard, for any number of values. If more than 10,000 tags are
    /// removed during a load whose value is to have tags, the value is not cached.
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors). After an error, some of the values may have been removed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, some of the values may have been removed.
    pub async fn remove_tag(&self, tag: &str) -> Result<(), Error> {
        self.client().await_shards().await?;
        // Sent once: a late copy would remove values that were written after the call.
        let (commands, client) = (self.commands(), self.client());
        let removals = commands.keyspace.shards().map(async |shard| {
            // First: a load that is stored in between has a version of the tag that is removed.
            commands.note_removed_tag(shard, tag).send_once::<Value>(client).await?;
            commands.remove_tag(shard, tag).send_once::<Value>(client).await
        });
        try_join_all(removals).await?;
        Ok(())
    }
}
