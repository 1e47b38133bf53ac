//! Timeout dictionary on a Redis server, from which any process can take expired entries.
//!
//! 1. The entries are distributed over 16 shards. A record is in the hash slot of its shard, and an operation on one
//!    entry is one script. All shards are asked for due entries concurrently: see `collect`.
//! 2. A taken or claimed entry is a `TakenEntry` until the caller has it; if the caller is dropped before that, the
//!    entry is returned. A take only leases its entries until it has confirmed that it received them: see `confirm`.
//! 3. The invariants of the scripts are in `timeout_dict/prelude.lua`. The two layouts differ only in the functions of
//!    `sharded.lua` and `compat.lua`.

mod batch_reply;
mod builder;
mod claim;
mod collect;
mod confirm;
mod counters;
mod dead;
mod dead_letters;
mod delivery;
mod dict_state;
mod expired;
mod layout;
#[cfg(feature = "metrics")]
mod metrics;
mod oldest_first;
mod read_ahead;
mod scripts;

use std::{borrow::Borrow, fmt, marker::PhantomData, sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::future::try_join_all;
use serde::{Serialize, de::DeserializeOwned};

pub use self::{builder::TimeoutDictBuilder, claim::Claim};
use self::{
    delivery::{OnDrop, TakenEntry},
    dict_state::{DictState, micros},
};
use super::{Error, script::Call};
use crate::engine::ttl::Ttl;
pub use crate::timeout_dict::DeadLetter;

/// Maximum number of entries that `clear.lua` removes, because the server executes nothing else in the meantime.
const MAX_CLEARED: usize = 512;

/// A map of jobs, retries and reminders on a Redis server: each entry waits until it is due, and then goes to one of
/// your processes.
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
///
/// It is the counterpart of [`fleeting::TimeoutDict`](crate::TimeoutDict). A `TimeoutDict` is a handle and cheap to
/// clone. All handles with the same name on the same server are one dictionary, shared by many processes.
///
/// # Deadlines
///
/// An entry may have a deadline. It is due when the server's clock reaches the deadline, and stays readable until a
/// caller takes it. An entry with a TTL of zero is due immediately. An entry whose TTL ends after the year 2255 has no
/// deadline.
///
/// # At most once, or at least once
///
/// [`take_expired`](Self::take_expired) and [`next_expired`](Self::next_expired) return each entry to at most one
/// caller in all processes. If that caller crashes, the entry is lost.
///
/// If you must not lose an entry then, use [`claim_expired`](Self::claim_expired) or [`next_claim`](Self::next_claim).
/// They lease it to you for a given time. It is removed when you acknowledge it ([`Claim::ack`]), and delivered again
/// if you do not.
///
/// # Retries and dead letters
///
/// If you drop a claim without an ack, the attempt has failed, and the entry is delivered again after a delay that
/// grows with each failure ([`backoff`](TimeoutDictBuilder::backoff)).
///
/// [`max_attempts`](TimeoutDictBuilder::max_attempts) limits the number of failed attempts; an entry that reaches it
/// becomes a *dead letter*. It stays readable. No method that takes or claims entries returns it, except
/// [`take_dead`](Self::take_dead), until you [revive](Self::revive) or [set](Self::set) it.
/// [`dead_letters`](Self::dead_letters) lists them with the reasons of their failures.
///
/// # Migrating from the Python timeout dictionary
///
/// | Python | this crate |
/// | --- | --- |
/// | `set_data(key, data, timeout)` | [`set(k, v, ttl)`](Self::set): one script, so that a crash cannot leave a value without its deadline; replaces the whole value instead of merging fields |
/// | `get_data(key)` | [`get(&k)`](Self::get) |
/// | `remove_data(key)` | [`remove(&k)`](Self::remove): also removes its deadline |
/// | `set_timeout(key, timeout)` | [`set_timeout(&k, ttl)`](Self::set_timeout): only if there is an entry |
/// | `remove_timeout(key)` | [`remove_timeout(&k)`](Self::remove_timeout): the entry stays and is counted by [`len`](Self::len) |
/// | `get_expired(max_count=100)` | [`take_expired(100)`](Self::take_expired): returns the keys, too, and never an entry to two callers; use [`claim_expired`](Self::claim_expired) if a crash must not lose entries |
/// | a sorted set and bare keys | [`compat`](Self::compat) uses the same keys; [`new`](Self::new) uses 16 shards of its own |
///
/// # Order
///
/// A call returns the entries with the oldest deadlines, oldest first. If several calls take entries concurrently, each
/// gets the oldest entries of every shard, but there may be older ones among the entries of another call. Deadlines
/// within one microsecond are equal. An entry whose lease expired is ordered by the end of the lease.
///
/// # On the server
///
/// An entry is a string at `prefix:dict1:{name:shard}:key` that contains only the value. Keys are encoded as those of a
/// [`Cache`](super::Cache). The index of a shard is a sorted set at `prefix:dict1:{name:shard}`. Its members are the
/// keys, and its scores the deadlines in microseconds since the Unix epoch. Deadlines are even; an odd score is the end
/// of the lease of an entry. In addition, `.dead` is a sorted set of the dead letters, ordered by the time at which
/// they became dead, `.failed` is a hash with the number of failed claims of each entry, and `.reasons` is a hash with
/// the reasons that were given to [`Claim::fail`]. The keys have no Redis expiry, so your server must not evict: use
/// `maxmemory-policy noeviction` or one of the `volatile` policies. A warning is logged if it may evict them.
///
/// # Cost
///
/// A method on one key is one script and one round trip, O(log n). A claim asks all shards concurrently and then claims
/// from those with due entries, which takes two round trips. If more entries are due than requested, it takes three. A
/// large claim repeats these round trips for each further few thousand entries or mebibytes. A take adds one round
/// trip, in which it confirms that the entries have arrived. A script processes at most 512 entries and stops at about
/// a mebibyte of values, so that it does not block the server for long. [`len`](Self::len) is 16 commands in one round
/// trip.
///
/// With feature `metrics`, a process that uses a dictionary counts its entries by 16 short scripts at most once per ten
/// seconds: see the [guide](crate::guide::metrics#dictionaries-on-redis).
///
/// # Errors
///
/// All methods except the constructors may return errors of the connection and of the server. If the record or the
/// index of an entry has another type on the server, the error is [`Error::WrongType`] and nothing was changed. If a
/// call asks all shards and some of them fail, the call returns the entries of the other shards and logs the failure.
/// It returns the error only if it got no entries.
///
/// **After [`Error::Unanswered`], you do not know the outcome.** An entry may or may not have been set or removed.
/// Entries that should have been taken or claimed become due again when their lease expires; the lease of a take is
/// twice the client's timeout, at most 10 s. If a process crashes, it loses the entries that a take had just returned
/// to it. Use claims for entries that you must not lose.
///
/// **An entry that cannot be decoded is never lost.** If its key or value does not have the types of this handle, a
/// call leaves it in place and returns the others. If there are no others, the call returns the error for the first
/// such entry, else it logs the error. So that such entries do not block all others, they are hidden for a time: by a
/// claim until the lease expires, which counts as a failure, and by a take for a minute. After that, programs with the
/// right types can take them.
pub struct TimeoutDict<K, V> {
    state: Arc<DictState>,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> TimeoutDict<K, V> {
    /// Returns the number of entries, including due and claimed ones and dead letters.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(jobs: TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// println!("{} jobs are queued, due or running", jobs.len().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All shards are asked concurrently: 16 commands in one round trip, or in one to each node of a cluster.
    /// Concurrent changes may or may not be counted.
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> Result<usize, Error> {
        let shards = self.state.layout.shards().iter();
        let counts = shards.map(|shard| {
            Call::command("ZCARD", &shard.index).send_idempotent::<usize>(&self.state.client)
        });
        // Saturating, as the numbers may be forged.
        Ok(try_join_all(counts).await?.into_iter().fold(0, usize::saturating_add))
    }

    /// Returns whether there is no entry, at the cost of [`len`](Self::len).
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Removes all entries and makes their claims void.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(jobs: TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// // All jobs of a test environment.
    /// jobs.clear().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each script removes 512 entries, in all shards concurrently. Entries that are set during the call may remain,
    /// and other clients may see some of the entries removed. The call takes as long as the server finds entries: the
    /// timeout of the client applies to each script.
    ///
    /// # Errors
    ///
    /// After any error, some of the entries may have been removed.
    #[doc(alias = "DEL")]
    pub async fn clear(&self) -> Result<(), Error> {
        let shards = self.state.layout.shards().iter().map(async |shard| {
            // Until a script finds fewer entries than it may remove, or the caller drops the call: as in
            // `ExpiringSet::remove_range`.
            loop {
                let call = self.state.shard_call(shard, |scripts| &scripts.clear).arg(MAX_CLEARED);
                // Sent once: a late copy would remove entries that were set after the call.
                let cleared: Result<usize, _> = call.send_once(&self.state.client).await;
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
    /// Writes `value` at `key`, due in `ttl`, and returns the value that it replaced, even if that was due, claimed or
    /// a dead letter.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(orders: TimeoutDict<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// // An order that is not paid within 15 minutes is cancelled.
    /// orders.set(7, "a book".into(), Duration::from_secs(900)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A claim on the replaced entry becomes void, and failed attempts are counted from zero again. If the replaced
    /// value cannot be decoded, `None` is returned.
    ///
    /// # Cancel safety
    ///
    /// If the future of this or any other method on one key is dropped before it completes, the server may still
    /// execute it.
    #[doc(alias = "HMSET")]
    pub async fn set(&self, key: K, value: V, ttl: Duration) -> Result<Option<V>, Error> {
        let key = self.state.layout.encode_key(&key)?;
        let value = self.state.layout.encode(&key, &value)?;
        self.state.on_use();
        let call = self.state.key_call(&key, |scripts| &scripts.set);
        let old: Reply = self.state.send_change(&key, call.arg(micros(ttl)).arg(value)).await?;
        match old {
            Reply::Nil => Ok(None),
            // A decoding error is dropped: the caller would conclude that the new value was not written.
            old => Ok(self.decode(&key, &old).ok()),
        }
    }

    /// Writes `value` at `key`, due in `ttl`, only if the key has no entry; returns whether it did.
    ///
    /// ```no_run
    /// # async fn f(jobs: fleeting::redis::TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// use std::time::Duration;
    ///
    /// if !jobs.set_nx("reindex".into(), 1, Duration::ZERO).await? {
    ///     println!("already queued");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// An entry that is due, claimed or a dead letter also prevents it, and is not changed. So you can queue a job as
    /// often as you like: it is there once, until it is acked or removed.
    ///
    /// # Errors
    ///
    /// After [`Error::Unanswered`], the entry may or may not have been written.
    #[doc(alias = "SETNX")]
    pub async fn set_nx(&self, key: K, value: V, ttl: Duration) -> Result<bool, Error> {
        let key = self.state.layout.encode_key(&key)?;
        let value = self.state.layout.encode(&key, &value)?;
        self.state.on_use();
        let call = self.state.key_call(&key, |scripts| &scripts.set_nx);
        self.state.send_change(&key, call.arg(micros(ttl)).arg(value)).await
    }

    /// Makes the entry of `key` due in `ttl` from now, even if it is due already. Returns false if there is no entry,
    /// or if it is a dead letter. A claim on the entry becomes void and counts as a failed attempt; if that was the
    /// last allowed attempt, the entry becomes a dead letter and the call returns false.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(sessions: TimeoutDict<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// // Each request of a session extends it.
    /// if !sessions.set_timeout("token", Duration::from_secs(1_800)).await? {
    ///     println!("log in, please");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZADD")]
    pub async fn set_timeout<Q>(&self, key: &Q, ttl: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.set_deadline(&self.state.layout.encode_key(key)?, ttl).await? > 0)
    }

    /// Removes the deadline of the entry of `key`; returns true if it had one. The entry stays. A claim on it becomes
    /// void and counts as a failed attempt, as in [`set_timeout`](Self::set_timeout).
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(orders: TimeoutDict<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// // It is paid: it will not be cancelled.
    /// orders.remove_timeout(&7).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove_timeout<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        // `set_timeout.lua` returns 2 if the entry had a deadline.
        Ok(self.set_deadline(&self.state.layout.encode_key(key)?, Duration::MAX).await? > 1)
    }

    /// Returns the value of `key`, even if it is due, claimed or a dead letter.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(orders: TimeoutDict<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// if let Some(goods) = orders.get(&7).await? {
    ///     println!("your order: {goods}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
            // `HGETALL` of a missing key returns an empty map with RESP3, and an empty array with RESP2.
            Reply::Map(fields) if fields.is_empty() => Ok(None),
            Reply::Array(fields) if fields.is_empty() => Ok(None),
            value => self.decode(&key, &value).map(Some),
        }
    }

    /// Returns whether `key` has an entry, even if that is due, claimed or a dead letter.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(jobs: TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// if jobs.contains_key("reindex").await? {
    ///     println!("not finished yet");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "EXISTS")]
    pub async fn contains_key<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.ttl(key).await? != Ttl::Missing)
    }

    /// Returns the time until the entry of `key` is due: [`Ttl::Remaining`] of zero if it is due or leased, and
    /// [`Ttl::Persistent`] if it has no deadline or is a dead letter.
    ///
    /// ```no_run
    /// # use fleeting::{Ttl, redis::TimeoutDict};
    /// # async fn f(orders: TimeoutDict<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// if let Ttl::Remaining(time) = orders.ttl(&7).await? {
    ///     println!("please pay within {time:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
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

    /// Removes the entry of `key` and returns its value, even if it is due, claimed or a dead letter. A claim on it
    /// becomes void.
    ///
    /// ```no_run
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(reminders: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // The meeting is cancelled.
    /// reminders.remove("meeting 7").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// After [`Error::Decode`], the entry is put back, unless another client has set the key in the meantime. If it was
    /// claimed, the claim is void, and the entry is due.
    #[doc(alias = "DEL")]
    pub async fn remove<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.state.layout.encode_key(key)?;
        let call = self.state.key_call(&key, |scripts| &scripts.remove);
        let removed: Option<(Vec<u8>, Reply)> = self.state.send_once(&key, call).await?;
        let Some((saved, value)) = removed else { return Ok(None) };
        match self.decode(&key, &value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let on_drop = OnDrop::PutBack { saved };
                // It is put back by a task, even if this call is dropped.
                TakenEntry::new(&self.state, key, value, on_drop).send_back().await;
                Err(error)
            }
        }
    }

    async fn set_deadline(&self, key: &[u8], ttl: Duration) -> Result<u8, Error> {
        let call = self.state.key_call(key, |scripts| &scripts.set_timeout);
        self.state.send_change(key, call.arg(micros(ttl))).await
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
