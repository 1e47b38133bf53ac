//! Methods on many keys. The keys of a shard share a hash slot, so that they take one round trip.

use std::{borrow::Borrow, time::Duration};

use ::redis::Value;
use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{Error, codec::encode_key, few_at_once::try_few_at_once},
    Cache,
    commands::{Commands, MAX_KEYS_PER_READ, check_count, check_page},
};

/// Maximum bytes of keys and values, and maximum number of keys, that one script writes. The server executes nothing
/// else in the meantime.
const MAX_BATCH: (usize, usize) = (1 << 20, 500);

/// Number of keys that are read one by one if their slot is being moved, which splits the keys between two nodes.
const MAX_SINGLE_READS: usize = 16;

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Returns the live values of `keys`, in the order of the keys (Redis: `MGET`).
    ///
    /// ```no_run
    /// use fleeting::redis::Cache;
    ///
    /// # async fn f(cache: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// cache.set_many([("a".to_owned(), 1), ("b".to_owned(), 2)], None).await?;
    /// assert_eq!(cache.get_many(["b", "c", "a"]).await?, [Some(2), None, Some(1)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Takes one round trip per shard (four at a time), and another for each further mebibyte of values or
    /// thousand keys of a shard. Keys that are cached [near](super::CacheBuilder::near) need no round trip.
    ///
    /// The call is not atomic: each shard is read at its own time. A key that holds another type is `None`, as in
    /// `MGET`.
    #[doc(alias = "MGET")]
    pub fn get_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = Result<Vec<Option<V>>, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized + 'a,
    {
        // Collected before the first await, so that the future holds neither the iterator nor its borrows.
        let keys: Result<Vec<_>, _> = keys.into_iter().map(encode_key).collect();
        async move {
            let keys = keys?;
            if let Some(near) = &self.state.near {
                return self.get_many_near(near, keys).await;
            }
            let all_keys = keys.iter().enumerate();
            let reads =
                self.keyspace().by_shard(all_keys, |(_, key)| key).map(async |(_, of_shard)| {
                    let mut values = Vec::with_capacity(of_shard.len());
                    // A page ends early if its reply has the maximum size.
                    while let Some(rest) =
                        of_shard.get(values.len()..).filter(|rest| !rest.is_empty())
                    {
                        let rest: Vec<_> = rest.iter().map(|(_, key)| key).collect();
                        values.extend(read_page(self.commands(), &rest).await?);
                    }
                    Ok::<_, Error>(of_shard.into_iter().zip(values))
                });
            let mut all = Vec::new();
            all.resize_with(keys.len(), || None);
            for read in try_few_at_once(reads).await? {
                for ((at, key), value) in read {
                    self.state.counters.read(&value);
                    all[at] = self.decode(key, value)?;
                }
            }
            Ok(all)
        }
    }

    /// Writes each value at its key with the TTL `ttl`, or with the default TTL if `ttl` is `None` (Redis: `MSET`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(users: Cache<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// let rows = [(1, "Ada".to_owned()), (2, "Bob".to_owned())]; // one query for all
    /// users.set_many(rows, Some(Duration::from_secs(60))).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If a key occurs twice, the last value wins. Takes one round trip per shard (four at a time), and another
    /// for each further mebibyte of values or 500 keys of a shard. Each round trip is one script; the call as a whole
    /// is not atomic.
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors). After an error of the server, some of the values may have been
    /// written. If a key or a value cannot be encoded, nothing is written.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, some of the values may have been written.
    #[doc(alias = "MSET")]
    pub fn set_many(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
        ttl: Option<Duration>,
    ) -> impl Future<Output = Result<(), Error>> {
        let entries = entries
            .into_iter()
            .map(|(key, value)| Ok::<_, Error>((encode_key(&key)?, self.encode(&value)?)));
        let entries: Result<Vec<_>, _> = entries.collect();
        async move {
            let entries = entries?;
            let _discards_failures =
                self.state.discard_failures(entries.iter().map(|(key, _)| &key[..]));
            let writes =
                self.keyspace().by_shard(&entries, |(key, _)| key).map(async |(_, of_shard)| {
                    for batch in batches(&of_shard) {
                        let call = self.commands().set_many(batch, || self.expiry_of(ttl));
                        // Sent once: a retry could overwrite what others have written since.
                        call.send_once::<Value>(&self.client().for_batches()).await?;
                    }
                    Ok::<_, Error>(())
                });
            try_few_at_once(writes).await.map(drop)
        }
    }

    /// Removes the values of `keys` and returns the number of live values that were removed (Redis: `UNLINK`).
    ///
    /// ```no_run
    /// use fleeting::redis::Cache;
    ///
    /// # async fn f(cache: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// cache.set_many([("a".to_owned(), 1), ("b".to_owned(), 2)], None).await?;
    /// assert_eq!(cache.remove_many(["b", "c", "a"]).await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Takes one round trip per shard (four at a time), and another for each further 500 keys of a shard. Each
    /// round trip is one script; the call as a whole is not atomic.
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors). After an error of the server, some of the values may have been
    /// removed. If a key cannot be encoded, nothing is removed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, some of the values may have been removed.
    #[doc(alias = "DEL")]
    #[doc(alias = "UNLINK")]
    pub fn remove_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = Result<usize, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized + 'a,
    {
        // Collected before the first await, as in `get_many`.
        let keys: Result<Vec<_>, _> = keys.into_iter().map(encode_key).collect();
        async move {
            let keys = keys?;
            let _discards_failures = self.state.discard_failures(keys.iter().map(|key| &key[..]));
            let removals = self.keyspace().by_shard(&keys, |key| key).map(async |(_, keys)| {
                let mut removed = 0;
                for keys in keys.chunks(MAX_BATCH.1) {
                    let call = self.commands().remove_many(keys);
                    // Sent once: a retry would count fewer values.
                    let count = call.send_once(&self.client().for_batches()).await?;
                    removed += check_count(count, keys.len())?;
                }
                Ok::<_, Error>(removed)
            });
            Ok(try_few_at_once(removals).await?.into_iter().sum())
        }
    }
}

