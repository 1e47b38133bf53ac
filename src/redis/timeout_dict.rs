//! Deadlines that are pulled, by any process that uses the server.
//!
//! 1. The entries are in sixteen shards. A record is in its shard's slot, and what is done with one entry is
//!    one script. What is due is asked of all shards at once.
//! 2. What was taken or claimed is [`Held`] until the caller has it: whoever gives up, or can't read a value,
//!    gives the others back.
//! 3. What the scripts may count on is in `timeout_dict/prelude.lua`; the two layouts differ in the few
//!    functions of `sharded.lua` and `compat.lua`.

mod batch_reply;
mod builder;
mod claim;
mod delivery;
mod layout;
mod oldest_first;
mod state;

use std::{borrow::Borrow, fmt, marker::PhantomData, sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::future::{join_all, try_join_all};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Mutex, time::sleep};

pub use self::{builder::TimeoutDictBuilder, claim::Claim};
use self::{
    delivery::{Held, WayBack, to_its_end},
    layout::Layout,
    state::{Due, Shared, micros},
};
use super::{
    Client, Error,
    codec::{decode_key, encode_key},
    script::Call,
};
use crate::engine::ttl::Ttl;

const ASK_EVERY: Duration = Duration::from_secs(1);

/// At once, by one call of the script that clears.
const CLEARED: usize = 512;

/// A map on the server whose entries wait, once their time is over, until somebody takes them: as
/// [`fleeting::TimeoutDict`](crate::TimeoutDict), for many processes.
///
/// A cheap clone. All that use the name on a server share one dictionary. An entry may have a deadline; it is
/// due from the moment at which the server's clock reaches it, and stays readable until somebody takes it
/// out. [`take_expired`](Self::take_expired) and [`next_expired`](Self::next_expired) give each entry to
/// exactly one caller, whatever the number of processes. Where that caller might die with it,
/// [`claim_expired`](Self::claim_expired) and [`next_claim`](Self::next_claim) lend it until it is done with
/// ([`Claim::ack`]).
///
/// A TTL of zero is due at once. One that ends after the year 2255 makes an entry without deadline.
///
/// # From the timeout dictionary on Redis
///
/// | there | here |
/// | --- | --- |
/// | `set_data(key, data, timeout)` | [`set(k, v, ttl)`](Self::set): one script, so no crash leaves a value without its deadline; the value is replaced as a whole, not merged by fields |
/// | `get_data(key)` | [`get(&k)`](Self::get) |
/// | `remove_data(key)` | [`remove(&k)`](Self::remove): its deadline goes with it |
/// | `set_timeout(key, timeout)` | [`set_timeout(&k, ttl)`](Self::set_timeout): only where there is an entry |
/// | `remove_timeout(key)` | [`remove_timeout(&k)`](Self::remove_timeout): the entry stays, and is counted by [`len`](Self::len) |
/// | `get_expired(max_count=100)` | [`take_expired(100)`](Self::take_expired): with the keys, and never to two callers; [`claim_expired`](Self::claim_expired) where nothing may be lost with a caller |
/// | a sorted set and bare keys | [`compat`](Self::compat) on the same; [`new`](Self::new) in sixteen slots of its own |
///
/// # Order
///
/// One call takes the oldest deadline first, over all shards, as long as nobody else takes meanwhile. Where
/// others do, each of them gets what is oldest in a shard, and what two of them get may be interleaved. Equal
/// deadlines are those of one microsecond. An entry that comes again after a lease that ran out stands where
/// the lease ended, behind what was due before that.
///
/// # On the server
///
/// An entry is a string, `prefix:{name:shard}:key`, that holds nothing but the value. The shard's index is a
/// sorted set, `prefix:{name:shard}`: its members are the keys, their scores the deadlines in microseconds
/// since the Unix epoch. They are even; an odd one is the end of a lease, of an entry that is lent. No key has
/// an expiry of Redis' own, so the server must not evict: `maxmemory-policy noeviction`, or one of the
/// `volatile` ones.
///
/// # Cost
///
/// What is done with one key is one script and one round trip, O(log n). To take or claim asks the shards
/// first and then those that have something, all at once: two round trips; three where more is due than asked
/// for, and as many again for each further few thousand entries. A script touches at most 512 entries, so that nobody waits long behind one.
/// [`len`](Self::len) is sixteen commands in one round trip.
///
/// # Errors
///
/// All verbs but the constructors may give those of the connection and of the server. Where the record or
/// the index is of another type, it is [`Error::WrongType`], and nothing was changed. Where a call
/// asks all shards and some fail, it returns what the others gave, and logs the failure: it is an error where
/// none gave anything.
///
/// **After [`Error::Unanswered`] nobody knows.** An entry may be set or not, removed or not. What was to be
/// taken may be lost: at most once means just that. What was to be claimed comes again when the lease is over,
/// so claims are for what must not be lost.
///
/// **What does not decode is never lost.** A call that meets a key or a value of another type of yours gives
/// everything back that it had, and its error names the culprit. That one stays, and is hidden for a while, so
/// that it does not stand in the way of all others: by a claim until the lease is over, by a take for a
/// minute. Programs that know the type can take it then.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use fleeting::redis::{Client, TimeoutDict};
///
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let logins: TimeoutDict<String, u32> = TimeoutDict::new(&client, "logins")?;
/// logins.set("ada".into(), 1, Duration::from_secs(30)).await?;
///
/// // In any process:
/// loop {
///     let login = logins.next_claim(Duration::from_secs(60)).await?;
///     println!("{} was idle for 30 seconds", login.key());
///     login.ack().await?;
/// }
/// # }
/// ```
pub struct TimeoutDict<K, V> {
    shared: Arc<Shared>,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> TimeoutDict<K, V> {
    /// The dictionary of this name. Nothing is sent for it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn new(client: &Client, name: impl Into<String>) -> Result<Self, Error> {
        Self::builder(client, name).build()
    }

