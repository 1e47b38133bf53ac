//! What walks all entries of a cache (`SCAN`): iteration, counting, and [`clear`](Cache::clear).

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
        client::{Node, SlotPlace},
        codec::decode_key,
        keyspace::{SHARDS, few_at_once, shard},
    },
    Cache,
    commands::Commands,
    many::read_page,
};

/// How many keys a server looks at in one call.
const PAGE: usize = 1_000;

/// A live entry as bytes, its key and its value, and the cache that decodes them.
type RawEntry<K, V> = (Cache<K, V>, Vec<u8>, Vec<u8>);

/// Of one page of `SCAN`.
#[derive(Default)]
struct Found {
    entries: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// For each shard the keys whose values are still to be read.
    unread: Vec<(u16, Vec<Vec<u8>>)>,
}

/// How far `SCAN` has come, on one server after the other.
///
/// A key whose slot is moved goes from one server to another, and may do so behind the cursor's back. So in a cluster all
/// servers are gone through again where a slot of the cache has gone to another while they were. Where slots are being moved
/// all the time but to the same ones, twice is enough: a key that moves once is on its new server before this is gone
/// through for the second time, or was on the old one all the first time.
struct ScanCursor {
    /// Those that are still to be asked; `None` before the first call, and between two passes.
    nodes: Option<Vec<Node>>,
    cursor: u64,
    /// Where the slots were before this pass.
    places: Vec<SlotPlace>,
    /// How many passes in a row ended with each slot with the master that it began with.
    calm: u32,
    /// A server may find a key twice, when its table grows or shrinks meanwhile.
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
    /// meanwhile may or may not; so it is where a slot of a cluster is moved meanwhile, for which all servers look once
    /// more. The server looks at **all its keys**, a thousand a round trip, gives the values of each
    /// shard by the mebibyte, and in a
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
        self.raw_entries().map(|entry| {
            let (cache, key, value) = entry?;
            Ok((decode_key(&key)?, cache.state.decode(&key, &value)?))
        })
    }

    /// The keys of [`iter`](Cache::iter), for as much.
    pub fn keys(&self) -> impl Stream<Item = Result<K, Error>> + Send + Unpin + use<K, V> {
        self.raw_entries().map(|entry| decode_key(&entry?.1))
    }

    /// The values of [`iter`](Cache::iter).
    pub fn values(&self) -> impl Stream<Item = Result<V, Error>> + Send + Unpin + use<K, V> {
        self.iter().map(|entry| entry.map(|(_, value)| value))
    }

    /// The number of live entries (Redis: `SCAN`).
    ///
    /// The server looks at all its keys, as for [`iter`](Cache::iter).
    pub async fn len(&self) -> Result<usize, Error> {
        let mut scan = ScanCursor::new();
        while scan.next_page(self.commands()).await?.is_some() {}
        Ok(scan.seen.len())
    }

    /// Whether nothing lives. The server looks at its keys until it finds one.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        let mut scan = ScanCursor::new();
        while let Some(keys) = scan.next_page(self.commands()).await? {
            if !keys.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes everything out that is there from begin to end of the call (Redis: `SCAN`, `UNLINK`).
    ///
    /// The server looks at all its keys, as for [`iter`](Cache::iter): one round trip a thousand keys, and one
    /// more for those that are of this cache. What is dead and was not told of is still told of. What is being
    /// [loaded](Cache::get_or_set_with) is put nowhere, by whatever process; to say so takes 16 small keys for a day.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has taken some of the entries out.
    pub async fn clear(&self) -> Result<(), Error> {
        // First, or what is put while the server looks at its keys could be passed over.
        let loads = (0..SHARDS).map(async |shard| {
            self.commands().clear_loads(shard).send_idempotent::<Value>(self.client()).await
        });
        try_join_all(loads).await?;
        let mut scan = ScanCursor::new();
        while let Some(keys) = scan.next_page(self.commands()).await? {
            let clears = by_shard(keys).into_iter().map(async |(shard, keys)| {
                let call = self.commands().clear(shard, &keys);
                call.send_once::<Value>(&self.client().for_batches()).await
            });
            try_join_all(clears).await?;
        }
        Ok(())
    }

    /// The live entries as bytes.
    fn raw_entries(&self) -> BoxStream<'static, Result<RawEntry<K, V>, Error>> {
        let begin = (self.clone(), ScanCursor::new(), Found::default());
        try_unfold(begin, async |(cache, mut scan, mut found)| {
            loop {
                if let Some((key, value)) = found.entries.pop_front() {
                    return Ok(Some(((cache.clone(), key, value), (cache, scan, found))));
                }
                if !found.unread.is_empty() {
                    cache.read_more(&mut found).await?;
                    continue;
                }
                let Some(keys) = scan.next_page(cache.commands()).await? else { return Ok(None) };
                found.unread = by_shard(keys);
            }
        })
        .boxed()
    }

    /// Reads of what was found as much as an answer of each shard holds.
    async fn read_more(&self, found: &mut Found) -> Result<(), Error> {
        let pages = found.unread.iter().map(|(_, keys)| read_page(self.commands(), keys));
        let pages = few_at_once(pages).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        for ((_, keys), values) in found.unread.iter_mut().zip(pages) {
            // At least one, or it would not end.
            let read = keys.drain(..values.len().max(1).min(keys.len()));
            found.entries.extend(read.zip(values).filter_map(|(key, value)| Some((key, value?))));
        }
        found.unread.retain(|(_, keys)| !keys.is_empty());
        Ok(())
    }
}

