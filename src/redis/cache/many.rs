//! Many keys in one call: those of a shard in one round trip, as they are in one slot.

use std::{borrow::Borrow, time::Duration};

use ::redis::Value;
use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{
        Error,
        codec::encode_key,
        error::is_try_again,
        keyspace::{SHARDS, few_at_once, shard},
    },
    Cache,
    commands::{Commands, MANY},
    expiry::Expiry,
};

/// So much is put by one script, as all others wait meanwhile: in bytes of values, and keys.
const BATCH: (usize, usize) = (1 << 20, 500);

/// So many keys are read one by one at a time, where their slot is being moved and some of them are elsewhere.
const DIVIDED: usize = 16;

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// The live values of `keys`, in their order (Redis: `MGET`).
    ///
    /// One round trip for the keys of each of 16 shards, four of them at a time, and one more for each mebibyte of values,
    /// or a thousand keys; with [`near`](super::CacheBuilder::near) as it says there. It is not atomic: each value is as of when its shard is looked at. Where another program has put something of
    /// another type, there is none, as of `MGET`.
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
    #[doc(alias = "MGET")]
    pub fn get_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> impl Future<Output = Result<Vec<Option<V>>, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized + 'a,
    {
        // Before the first await, so that the future keeps none of the caller's iterator.
        let keys: Result<Vec<_>, _> = keys.into_iter().map(encode_key).collect();
        async move {
            let keys = keys?;
            if let Some(near) = &self.state.near {
                return self.get_many_near(near, keys).await;
            }
            let reads = by_shard(&keys, |key| key).into_iter().map(async |places| {
                let mut values = Vec::with_capacity(places.len());
                while let Some(rest) = places.get(values.len()..).filter(|rest| !rest.is_empty()) {
                    let rest: Vec<_> = rest.iter().map(|&at| &keys[at]).collect();
                    values.extend(read_page(self.commands(), &rest).await?);
                }
                Ok::<_, Error>(places.into_iter().zip(values))
            });
            let mut all = Vec::new();
            all.resize_with(keys.len(), || None);
            for read in few_at_once(reads).await {
                for (at, value) in read? {
                    self.state.counters.read(&value);
                    all[at] = self.decode(&keys[at], value)?;
                }
            }
            Ok(all)
        }
    }

    /// Puts each value at its key, to live for `ttl`, or for the default TTL where that is `None` (Redis: `MSET`).
    ///
    /// Of a key that comes twice, the last value stays. One round trip for the keys of each of 16 shards, four of them at a
    /// time, and one more for each mebibyte of values, or 500 keys; each is one script, and all of them together are not
    /// atomic.
    ///
    /// # Errors
    ///
    /// Those of every verb. Some of the values may have been put then. A value that can't be encoded is found before any is.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has put some of them.
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
        let expiry = ttl.map_or_else(|| self.default_expiry(), Expiry::of);
        async move {
            let entries = entries?;
            let writes = by_shard(&entries, |(key, _)| key).into_iter().map(async |places| {
                let of_shard: Vec<_> = places.into_iter().map(|at| &entries[at]).collect();
                for batch in batches(&of_shard) {
                    let call = self.commands().set_many(batch, expiry);
                    call.send_once::<Value>(&self.client().for_batches()).await?;
                }
                Ok::<_, Error>(())
            });
            few_at_once(writes).await.into_iter().collect()
        }
    }
}

/// The live values of keys of one shard: of the first ones, as many as one script reads and one answer holds.
pub(super) async fn read_page<K: AsRef<[u8]>>(
    commands: &Commands,
    keys: &[K],
) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let client = commands.client.for_batches();
    let keys = &keys[..keys.len().min(MANY)];
    let page = commands.get_many(keys).multi_key().send_idempotent(&client).await;
    let Err(Error::Unavailable(cause)) = &page else { return page };
    if !is_try_again(cause) {
        return page;
    }
    let reads = keys.iter().take(DIVIDED).map(async |key| {
        match commands.get(key.as_ref()).send_idempotent(&client).await {
            // As of the script.
            Err(Error::WrongType { .. }) => Ok(None),
            value => value,
        }
    });
    try_join_all(reads).await
}

/// For each shard that has any of them, where its keys are, in their order.
fn by_shard<T>(all: &[T], key: impl Fn(&T) -> &Vec<u8>) -> Vec<Vec<usize>> {
    let mut shards = vec![Vec::new(); usize::from(SHARDS)];
    for (at, one) in all.iter().enumerate() {
        shards[usize::from(shard(key(one)))].push(at);
    }
    shards.retain(|places| !places.is_empty());
    shards
}

/// In parts that are enough for one script each.
fn batches<'a>(mut rest: &'a [&'a Entry]) -> impl Iterator<Item = &'a [&'a Entry]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fit = rest.iter().take(BATCH.1).take_while(|(key, value)| {
            // At least one, or it would not end.
            let is_more = bytes < BATCH.0;
            bytes += key.len() + value.len();
            is_more
        });
        let (batch, more) = rest.split_at(fit.count());
        rest = more;
        (!batch.is_empty()).then_some(batch)
    })
}

/// A key and its value, as they are on the server.
type Entry = (Vec<u8>, Vec<u8>);