    /// Sets up a dictionary.
    pub fn builder(client: &Client, name: impl Into<String>) -> TimeoutDictBuilder<K, V> {
        TimeoutDictBuilder::new(client, name.into())
    }

    /// The dictionary of programs that use the original class on the same server: the sorted set `set` (there,
    /// `timeout_dict_set`) with deadlines in Unix seconds, and a hash for each key, at that very key. There is
    /// no prefix.
    ///
    /// * A value is a map or a struct of strings; fields that are `None` are left out. Another is
    ///   [`Error::Encode`].
    /// * An entry whose deadline the original's `remove_timeout` took away is not in the sorted set: it is
    ///   read, but neither counted nor cleared. Ours stays there, with `+inf`.
    /// * What is lent here the original does not see until the lease is over, since the lease's end is the
    ///   score meanwhile, and what [`ttl`](Self::ttl) tells. What it sets anew makes a claim void.
    /// * All is in one sorted set, which a cluster keeps in another slot than most of its keys: scripts fail
    ///   there, unless `set` and all keys share a hash tag.
    pub fn compat(client: &Client, set: impl Into<String>) -> Self {
        Self::with(client.clone(), Layout::original(set.into()), ASK_EVERY)
    }

    fn with(client: Client, layout: Layout, ask_every: Duration) -> Self {
        let shared = Shared { client, layout, ask_every, line: Mutex::new(()) };
        Self { shared: Arc::new(shared), types: PhantomData }
    }

    /// How many entries there are: due or not, claimed or not.
    ///
    /// One round trip to each shard, at once; what others do meanwhile is counted or not.
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> Result<usize, Error> {
        let shards = self.shared.layout.places().iter();
        let counts = shards
            .map(|place| Call::command("ZCARD", &place.index).read::<usize>(&self.shared.client));
        Ok(try_join_all(counts).await?.into_iter().sum())
    }

    /// Whether there is no entry. As [`len`](Self::len).
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Takes all entries out. Their claims are void.
    ///
    /// By scripts that take out 512 entries each, in all shards at once: what others set meanwhile may stay,
    /// and they may see a part.
    ///
    /// # Errors
    ///
    /// After any error, a part may be out.
    #[doc(alias = "DEL")]
    pub async fn clear(&self) -> Result<(), Error> {
        let shards = self.shared.layout.places().iter().map(async |place| {
            loop {
                let call = self.shared.call(place, |scripts| &scripts.clear).arg(CLEARED);
                let cleared: Result<usize, _> = call.read(&self.shared.client).await;
                match cleared {
                    Ok(CLEARED) => {}
                    Ok(_) => return Ok(()),
                    Err(error) => return Err(self.shared.blame(error, place, None).await),
                }
            }
        });
        try_join_all(shards).await?;
        Ok(())
    }
}

