//! Methods that scan all entries of a cache (`SCAN`): iteration, counting, and [`clear`](Cache::clear).

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
        error::unexpected_reply,
        few_at_once::try_few_at_once,
    },
    Cache,
    commands::{Commands, check_count},
    many::read_page,
};

/// Number of keys that a server examines per call.
const SCAN_COUNT: usize = 1_000;

/// Encoded key and value of a live entry, and the cache that decodes them.
type RawEntry<K, V> = (Cache<K, V>, Vec<u8>, Vec<u8>);

/// Entries of one page of `SCAN`.
#[derive(Default)]
struct ScannedPage {
    entries: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// Keys by shard whose values have not been read yet.
    unread: Vec<(u16, Vec<Vec<u8>>)>,
}

/// Progress of a `SCAN` over all servers, one after the other.
///
/// When a cluster moves a slot, its keys change servers, possibly from one that is still to be scanned to one that was
/// scanned already. So all servers are scanned again if a slot of the cache has a new master at the end of a pass. If
/// slots are being moved during the passes, but none has arrived, two passes in a row are enough. A key that moves once
/// was on the old server for the whole first pass, or is on the new one before the second.
struct ScanCursor {
    /// Servers that are still to be scanned; `None` before the first call, and between two passes.
    nodes: Option<Vec<Node>>,
    cursor: u64,
    /// Number of pages of this server, and the cursor of the last page whose number is a power of two. No server
    /// returns a cursor twice, or the scan would not end. A cycle of cursors returns to this one (R. P. Brent, "An
    /// improved Monte Carlo factorization algorithm", BIT 1980), so not all of them are stored. A server that invents
    /// new cursors forever keeps the call busy until the caller drops it, as one with more and more keys would.
    pages: (u64, u64),
    /// Locations of the slots before this pass.
    places: Vec<SlotPlace>,
    /// Number of passes in a row during which no slot changed its master.
    stable_passes: u32,
    /// Keys found so far. A server may return a key twice if its table is resized during the scan.
    seen: HashSet<Vec<u8>>,
}

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned + Send + Sync + 'static,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Returns a stream of the live entries, in no particular order (Redis: `SCAN`, `MGET`).
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
    /// The iteration is weakly consistent. An entry that is present throughout is returned exactly once. An entry that
    /// is added or removed during the iteration may or may not be returned. This holds even if a cluster moves slots in
    /// the meantime, in which case all servers are scanned again.
    ///
    /// The server examines **all its keys**, a thousand per round trip, and returns the values of each shard in replies
    /// of about a mebibyte. In a cluster, the servers are scanned one after the other. The keys returned so far are
    /// kept in this process, so that none is returned twice. Because of these costs, use this method for maintenance,
    /// not in request handlers. Keys at which another program stored something other than a string are skipped.
    ///
    /// # Errors
    ///
    /// An item is an error if an entry cannot be decoded, or if the server cannot be reached. In the second case, it is
    /// the last item.
    #[doc(alias = "SCAN")]
    pub fn iter(&self) -> impl Stream<Item = Result<(K, V), Error>> + Send + Unpin + use<K, V> {
        self.raw_entries().map(|entry| {
            let (cache, key, value) = entry?;
            Ok((cache.state.decode_key(&key)?, cache.state.decode(&key, &value)?))
        })
    }

    /// Returns a stream of the keys of [`iter`](Cache::iter), at the same cost without the values.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # use futures_util::TryStreamExt;
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// let mut tokens = sessions.keys();
    /// while let Some(token) = tokens.try_next().await? {
    ///     println!("{token}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> impl Stream<Item = Result<K, Error>> + Send + Unpin + use<K, V> {
        self.raw_entries().map(|entry| {
            let (cache, key, _) = entry?;
            cache.state.decode_key(&key)
        })
    }

    /// Returns a stream of the values of [`iter`](Cache::iter).
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # use futures_util::TryStreamExt;
    /// # async fn f(carts: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// let total = carts.values().try_fold(0, async |sum, euros| Ok(sum + euros)).await?;
    /// println!("goods for {total} euros are in all carts");
    /// # Ok(())
    /// # }
    /// ```
    pub fn values(&self) -> impl Stream<Item = Result<V, Error>> + Send + Unpin + use<K, V> {
        self.iter().map(|entry| entry.map(|(_, value)| value))
    }

    /// Returns the number of live entries (Redis: `SCAN`). Keys at which another program stored something else count,
    /// too.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// println!("{} users are logged in", sessions.len().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The server examines all its keys, as for [`iter`](Cache::iter). Pages with keys of this cache take another round
    /// trip.
    pub async fn len(&self) -> Result<usize, Error> {
        let (mut scan, mut count) = (ScanCursor::new(), 0);
        while let Some(keys) = scan.next_page(self.commands()).await? {
            count += self.count_live(keys).await?;
        }
        Ok(count)
    }

    /// Returns whether there is no live entry. The server examines its keys until it finds one.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(uploads: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// if uploads.is_empty().await? {
    ///     println!("no upload is running: restart now");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn is_empty(&self) -> Result<bool, Error> {
        let mut scan = ScanCursor::new();
        while let Some(keys) = scan.next_page(self.commands()).await? {
            if self.count_live(keys).await? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes all entries that are present during the whole call (Redis: `SCAN`, `UNLINK`).
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(templates: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // A deployment replaced all templates.
    /// templates.clear().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The server examines all its keys, as for [`iter`](Cache::iter), a thousand per round trip. Pages with keys of
    /// this cache take another round trip. Entries that have already expired are still reported as events. Values that
    /// are being [loaded](Cache::get_or_set_with) by any process are not cached. To achieve this, a small key per shard
    /// is written, which expires after a day. If the memory of your server is full (`noeviction`), it accepts them too,
    /// since `clear` frees memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, some of the entries may have been removed.
    pub async fn clear(&self) -> Result<(), Error> {
        self.client().await_shards().await?;
        // Before the scan: a load that published its value during the scan could be skipped by it.
        let loads = self.keyspace().shards().map(async |shard| {
            self.commands().clear_loads(shard).send_once::<Value>(self.client()).await
        });
        try_join_all(loads).await?;
        // After the loads were invalidated: their errors are not kept, either.
        if let Some(failures) = &self.state.failures {
            failures.discard_all().await;
        }
        let mut scan = ScanCursor::new();
        while let Some(keys) = scan.next_page(self.commands()).await? {
            let clears = self.keyspace().by_shard(keys, |key| key).map(async |(shard, keys)| {
                let call = self.commands().clear(shard, &keys);
                call.send_once::<Value>(&self.client().for_batches()).await
            });
            try_join_all(clears).await?;
        }
        Ok(())
    }

    /// Returns how many of the scanned keys are live: the tags of the others were removed.
    async fn count_live(&self, keys: Vec<Vec<u8>>) -> Result<usize, Error> {
        let shards = self.keyspace().by_shard(keys, |key| key);
        let counts = shards.map(async |(_, keys)| self.count_live_in_shard(&keys).await);
        Ok(try_join_all(counts).await?.into_iter().sum())
    }

    async fn count_live_in_shard(&self, keys: &[Vec<u8>]) -> Result<usize, Error> {
        let call = self.commands().count_live(keys);
        if let Some(count) = call.send_multi_key(&self.client().for_batches()).await? {
            return check_count(count, keys.len());
        }
        let each = try_join_all(keys.iter().map(|key| self.is_live(key))).await?;
        Ok(each.into_iter().filter(|is_live| *is_live).count())
    }

    /// Returns whether a key is live, by plain commands: the counterpart of `count_live.lua`.
    async fn is_live(&self, key: &[u8]) -> Result<bool, Error> {
        match self.commands().get(key).send_idempotent(self.client()).await {
            Err(Error::WrongType { .. }) => Ok(true),
            value => Ok(self.commands().live(key, value?).await?.is_some()),
        }
    }

    /// Returns a stream of the encoded live entries.
    fn raw_entries(&self) -> BoxStream<'static, Result<RawEntry<K, V>, Error>> {
        let begin = (self.clone(), ScanCursor::new(), ScannedPage::default());
        try_unfold(begin, async |(cache, mut scan, mut page)| {
            loop {
                if let Some((key, value)) = page.entries.pop_front() {
                    return Ok(Some(((cache.clone(), key, value), (cache, scan, page))));
                }
                if !page.unread.is_empty() {
                    cache.read_more(&mut page).await?;
                    continue;
                }
                let Some(keys) = scan.next_page(cache.commands()).await? else { return Ok(None) };
                page.unread = cache.keyspace().by_shard(keys, |key| key).collect();
            }
        })
        .boxed()
    }

    /// Reads the values of a scanned page: from each shard, as many as fit in a reply.
    async fn read_more(&self, page: &mut ScannedPage) -> Result<(), Error> {
        let pages = page.unread.iter().map(|(_, keys)| read_page(self.commands(), keys));
        let pages = try_few_at_once(pages).await?;
        for ((_, keys), values) in page.unread.iter_mut().zip(pages) {
            let read = keys.drain(..values.len());
            page.entries.extend(read.zip(values).filter_map(|(key, value)| Some((key, value?))));
        }
        page.unread.retain(|(_, keys)| !keys.is_empty());
        Ok(())
    }
}

