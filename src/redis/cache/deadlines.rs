//! TTLs and deadlines of present values.

use std::{borrow::Borrow, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    super::{Error, codec::encode_key},
    Cache,
    expiry::Expiry,
};
use crate::engine::ttl::{Ttl, When};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Returns the remaining TTL of `key` (Redis: `PTTL`).
    ///
    /// ```no_run
    /// # use fleeting::{Ttl, redis::Cache};
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// match sessions.ttl("token").await? {
    ///     Ttl::Remaining(time) => println!("logged in for another {time:?}"),
    ///     Ttl::Persistent => println!("logged in"),
    ///     Ttl::Missing => println!("logged out"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "TTL")]
    #[doc(alias = "PTTL")]
    pub async fn ttl<Q>(&self, key: &Q) -> Result<Ttl, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let ttl: i64 =
            self.commands().ttl(&encode_key(key)?).send_idempotent(self.client()).await?;
        Ok(ttl_of(ttl))
    }

    /// Returns the live value of `key` and its remaining TTL, or `None` if there is none.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::Cache;
    ///
    /// # async fn f(cache: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// cache.set_ex("ada".into(), 42, Duration::from_secs(30)).await?;
    /// let (value, ttl) = cache.get_with_ttl("ada").await?.unwrap();
    /// assert_eq!((value, ttl.as_secs()), (42, 30));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Both belong together: no write comes in between. The [`Ttl`] is never [`Missing`](Ttl::Missing). The call asks
    /// the server with one script, also if the key is cached [near](super::CacheBuilder::near), and counts as a hit or
    /// a miss as [`get`](Cache::get) does.
    pub async fn get_with_ttl<Q>(&self, key: &Q) -> Result<Option<(V, Ttl)>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let call = self.commands().read_many(&[&key]);
        let ([value], [ttl]): ([Option<Vec<u8>>; 1], [i64; 1]) =
            call.send_idempotent(self.client()).await?;
        // The script returns this for another type.
        if ttl == -3 {
            return Err(self.commands().wrong_type(&key));
        }
        self.state.counters.read(&value);
        let Some(value) = value else { return Ok(None) };
        Ok(Some((self.state.decode(&key, &value)?, ttl_of(ttl))))
    }

    /// Sets the TTL of `key` to `ttl` from now; returns false if there is no live value (Redis: `PEXPIRE`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, Vec<String>>) -> Result<(), fleeting::redis::Error> {
    /// // Ada has left the shop: her cart is kept for an hour.
    /// carts.expire("ada", Duration::from_secs(3_600)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An expired value is not restored.
    #[doc(alias = "EXPIRE")]
    #[doc(alias = "PEXPIRE")]
    pub async fn expire<Q>(&self, key: &Q, ttl: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        // A late copy would change the TTL of a value that was written after the call.
        let call = self.commands().expire(&encode_key(key)?, Expiry::of(ttl), None);
        call.send_once(self.client()).await
    }

    /// Sets the TTL of `key` to `ttl` from now if its current TTL meets `when`; returns true if it was set (Redis:
    /// `PEXPIRE NX|XX|GT|LT`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::{When, redis::Cache};
    /// # async fn f(bans: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // A second offence never shortens a ban.
    /// bans.expire_if("mallory", Duration::from_secs(600), When::Later).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Returns false if there is no live value.
    pub async fn expire_if<Q>(&self, key: &Q, ttl: Duration, when: When) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        // Sent once: a retry would test the condition against the deadline that it has set.
        let call = self.commands().expire(&key, Expiry::of(ttl), Some(when));
        call.send_once(self.client()).await
    }

    /// Sets the deadline of `key`; returns false if there is no live value (Redis: `PEXPIRE`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # use tokio::time::Instant;
    /// # async fn f(offers: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// // Both offers end with the sale.
    /// let end = Instant::now() + Duration::from_secs(3_600);
    /// offers.expire_at("book", end).await?;
    /// offers.expire_at("pen", end).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If `deadline` has passed, the value expires immediately. Your [`Instant`] has no meaning on another machine, so
    /// the remaining duration is sent. The value therefore expires later than `deadline` by the time that the command
    /// takes to reach the server.
    #[doc(alias = "EXPIREAT")]
    #[doc(alias = "PEXPIREAT")]
    pub async fn expire_at<Q>(&self, key: &Q, deadline: Instant) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.expire(key, deadline.saturating_duration_since(Instant::now())).await
    }

    /// Adds `more` to the remaining TTL of `key`; returns false if the value is missing or persistent.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(parking: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // Ada pays for another hour.
    /// let is_extended = parking.extend("B-AB 123", Duration::from_secs(3_600)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend<Q>(&self, key: &Q, more: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        // A retry after a lost reply would extend the TTL twice.
        self.commands().extend(&key, Expiry::of(more)).send_once(self.client()).await
    }

    /// Removes the deadline of `key`; returns true if it had one (Redis: `PERSIST`).
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(orders: Cache<u64, String>) -> Result<(), fleeting::redis::Error> {
    /// // The order is paid: it will not be cancelled.
    /// orders.persist(&7).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "PERSIST")]
    pub async fn persist<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        // A retry after a lost reply would find no TTL and return false.
        self.commands().persist(&encode_key(key)?).send_once(self.client()).await
    }

    /// Expires the value of `key` immediately, with an event whose deadline is now, and returns the value.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(uploads: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// // The client disconnects: the same event, and the same cleanup, as after a timeout.
    /// uploads.expire_now("photo.jpg").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Without [events](super::CacheBuilder::events), this is [`remove`](Cache::remove).
    pub async fn expire_now<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let _discards_failure = self.state.discard_failure(&key);
        // A retry after a lost reply would return `None`.
        let value = self.commands().expire_now(&key).send_once(self.client()).await?;
        self.decode_replaced(&key, value).await
    }
}

/// Returns the TTL for a reply of `PTTL`.
fn ttl_of(reply: i64) -> Ttl {
    match reply {
        -2 => Ttl::Missing,
        -1 => Ttl::Persistent,
        // Redis returns 0 during the last millisecond, but the value is still live.
        ttl => Ttl::Remaining(Duration::from_millis(ttl.max(1).unsigned_abs())),
    }
}