impl<K, V> TimeoutDict<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Puts `value` at `key`, due in `ttl`; returns the value it replaced, due or not, where that is one.
    ///
    /// A claim on the replaced value is void: its end changes nothing any more. What does not decode is
    /// replaced as all else, and `None` is returned for it.
    ///
    /// # Cancel safety
    ///
    /// As all verbs of one key: a call that is dropped may still be carried out.
    #[doc(alias = "HMSET")]
    pub async fn set(&self, key: K, value: V, ttl: Duration) -> Result<Option<V>, Error> {
        let key = encode_key(&key)?;
        let value = self.shared.layout.encode(&value)?;
        let call = self.shared.call_with(&key, |scripts| &scripts.set);
        let old: Reply = self.change(&key, call.arg(micros(ttl)).arg(value)).await?;
        match old {
            Reply::Nil => Ok(None),
            old => Ok(self.decode(&key, &old).ok()),
        }
    }

    /// Lets the entry of `key` be due in `ttl` from now, also where it is due already; false where there is
    /// none. A claim on it is void.
    #[doc(alias = "ZADD")]
    pub async fn set_timeout<Q>(&self, key: &Q, ttl: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.set_deadline(&encode_key(key)?, ttl).await? > 0)
    }

    /// Takes the deadline of the entry of `key` away; true where it had one. The entry stays, and a claim
    /// on it is void.
    pub async fn remove_timeout<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.set_deadline(&encode_key(key)?, Duration::MAX).await? > 1)
    }

    /// The value of `key`, due or not, claimed or not.
    #[doc(alias = "HGETALL")]
    pub async fn get<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let Shared { client, layout, .. } = &*self.shared;
        let value = Call::command(layout.get(), &layout.record(&key)).read(client).await?;
        match value {
            Reply::Nil => Ok(None),
            Reply::Map(fields) if fields.is_empty() => Ok(None),
            Reply::Array(fields) if fields.is_empty() => Ok(None),
            value => self.decode(&key, &value).map(Some),
        }
    }

    /// Whether there is an entry of `key`, due or not.
    #[doc(alias = "EXISTS")]
    pub async fn contains_key<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.ttl(key).await? != Ttl::Missing)
    }

    /// In how long the entry of `key` is due: [`Ttl::Remaining`] of zero where it is.
    #[doc(alias = "ZSCORE")]
    pub async fn ttl<Q>(&self, key: &Q) -> Result<Ttl, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let call = self.shared.call_with(&key, |scripts| &scripts.ttl);
        let place = self.shared.layout.place(&key);
        let remaining: Result<i64, _> = call.read(&self.shared.client).await;
        match remaining {
            Ok(-2) => Ok(Ttl::Missing),
            Ok(micros) => Ok(u64::try_from(micros)
                .map_or(Ttl::Persistent, |micros| Ttl::Remaining(Duration::from_micros(micros)))),
            Err(error) => Err(self.shared.blame(error, place, Some(&key)).await),
        }
    }

    /// Takes the value of `key` out, due or not. A claim on it is void.
    ///
    /// # Errors
    ///
    /// After [`Error::Decode`] the entry is back, without its claim, unless somebody set another meanwhile.
    #[doc(alias = "DEL")]
    pub async fn remove<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let call = self.shared.call_with(&key, |scripts| &scripts.remove);
        let removed: Option<(Vec<u8>, Reply)> = self.change(&key, call).await?;
        let Some((deadline, value)) = removed else { return Ok(None) };
        match self.decode(&key, &value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                Held::new(&self.shared, key, value, WayBack::Put { deadline }).give_back().await;
                Err(error)
            }
        }
    }

    /// Takes out at most `max` entries that are due, the [oldest first](#order): at most once, as they are
    /// lost where the caller is.
    ///
    /// # Cancel safety
    ///
    /// What a call that is dropped has taken goes back by itself, in a moment, with the deadline that it had.
    /// It is lost where the process or the runtime ends first.
    #[doc(alias = "ZPOPMIN")]
    pub async fn take_expired(&self, max: usize) -> Result<Vec<(K, V)>, Error> {
        let (batch, _) = self.due(Due::Take, max).await?;
        Ok(self.read(batch).await?.into_iter().map(taken).collect())
    }

    /// Lends at most `max` entries that are due for `lease`, the [oldest first](#order): at least once, as what
    /// is not acked by then comes again.
    ///
    /// Each entry comes as a [`Claim`], which is ended by [`Claim::ack`] when the work is done. A claim that
    /// is dropped, because of an error, a panic or the end of its task, gives its entry back in a moment. That
    /// of a process that was killed comes again when the lease is over. A lease of more than 35 years is over
    /// after those; one of zero is at once.
    ///
    /// # Cancel safety
    ///
    /// What a call that is dropped has claimed goes back by itself, in a moment, or when the lease is over.
    ///
    /// ```no_run
    /// # async fn f(logins: fleeting::redis::TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// use std::time::Duration;
    /// use futures_util::future::try_join_all;
    ///
    /// let claims = logins.claim_expired(100, Duration::from_secs(60)).await?;
    /// for claim in &claims {
    ///     println!("{} failed {} times", claim.key(), claim.value());
    /// }
    /// // In one round trip or two, not in a hundred.
    /// try_join_all(claims.into_iter().map(|claim| claim.ack())).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn claim_expired(
        &self,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claim<K, V>>, Error> {
        let (batch, _) = self.due(Due::Claim { lease }, max).await?;
        Ok(self.read(batch).await?.into_iter().map(claimed).collect())
    }

    /// Waits until an entry is due, and takes it out: at most once, as [`take_expired`](Self::take_expired).
    ///
    /// It asks the server, sleeps until the first deadline or end of a lease that there is, and asks again; it
    /// never sleeps longer than [`ask_every`](TimeoutDictBuilder::ask_every), since others may set something
    /// sooner. Who waits on this handle or a clone of it, here or in [`next_claim`](Self::next_claim), is
    /// served in the order of asking, and only the first of them asks the server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`take_expired`](Self::take_expired); those behind move up.
    pub async fn next_expired(&self) -> Result<(K, V), Error> {
        self.next(Due::Take).await.map(taken)
    }

    /// Waits until an entry is due, and lends it for `lease`: at least once, as
    /// [`claim_expired`](Self::claim_expired). Otherwise as [`next_expired`](Self::next_expired).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`claim_expired`](Self::claim_expired); those behind move up.
    pub async fn next_claim(&self, lease: Duration) -> Result<Claim<K, V>, Error> {
        self.next(Due::Claim { lease }).await.map(claimed)
    }

    async fn next(&self, due: Due) -> Result<(K, V, Held), Error> {
        let _first = self.shared.line.lock().await;
        loop {
            let (batch, wait) = self.due(due, 1).await?;
            if let Some(first) = self.read(batch).await?.pop() {
                return Ok(first);
            }
            let longest = self.shared.ask_every;
            sleep(wait.map_or(longest, |wait| wait.min(longest))).await;
        }
    }

    async fn due(&self, due: Due, max: usize) -> Result<(Vec<Held>, Option<Duration>), Error> {
        if max == 0 {
            return Ok((Vec::new(), None));
        }
        to_its_end(self.shared.clone().due(due, max)).await
    }

    /// Waits for nothing, unless something is wrong with the entries.
    async fn read(&self, batch: Vec<Held>) -> Result<Vec<(K, V, Held)>, Error> {
        let mut entries = Vec::with_capacity(batch.len());
        let mut rest = batch.into_iter();
        while let Some(mut held) = rest.next() {
            let key = decode_key(&held.key);
            let entry = key.and_then(|key| Ok((key, self.decode(&held.key, &held.value)?)));
            match (entry, &mut held.way_back) {
                (Ok((key, value)), _) => entries.push((key, value, held)),
                (Err(error), way_back) => {
                    match way_back {
                        // It stays lent, until the lease is over.
                        WayBack::Give { .. } | WayBack::None => held.keep(),
                        // So it is due in a while.
                        WayBack::Put { deadline } => deadline.clear(),
                    }
                    let others = entries.into_iter().map(|(.., held)| held).chain(rest);
                    join_all(others.chain([held]).map(Held::give_back)).await;
                    return Err(error);
                }
            }
        }
        Ok(entries)
    }

    async fn set_deadline(&self, key: &[u8], ttl: Duration) -> Result<u8, Error> {
        let call = self.shared.call_with(key, |scripts| &scripts.set_timeout);
        self.change(key, call.arg(micros(ttl))).await
    }

    async fn change<T: ::redis::FromRedisValue>(
        &self,
        key: &[u8],
        call: Call<'_>,
    ) -> Result<T, Error> {
        match call.change(&self.shared.client).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let place = self.shared.layout.place(key);
                Err(self.shared.blame(error, place, Some(key)).await)
            }
        }
    }

    fn decode(&self, key: &[u8], value: &Reply) -> Result<V, Error> {
        self.shared.layout.decode(key, value)
    }
}

impl<K, V> Clone for TimeoutDict<K, V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for TimeoutDict<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutDict").field("client", &self.shared.client).finish_non_exhaustive()
    }
}

fn taken<K, V>((key, value, mut held): (K, V, Held)) -> (K, V) {
    held.keep();
    (key, value)
}

fn claimed<K, V>((key, value, held): (K, V, Held)) -> Claim<K, V> {
    Claim::new(key, value, held)
}
