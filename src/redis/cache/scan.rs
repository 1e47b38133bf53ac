use std::collections::{HashSet, VecDeque};

use ::redis::{FromRedisValue, Value, cmd};
use futures_core::Stream;
use futures_util::{
    StreamExt,
    future::try_join_all,
    stream::{BoxStream, try_unfold},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{
        Error,
        client::Node,
        codec::decode_key,
        keyspace::{SHARDS, shard},
    },
    Cache, CacheStats,
    commands::Store,
};

/// How many keys a server looks at in one call.
const PAGE: usize = 1_000;

/// A live entry as bytes, and the cache that reads them.
type Live<K, V> = (Cache<K, V>, Vec<u8>, Vec<u8>);

/// What `SCAN` finds, on one server after the other.
struct Scan {
    /// Those that are still to be asked; `None` before the first call.
    nodes: Option<Vec<Node>>,
    cursor: u64,
    /// A server may find a key twice.
    seen: HashSet<Vec<u8>>,
}

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned + Send + Sync + 'static,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// The live entries, in no order (Redis: `SCAN`, `MGET`).
    ///
    /// Weakly consistent: an entry that is there all the time comes exactly once, one that comes or goes
    /// meanwhile may or may not. The server looks at **all its keys**, a thousand a round trip, and in a
    /// cluster all servers do, one after the other; the keys that came are kept here, so that none comes
    /// twice. It is for maintenance, not for requests. What another program put under a key and is no string is
    /// passed over.
    ///
    /// ```no_run
    /// use fleeting::redis::Cache;
    /// use futures_util::StreamExt;
    ///
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// let mut entries = sessions.iter();
    /// while let Some(entry) = entries.next().await {
    ///     let (user, id) = entry?;
    ///     println!("{user}: {id}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An item is an error where an entry can't be decoded, or the server can't be asked, which is the last
    /// item then.
    #[doc(alias = "SCAN")]
    pub fn iter(&self) -> impl Stream<Item = Result<(K, V), Error>> + Send + Unpin + use<K, V> {
        self.live().map(|entry| {
            let (cache, key, value) = entry?;
            Ok((decode_key(&key)?, cache.shared.decode(&key, &value)?))
        })
    }

    /// The keys of [`iter`](Cache::iter), for as much.
    pub fn keys(&self) -> impl Stream<Item = Result<K, Error>> + Send + Unpin + use<K, V> {
        self.live().map(|entry| decode_key(&entry?.1))
    }

    /// The values of [`iter`](Cache::iter).
    pub fn values(&self) -> impl Stream<Item = Result<V, Error>> + Send + Unpin + use<K, V> {
        self.iter().map(|entry| entry.map(|(_, value)| value))
    }

    /// Entries on the server: live, or dead and not yet told of to subscribers (Redis: `SCAN`).
    ///
    /// The server looks at all its keys, as for [`iter`](Cache::iter).
    pub async fn len(&self) -> Result<usize, Error> {
        let mut scan = Scan::new();
        while scan.page(self.store()).await?.is_some() {}
        Ok(scan.seen.len())
    }

    /// Whether nothing is on the server. The server looks at its keys until it finds one.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        let mut scan = Scan::new();
        while let Some(keys) = scan.page(self.store()).await? {
            if !keys.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes everything out that is there from begin to end of the call (Redis: `SCAN`, `UNLINK`).
    ///
    /// The server looks at all its keys, as for [`iter`](Cache::iter): one round trip a thousand keys, and one
    /// more for those that are of this cache. What is dead and was not told of is told of.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has taken some of the entries out.
    pub async fn clear(&self) -> Result<(), Error> {
        let mut scan = Scan::new();
        while let Some(keys) = scan.page(self.store()).await? {
            let clears = by_shard(keys).into_iter().map(async |(shard, keys)| {
                self.store().clear(shard, &keys).change::<Value>(self.client()).await
            });
            try_join_all(clears).await?;
        }
        Ok(())
    }

    /// What the handles of this cache in this process have seen. Asks no server.
    pub fn stats(&self) -> CacheStats {
        self.shared.stats()
    }

    /// Ends the streams of this cache in this process, after what they hold. Reads and writes still work.
    ///
    /// It waits for no subscriber, and for no server.
    pub async fn shutdown(&self) {
        self.shared.stop.send_replace(true);
    }

    /// The live entries as bytes.
    fn live(&self) -> BoxStream<'static, Result<Live<K, V>, Error>> {
        let begin = (self.clone(), Scan::new(), VecDeque::new());
        try_unfold(begin, async |(cache, mut scan, mut found)| {
            loop {
                if let Some((key, value)) = found.pop_front() {
                    return Ok(Some(((cache.clone(), key, value), (cache, scan, found))));
                }
                let Some(keys) = scan.page(cache.store()).await? else { return Ok(None) };
                found = cache.values_of(keys).await?;
            }
        })
        .boxed()
    }

    /// The live ones of `keys`, with their values.
    async fn values_of(&self, keys: Vec<Vec<u8>>) -> Result<VecDeque<(Vec<u8>, Vec<u8>)>, Error> {
        let pages = by_shard(keys).into_iter().map(async |(shard, keys)| {
            let call = self.store().page(shard, &keys);
            let values: Vec<Option<Vec<u8>>> = call.read(self.client()).await?;
            Ok::<_, Error>(keys.into_iter().zip(values))
        });
        let pages = try_join_all(pages).await?;
        let entries = pages.into_iter().flatten();
        Ok(entries.filter_map(|(key, value)| Some((key, value?))).collect())
    }
}

impl Scan {
    fn new() -> Self {
        Self { nodes: None, cursor: 0, seen: HashSet::new() }
    }

    /// The keys of the next records, none of which came before; `None` after the last.
    async fn page(&mut self, store: &Store) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let nodes = match &mut self.nodes {
            Some(nodes) => nodes,
            None => self.nodes.insert(store.client.nodes().await?),
        };
        let Some(node) = nodes.last().copied() else { return Ok(None) };
        let mut scan = cmd("SCAN");
        scan.arg(self.cursor).arg("MATCH").arg(store.names.pattern()).arg("COUNT").arg(PAGE);
        let answer = store.client.send_to(node, &scan).await?;
        let (cursor, records): (u64, Vec<Vec<u8>>) = FromRedisValue::from_redis_value(answer)
            .map_err(|error| Error::Server(error.into()))?;
        if cursor == 0 {
            nodes.pop();
        }
        self.cursor = cursor;
        let mut keys = Vec::new();
        for record in records {
            let key = store.names.key(&record).filter(|key| store.names.record(key) == record);
            if let Some(key) = key
                && self.seen.insert(key.to_vec())
            {
                keys.push(key.to_vec());
            }
        }
        Ok(Some(keys))
    }
}

/// Together, what one call can be about.
fn by_shard(keys: Vec<Vec<u8>>) -> Vec<(u16, Vec<Vec<u8>>)> {
    let mut shards: Vec<_> = (0..SHARDS).map(|shard| (shard, Vec::new())).collect();
    for key in keys {
        shards[usize::from(shard(&key))].1.push(key);
    }
    shards.retain(|(_, keys)| !keys.is_empty());
    shards
}