impl ScanCursor {
    fn new() -> Self {
        let (places, seen) = (Vec::new(), HashSet::new());
        Self { nodes: None, cursor: 0, places, calm: 0, seen }
    }

    /// The keys of the next records, none of which came before; `None` after the last.
    async fn next_page(&mut self, commands: &Commands) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let client = &commands.client;
        let nodes = match &mut self.nodes {
            Some(nodes) => nodes,
            None => {
                if client.is_cluster() && self.places.is_empty() {
                    self.places = client.places(&commands.absent()).await?;
                }
                self.nodes.insert(client.nodes().await?)
            }
        };
        let Some(node) = nodes.last().cloned() else {
            if client.is_cluster() && !self.is_over(client.places(&commands.absent()).await?) {
                self.nodes = None;
                return Ok(Some(Vec::new()));
            }
            if let Some(invalidations) = client.invalidations() {
                // What was not found is not there.
                invalidations.invalidate_all();
            }
            return Ok(None);
        };
        let mut scan = cmd("SCAN");
        scan.arg(self.cursor)
            .arg("MATCH")
            .arg(commands.keyspace.scan_pattern())
            .arg("COUNT")
            .arg(PAGE);
        let answer = commands.client.for_batches().send_to(&node, &scan).await?;
        let (cursor, records): (u64, Vec<Vec<u8>>) = FromRedisValue::from_redis_value(answer)
            .map_err(|error| Error::Server(error.into()))?;
        // So says a server that its keys are through.
        if cursor == 0 {
            nodes.pop();
        }
        self.cursor = cursor;
        let mut keys = Vec::new();
        for record in records {
            // The pattern also finds what only looks like a record: of a shard that the key is not in, say.
            let key = commands
                .keyspace
                .key_of(&record)
                .filter(|key| commands.keyspace.record(key) == record);
            if let Some(key) = key
                && self.seen.insert(key.to_vec())
            {
                if let Some(invalidations) = commands.client.invalidations() {
                    invalidations.invalidate(key);
                }
                keys.push(key.to_vec());
            }
        }
        Ok(Some(keys))
    }

    /// Whether another pass would find nothing more, by where the slots are after this one.
    fn is_over(&mut self, places: Vec<SlotPlace>) -> bool {
        let before = std::mem::replace(&mut self.places, places);
        let masters = |places: &[SlotPlace]| -> Vec<_> {
            places.iter().map(|place| place.master.clone()).collect()
        };
        let is_calm = masters(&before) == masters(&self.places);
        self.calm = if is_calm { self.calm + 1 } else { 0 };
        let is_moving = before.iter().chain(&self.places).any(|place| place.is_moving);
        self.calm > u32::from(is_moving)
    }
}

/// Together, what one script can be about: the keys of a script must be in one slot.
fn by_shard(keys: Vec<Vec<u8>>) -> Vec<(u16, Vec<Vec<u8>>)> {
    let mut shards: Vec<_> = (0..SHARDS).map(|shard| (shard, Vec::new())).collect();
    for key in keys {
        shards[usize::from(shard(&key))].1.push(key);
    }
    shards.retain(|(_, keys)| !keys.is_empty());
    shards
}