/// Reads the live values of the first of `keys`, which are of one shard: as many as one script reads and one reply
/// holds.
pub(super) async fn read_page<K: AsRef<[u8]>>(
    commands: &Commands,
    keys: &[K],
) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let client = commands.client.for_batches();
    let keys = &keys[..keys.len().min(MAX_KEYS_PER_READ)];
    let page: Option<Vec<_>> = commands.get_many(keys).send_multi_key(&client).await?;
    if let Some(page) = page {
        check_page(page.len(), keys.len())?;
        return Ok(page);
    }
    let reads = keys.iter().take(MAX_SINGLE_READS).map(async |key| {
        match commands.get(key.as_ref()).send_idempotent(&client).await {
            // As in `get_many.lua`.
            Err(Error::WrongType { .. }) => Ok(None),
            value => commands.live_or_current(key.as_ref(), value?).await,
        }
    });
    try_join_all(reads).await
}

/// Splits the entries of a shard into batches of at most [`MAX_BATCH`], for one script each.
fn batches<'a>(mut rest: &'a [&'a EncodedEntry]) -> impl Iterator<Item = &'a [&'a EncodedEntry]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fit = rest.iter().take(MAX_BATCH.1).take_while(|(key, value)| {
            // At least one entry, even if it is larger than a batch: otherwise the iterator would not advance.
            let is_more = bytes < MAX_BATCH.0;
            bytes += key.len() + value.len();
            is_more
        });
        let (batch, more) = rest.split_at(fit.count());
        rest = more;
        (!batch.is_empty()).then_some(batch)
    })
}

/// A key and its value, encoded.
type EncodedEntry = (Vec<u8>, Vec<u8>);
