//! Methods that read or change the TTL of an existing entry.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use equivalent::Equivalent;
use tokio::time::Instant;

use super::{Cache, SyncCache};
use crate::engine::{
    clock::{CallTime, Deadline},
    coop,
    event::Cause,
    ttl::{Ttl, When},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns a clone of the live value of `key` and sets its TTL: sliding expiration (Redis: `GETEX`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let half_an_hour = Duration::from_secs(1_800);
    /// let sessions = Cache::new();
    /// sessions.set_ex("token", "ada", half_an_hour).await;
    /// tokio::time::advance(Duration::from_secs(600)).await;
    ///
    /// // Each request extends its session.
    /// assert_eq!(sessions.get_ex("token", half_an_hour).await, Some("ada"));
    /// assert_eq!(sessions.ttl("token").await, Ttl::Remaining(half_an_hour));
    /// # }
    /// ```
    ///
    /// The new TTL starts now, and the [idle time](super::Builder::time_to_idle), if there is one, restarts. With a
    /// `ttl` of zero the entry expires immediately; with one that overflows it becomes persistent. Returns `None` if
    /// there is no live value. A value that is being refreshed gets this TTL, too: see [`expire`](Cache::expire).
    #[doc(alias = "GETEX")]
    #[inline]
    pub async fn get_ex<Q>(&self, key: &Q, ttl: Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.get_ex_with(key, |_| ttl).await
    }

    /// Like [`get_ex`](Cache::get_ex), but computes the TTL from the value. The idle time restarts, too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// let idle = Duration::from_secs(60);
    /// sessions.set_ex("ada", ("data", idle), idle).await;
    /// tokio::time::advance(Duration::from_secs(59)).await;
    /// assert!(sessions.get_ex_with("ada", |(_, idle)| *idle).await.is_some());
    /// assert_eq!(sessions.ttl("ada").await.as_secs(), 60);
    /// # }
    /// ```
    ///
    /// `ttl` runs while the shard of `key` is locked, so the rules for the closure of [`update`](Cache::update) apply
    /// to it.
    #[doc(alias = "expire_after_read")]
    pub async fn get_ex_with<Q>(&self, key: &Q, ttl: impl FnOnce(&V) -> Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.get_ex_by(key, ttl)
    }

    /// Returns a clone of the live value of `key` and its remaining TTL, or `None` if there is none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Ttl};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::new();
    /// cache.set_ex("ada", 42, Duration::from_secs(30)).await;
    /// let found = cache.get_with_ttl("ada").await;
    /// assert_eq!(found, Some((42, Ttl::Remaining(Duration::from_secs(30)))));
    /// assert_eq!(cache.get_with_ttl("bob").await, None);
    /// # }
    /// ```
    ///
    /// Both belong together: you call [`get`](Cache::get) and [`ttl`](Cache::ttl) in one step, and no write comes in
    /// between. Use it to pass a value on with its lifetime, for example in `Cache-Control: max-age`. The [`Ttl`] is
    /// never [`Missing`](Ttl::Missing).
    ///
    /// The call is a hit or a miss as `get` is: it counts as an access for eviction and in [`Stats`](crate::Stats), and
    /// restarts the idle time first, so that the TTL is the one after it. It costs a `get`, and reads the precise clock
    /// (about 50 ns).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it completes has had no effect.
    pub async fn get_with_ttl<Q>(&self, key: &Q) -> Option<(V, Ttl)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.get_with_ttl(key)
    }

    /// Returns the remaining TTL of `key` (Redis: `TTL`, `PTTL`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Ttl};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::new();
    /// cache.set_ex("ada", 42, Duration::from_secs(30)).await;
    /// cache.set("bob", 43).await;
    /// assert_eq!(cache.ttl("ada").await, Ttl::Remaining(Duration::from_secs(30)));
    /// assert_eq!(cache.ttl("bob").await, Ttl::Persistent);
    /// assert_eq!(cache.ttl("eve").await, Ttl::Missing);
    /// # }
    /// ```
    ///
    /// In a cache with [`time_to_idle`](super::Builder::time_to_idle), an entry expires at the end of its TTL or of its
    /// idle time; this method returns the time until the earlier of the two. Reading the TTL is not an access: it does
    /// not extend the idle deadline.
    #[doc(alias = "TTL")]
    #[doc(alias = "PTTL")]
    pub async fn ttl<Q>(&self, key: &Q) -> Ttl
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.ttl(key)
    }

    /// Sets the TTL of `key`, starting now; returns false if there is no live value (Redis: `EXPIRE`, `PEXPIRE`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let carts = Cache::new();
    /// carts.set("ada", vec!["book"]).await;
    ///
    /// // Ada has left the shop: her cart is kept for an hour.
    /// let hour = Duration::from_secs(3_600);
    /// assert!(carts.expire("ada", hour).await);
    /// assert_eq!(carts.ttl("ada").await, Ttl::Remaining(hour));
    /// assert!(!carts.expire("bob", hour).await, "he has no cart");
    /// # }
    /// ```
    ///
    /// In a cache with [`time_to_idle`](super::Builder::time_to_idle) you also restart the idle time, as if you had
    /// read the value: it expires at the earlier of both times. An entry that has already expired is not revived. With
    /// a `ttl` of zero the entry expires immediately; with one that overflows it becomes persistent. A value that you
    /// let expire in this way has its [stale window](super::Builder::stale_while_revalidate), and a kept error of its
    /// key stays: loader methods may still return them. [`expire_now`](Cache::expire_now) ends both.
    ///
    /// # Concurrent loads
    ///
    /// If the value is being loaded again (in the background, or by [`refresh_with`](Cache::refresh_with)), you also
    /// set the deadline of the loaded value, in place of the TTL that its loader method was given. If that deadline
    /// passes before the load ends, or at once with a `ttl` of zero, the loaded value is not stored, and calls that
    /// begin after the expiry load again. This holds for all methods that change a deadline.
    #[doc(alias = "EXPIRE")]
    #[doc(alias = "PEXPIRE")]
    pub async fn expire<Q>(&self, key: &Q, ttl: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.expire(key, ttl)
    }

    /// Sets the TTL of `key`, starting now, if its current TTL meets `when`; returns true if it was set (Redis:
    /// `EXPIRE` with `NX`, `XX`, `GT` or `LT`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl, When};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let minute = Duration::from_secs(60);
    /// let bans = Cache::new();
    /// bans.set_ex("mallory", "spam", 60 * minute).await;
    ///
    /// // A second offence never shortens a ban.
    /// assert!(!bans.expire_if("mallory", 10 * minute, When::Later).await);
    /// assert_eq!(bans.ttl("mallory").await, Ttl::Remaining(60 * minute));
    /// # }
    /// ```
    ///
    /// Returns false if there is no live value. If the TTL is set, the idle time restarts, as with
    /// [`expire`](Cache::expire); otherwise nothing changes.
    pub async fn expire_if<Q>(&self, key: &Q, ttl: Duration, when: When) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.expire_if(key, ttl, when)
    }

    /// Sets the deadline of `key`; returns false if there is no live value (Redis: `EXPIREAT`, `PEXPIREAT`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # use tokio::time::Instant;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Both offers end with the sale.
    /// let end = Instant::now() + Duration::from_secs(3_600);
    /// let offers = Cache::new();
    /// for offer in ["book", "pen"] {
    ///     offers.set(offer, 5).await;
    ///     offers.expire_at(offer, end).await;
    /// }
    /// tokio::time::advance(Duration::from_secs(3_600)).await;
    /// assert_eq!(offers.get("pen").await, None);
    /// # }
    /// ```
    ///
    /// With a `deadline` in the past the entry expires immediately. The idle time restarts, and a value that is being
    /// refreshed gets this deadline, too: see [`expire`](Cache::expire).
    #[doc(alias = "EXPIREAT")]
    #[doc(alias = "PEXPIREAT")]
    pub async fn expire_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.expire_at(key, deadline)
    }

    /// Sets the value of `key` with a deadline. A TTL would be wrong by the time that passes until the write.
    #[cfg(feature = "redis")]
    pub(crate) async fn set_until(&self, key: K, value: V, deadline: Instant) -> Option<V> {
        coop::proceed().await;
        let deadline = self.inner.shared.clock.deadline_of(deadline);
        let replaced = self.inner.put(key, value, &self.inner.call(), |_| deadline);
        self.inner.finish(replaced).await
    }

    /// Adds `more` to the remaining TTL of `key`; returns false if the key is missing or persistent.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let hour = Duration::from_secs(3_600);
    /// let parking = Cache::new();
    /// parking.set_ex("B-AB 123", "ada", hour).await;
    ///
    /// // Ada pays for another hour.
    /// assert!(parking.extend("B-AB 123", hour).await);
    /// assert_eq!(parking.ttl("B-AB 123").await, Ttl::Remaining(2 * hour));
    /// # }
    /// ```
    ///
    /// The idle time restarts, as with [`expire`](Cache::expire); it is not extended by `more`. If the call returns
    /// false, nothing changes. A deadline that overflows makes the entry persistent.
    pub async fn extend<Q>(&self, key: &Q, more: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.extend(key, more)
    }

    /// Removes the deadline of `key`, so that the entry becomes persistent; returns true if it had a deadline (Redis:
    /// `PERSIST`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // An order that is not paid within 15 minutes is cancelled.
    /// let orders = Cache::new();
    /// orders.set_ex(7, "unpaid", Duration::from_secs(900)).await;
    /// orders.set_keep_ttl(7, "paid").await;
    /// assert!(orders.persist(&7).await);
    /// assert_eq!(orders.ttl(&7).await, Ttl::Persistent);
    /// # }
    /// ```
    ///
    /// In a cache with [`time_to_idle`](super::Builder::time_to_idle) the idle time still applies, and restarts if the
    /// call returns true.
    #[doc(alias = "PERSIST")]
    pub async fn persist<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.persist(key)
    }

    /// Expires `key` immediately and returns its live value, or `None` if there is none (TimedDict: `expire_key`).
    ///
    /// ```
    /// # use fleeting::{Cache, Cause};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let uploads = Cache::new();
    /// let mut ended = uploads.events();
    /// uploads.set("photo.jpg", "part 1").await;
    ///
    /// // The client disconnects: the same cleanup as after a timeout.
    /// assert_eq!(uploads.expire_now("photo.jpg").await, Some("part 1"));
    /// assert_eq!(ended.recv().await.unwrap().unwrap().cause, Cause::Expired);
    /// # }
    /// ```
    ///
    /// Unlike [`remove`](Cache::remove), this publishes an [`Expired`](Cause::Expired) event, whose deadline is the
    /// time of the call.
    pub async fn expire_now<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.expire_now(key)
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns a clone of the live value of `key` and sets its TTL, as [`Cache::get_ex`] does.
    pub fn get_ex<Q>(&self, key: &Q, ttl: Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.get_ex_by(key, |_| ttl)
    }

    /// Returns a clone of the live value of `key` and its remaining TTL, as [`Cache::get_with_ttl`] does.
    pub fn get_with_ttl<Q>(&self, key: &Q) -> Option<(V, Ttl)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        let call = self.call();
        let now = self.shared.clock.now();
        let found = self.shared.store.get_with_deadline(key, &now);
        self.finish_call(&call);
        found.map(|(value, deadline)| (value, Ttl::until(deadline, now)))
    }

    /// Returns the remaining TTL of `key`, as [`Cache::ttl`] does.
    pub fn ttl<Q>(&self, key: &Q) -> Ttl
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        let now = self.shared.clock.now();
        let deadline = self.shared.store.deadline(key, &now);
        self.shared.publisher.flush();
        deadline.map_or(Ttl::Missing, |deadline| Ttl::until(deadline, now))
    }

    /// Sets the TTL of `key`, starting now, as [`Cache::expire`] does.
    pub fn expire<Q>(&self, key: &Q, ttl: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        let call = self.call();
        let deadline = call.begin().after(ttl);
        self.change_deadline(key, &call, |_| Some(deadline))
    }

    /// Sets the TTL of `key` if its current TTL meets `when`, as [`Cache::expire_if`] does.
    pub fn expire_if<Q>(&self, key: &Q, ttl: Duration, when: When) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        let call = self.call();
        let new_deadline = call.begin().after(ttl);
        self.change_deadline(key, &call, |old_deadline| {
            let holds = match when {
                When::NoTtl => old_deadline.is_persistent(),
                When::HasTtl => !old_deadline.is_persistent(),
                When::Later => new_deadline.is_later_than(old_deadline),
                When::Sooner => old_deadline.is_later_than(new_deadline),
            };
            holds.then_some(new_deadline)
        })
    }

    /// Sets the deadline of `key`, as [`Cache::expire_at`] does.
    pub fn expire_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        let deadline = self.shared.clock.deadline_of(deadline);
        self.change_deadline(key, &self.call(), |_| Some(deadline))
    }

    /// Adds `more` to the remaining TTL of `key`, as [`Cache::extend`] does.
    pub fn extend<Q>(&self, key: &Q, more: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.change_deadline(key, &self.call(), |deadline| {
            (!deadline.is_persistent()).then(|| deadline.extended(more))
        })
    }

    /// Removes the deadline of `key`, as [`Cache::persist`] does.
    pub fn persist<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.change_deadline(key, &self.call(), |deadline| {
            (!deadline.is_persistent()).then_some(Deadline::PERSISTENT)
        })
    }

    /// Expires `key` immediately and returns its live value, as [`Cache::expire_now`] does.
    pub fn expire_now<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.remove_as(key, Cause::Expired)
    }

    fn get_ex_by<Q>(&self, key: &Q, ttl: impl FnOnce(&V) -> Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let call = self.call();
        let now = call.begin();
        let value = self.shared.store.get_ex(key, &call, |value| now.after(ttl(value)));
        self.finish_call(&call);
        value
    }

    /// Sets the deadline of the live value of `key` to the result of `change`, if it returns one; returns whether it
    /// did.
    fn change_deadline<Q>(
        &self,
        key: &Q,
        call: &CallTime<'_>,
        change: impl FnOnce(Deadline) -> Option<Deadline>,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let changed = self.shared.store.update(key, call, |_, deadline| {
            let deadline = change(deadline);
            (deadline.is_some(), deadline)
        });
        self.finish_call(call);
        changed == Some(true)
    }
}