impl ScanCursor {
    fn new() -> Self {
        let (places, pages, seen) = Default::default();
        Self { nodes: None, cursor: 0, pages, places, stable_passes: 0, seen }
    }

    /// Returns the keys of the next page that were not returned before; `None` at the end of the scan.
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
            if client.is_cluster() && !self.is_complete(client.places(&commands.absent()).await?) {
                self.nodes = None;
                return Ok(Some(Vec::new()));
            }
            if let Some(invalidations) = client.invalidations() {
                // Cached answers for keys that the scan did not find are outdated: the process has seen that they are
                // missing.
                invalidations.invalidate_all();
            }
            return Ok(None);
        };
        let mut scan = cmd("SCAN");
        scan.arg(self.cursor)
            .arg("MATCH")
            .arg(commands.keyspace.scan_pattern())
            .arg("COUNT")
            .arg(SCAN_COUNT);
        let answer = commands.client.for_batches().send_to(&node, &scan).await?;
        let (cursor, records): (u64, Vec<Vec<u8>>) = FromRedisValue::from_redis_value(answer)
            .map_err(|_| unexpected_reply("unexpected reply to SCAN"))?;
        let (pages, checkpoint) = &mut self.pages;
        if cursor == 0 {
            // The end of the scan of this server.
            nodes.pop();
            self.pages = (0, 0);
        } else if cursor == *checkpoint {
            return Err(unexpected_reply("a SCAN does not end: its cursor has returned"));
        } else {
            *pages += 1;
            if pages.is_power_of_two() {
                *checkpoint = cursor;
            }
        }
        self.cursor = cursor;
        let mut keys = Vec::new();
        for record in records {
            // The pattern also matches keys that are not records, for example with a shard number that is not the
            // key's.
            let key = commands
                .keyspace
                .key_of(&record)
                .filter(|key| commands.keyspace.record(key) == record);
            if let Some(key) = key
                // `SCAN` may return a key several times.
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

    /// Returns whether the scan is complete, given the locations of the slots after this pass.
    fn is_complete(&mut self, places: Vec<SlotPlace>) -> bool {
        let before = std::mem::replace(&mut self.places, places);
        let masters = |places: &[SlotPlace]| -> Vec<_> {
            places.iter().map(|place| place.master.clone()).collect()
        };
        let is_stable = masters(&before) == masters(&self.places);
        self.stable_passes = if is_stable { self.stable_passes + 1 } else { 0 };
        let is_moving = before.iter().chain(&self.places).any(|place| place.is_moving);
        self.stable_passes > u32::from(is_moving)
    }
}
