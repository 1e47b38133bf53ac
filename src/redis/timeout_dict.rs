//! Deadlines that are pulled, by any process that uses the server.
//!
//! 1. The entries are in sixteen shards. A record is in its shard's slot, and what is done with one entry is
//!    one script. What is due is asked of all shards at once: see `collect`.
//! 2. What was taken or claimed is a `Delivery` until the caller has it: of whoever gives up it goes back. A take is
//!    lent what it takes, until it has said that it has it: see `confirm`.
//! 3. What the scripts may count on is in `timeout_dict/prelude.lua`; the two layouts differ in the few
//!    functions of `sharded.lua` and `compat.lua`.

mod batch_reply;
mod builder;
mod claim;
mod collect;
mod confirm;
mod dead;
mod delivery;
mod expired;
mod layout;
mod oldest_first;
mod scripts;
mod state;

use std::{borrow::Borrow, fmt, marker::PhantomData, sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

pub use self::{builder::TimeoutDictBuilder, claim::Claim};
use self::{
    delivery::{Delivery, OnDrop},
    state::{DictState, micros},
};
use super::{Error, script::Call};
use crate::engine::ttl::Ttl;

/// How many entries `clear.lua` takes out at most: all others wait meanwhile.
const MAX_CLEARED: usize = 512;

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
/// What is lent and fails comes again, each time later, and where
/// [`max_attempts`](TimeoutDictBuilder::max_attempts) bounds that, not for ever: what failed so often is *dead*. It stays
/// readable, but no claim and no take returns it, but [`take_dead`](Self::take_dead), unless it is
/// [revived](Self::revive) or set.
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
/// An entry is a string, `prefix:dict1:{name:shard}:key`, that holds nothing but the value; keys are written as those of
/// a [`Cache`](super::Cache). The shard's index is a sorted set, `prefix:dict1:{name:shard}`: its members are the keys,
/// their scores the deadlines in microseconds since the Unix epoch. They are even; an odd one is the end of a lease, of
/// an entry that is lent. Beside it `.dead` is a sorted set of what is dead, by the time of its death, and `.failed` a
/// hash: how often claims on an entry have failed. No key has an expiry of Redis' own, so the server must not evict:
/// `maxmemory-policy noeviction`, or one of the `volatile` ones.
///
/// # Cost
///
/// What is done with one key is one script and one round trip, O(log n). To claim asks the shards first
/// and then those that have something, all at once: two round trips; three where more is due than asked for,
/// and as many again for each further few thousand entries, or mebibytes. To take is one round trip more, which says that
/// what was taken is here. A script touches at most 512 entries, and stops at about a mebibyte of values, so that
/// nobody waits long behind one. [`len`](Self::len) is sixteen commands in one round trip.
///
/// # Errors
///
/// All verbs but the constructors may give those of the connection and of the server. Where the record or
/// the index is of another type, it is [`Error::WrongType`], and nothing was changed. Where a call
/// asks all shards and some fail, it returns what the others gave, and logs the failure: it is an error where
/// none gave anything.
///
/// **After [`Error::Unanswered`] nobody knows.** An entry may be set or not, removed or not. What was to be
/// taken or claimed comes again, when the lease is over: that of a take is short. What is lost with a process that dies
/// is what a take had just returned to it, so claims are for what must not be lost.
///
/// **What does not decode is never lost.** What a call can't read, as its key or value is of another type of yours, it
/// leaves where it is, and returns the others. Where there are none, it is an error, which names the first of them; else
/// it is logged. They are hidden for a while, so that they do not stand in the way of all others: by a claim until the
/// lease is over, which counts as a failure of theirs, by a take for a minute. Programs that know the type can take them
/// then.
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
    state: Arc<DictState>,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> TimeoutDict<K, V> {
    /// How many entries there are: due or not, claimed or not.
    ///
    /// One round trip to each shard, at once; what others do meanwhile is counted or not.
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> Result<usize, Error> {
        let shards = self.state.layout.shards().iter();
        let counts = shards.map(|shard| {
            Call::command("ZCARD", &shard.index).send_idempotent::<usize>(&self.state.client)
        });
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
        let shards = self.state.layout.shards().iter().map(async |shard| {
            loop {
                let call = self.state.shard_call(shard, |scripts| &scripts.clear).arg(MAX_CLEARED);
                // The second time it takes out others, which are to go too.
                let cleared: Result<usize, _> = call.send_idempotent(&self.state.client).await;
                match cleared {
                    Ok(MAX_CLEARED) => {}
                    Ok(_) => return Ok(()),
                    Err(error) => return Err(self.state.name_wrong_type(error, shard, None).await),
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
        let key = self.state.layout.encode_key(&key)?;
        let value = self.state.layout.encode(&key, &value)?;
        let call = self.state.key_call(&key, |scripts| &scripts.set);
        let old: Reply = self.send_once(&key, call.arg(micros(ttl)).arg(value)).await?;
        match old {
            Reply::Nil => Ok(None),
            // It is gone for good, so an error about it would only hide that the new one is there.
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
        Ok(self.set_deadline(&self.state.layout.encode_key(key)?, ttl).await? > 0)
    }

    /// Takes the deadline of the entry of `key` away; true where it had one. The entry stays, and a claim
    /// on it is void.
    pub async fn remove_timeout<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.set_deadline(&self.state.layout.encode_key(key)?, Duration::MAX).await? > 1)
    }

    /// The value of `key`, due or not, claimed or not.
    #[doc(alias = "HGETALL")]
    pub async fn get<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.state.layout.encode_key(key)?;
        let DictState { client, layout, .. } = &*self.state;
        let value = Call::command(layout.read_command(), &layout.record(&key))
            .send_idempotent(client)
            .await?;
        match value {
            Reply::Nil => Ok(None),
            // `HGETALL` of what is not there; as a map with RESP3, else as an array.
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
        let key = self.state.layout.encode_key(key)?;
        let call = self.state.key_call(&key, |scripts| &scripts.ttl);
        let shard = self.state.layout.shard_of(&key);
        let remaining: Result<i64, _> = call.send_idempotent(&self.state.client).await;
        match remaining {
            Ok(-2) => Ok(Ttl::Missing),
            Ok(micros) => Ok(u64::try_from(micros)
                .map_or(Ttl::Persistent, |micros| Ttl::Remaining(Duration::from_micros(micros)))),
            Err(error) => Err(self.state.name_wrong_type(error, shard, Some(&key)).await),
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
        let key = self.state.layout.encode_key(key)?;
        let call = self.state.key_call(&key, |scripts| &scripts.remove);
        let removed: Option<(Vec<u8>, Reply)> = self.send_once(&key, call).await?;
        let Some((saved, value)) = removed else { return Ok(None) };
        match self.decode(&key, &value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let on_drop = OnDrop::PutBack { saved };
                Delivery::new(&self.state, key, value, on_drop).send_back().await;
                Err(error)
            }
        }
    }

    async fn set_deadline(&self, key: &[u8], ttl: Duration) -> Result<u8, Error> {
        let call = self.state.key_call(key, |scripts| &scripts.set_timeout);
        self.send_once(key, call.arg(micros(ttl))).await
    }

    /// A script about one key, of which an error names what is of another type.
    async fn send_once<T: ::redis::FromRedisValue>(
        &self,
        key: &[u8],
        call: Call<'_>,
    ) -> Result<T, Error> {
        match call.send_once(&self.state.client).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let shard = self.state.layout.shard_of(key);
                Err(self.state.name_wrong_type(error, shard, Some(key)).await)
            }
        }
    }

    fn decode(&self, key: &[u8], value: &Reply) -> Result<V, Error> {
        self.state.layout.decode(key, value)
    }
}

impl<K, V> Clone for TimeoutDict<K, V> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for TimeoutDict<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutDict").field("client", &self.state.client).finish_non_exhaustive()
    }
}
